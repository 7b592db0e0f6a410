"""A recorded production trace through scheduler and pool in simulated time: how much of the prompts is found again.

The trace is Mooncake's (FAST'25); tests/data/traces/README.md has its source.
"""

from __future__ import annotations

import gzip
import json

import pytest

from engine.core.fake_runner import FakeCost, FakeRunner
from engine.core.scheduler import Scheduler
from engine.core.scheduler_config import SchedulerConfig
from engine.protocol.clock import ManualClock
from engine.protocol.messages import AddSequence
from engine.protocol.step import SamplingParams
from tests.fixtures import DATA

TRACE = DATA / "traces" / "mooncake_synthetic_trace.jsonl.gz"
BLOCK_SIZE = 512
PLAIN_LRU_RATIO = 0.284  # of 5,000 blocks


def replay(num_blocks: int) -> Scheduler:
    """Prompts at their recorded times, one token out each: what comes out is in no later prompt of this trace."""
    clock = ManualClock()
    scheduler = Scheduler(
        SchedulerConfig(
            block_size=BLOCK_SIZE,
            num_blocks=num_blocks,
            max_model_len=200_000,
            max_num_seqs=256,
            max_num_batched_tokens=262_144,
            prefill_chunk_tokens=None,
        )
    )
    runner = FakeRunner(clock=clock, cost=FakeCost(0.005, 1e-6, 1e-5))
    arrivals = [json.loads(line) for line in gzip.decompress(TRACE.read_bytes()).splitlines()]
    arrivals.reverse()
    num_ended = 0
    count = len(arrivals)
    while arrivals or scheduler.has_work:
        if not scheduler.has_work:
            clock.sleep(max(0.0, arrivals[-1]["timestamp"] / 1000 - clock.now()))
        while arrivals and arrivals[-1]["timestamp"] / 1000 <= clock.now():
            entry = arrivals.pop()
            tokens: list[int] = []
            for block in entry["hash_ids"]:
                tokens += [block] * BLOCK_SIZE
            request = AddSequence(
                f"r{len(arrivals)}", tuple(tokens[: entry["input_length"]]), SamplingParams(max_tokens=1), clock.now()
            )
            assert scheduler.add(request, clock.now()) is None
        plan = scheduler.plan(clock.now())
        if plan is not None:
            outcome = scheduler.apply(runner.run_step(plan), clock.now())
            num_ended += sum(update.finish_reason is not None for update in outcome.updates)
    assert num_ended == count
    assert scheduler.check_integrity() is None
    return scheduler


def hit_ratio(scheduler: Scheduler) -> float:
    return scheduler.pool.hits_tokens / scheduler.pool.queries_tokens


def test_unbounded_pool_finds_what_the_trace_repeats() -> None:
    assert hit_ratio(replay(200_000)) == pytest.approx(0.651, abs=0.01)


def test_small_pool_keeps_more_than_plain_lru() -> None:
    assert hit_ratio(replay(5_000)) > PLAIN_LRU_RATIO + 0.01
