"""Shows the cockpit on this terminal, until a person quits or what it accompanies is done."""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable
from pathlib import Path

from fleetctl.tui.app import ClientFactory, Cockpit
from fleetctl.tui.held_logs import held_logs
from fleetctl.tui.shell import Shell
from fleetctl.tui.slider import TimeSlider

GC_AFTER = 100_000  # new objects


async def run_cockpit(
    client_factory: ClientFactory,
    *,
    title: str = "fleetctl",
    until: Awaitable[object] | None = None,
    by: str | None = None,
    on_ready: Callable[[Cockpit], None] | None = None,
    theme: str = "dark",
    slider: TimeSlider | None = None,
    bookmarks: Path | None = None,
    shell: Shell | None = None,
) -> None:
    """Show the cockpit until a person quits or `until` is done.

    `on_ready` gets the running app, e.g. to tell it a story with `post_story`. What `until` raises is raised here.
    Log lines are held meanwhile: stderr is the same terminal.
    """
    cockpit = Cockpit(
        client_factory,
        title=title,
        by=by,
        until=until,
        on_ready=on_ready,
        theme=theme,
        slider=slider,
        bookmarks=bookmarks,
        shell=shell,
    )
    # Modules and classes live as long as we do, and a reading of 1,000 nodes is 60,000 objects that no cycle holds: to
    # look through them again and again took longer than to read them.
    gc.freeze()
    gc.set_threshold(GC_AFTER, 10, 10)
    with held_logs():
        await cockpit.run_async()
    if cockpit.failure is not None:
        raise cockpit.failure
