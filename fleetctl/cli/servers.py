"""Long-running processes: `controller run`, `gateway run`, `node ...`. `fleetctl up` starts them for one machine."""

from __future__ import annotations

from typing import Annotated

import typer

from fleetctl.cli import context
from fleetctl.cli.act import Wait, Yes, perform
from fleetctl.cli.output import Output, OutputOption
from fleetctl.kit.errors import BadInputError
from fleetctl.settings import Settings, read_token


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
        settings = context.logged_settings()
        import uvloop

        from fleetctl.controller.app import serve

        uvloop.run(serve(controller_config(settings)))

    @gateway.command("run")
    def gateway_run() -> None:
        """Run the gateway in the foreground until SIGTERM, which lets requests in flight finish."""
        settings = context.logged_settings()
        from fleetctl.gateway.app import run

        run(
            host=settings.gateway.host,
            port=settings.gateway.port,
            controller_url=context.controller_url(settings),
            controller_token=settings.controller_token(),
            node_token=_node_token(settings),
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

    @node.command("logs")
    def node_logs(
        name: Annotated[str, typer.Argument(help="Node, or controller or gateway.")],
        lines: Annotated[int, typer.Option("-n", "--lines", min=1, max=10_000, help="How many lines.")] = 50,
    ) -> None:
        """Print the last lines that a process of this machine wrote."""
        from fleetctl.providers.process import ProcessTable

        settings = context.current().settings()
        table = ProcessTable(settings.run_dir)
        if name not in table.names():
            raise BadInputError(
                f"no process {name!r} was started here",
                remedy=f"one of: {', '.join(table.names()) or 'none yet'}",
            )
        for line in table.log_tail(name, lines):
            typer.echo(line)


def controller_config(settings: Settings):  # type: ignore[no-untyped-def]  # its type would import the controller
    """The controller's configuration from settings. Imports the controller: call it inside a command only."""
    from fleetctl.cli.lifecycle import initial_fleet
    from fleetctl.controller.config import ControllerConfig

    token = settings.controller_token()
    if not token:
        raise BadInputError(
            f"{settings.controller_token_file}: no controller token",
            remedy="run fleetctl up once, or set FLEETCTL_CONTROLLER__TOKEN",
        )
    from fleetctl.providers.process import ProcessTable

    gateway = ProcessTable(settings.run_dir).spec("gateway").get("url")
    return ControllerConfig(
        state_dir=settings.state_dir,
        database_url=settings.database_url,
        host=settings.controller.host,
        port=settings.controller.port,
        token=token,
        node_token=_node_token(settings),
        gateway_url=gateway if isinstance(gateway, str) else settings.gateway.base_url,
        node_specs=tuple(initial_fleet(settings)),
        scrape_interval_s=settings.controller.scrape_interval_s,
        evaluation_interval_s=settings.controller.evaluation_interval_s,
        stale_after_s=settings.controller.stale_after_s,
        policy=settings.controller.policy,
        capacity_floor_ratio=settings.controller.capacity_floor_ratio,
        alertmanagers=tuple(settings.alertmanagers),
        external_labels=settings.external_labels,
        public_url=settings.controller.url or "",
        webhook=settings.webhook,
        prometheus=settings.signals.prometheus,
        max_history_mb=settings.signals.max_history_mb,
    )


def _node_token(settings: Settings) -> str:
    token = read_token(settings.node_token_file)
    if not token:
        raise BadInputError(f"{settings.node_token_file}: no node token", remedy="run fleetctl up once: it makes one")
    return token
