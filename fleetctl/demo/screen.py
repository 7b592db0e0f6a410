"""The demo inside the cockpit: the same story, told in a panel beside the live fleet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from fleetctl.client import ControllerClient
from fleetctl.demo.report import DemoReport
from fleetctl.demo.story import DemoPlan, run_demo
from fleetctl.stack import Stack
from fleetctl.tui.app import Cockpit
from fleetctl.tui.run import run_cockpit
from fleetctl.tui.shell import Shell


async def run_in_cockpit(
    stack: Stack, plan: DemoPlan, client_factory: Callable[[], ControllerClient], shell: Shell
) -> DemoReport:
    """Tell the story in the cockpit. `shell`: for what is typed there. Raises KeyboardInterrupt when the person quits
    before its end."""
    lines: list[str] = []
    screen: Cockpit | None = None

    def tell(line: str) -> None:
        lines.append(line)
        if screen is not None:
            screen.post_story(line)

    def show(cockpit: Cockpit) -> None:
        nonlocal screen
        screen = cockpit
        for line in lines:
            cockpit.post_story(line)

    story = asyncio.ensure_future(run_demo(stack, plan, tell))
    try:
        await run_cockpit(
            client_factory,
            title="fleetctl demo",
            until=asyncio.wait({story}),
            by="demo",
            on_ready=show,
            shell=shell,
        )
    finally:
        quit_early = not story.done()
        if quit_early:
            story.cancel()
            with suppress(asyncio.CancelledError):
                await story
    if quit_early:
        raise KeyboardInterrupt
    for line in lines:
        print(line)  # noqa: T201  the cockpit is gone: leave the story on the terminal
    return story.result()
