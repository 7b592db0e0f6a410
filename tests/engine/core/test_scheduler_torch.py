"""The promise to users, on a real model: prompt, seed and parameters give the same tokens whatever happens around."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.core.scheduler import Scheduler
from engine.core.scheduler_config import SchedulerConfig
from engine.core.torch_runner import ModelRunner
from engine.model.make import make_model
from engine.protocol.messages import AddSequence
from engine.protocol.step import SamplingParams
from tests.fixtures.core import make_config

BLOCK_SIZE = 8
NUM_BLOCKS = 40
ROOMY = {"num_blocks": NUM_BLOCKS, "block_size": BLOCK_SIZE, "max_model_len": 300, "max_num_batched_tokens": 128}


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def runner(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModelRunner:
    directory: Path = make_model(tmp_path_factory.mktemp("models") / "small")
    runner = ModelRunner(
        directory,
        num_blocks=NUM_BLOCKS,
        block_size=BLOCK_SIZE,
        num_host_blocks=60,
        dtype=request.param,
        num_threads=1,
    )
    runner.warm_up()
    return runner


REQUESTS = [
    AddSequence(
        f"r{i}",
        # the first 24 tokens are shared by all with the same i % 2, the rest differ
        tuple((11 * (i % 2) + 7 * j) % 900 + 5 for j in range(24)) + tuple(300 + 13 * i + j for j in range(i * 3)),
        SamplingParams(max_tokens=20, seed=i, temperature=0.0 if i % 3 == 0 else 0.8, top_p=0.95, ignore_eos=True),
        float(i),
    )
    for i in range(6)
]


def serve(
    runner: ModelRunner, config: SchedulerConfig, requests: list[AddSequence]
) -> tuple[dict, Scheduler, set[str]]:
    """Tokens by sequence, the scheduler after it, and how sequences were preempted."""
    scheduler = Scheduler(config)
    how: set[str] = set()
    tokens: dict[str, list[int]] = {request.seq_id: [] for request in requests}
    for request in requests:
        assert scheduler.add(request, 100.0) is None
    while (plan := scheduler.plan(100.0)) is not None:
        outcome = scheduler.apply(runner.run_step(plan), 100.0)
        how |= {preemption.how.value for preemption in outcome.preemptions}
        for update in outcome.updates:
            assert update.failure is None
            tokens[update.seq_id] += update.token_ids
    return tokens, scheduler, how


@pytest.fixture(scope="module")
def alone(runner: ModelRunner) -> dict[str, list[int]]:
    """Each request by itself, its prompt in one piece, nothing cached."""
    config = make_config(**ROOMY, prefill_chunk_tokens=None, prefix_caching=False)
    return {r.seq_id: serve(runner, config, [r])[0][r.seq_id] for r in REQUESTS}


@pytest.mark.parametrize(
    ("changes", "disturbed_by"),
    [
        pytest.param({"prefix_caching": False}, "batch", id="batched"),
        pytest.param({"prefill_chunk_tokens": 5, "prefix_caching": False}, "batch", id="chunked"),
        pytest.param({"max_num_seqs": 1}, "hit", id="prefix_hit"),
        pytest.param({"num_blocks": 18}, "recompute", id="recomputed"),
        pytest.param({"num_blocks": 18, "num_host_blocks": 60}, "swap", id="swapped"),
    ],
)
def test_tokens_are_those_of_the_request_alone(runner, alone, changes: dict[str, object], disturbed_by: str) -> None:
    tokens, scheduler, how = serve(runner, make_config(**{**ROOMY, **changes}), REQUESTS)
    assert tokens == alone
    assert all(len(output) == 20 for output in tokens.values())
    if disturbed_by == "hit":
        assert scheduler.pool.hits_tokens > 0
    elif disturbed_by != "batch":
        assert disturbed_by in how


def test_request_goes_on_with_its_tokens_after_a_move(runner, alone) -> None:
    config = make_config(**ROOMY)
    moved = [
        AddSequence(r.seq_id, r.prompt_token_ids, r.sampling, 0.0, 0, tuple(alone[r.seq_id][: 2 + i * 3]))
        for i, r in enumerate(REQUESTS)
    ]
    tokens, *_ = serve(runner, config, moved)
    assert {r.seq_id: [*r.output_token_ids, *tokens[r.seq_id]] for r in moved} == alone
