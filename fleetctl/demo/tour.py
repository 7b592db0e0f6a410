"""The demo as a guided tour: the same story, but the person mends the fleet, and is told above the cockpit how."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Callable
from contextlib import suppress

from fleetctl.client import ControllerClient
from fleetctl.demo.guide import Scene, words
from fleetctl.demo.progress import Progress
from fleetctl.demo.report import DemoReport
from fleetctl.demo.story import DemoPlan, tell_story
from fleetctl.stack import Stack, StackView
from fleetctl.tui.app import Cockpit
from fleetctl.tui.run import run_cockpit
from fleetctl.tui.shell import Shell

SAID_EVERY_S = 0.25


async def run_tour(
    stack: Stack, view: StackView, plan: DemoPlan, client_factory: Callable[[], ControllerClient], shell: Shell
) -> DemoReport:
    """Tell the story over a fleet that is up, until the person leaves after its end. `shell`: for what is typed there.

    Raises KeyboardInterrupt when they leave before it. The caller stops the fleet.
    """
    scene = Scene(
        node=plan.fault_node,
        num_nodes=len(view.nodes),
        rate_per_s=plan.rate_per_s,
        slow_factor=plan.slow_factor,
        command=f"fleetctl --state-dir {shlex.quote(str(stack.settings.state_dir))}",
    )
    progress, said = Progress(), asyncio.Event()

    def watch(news: Progress) -> None:
        nonlocal progress
        progress = news
        said.set()

    async def guide(cockpit: Cockpit) -> None:
        """The clocks in its words go on, and a key that was pressed is noticed."""
        while True:
            place = cockpit.here.place
            told = words(scene, progress, place, time.time(), takes_answers=cockpit.takes_answers)
            cockpit.say(told.title, told.sees, told.do)
            said.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(said.wait(), SAID_EVERY_S)

    guiding: list[asyncio.Task[None]] = []
    story = asyncio.ensure_future(tell_story(stack, view, plan, lambda _: None, watch))
    failed = asyncio.Event()  # a story that ended well leaves the screen to the person

    def ended(done: asyncio.Task[DemoReport]) -> None:
        if done.cancelled() or done.exception() is not None:
            failed.set()

    story.add_done_callback(ended)
    try:
        await run_cockpit(
            client_factory,
            title="fleetctl demo",
            until=failed.wait(),
            shell=shell,
            on_ready=lambda cockpit: guiding.append(asyncio.ensure_future(guide(cockpit))),
        )
    finally:
        left_early = not story.done()
        for task in (*guiding, story):
            task.cancel()  # does nothing to a story that is done
            with suppress(asyncio.CancelledError, Exception):
                await task
    if left_early:
        raise KeyboardInterrupt
    return story.result()
