"""`up` and `down`: a whole fleet on this machine."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import annotated_types
import typer

from fleetctl.cli.context import current
from fleetctl.cli.kinds import VIEWS, Kind
from fleetctl.cli.output import DATA, Output, OutputOption, print_data, print_rows, stderr, stdout
from fleetctl.settings.document import default_text, field_of
from fleetctl.settings.load import with_flags
from fleetctl.settings.tree import Settings

if TYPE_CHECKING:
    from fleetctl.stack import StackView
    from fleetctl.wire.node import Node

T = TypeVar("T")
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # the last when a terminal is closed


def _setting_option(key: str, *flags: str) -> Any:
    """What typer takes for a flag that sets the dotted key: help, bounds and default are the setting's own. The flag's
    value is None when it is not given."""
    field = field_of(key)
    low: Any = next((one.ge for one in field.metadata if isinstance(one, annotated_types.Ge)), None)
    high: Any = next((one.le for one in field.metadata if isinstance(one, annotated_types.Le)), None)
    return typer.Option(*flags, help=field.description, show_default=default_text(field), min=low, max=high)


Nodes = Annotated[int | None, _setting_option("fleet.nodes", "--nodes")]
ModelDir = Annotated[Path | None, _setting_option("fleet.model_dir", "--model-dir")]
ModelName = Annotated[str | None, _setting_option("fleet.model", "--model")]
ControllerPort = Annotated[int | None, _setting_option("controller.port", "--controller-port")]
GatewayPort = Annotated[int | None, _setting_option("gateway.port", "--gateway-port")]
Policy = Annotated[str | None, _setting_option("controller.policy", "--policy")]
EnableFaults = Annotated[bool | None, _setting_option("fleet.enable_faults", "--enable-faults")]


def register(app: typer.Typer) -> None:
    """Add the commands."""

    @app.command()
    def up(
        nodes: Nodes = None,
        model_dir: ModelDir = None,
        model: ModelName = None,
        controller_port: ControllerPort = None,
        gateway_port: GatewayPort = None,
        policy: Policy = None,
        enable_faults: EnableFaults = None,
        output: OutputOption = Output.table,
    ) -> None:
        """Start a fleet on this machine and wait until every node is ready."""
        settings = with_flags(
            current().settings(),
            controller={"port": controller_port, "policy": policy},
            gateway={"port": gateway_port},
            fleet={
                "nodes": nodes,
                "model": model,
                "enable_faults": enable_faults,
                "model_dir": model_dir.absolute() if model_dir else None,
            },
        )
        view = bring_up(settings, tell=lambda line: stderr().print(f"  {line}", markup=False))
        if output in DATA:
            print_data(
                {
                    "controller": view.controller_url,
                    "gateway": view.gateway_url,
                    "started": list(view.started),
                    "nodes": [node.model_dump(mode="json") for node in view.nodes],
                },
                output,
            )
            return
        print_rows(view.nodes, VIEWS[Kind.nodes].columns, output, empty="no nodes are started here (fleet.nodes)")
        if not view.started:
            stdout().print("already up")
        if nodes is not None and (unasked := other_size(view.nodes, nodes, settings.fleet.pool)) is not None:
            stdout().print(unasked, markup=False)
        stdout().print(f"controller {view.controller_url}\ngateway    {view.gateway_url}/v1")
        stdout().print("next: fleetctl top", style="dim")

    @app.command()
    def down(output: OutputOption = Output.table) -> None:
        """Stop every process of this machine's fleet. State and incidents stay."""
        from fleetctl.stack import Stack

        settings = current().settings()
        stopped = Stack(settings).down(lambda line: stderr().print(f"  {line}", markup=False))
        if output in DATA:
            print_data({"stopped": list(stopped), "state_dir": str(settings.state_dir)}, output)
        else:
            stdout().print(f"stopped {', '.join(stopped)}" if stopped else f"nothing runs in {settings.state_dir}")


def other_size(nodes: Sequence[Node], wanted: int, pool: str) -> str | None:
    """What is said of `--nodes` where the fleet was there already, and has another size."""
    num_nodes = sum(node.pool == pool and node.provider == "local" for node in nodes)
    if num_nodes == wanted:
        return None
    return f"--nodes is for a new fleet, this one has {num_nodes} in pool {pool}: fleetctl scale {pool} --to {wanted}"


def bring_up(settings: Settings, tell: Callable[[str], None]) -> StackView:
    """Prepare the model and start the fleet; Ctrl-C or SIGTERM at any moment stops what was started."""
    from fleetctl.stack import Stack, prepare_model

    if settings.fleet.nodes:  # else whoever runs the nodes has the model, and no engine is needed here
        settings = with_flags(settings, fleet={"model_dir": prepare_model(settings, tell)})
    return asyncio.run(cancelled_by_signals(Stack(settings).up(tell)))


async def cancelled_by_signals(work: Coroutine[Any, Any, T]) -> T:
    """Await `work`; SIGINT, SIGTERM and SIGHUP cancel it once, and it cleans up before KeyboardInterrupt is raised."""
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    interrupted = False

    def stop() -> None:
        nonlocal interrupted
        if not interrupted:  # a second Ctrl-C must not cut the clean-up short
            interrupted = True
            task.cancel()

    # Who ignores SIGHUP (nohup) wants to outlive the terminal.
    heard = [one for one in ENDING if one != signal.SIGHUP or signal.getsignal(one) is not signal.SIG_IGN]
    for number in heard:
        loop.add_signal_handler(number, stop)
    try:
        return await task
    except asyncio.CancelledError:
        if interrupted:
            raise KeyboardInterrupt from None
        raise
    finally:
        for number in heard:
            loop.remove_signal_handler(number)
