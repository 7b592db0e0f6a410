"""Whether the nodes' clocks go with this one, from the `Date` of what they answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC
from email.utils import parsedate_to_datetime

import httpx

from fleetctl.doctor.finding import Finding, Health
from fleetctl.kit.tls import client_tls
from fleetctl.wire.node import Node, NodePhase

MAX_SKEW_S = 2.0
LIMIT_S = 3.0
MAX_AT_ONCE = 50
MAX_NAMED = 5
PATH = "/health"  # of ours and of vLLM, SGLang, TGI and llama.cpp; whatever it answers has the date


async def check_node_clocks(nodes: Sequence[Node]) -> list[Finding]:
    """Nodes whose clock is wrong. Those that don't answer from this machine are told as not looked at."""
    asked = [node for node in nodes if node.phase is not NodePhase.STOPPED and node.url]
    if not asked:
        return []
    room = asyncio.Semaphore(MAX_AT_ONCE)
    async with httpx.AsyncClient(timeout=LIMIT_S, trust_env=False, verify=client_tls()) as http:

        async def off(node: Node) -> float | None:
            async with room:
                before = time.time()
                try:
                    answer = await http.get(f"{node.url}{PATH}")
                except (httpx.HTTPError, httpx.InvalidURL):
                    return None
                return skew_s(answer.headers.get("Date", ""), before, time.time())

        offs = await asyncio.gather(*(off(node) for node in asked))
    return judge_node_clocks({node.name: off_s for node, off_s in zip(asked, offs, strict=True)})


def skew_s(date: str, before: float, after: float) -> float | None:
    """How far a clock is ahead of ours that told this `Date` between two looks at ours; it tells whole seconds."""
    try:
        told = parsedate_to_datetime(date)
    except ValueError:
        return None
    theirs = (told if told.tzinfo is not None else told.replace(tzinfo=UTC)).timestamp()
    return max(0.0, theirs - after) or min(0.0, theirs + 1.0 - before)


def judge_node_clocks(offs: dict[str, float | None]) -> list[Finding]:
    """`offs`: by node; None: it told no date from here."""
    told = {name: off_s for name, off_s in offs.items() if off_s is not None}
    wrong = {name: off_s for name, off_s in told.items() if abs(off_s) > MAX_SKEW_S}
    if wrong:
        words = [f"{name} {abs(off):.0f} s {'ahead' if off > 0 else 'behind'}" for name, off in sorted(wrong.items())]
        more = f" and {len(words) - MAX_NAMED} more" if len(words) > MAX_NAMED else ""
        seen = f"not this one's: {', '.join(words[:MAX_NAMED])}{more}"
        return [Finding("node clocks", Health.bad, seen, "timedatectl set-ntp true, on their machines")]
    if not told:
        seen = "no node answers this machine: not looked at"
        return [Finding("node clocks", Health.unused, seen, "on the controller's machine: fleetctl doctor")]
    unknown = f"; {len(offs) - len(told)} told no time" if len(told) < len(offs) else ""
    return [
        Finding("node clocks", Health.good, f"{len(told)} nodes' are within {MAX_SKEW_S:.0f} s of this one{unknown}")
    ]
