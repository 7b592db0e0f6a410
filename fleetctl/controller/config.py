"""What one controller process is given: the settings, and what was looked up for it on this machine."""

from __future__ import annotations

from dataclasses import dataclass, field

from fleetctl.kit.errors import BadInputError
from fleetctl.providers.local import API_KEY, COMMAND, ENVIRONMENT
from fleetctl.providers.process import ProcessTable
from fleetctl.providers.spec import NodeSpec
from fleetctl.settings.tree import Settings

MIN_ROUND_S = 0.9  # of a look at all nodes, when not all answer: with a shorter interval too an answer has time to come


@dataclass(frozen=True, slots=True)
class ControllerConfig:
    """Limits are in `settings`, and nowhere else. Raises BadInputError when a value can't work."""

    settings: Settings
    token: str = field(repr=False)  # for every change asked over HTTP
    node_token: str = field(repr=False)  # for the nodes' admin routes
    gateway_url: str | None = None  # the one of this machine
    node_specs: tuple[NodeSpec, ...] = ()  # the fleet of a state that holds no node yet
    start_nodes: bool = False
    """Somebody asked for it: start `node_specs` where there is no node yet, and nodes that should run and do not."""

    min_round_s: float = MIN_ROUND_S
    """A look at all nodes waits at least so long for those that do not answer."""

    def __post_init__(self) -> None:
        if not self.token or not self.node_token:
            raise BadInputError(
                "the controller has no token for changes or for its nodes",
                remedy="run `fleetctl up` once: it makes both",
            )
        names = [spec.name for spec in self.node_specs]
        if len(names) != len(set(names)):
            raise BadInputError(f"fleet: a node name is used twice in {', '.join(names)}")

    @property
    def gateway_urls(self) -> tuple[str, ...]:
        """Every gateway's, that of this machine first."""
        own = () if self.gateway_url is None else (self.gateway_url,)
        return tuple(dict.fromkeys((*own, *self.settings.controller.gateways)))

    @property
    def public_url(self) -> str:
        """Where the readers of our alerts find this controller."""
        return self.settings.controller.base_url.rstrip("/")


def controller_config(settings: Settings, *, start_nodes: bool = False) -> ControllerConfig:
    """With the tokens and addresses that `fleetctl up` recorded under the state folder.

    Raises BadInputError when a token is missing.
    """
    token = settings.controller_token()
    if not token:
        raise BadInputError(
            f"{settings.controller_token_file}: no controller token",
            remedy="run `fleetctl up` once, or set FLEETCTL_CONTROLLER__TOKEN",
        )
    gateway = ProcessTable(settings.run_dir).spec("gateway").get("url")
    return ControllerConfig(
        settings=settings,
        token=token,
        node_token=settings.node_token(),
        gateway_url=gateway if isinstance(gateway, str) else settings.gateway.base_url,
        node_specs=tuple(initial_fleet(settings)),
        start_nodes=start_nodes,
    )


def initial_fleet(settings: Settings) -> list[NodeSpec]:
    """The nodes of a fleet that has none yet."""
    fleet = settings.fleet
    model_dir = fleet.model_dir or settings.state_dir / "models" / "demo"
    faults = {"enable_faults": True} if fleet.enable_faults else {}
    own = [
        NodeSpec(
            name=f"node-{number}",
            pool=fleet.pool,
            model=fleet.model,
            options={"model": str(model_dir), **fleet.node_options, **faults},
        )
        for number in range(1, fleet.nodes + 1)
    ]
    others = [
        NodeSpec(
            name=f"{group.name or group.engine}-{number}",
            pool=group.pool or fleet.pool,
            model=group.model or fleet.model,
            engine=group.engine,
            options={
                COMMAND: list(group.command),
                ENVIRONMENT: [f"{key}={value}" for key, value in group.env.items()],
                **({API_KEY: group.api_key} if group.api_key else {}),
            },
        )
        for group in fleet.commands
        for number in range(1, group.nodes + 1)
    ]
    return [*own, *others]
