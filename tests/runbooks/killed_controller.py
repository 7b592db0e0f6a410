"""A controller process that kills itself at one fault point: `killed_controller.py FOLDER POINT` (-1: lives)."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]

from fixtures_runbooks import FakeFleet, World, replace_node  # noqa: E402


def main() -> None:
    folder, point = Path(sys.argv[1]), int(sys.argv[2])
    world = World(f"sqlite:///{folder / 'journal.sqlite'}", FakeFleet.stored(folder / "fleet.json"))
    world.kill_at = {point}
    world.kill = lambda: os.kill(os.getpid(), signal.SIGKILL)

    async def live() -> None:
        run = await replace_node(world.start())
        (folder / "end").write_text(" ".join([run.status.value, *(step.status.value for step in run.steps)]))

    asyncio.run(live())
    world.close()


main()
