"""`events`: what happened, as it is told on the timeline; followed until Ctrl-C."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from fleetctl.cli.context import call
from fleetctl.cli.duration_option import duration_s
from fleetctl.cli.get import Changes, Listing, Selectors, print_listing, since_view
from fleetctl.cli.kinds import VIEWS, Kind
from fleetctl.cli.output import ListOutput, ListOutputOption, stderr
from fleetctl.cli.selector import parse_selector
from fleetctl.kit.errors import UnreachableError

if TYPE_CHECKING:
    from pydantic import BaseModel

    from fleetctl.client import ControllerClient

WAIT_S = 20.0  # of one long poll
RETRY_S = 1.0


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command("events")
    def events(
        selectors: Selectors = None,
        since: Annotated[str | None, typer.Option("--since", help="Only what happened so lately, e.g. 10m.")] = None,
        follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on with new ones until Ctrl-C.")] = False,
        output: ListOutputOption = ListOutput.table,
    ) -> None:
        """Print what happened, oldest first: nodes, alerts, incidents, runs, people; -f goes on as it happens."""
        kind = Kind.events
        view = None if since is None else since_view(kind, time.time() - duration_s("--since", since, "a look back"))
        listing = Listing(kind, selector=parse_selector(selectors or ()), view=view)
        if not follow:
            print_listing(listing, output)
            return
        call(lambda client: _follow(client, listing, output))


async def _follow(client: ControllerClient, listing: Listing, output: ListOutput) -> None:
    """Print the events there are, then each new one. A controller that is away is waited for."""
    newest = await client.newest_events(1)
    after = newest[-1].seq if newest else 0
    rows, _ = await listing.read(client)
    changes = Changes(VIEWS[Kind.events], output)
    changes.print(_until(rows, after))
    is_away = False
    while True:
        try:
            found = await client.events(after, WAIT_S)
        except UnreachableError as error:
            if not is_away:
                stderr().print(f"{error.message}; waiting for it", markup=False)
            is_away = True
            await asyncio.sleep(RETRY_S)
            continue
        is_away = False
        if found:
            after = found[-1].seq
            changes.print(listing.arranged(list(found)))


def _until(rows: Sequence[BaseModel], seq: int) -> list[BaseModel]:
    """Those that the first look at the newest had seen: what came since is read after it."""
    return [row for row in rows if getattr(row, "seq", 0) <= seq]
