"""Long-running processes: `controller run`, `gateway run`, `node ...`. `fleetctl up` starts them for one machine."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from fleetctl.cli import context, gateway_keys
from fleetctl.cli.act import command_group
from fleetctl.cli.logs import print_logs


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
        words = [word for flag, value in flags.items() if value is not None for word in (flag, str(value))]
        words += ["--start-nodes"] if start_nodes else []
        # This process becomes the controller, so that it keeps none of the command line's libraries.
        os.execv(sys.executable, [sys.executable, "-m", "fleetctl.controller", *words])  # noqa: S606  ourselves

    @gateway.command("run")
    def gateway_run() -> None:
        """Run the gateway in the foreground until SIGTERM, which lets requests in flight finish."""
        settings = context.logged_settings()
        from fleetctl.gateway.app import run_gateway

        run_gateway(
            settings.gateway,
            controller_url=context.controller_url(settings),
            controller_token=settings.controller_token(),
            node_token=settings.node_token(),
            run_dir=settings.run_dir / "gateway",
        )

    node.command("logs")(print_logs)
