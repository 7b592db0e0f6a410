"""The vector of a text has the same bits alone, among others, in parts, and computed again after a preemption."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from engine.core.scheduler import Scheduler
from engine.core.scheduler_config import SchedulerConfig
from engine.core.torch_runner import ModelRunner
from engine.model.make import make_model
from engine.protocol.messages import AddSequence, FinishReason
from engine.protocol.step import SamplingParams
from tests.fixtures.core import make_config

BLOCK_SIZE, NUM_BLOCKS = 8, 60
ROOMY = {"num_blocks": NUM_BLOCKS, "block_size": BLOCK_SIZE, "max_model_len": 300, "max_num_batched_tokens": 256}


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> ModelRunner:
    directory: Path = make_model(tmp_path_factory.mktemp("models") / "small")
    made = ModelRunner(directory, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, num_host_blocks=40, num_threads=1)
    made.warm_up()
    return made


def asked(index: int) -> AddSequence:
    sampling = SamplingParams(max_tokens=0, pooling="mean" if index % 2 else "last")
    prompt = tuple((7 * j) % 900 + 5 for j in range(30)) + tuple(300 + 13 * index + j for j in range(6 * index))
    return AddSequence(f"r{index}", prompt, sampling, float(index))


def vectors(runner: ModelRunner, config: SchedulerConfig, requests: list[AddSequence]) -> tuple[dict[str, bytes], set]:
    scheduler = Scheduler(config)
    found: dict[str, bytes] = {}
    how: set[str] = set()
    for request in requests:
        assert scheduler.add(request, 100.0) is None
    while (plan := scheduler.plan(100.0)) is not None:
        outcome = scheduler.apply(runner.run_step(plan), 100.0)
        how |= {preemption.how.value for preemption in outcome.preemptions}
        for update in outcome.updates:
            if update.finish_reason is not None and not update.seq_id.startswith("generates"):
                assert update.finish_reason is FinishReason.STOP
                found[update.seq_id] = update.pooled
        assert scheduler.check_integrity() is None
    assert scheduler.pool.num_used == 0
    return found, how


REQUESTS = [asked(index) for index in range(6)]


@pytest.mark.parametrize(
    ("changes", "disturbed_by"),
    [
        ({"prefix_caching": False}, None),
        ({}, None),
        ({"prefill_chunk_tokens": 5, "max_num_batched_tokens": 24}, None),
        ({"num_blocks": 25, "prefill_chunk_tokens": 2, "prefix_caching": False}, "recompute"),
        ({"num_blocks": 25, "prefill_chunk_tokens": 2, "num_host_blocks": 40}, None),
    ],
    ids=["batched", "cached", "chunked", "preempted", "swap"],
)
def test_a_vector_is_the_texts_alone(runner: ModelRunner, changes: dict[str, object], disturbed_by: str | None) -> None:
    plain = make_config(**ROOMY, prefix_caching=False, prefill_chunk_tokens=None)
    alone = {one.seq_id: vectors(runner, plain, [one])[0][one.seq_id] for one in REQUESTS}
    assert {len(np.frombuffer(one, "<f4")) for one in alone.values()} == {runner._config.hidden_size}
    # They come first and grow, so that what comes after them has to make room.
    growing = SamplingParams(max_tokens=50, ignore_eos=True)
    others = [AddSequence(f"generates{i}", (5 + i, 6, 7), growing, -1.0) for i in range(3)]
    found, how = vectors(runner, make_config(**{**ROOMY, **changes}), [*others, *REQUESTS])
    assert found == alone
    assert disturbed_by is None or disturbed_by in how
