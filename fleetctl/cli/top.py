"""`top`: the cockpit; with a kind, its load once as a table."""

from __future__ import annotations

import os
import shlex
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from fleetctl.cli.context import current, make_client, whoami
from fleetctl.cli.get import Listing, Names, Selectors, SortBy, print_listing
from fleetctl.cli.kinds import TOP_VIEWS, kind_of
from fleetctl.cli.output import ListOutput, ListOutputOption
from fleetctl.cli.past_controller import PastController
from fleetctl.cli.selector import parse_selector
from fleetctl.kit.errors import BadInputError
from fleetctl.kit.parent_watch import end_with_parent

DRIVER = "TEXTUAL_DRIVER"  # set where a browser is the terminal
LEAD_S = 30.0  # a replay begins so long before its incident opened
LOADED = ", ".join(TOP_VIEWS)


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def top(
        kind: Annotated[
            str | None,
            typer.Argument(
                metavar="[KIND]",
                help=f"Print the load of these once, without the cockpit: {LOADED}.",
                autocompletion=lambda incomplete: [one.value for one in TOP_VIEWS if one.startswith(incomplete)],
                show_default=False,
            ),
        ] = None,
        names: Names = None,
        selectors: Selectors = None,
        sort_by: SortBy = None,
        reverse: Annotated[bool, typer.Option("--reverse", help="In the opposite order.")] = False,
        theme: Annotated[
            str | None,
            typer.Option("--theme", help="Colours of the cockpit: dark, light, colour-blind, no-colour; NO_COLOR too."),
        ] = None,
        replay: Annotated[
            Path | None,
            typer.Option("--replay", help="An incident's file, shown as it was; from `fleetctl incident export ID`."),
        ] = None,
        web: Annotated[bool, typer.Option("--web", help="In a browser on this machine; prints the address.")] = False,
        port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Of --web; 0: a free one.")] = 0,
        output: ListOutputOption = ListOutput.table,
    ) -> None:
        """Open the cockpit: the fleet live, incidents with evidence, approvals by one key."""
        if kind is None:
            if web and DRIVER not in os.environ:
                _serve_cockpit(port)
            else:
                _open_cockpit(theme, replay)
            return
        found = kind_of(kind)
        view = TOP_VIEWS.get(found)
        if view is None:
            raise BadInputError(f"{found} have no load", remedy=f"one of {LOADED}; or fleetctl get {found}")
        listing = Listing(found, tuple(names or ()), parse_selector(selectors or ()), sort_by, reverse, view=view)
        print_listing(listing, output)


def _serve_cockpit(port: int) -> None:
    """The same command again, for each page that is opened."""
    from fleetctl.kit.reserved_port import reserve_port
    from fleetctl.tui.web import WebCockpit

    command = shlex.join([sys.executable, "-m", "fleetctl.cli", *sys.argv[1:]])
    WebCockpit(f"exec {command}", port or reserve_port()).serve()  # no shell between: a page ends with its parent


def _open_cockpit(theme: str | None, recording: Path | None) -> None:
    if DRIVER not in os.environ and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise BadInputError("top needs a terminal", remedy="fleetctl top nodes")
    import asyncio

    from fleetctl.cli.cockpit_shell import CockpitShell
    from fleetctl.tui.palette import PALETTES
    from fleetctl.tui.run import run_cockpit
    from fleetctl.tui.slider import TimeSlider

    if DRIVER in os.environ:
        end_with_parent()  # left behind, Textual paints into a broken pipe for ever, on a core of its own
    name = theme or ("no-colour" if "NO_COLOR" in os.environ else "dark")
    if name not in PALETTES:
        raise BadInputError(f"no theme is named {name}", remedy=f"one of {', '.join(PALETTES)}")
    if recording is not None:
        past = PastController(recording)
        slider = TimeSlider(past.since, past.until, past.name, time.monotonic, at=past.opened_at - LEAD_S)
        past.now = slider.now
        asyncio.run(run_cockpit(lambda: past, title="fleetctl replay", theme=name, slider=slider))
        return
    settings = current().settings()
    kept = settings.state_dir / "cockpit-bookmarks.json"
    asyncio.run(
        run_cockpit(
            lambda: make_client(settings, reuses_lists=True),
            by=whoami(),
            theme=name,
            bookmarks=kept,
            shell=CockpitShell(current()),
        )
    )
