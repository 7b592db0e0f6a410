"""What a node wrote, as its provider has it: the last lines, and those that come after."""

from __future__ import annotations

import asyncio

from fleetctl.providers.provider import LogChunk, NodeProvider

NEXT_LINES = 1000  # at most in one read while following


class NodeLogs:
    """One reader of one node's log. Raises FleetctlError when the provider can't look."""

    def __init__(self, provider: NodeProvider, name: str) -> None:
        self._provider = provider
        self._name = name
        self._cursor: str | None = None

    async def last_lines(self, lines: int) -> str:
        """The last lines so far, each with its end; "" when there are none."""
        return self._text_of(await asyncio.to_thread(self._provider.read_logs, self._name, lines=lines))

    async def next_lines(self) -> str:
        """The lines since the last call; "" when there are none."""
        chunk = await asyncio.to_thread(self._provider.read_logs, self._name, lines=NEXT_LINES, after=self._cursor)
        return self._text_of(chunk)

    def _text_of(self, chunk: LogChunk) -> str:
        self._cursor = chunk.cursor
        return "".join(f"{line}\n" for line in chunk.lines)
