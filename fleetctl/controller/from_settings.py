"""The controller's configuration from the settings of this machine."""

from __future__ import annotations

from fleetctl.controller.config import ControllerConfig
from fleetctl.kit.errors import BadInputError
from fleetctl.providers.process import ProcessTable
from fleetctl.providers.spec import NodeSpec
from fleetctl.settings.tree import Settings


def controller_config(settings: Settings) -> ControllerConfig:
    """Raises BadInputError when a token is missing."""
    token = settings.controller_token()
    if not token:
        raise BadInputError(
            f"{settings.controller_token_file}: no controller token",
            remedy="run fleetctl up once, or set FLEETCTL_CONTROLLER__TOKEN",
        )
    gateway = ProcessTable(settings.run_dir).spec("gateway").get("url")
    return ControllerConfig(
        settings=settings,
        token=token,
        node_token=settings.node_token(),
        gateway_url=gateway if isinstance(gateway, str) else settings.gateway.base_url,
        node_specs=tuple(initial_fleet(settings)),
    )


def initial_fleet(settings: Settings) -> list[NodeSpec]:
    """The nodes of a fleet that has none yet."""
    fleet = settings.fleet
    model_dir = fleet.model_dir or settings.state_dir / "models" / "demo"
    faults = {"enable_faults": True} if fleet.enable_faults else {}
    return [
        NodeSpec(
            name=f"node-{number}",
            pool=fleet.pool,
            model=fleet.model,
            options={"model": str(model_dir), **fleet.node_options, **faults},
        )
        for number in range(1, fleet.nodes + 1)
    ]
