"""Long-running processes: `controller run`, `gateway run`, `node ...`. `fleetctl up` starts them for one machine."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from fleetctl.cli import context
from fleetctl.cli.act import Wait, Yes, perform
from fleetctl.cli.logs import print_logs
from fleetctl.cli.output import Output, OutputOption


def register(app: typer.Typer) -> None:
    controller = typer.Typer(help="The controller process.", no_args_is_help=True)
    gateway = typer.Typer(help="The gateway process.", no_args_is_help=True)
    node = typer.Typer(help="Start, stop and read single nodes.", no_args_is_help=True)
    app.add_typer(controller, name="controller")
    app.add_typer(gateway, name="gateway")
    app.add_typer(node, name="node")

    @controller.command("run")
    def controller_run() -> None:
        """Run the controller in the foreground until SIGTERM. Runs in progress go on at the next start."""
        given = context.current()
        flags = {
            "--config": given.config, "--state-dir": given.state_dir, "--controller": given.controller_url,
            "--log-level": given.log_level,
        }  # fmt: skip
        words = [word for flag, value in flags.items() if value is not None for word in (flag, str(value))]
        # This process becomes the controller, so that it keeps none of the command line's libraries.
        os.execv(sys.executable, [sys.executable, "-m", "fleetctl.controller", *words])  # noqa: S606  ourselves

    @gateway.command("run")
    def gateway_run() -> None:
        """Run the gateway in the foreground until SIGTERM, which lets requests in flight finish."""
        settings = context.logged_settings()
        from fleetctl.gateway.app import run_gateway

        run_gateway(
            host=settings.gateway.host,
            port=settings.gateway.port,
            controller_url=context.controller_url(settings),
            controller_token=settings.controller_token(),
            node_token=settings.node_token(),
            run_dir=settings.run_dir / "gateway",
        )

    @node.command("start")
    def node_start(
        name: Annotated[str, typer.Argument(help="Name of the new node.")],
        like: Annotated[str | None, typer.Option("--like", help="Copy this node's settings.")] = None,
        wait: Wait = "120s",
        dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done.")] = False,
        yes: Yes = False,
        output: OutputOption = Output.table,
    ) -> None:
        """Start a node and wait until it is ready and gets requests."""
        copy = f" --like {like}" if like else ""
        perform(f"node start {name}{copy} --wait {wait}", dry_run=dry_run, yes=yes, output=output)

    @node.command("stop")
    def node_stop(
        name: Annotated[str, typer.Argument(help="Node to stop.")],
        grace: Annotated[str, typer.Option("--grace", help="Time it gets after SIGTERM.")] = "10s",
        force: Annotated[bool, typer.Option("--force", help="Stop it even while it holds requests.")] = False,
        dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done.")] = False,
        yes: Yes = False,
        output: OutputOption = Output.table,
    ) -> None:
        """Stop a drained node. Refused while it holds requests, unless --force."""
        forced = " --force" if force else ""
        perform(f"node stop {name} --grace {grace}{forced}", dry_run=dry_run, yes=yes, output=output)

    node.command("logs")(print_logs)
