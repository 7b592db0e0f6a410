"""Disturbances that a node must come out of: each breaks something for a moment and puts it back."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable

from engine.soak.client import Client
from engine.soak.node_process import START_S, NodeProcess

READY_S = START_S  # after a killed core it is a start
BETWEEN_KILLS_S = 75.0
KILL = "core killed"


class NotRecoveredError(RuntimeError):
    """The node did not come back from a disturbance."""


class Disturbances:
    """Dealt like cards: each comes once before any comes twice."""

    def __init__(self, node: NodeProcess, rng: random.Random) -> None:
        self._node = node
        self._rng = rng
        self._client: Client
        self._killed_at: float | None = None
        self._deck: list[str] = []
        self.last = ""
        self.count = 0
        self.num_wrong_times = 0  # odd: the core is told to say wrong numbers now

    async def disturb_next(self, client: Client) -> None:
        """The next disturbance, from its begin to its end. Raises NotRecoveredError."""
        self._client = client
        if not self._deck:
            self._deck = [name for name in _DISTURBANCES if name != KILL or self._may_kill()]
            self._rng.shuffle(self._deck)
        self.last = self._deck.pop()
        self.count += 1
        await _DISTURBANCES[self.last](self)
        await self._until_ready()

    def _may_kill(self) -> bool:
        """A core that dies again and again is restarted ever later: the run would wait more than it works."""
        return self._killed_at is None or time.monotonic() - self._killed_at > BETWEEN_KILLS_S

    async def leak(self, client: Client) -> None:
        """Makes the node lose KV blocks, which it can't come back from: its block check must say so."""
        self._client = client
        await self._fault({"kv_leak": 2})
        body = {"prompt": "hello", "max_tokens": 4, "ignore_eos": True}
        await self._client.admin("POST", "/v1/completions", body)

    async def _fault(self, faults: dict[str, object]) -> None:
        status, answer = await self._client.admin("POST", "/admin/faults", faults)
        if status != 200:
            raise NotRecoveredError(f"/admin/faults {faults}: {status} {answer}")

    async def _for(self, seconds: float, faults: dict[str, object]) -> None:
        await self._fault(faults)
        await asyncio.sleep(seconds)
        await self._fault(dict.fromkeys(faults))

    async def _until_ready(self) -> None:
        deadline = time.monotonic() + READY_S
        answer: object = None
        while time.monotonic() < deadline:
            # Deep: only this asks for the golden prompt that clears wrong output.
            status, answer = await self._client.admin("GET", "/health/deep")
            if status == 200:
                return
            await asyncio.sleep(0.1)
        raise NotRecoveredError(f"not ready {READY_S:g} s after {self.last}: {answer}")

    async def _slow_steps(self) -> None:
        await self._for(1.5, {"slow_steps": 8})

    async def _slow_tokenizer(self) -> None:
        await self._for(1.0, {"slow_tokenizer": 0.05})

    async def _no_prefix_cache(self) -> None:
        await self._for(1.0, {"prefix_cache_off": True})

    async def _out_of_memory(self) -> None:
        await self._for(1.0, {"oom_next": 2})

    async def _wrong_numbers(self) -> None:
        self.num_wrong_times += 1
        await self._fault({"wrong_numbers": True})
        for _ in range(20):
            status, _ = await self._client.admin("GET", "/health/deep")
            if status != 200:
                break
            await asyncio.sleep(0.1)
        await self._fault({"wrong_numbers": None})
        self.num_wrong_times += 1

    async def _core_killed(self) -> None:
        self._killed_at = time.monotonic()
        os.kill(self._node.core_pid(), signal.SIGKILL)
        await asyncio.sleep(0.2)

    async def _core_stopped(self) -> None:
        """Shorter than what the node calls hung."""
        pid = self._node.core_pid()
        os.kill(pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(1.0)
        finally:
            os.kill(pid, signal.SIGCONT)

    async def _drained(self) -> None:
        await self._client.admin("POST", "/admin/drain", {"deadline_s": self._rng.choice((0, 0.2, 1.0))})
        await asyncio.sleep(0.8)
        await self._client.admin("POST", "/admin/resume")

    async def _narrow(self) -> None:
        _, before = await self._client.admin("GET", "/admin/limits")
        await self._client.admin("POST", "/admin/limits", {"max_num_seqs": 2, "max_num_queued_reqs": 4})
        await asyncio.sleep(1.0)
        await self._client.admin("POST", "/admin/limits", before)

    async def _cache_reset(self) -> None:
        await self._client.admin("POST", "/admin/reset_prefix_cache")

    async def _aborted(self) -> None:
        await self._client.admin("POST", "/admin/abort", {"request_ids": None})


_DISTURBANCES: dict[str, Callable[[Disturbances], Awaitable[None]]] = {
    KILL: Disturbances._core_killed,
    "drain and resume": Disturbances._drained,
    "out of memory": Disturbances._out_of_memory,
    "slow steps": Disturbances._slow_steps,
    "all aborted": Disturbances._aborted,
    "wrong numbers": Disturbances._wrong_numbers,
    "core stopped": Disturbances._core_stopped,
    "narrow limits": Disturbances._narrow,
    "prefix cache reset": Disturbances._cache_reset,
    "prefix cache off": Disturbances._no_prefix_cache,
    "slow tokenizer": Disturbances._slow_tokenizer,
}
