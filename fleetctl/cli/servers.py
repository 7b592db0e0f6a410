"""Long-running processes: `controller run`, `gateway run`, `node ...`. `fleetctl up` starts them for one machine."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Annotated, NoReturn
from urllib.parse import urlsplit

import typer

from fleetctl.cli import context, gateway_keys
from fleetctl.cli.context import command_group
from fleetctl.cli.logs import print_logs
from fleetctl.cli.output import DATA, Output, OutputOption, print_data, stdout
from fleetctl.kit.errors import BadInputError, FleetctlError, UnreachableError


def register(app: typer.Typer) -> None:
    """Add the commands."""
    controller = typer.Typer(help="The controller process.", no_args_is_help=True)
    gateway = command_group(app, "gateway")
    gateway.info.help = "Run and restart gateways, and keep their keys."
    node = command_group(app, "node")
    node.info.help = "Start, stop and read single nodes."
    app.add_typer(controller, name="controller")
    gateway_keys.register(gateway)

    @controller.command("run")
    def controller_run(
        start_nodes: Annotated[
            bool,
            typer.Option(
                "--start-nodes", help="Start the fleet of the settings where there is none, and nodes that should run."
            ),
        ] = False,
    ) -> None:
        """Run the controller in the foreground until SIGTERM. Runs in progress go on at the next start.

        Starts no node by itself: those that ended stay as they are, and are paged.
        """
        given = context.current()
        flags = {
            "--config": given.config,
            "--state-dir": given.state_dir,
            "--controller": given.controller_url,
            "--log-level": given.log_level,
        }
        _become("fleetctl.controller", flags, ["--start-nodes"] if start_nodes else [])

    @gateway.command("run")
    def gateway_run() -> None:
        """Run the gateway in the foreground until SIGTERM, which lets requests in flight finish. SIGHUP reloads it."""
        given = context.current()
        settings = given.settings()
        _become(
            "fleetctl.gateway",
            {
                "--config": given.config,
                "--state-dir": given.state_dir,
                "--controller": context.controller_url(settings),
                "--log-level": given.log_level,
            },
        )

    gateway.command("reload")(gateway_reload)
    node.command("logs")(print_logs)


def gateway_reload(
    wait_s: Annotated[float, typer.Option("--wait", help="Seconds to wait until the new processes serve.")] = 90.0,
    output: OutputOption = Output.table,
) -> None:
    """Take up new settings and new code without refusing a connection or cutting a stream. For this machine's gateway.

    A gateway that `fleetctl up` started gets the section `gateway` of the settings as they are now. What can't be used
    changes nothing. Host and port need a restart.
    """
    settings = context.current().settings()
    from fleetctl.gateway.workers.launch import SupervisorState, workers_folder
    from fleetctl.stack import keep_gateway_settings

    port = urlsplit(context.gateway_url(settings)).port or settings.gateway.port
    folder = workers_folder(settings.run_dir / "gateway", port)
    before = SupervisorState.read(folder)
    if before is None or not before.is_alive:
        raise FleetctlError(
            f"no gateway of {settings.state_dir} serves port {port} on this machine",
            remedy="fleetctl up",
        )
    put_back = keep_gateway_settings(settings)
    os.kill(before.pid, signal.SIGHUP)
    deadline = time.monotonic() + wait_s
    while (now := SupervisorState.read(folder)) is not None and now.reloads == before.reloads:
        if time.monotonic() > deadline:
            raise UnreachableError(f"the gateway was not reloaded within {wait_s:g} s", remedy="fleetctl logs gateway")
        time.sleep(0.1)
    if now is None:
        raise FleetctlError("the gateway ended meanwhile", remedy="fleetctl logs gateway")
    if now.reload_error is not None:
        put_back()
        raise BadInputError(
            f"not reloaded, generation {now.generation} goes on: {now.reload_error}", remedy="fleetctl logs gateway"
        )
    if output in DATA:
        print_data(now.model_dump(mode="json"), output)
        return
    retiring = sum(one.phase == "retiring" for one in now.workers)
    serving = sum(one.phase == "serving" for one in now.workers)
    stdout().print(f"generation {now.generation}: {serving} serving, {retiring} finish what they have")


def _become(module: str, flags: Mapping[str, object], words: Sequence[str] = ()) -> NoReturn:
    """Go on as that program, so that the process keeps none of the command line's libraries."""
    given = [word for flag, value in flags.items() if value is not None for word in (flag, str(value))]
    os.execv(sys.executable, [sys.executable, "-m", module, *given, *words])  # noqa: S606  ourselves
