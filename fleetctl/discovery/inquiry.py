"""One look at everything that the settings list, without a controller: who answers where, and what is wrong."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from fleetctl.discovery.discovery import Discovery, Found, with_key_problems
from fleetctl.discovery.found_node import FoundNode
from fleetctl.discovery.probe import EngineFacts, probe_engine
from fleetctl.kit.fetch import Fetcher
from fleetctl.kit.key_ring import NO_KEYS, KeyRing
from fleetctl.settings.targets import TargetGroup

LIMIT_S = 3.0
MAX_ANSWER_BYTES = 8 * 1024 * 1024
MAX_AT_ONCE = 50


@dataclass(frozen=True, slots=True)
class Answer:
    """A node of the lists and what it says it is; None: it does not answer."""

    node: FoundNode
    told: EngineFacts | None


async def ask_everybody(groups: Sequence[TargetGroup], keys: KeyRing = NO_KEYS) -> tuple[Found, list[Answer]]:
    """What is listed, and the answers by name. Raises BadInputError for a rule that can't be read."""
    found = with_key_problems(await Discovery(groups).look(time.time()), keys)
    fetcher = Fetcher(timeout_s=LIMIT_S, max_bytes=MAX_ANSWER_BYTES)
    room = asyncio.Semaphore(MAX_AT_ONCE)

    async def ask(node: FoundNode) -> Answer:
        async with room:
            header = keys.header(node.api_key)
            return Answer(node, await probe_engine(node.url, lambda url: fetcher.get(url, header), engine=node.engine))

    try:
        return found, list(await asyncio.gather(*(ask(found.nodes[name]) for name in sorted(found.nodes))))
    finally:
        await fetcher.close()
