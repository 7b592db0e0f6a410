"""`logs`: what a node, the controller or the gateway wrote."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from fleetctl.cli import context
from fleetctl.cli.completion import complete_node
from fleetctl.kit.errors import BadInputError, UnreachableError
from fleetctl.settings.tree import Settings

SERVERS = ("controller", "gateway")  # processes that `fleetctl up` started on this machine: no node, no provider


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("logs")(print_logs)


def complete_log(ctx: typer.Context, incomplete: str) -> list[str]:
    """Nodes, and the servers of this machine."""
    return [*complete_node(ctx, incomplete), *(name for name in SERVERS if name.startswith(incomplete))]


def print_logs(
    name: Annotated[
        str,
        typer.Argument(
            help="Node; or controller or gateway, where this machine runs them.", autocompletion=complete_log
        ),
    ],
    lines: Annotated[int, typer.Option("-n", "--lines", min=1, max=10_000, help="How many lines.")] = 50,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on with new lines until Ctrl-C.")] = False,
) -> None:
    """Print the last lines that a node wrote, wherever it runs."""
    settings = context.current().settings()
    if name in SERVERS:
        asyncio.run(_print_process(settings, name, lines, follow))
        return
    try:
        asyncio.run(_print_node(settings, name, lines, follow))
    except UnreachableError:
        # A node that failed while its fleet was started: the controller is gone again, the file is still there.
        if not _has_run_here(settings, name):
            raise
        asyncio.run(_print_process(settings, name, lines, follow=False))


async def _print_node(settings: Settings, name: str, lines: int, follow: bool) -> None:
    async with context.make_client(settings) as client:
        if not follow:
            for line in await client.node_logs(name, lines):
                typer.echo(line)
            return
        async for line in client.follow_node_logs(name, lines):
            typer.echo(line)


async def _print_process(settings: Settings, name: str, lines: int, follow: bool) -> None:
    from fleetctl.providers.process import ProcessTable

    if not _has_run_here(settings, name):
        raise BadInputError(f"no {name} was started here", remedy="fleetctl up, or name its --state-dir")
    table = ProcessTable(settings.run_dir)
    found, cursor = table.read_log(name, lines)
    while True:
        for line in found:
            typer.echo(line)
        if not follow:
            return
        if not found:
            await asyncio.sleep(0.5)
        found, cursor = table.read_log(name, 1000, cursor)


def _has_run_here(settings: Settings, name: str) -> bool:
    from fleetctl.providers.process import ProcessTable

    return name in ProcessTable(settings.run_dir).names()
