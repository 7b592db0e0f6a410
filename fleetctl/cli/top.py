"""`top`: the cockpit."""

from __future__ import annotations

import sys

import typer

from fleetctl.cli.context import current, make_client
from fleetctl.kit.errors import BadInputError


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def top() -> None:
        """Open the cockpit: the fleet live, incidents with evidence, approvals by one key."""
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise BadInputError("top needs a terminal", remedy="fleetctl get nodes")
        import asyncio

        from fleetctl.tui.app import run_cockpit

        settings = current().settings()
        asyncio.run(run_cockpit(lambda: make_client(settings)))
