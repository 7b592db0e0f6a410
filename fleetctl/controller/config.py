"""What one controller process is given: the settings, and what was looked up for it on this machine."""

from __future__ import annotations

from dataclasses import dataclass, field

from fleetctl.kit.errors import BadInputError
from fleetctl.providers.spec import NodeSpec
from fleetctl.settings.tree import Settings


@dataclass(frozen=True, slots=True)
class ControllerConfig:
    """Limits are in `settings`, and nowhere else. Raises BadInputError when a value can't work."""

    settings: Settings
    token: str = field(repr=False)  # for every change asked over HTTP
    node_token: str = field(repr=False)  # for the nodes' admin routes
    gateway_url: str | None = None
    node_specs: tuple[NodeSpec, ...] = ()  # the fleet to start when the state holds no node yet

    def __post_init__(self) -> None:
        if not self.token or not self.node_token:
            raise BadInputError(
                "the controller has no token for changes or for its nodes",
                remedy="run fleetctl up once: it makes both",
            )
        names = [spec.name for spec in self.node_specs]
        if len(names) != len(set(names)):
            raise BadInputError(f"fleet: a node name is used twice in {', '.join(names)}")

    @property
    def public_url(self) -> str:
        """Where the readers of our alerts find this controller."""
        return self.settings.controller.base_url.rstrip("/")
