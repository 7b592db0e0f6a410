"""What is typed in the cockpit after `:` and is no screen and no verb: run as a person's shell would run it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence

from fleetctl.cli.context import Context
from fleetctl.cli.examples import EXAMPLES
from fleetctl.cli.kinds import Kind
from fleetctl.cli.output import visible
from fleetctl.tui.shell import Printed

LIMIT_S = 120.0
MAX_CHARS = 200_000  # of what is shown


class CockpitShell:
    """Processes of this fleetctl with the same options before the verb."""

    def __init__(self, given: Context, limit_s: float = LIMIT_S) -> None:
        flags = {
            "--config": given.config,
            "--state-dir": given.state_dir,
            "--controller": given.controller_url,
            "--log-level": given.log_level,
        }
        self._options = [word for flag, value in flags.items() if value is not None for word in (flag, str(value))]
        self._limit_s = limit_s
        self.commands = frozenset(EXAMPLES)
        self.kinds = [kind.value for kind in Kind]

    async def run(self, words: Sequence[str], columns: int) -> Printed:
        """Both of its streams as text; it has no terminal, so it asks nothing and draws nothing."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "fleetctl.cli", *self._options, *words),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, "COLUMNS": str(columns), "NO_COLOR": "1"},
        )
        try:
            async with asyncio.timeout(self._limit_s):
                said, _ = await process.communicate()
        except TimeoutError:
            return Printed(4, f"It did not end within {self._limit_s:.0f} s, and was ended: run it in a shell.")
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        text = "\n".join(visible(line) for line in said.decode(errors="replace").splitlines())
        cut = f"\n... {len(text) - MAX_CHARS} characters more: run it in a shell" if len(text) > MAX_CHARS else ""
        return Printed(process.returncode or 0, text[:MAX_CHARS] + cut)
