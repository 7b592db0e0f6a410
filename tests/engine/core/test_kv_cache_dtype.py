"""With keys and values in eight bits a request has the same tokens and log probabilities whatever happens to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from engine.core.runner_loader import load_runner
from engine.core.scheduler import Scheduler
from engine.core.speculation_config import SpeculationConfig
from engine.core.torch_runner import ModelRunner
from engine.model.directory import kv_bytes_per_token, open_model
from engine.model.make import make_model
from engine.model.recorded_steps import can_record
from engine.protocol.core_config import CoreConfig
from engine.protocol.messages import AddSequence
from engine.protocol.step import SamplingParams
from kernels.kv_codes import KvCacheDtype
from tests.engine.core.test_speculation_torch import REQUESTS, Answer, serve
from tests.fixtures.core import make_config
from tests.fixtures.cpu_paths import CPU_PATHS, take_path

pytestmark = pytest.mark.timeout(400)  # on a tenth of a core the kernels of one path take two minutes to compile

BLOCK_SIZE, NUM_BLOCKS = 16, 60
ROOMY = {"num_blocks": NUM_BLOCKS, "block_size": BLOCK_SIZE, "max_model_len": 300, "max_num_batched_tokens": 128}
ALWAYS = SpeculationConfig(num_speculative_tokens=5, prompt_lookup_min=1, is_adaptive=False)


def _warm(directory: Path, dtype: str, kv_cache_dtype: KvCacheDtype, **changes: object) -> ModelRunner:
    torch.set_num_threads(1)
    runner = ModelRunner(
        directory,
        num_blocks=NUM_BLOCKS,
        block_size=BLOCK_SIZE,
        num_host_blocks=60,
        dtype=dtype,
        kv_cache_dtype=kv_cache_dtype,
        num_threads=1,
        **changes,  # type: ignore[arg-type]
    )
    runner.warm_up()
    return runner


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "small")


@pytest.fixture(scope="module", params=[(path, kind) for path in CPU_PATHS for kind in ("int8", "fp8")], ids=str)
def runner(model_dir: Path, request: pytest.FixtureRequest) -> Iterator[ModelRunner]:
    path, kind = request.param
    with pytest.MonkeyPatch.context() as patch:
        take_path(path, patch)
        yield _warm(model_dir, path.partition(" ")[0], kind)


@pytest.fixture(scope="module")
def alone(runner: ModelRunner) -> dict[str, Answer]:
    """Each request by itself, a token a step."""
    config = make_config(**ROOMY, prefill_chunk_tokens=None, prefix_caching=False)
    return {r.seq_id: serve(runner, config, [r])[0][r.seq_id] for r in REQUESTS}


@pytest.mark.parametrize(
    ("changes", "disturbed_by"),
    [
        pytest.param({}, None, id="batched, prefixes shared"),
        pytest.param({"prefill_chunk_tokens": 5, "max_num_batched_tokens": 24}, None, id="chunked"),
        pytest.param({"num_blocks": 12}, "recompute", id="recomputed"),
        pytest.param({"num_blocks": 12, "num_host_blocks": 60}, "swap", id="swapped"),
        pytest.param({"speculation": ALWAYS}, None, id="tokens ahead"),
    ],
)
def test_answers_are_those_of_each_request_alone(
    runner: ModelRunner, alone: dict[str, Answer], changes: dict[str, object], disturbed_by: str | None
) -> None:
    answers, how, _ = serve(runner, make_config(**{**ROOMY, **changes}), REQUESTS)
    assert answers == alone, "equal to the last bit"
    assert disturbed_by is None or disturbed_by in how


def test_a_request_goes_on_with_its_tokens_after_a_move(runner: ModelRunner, alone: dict[str, Answer]) -> None:
    moved = [
        AddSequence(r.seq_id, r.prompt_token_ids, r.sampling, 0.0, 0, tuple(alone[r.seq_id][0][:-1][: 2 + i]))
        for i, r in enumerate(REQUESTS)
    ]
    answers, _, _ = serve(runner, make_config(**ROOMY), moved)
    assert {r.seq_id: [*r.output_token_ids, *answers[r.seq_id][0]] for r in moved} == {
        seq_id: answer[0] for seq_id, answer in alone.items()
    }


def test_steps_are_recorded_rows_keep_their_bits_and_a_new_cache_is_like_the_old(
    runner: ModelRunner, alone: dict[str, Answer]
) -> None:
    assert can_record(runner._decoder.weights)
    assert runner.info.is_batch_invariant is True
    runner.sleep()
    runner.wake()
    config = make_config(**ROOMY)
    assert serve(runner, config, REQUESTS[:2])[0] == {r.seq_id: alone[r.seq_id] for r in REQUESTS[:2]}


def test_a_draft_model_keeps_its_kv_in_eight_bits_too_and_changes_no_answer(model_dir: Path) -> None:
    plain, drafting = (
        _warm(model_dir, "float32", "int8", **extra) for extra in ({}, {"drafter": open_model(model_dir)})
    )
    always = SpeculationConfig("draft", num_speculative_tokens=4, is_adaptive=False)
    greedy = AddSequence("greedy", tuple(range(40, 90)), SamplingParams(max_tokens=41, temperature=0.0), 0.0)
    wanted = serve(plain, make_config(**ROOMY), [greedy, *REQUESTS])[0]
    answers, _, accepted = serve(drafting, make_config(**ROOMY, speculation=always), [greedy, *REQUESTS])
    assert answers == wanted
    assert accepted > 25, "a model that drafts for itself, from such keys too, is right"


def _load(directory: Path, **changes: object) -> object:
    given: dict[str, object] = {"model_dir": str(directory), "device": "cpu", "dtype": "bfloat16", **changes}
    return load_runner(CoreConfig(**given), lambda phase, done: None)  # type: ignore[arg-type]


def test_the_same_memory_holds_nearly_twice_the_tokens(model_dir: Path) -> None:
    memory = 3_000_000
    loaded = {
        kind: _load(model_dir, kv_cache_bytes=memory, kv_cache_dtype=kind, max_num_seqs=1000)
        for kind in ("auto", "int8", "fp8")
    }
    blocks = {kind: model.limits.num_blocks for kind, model in loaded.items()}  # type: ignore[attr-defined]
    head_dim = open_model(model_dir).config.head_dim
    assert blocks["int8"] == blocks["fp8"]
    assert blocks["int8"] / blocks["auto"] == pytest.approx(2 * head_dim / (head_dim + 2), rel=0.01)
    config = open_model(model_dir).config
    for kind in ("int8", "fp8"):
        assert loaded[kind].kv_cache_dtype == kind  # type: ignore[attr-defined]
        assert loaded[kind].kv_bytes == blocks[kind] * 16 * kv_bytes_per_token(config, kind) <= memory  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtype": "float16"}, "--kv-cache-dtype int8: on a CPU its kernels are for float32 and bfloat16"),
        ({"block_size": 8}, "--kv-cache-dtype int8: on a CPU blocks are of 16 tokens or a multiple"),
    ],
)
def test_what_has_no_kernels_is_refused_at_the_start(model_dir: Path, changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _load(model_dir, kv_cache_dtype="int8", **changes)


def test_what_is_not_a_number_fails_its_own_sequence(model_dir: Path) -> None:
    runner = _warm(model_dir, "float32", "int8")
    runner._decoder.weights.embedding[77] = torch.nan
    sick = AddSequence("sick", (5, 77, 9), SamplingParams(max_tokens=4, temperature=0.0), 0.0)
    well = AddSequence("well", (5, 6, 9), SamplingParams(max_tokens=4, temperature=0.0), 0.0)
    scheduler = Scheduler(make_config(**ROOMY))
    for request in (sick, well):
        assert scheduler.add(request, 0.0) is None
    failed: dict[str, object] = {}
    while (plan := scheduler.plan(0.0)) is not None:
        for update in scheduler.apply(runner.run_step(plan), 0.0).updates:
            if update.failure is not None:
                failed[update.seq_id] = update.failure
    assert set(failed) == {"sick"}
