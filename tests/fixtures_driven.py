"""A controller in simulated time: the test moves the clock second by second, nodes report made-up traffic over HTTP."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress

import httpx

from fleetctl.controller.controller import Controller

HEALTHY_STEP_S = 0.02


class DrivenClock:
    """Stands still until `move`; sleepers wake when their time has come."""

    def __init__(self, start: float = 1_800_000_000.0) -> None:
        self._now = start
        self._moved = asyncio.Event()

    def now(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        until = self._now + seconds
        while self._now < until:
            await self._moved.wait()

    def move(self, seconds: float) -> None:
        self._now += seconds
        self._moved.set()
        self._moved = asyncio.Event()


class Traffic:
    """Counters of nodes that decode ten steps a second; `step_s` says how long a step takes where."""

    def __init__(self) -> None:
        self.step_s: dict[str, float] = defaultdict(lambda: HEALTHY_STEP_S)
        self._steps: dict[str, float] = defaultdict(float)
        self._seconds: dict[str, float] = defaultdict(float)

    def exposition(self, node: str) -> str:
        """The node's counters one second later."""
        self._steps[node] += 10
        self._seconds[node] += 10 * self.step_s[node]
        steps, seconds = self._steps[node], self._seconds[node]
        ttft = seconds / 10 * 4
        return "\n".join(
            [
                "vllm:num_requests_running 4",
                "vllm:num_requests_waiting 0",
                "vllm:kv_cache_usage_perc 0.3",
                f'engine_step_seconds_sum{{kind="decode"}} {seconds}',
                f'engine_step_seconds_count{{kind="decode"}} {steps}',
                f"vllm:iteration_tokens_total_count {steps}",
                f"vllm:generation_tokens_total {steps * 4}",
                f"vllm:time_to_first_token_seconds_sum {ttft}",
                f"vllm:time_to_first_token_seconds_count {steps / 10}",
                f"vllm:request_queue_time_seconds_sum {steps / 10 * 0.001}",
                f"vllm:request_queue_time_seconds_count {steps / 10}",
                f'vllm:request_success_total{{finished_reason="stop"}} {steps / 10}',
                f"vllm:request_prompt_tokens_sum {steps * 10}",
                f"vllm:request_prompt_tokens_count {steps / 10}",
                f"vllm:prefix_cache_queries_total {steps * 10}",
                f"vllm:prefix_cache_hits_total {steps * 8}",
                f"process_start_time_seconds {1_799_990_000}",
                "",
            ]
        )


async def drive(
    controller: Controller, clock: DrivenClock, traffic: Traffic, until: Callable[[], bool], limit_s: int = 400
) -> int:
    """Let simulated seconds pass, with one turn of every loop each, until a condition holds. Seconds it took."""
    async with httpx.AsyncClient(trust_env=False, verify=False) as http:
        for second in range(limit_s):
            if until():
                return second
            clock.move(1.0)
            for name, state in list(controller.fleet.nodes.items()):
                with suppress(httpx.HTTPError):  # it may have been stopped since the last look
                    await http.post(f"{state.url}/test", json={"metrics": traffic.exposition(name)})
            for loop in controller.loops.ages(clock.now()):
                await controller.loops.turn(loop)
            await asyncio.sleep(0.01)  # effects that wait for real processes get real time
    raise AssertionError(f"not within {limit_s} simulated seconds; loops failed: {controller.loops.failures()}")
