"""A controller process that kills itself at one fault point (-1: lives).

`python -m tests.runbooks.killed_controller FOLDER POINT`
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from tests.fixtures.runbooks import FakeFleet, World, replace_node


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
