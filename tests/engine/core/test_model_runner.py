from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from engine.core.torch_runner import DeviceError, ModelRunner, auto_dtype
from engine.model import recorded_steps
from engine.model.directory import BadModelError, kv_bytes_per_token, open_model, size_kv
from engine.model.make import make_model
from engine.model.recorded_steps import can_record
from engine.protocol.failure import FailureKind, SequenceFailure
from engine.protocol.heartbeat import CoreState, Heartbeat, HeartbeatPage
from engine.protocol.step import NewSequence, SamplingParams, Scheduled, StepPlan
from kernels.cpu.parallel_region import ParallelRegion
from kernels.cpu.progress import use_progress_memory
from tests.fixtures.cpu_paths import CPU_PATHS, take_path
from tests.fixtures.runner import BLOCK_SIZE, Drive, give_blocks, run_all, step

NUM_BLOCKS = 128


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "small")


@pytest.fixture(scope="module", params=CPU_PATHS)
def runner(model_dir: Path, request: pytest.FixtureRequest) -> Iterator[ModelRunner]:
    with pytest.MonkeyPatch.context() as patch:
        take_path(request.param, patch)
        dtype = request.param.partition(" ")[0]
        made = ModelRunner(model_dir, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, num_host_blocks=16, dtype=dtype)
        made.warm_up()
        yield made


def _drives(count: int, *, seed: int = 0, max_tokens: int = 12, **sampling: float) -> list[Drive]:
    """Sequences of mixed lengths, every third one greedy."""
    rng = random.Random(seed)
    return [
        Drive(
            seq_id=str(i),
            prompt=tuple(rng.randrange(3, 1100) for _ in range(rng.choice([1, 7, 16, 33, 90, 130, 200]))),
            sampling=SamplingParams(
                max_tokens=max_tokens,
                seed=rng.randrange(1 << 40),
                **{**sampling, **({"temperature": 0.0} if i % 3 == 0 else {})},
            ),
        )
        for i in range(count)
    ]


def _alone(runner: ModelRunner, drives: list[Drive]) -> list[list[int]]:
    found = []
    for single in [d.again() for d in drives]:
        give_blocks([single], NUM_BLOCKS)
        found += run_all(runner, [single])
    return found


def test_a_runner_says_that_rows_do_not_depend_on_the_batch(runner: ModelRunner) -> None:
    assert runner.info.is_batch_invariant is True


def test_decoding_steps_are_recorded_whatever_the_cpu_multiplies_with(runner: ModelRunner) -> None:
    assert can_record(runner._decoder.weights)


def test_in_float16_a_cpu_promises_no_bits_and_computes(model_dir: Path) -> None:
    half = ModelRunner(model_dir, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, dtype="float16")
    assert half.info.is_batch_invariant is None
    half.warm_up()
    assert half.info.is_batch_invariant is False


@pytest.mark.parametrize(
    ("stored", "device", "dtype"),
    [
        ("float32", "cpu", "float32"),
        ("bfloat16", "cpu", "bfloat16"),
        ("float16", "cpu", "float32"),
        ("float16", "cuda", "float16"),
        ("bfloat16", "cuda:0", "bfloat16"),
    ],
)
def test_auto_is_the_stored_type_unless_a_cpu_has_no_kernels_for_it(stored: str, device: str, dtype: str) -> None:
    assert auto_dtype(stored, device) == dtype


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("sampling", [{}, {"top_p": 0.9, "top_k": 40}, {"presence_penalty": 0.7, "min_p": 0.02}])
def test_same_tokens_and_logprobs_alone_and_in_any_batch(
    runner: ModelRunner, seed: int, sampling: dict[str, float]
) -> None:
    drives = _drives(6, seed=seed, num_logprobs=2, **sampling)
    expected = []
    for single in [d.again() for d in drives]:
        give_blocks([single], NUM_BLOCKS)
        expected.append((run_all(runner, [single])[0], single.logprobs))
    for stagger, backwards in ((0, False), (2, True)):
        together = [d.again() for d in drives]
        give_blocks(together, NUM_BLOCKS, backwards=backwards)
        run_all(runner, together, stagger=stagger)
        assert [(d.output, d.logprobs) for d in together] == expected, "equal to the last bit"


def test_same_tokens_after_the_cache_was_dropped_and_made_anew(runner: ModelRunner) -> None:
    drives = _drives(3)
    expected = _alone(runner, drives)
    runner.sleep()
    kept = torch.full((1 << 20,), torch.nan)  # whoever writes to the old cache writes to what others have
    runner.wake()
    assert _alone(runner, drives) == expected
    assert kept.isnan().all()


def test_a_sleeping_runner_holds_no_cache_though_its_steps_were_recorded_on_it(runner: ModelRunner) -> None:
    _alone(runner, _drives(2))
    cache = StorageWeakRef(runner._kv.untyped_storage())
    runner.sleep()
    assert cache.expired()
    runner.wake()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_same_logprobs_with_several_threads(model_dir: Path, dtype: str) -> None:
    params = SamplingParams(max_tokens=1, seed=5, num_logprobs=5)
    drives = [Drive(str(i), tuple(range(3 + i, 3 + i + n)), params) for i, n in enumerate((300, 90, 1))]
    try:
        threaded = ModelRunner(model_dir, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, num_threads=2, dtype=dtype)
        threaded.warm_up()
        assert threaded.info.is_batch_invariant is True
        give_blocks(drives, NUM_BLOCKS)
        together = step(threaded, drives, drives).logprobs
        again = [d.again() for d in drives]
        assert together == {d.seq_id: step(threaded, [d], [d]).logprobs[d.seq_id] for d in again}
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize("chunk", [1, 3, 16, 17, 50, 100])
def test_same_tokens_and_logprobs_with_any_chunk_size(runner: ModelRunner, chunk: int) -> None:
    prompt = tuple(random.Random(chunk).choices(range(3, 1100), k=170))
    params = SamplingParams(max_tokens=1, seed=5, num_logprobs=5)
    found = []
    for size in (10_000, chunk):
        drive, beside = (
            Drive("0", prompt, params, chunk=size),
            Drive("1", prompt[:40], replace(params, max_tokens=500), chunk=7),
        )
        give_blocks([drive, beside], NUM_BLOCKS)
        result = step(runner, [drive, beside], [drive, beside])
        while not drive.is_done:
            result = step(runner, [drive, beside])
        found.append((drive.output, result.logprobs["0"]))
    assert found[0] == found[1], "logprobs must be equal to the last bit"


def test_same_tokens_and_logprobs_where_a_prompts_launches_are_not_gathered(
    runner: ModelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    drives = _drives(5, seed=11, num_logprobs=2)
    give_blocks(drives, NUM_BLOCKS)
    found = run_all(runner, drives)
    again = [d.again() for d in drives]
    give_blocks(again, NUM_BLOCKS)
    monkeypatch.setattr(recorded_steps, "MAX_GATHERED_ROWS", 0)
    assert run_all(runner, again) == found
    assert [d.logprobs for d in again] == [d.logprobs for d in drives]


def test_a_prompts_layers_are_one_call(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What Python does between launches is on every first token's way."""
    runner = ModelRunner(model_dir, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE)
    runner.warm_up()
    calls: list[ParallelRegion] = []
    launch_encoded = ParallelRegion.launch_encoded

    def count(region: ParallelRegion, num_threads: int, address: int) -> None:
        calls.append(region)
        launch_encoded(region, num_threads, address)

    monkeypatch.setattr(ParallelRegion, "launch_encoded", count)
    drives = [Drive("0", tuple(range(3, 203)), SamplingParams(max_tokens=1))]
    give_blocks(drives, NUM_BLOCKS)
    step(runner, drives, drives)
    assert len(calls) == 3, "the layers to the last attention, what follows it for the last token, the draw"


def test_same_tokens_after_preemption_with_recompute(runner: ModelRunner) -> None:
    drives = _drives(3, seed=8, max_tokens=20)
    expected = _alone(runner, drives)
    give_blocks(drives, NUM_BLOCKS)
    step(runner, drives, drives)
    for _ in range(6):
        step(runner, drives)
    victim = drives[1]
    runner.run_step(StepPlan(0, (), forgotten=(victim.seq_id,)))
    step(runner, [drives[0], drives[2]])
    victim.computed, victim.block_ids, victim.chunk = 0, victim.block_ids[::-1], 30
    step(runner, drives, [victim])
    while not all(d.is_done for d in drives):
        step(runner, [d for d in drives if not d.is_done])
    assert [d.output for d in drives] == expected


def test_same_tokens_when_a_prefix_is_taken_from_another_sequence(runner: ModelRunner) -> None:
    prompt = tuple(range(100, 180))
    params = SamplingParams(max_tokens=10, seed=1)
    first = Drive("0", prompt, params)
    give_blocks([first], NUM_BLOCKS)
    [expected] = run_all(runner, [first])
    # 64 tokens are four whole blocks of the first sequence, whose cache still stands.
    second = Drive("1", prompt, params, block_ids=(*first.block_ids[:4], 100, 101, 102), computed=64)
    assert run_all(runner, [second]) == [expected]


def test_same_tokens_after_swapping_out_and_in(runner: ModelRunner) -> None:
    [drive] = _drives(1, seed=11, max_tokens=8)
    expected = _alone(runner, [drive])
    give_blocks([drive], NUM_BLOCKS)
    step(runner, [drive], [drive])
    step(runner, [drive])
    out = tuple((block, 15 - i) for i, block in enumerate(drive.block_ids))
    moved = tuple(NUM_BLOCKS - 1 - i for i in range(len(drive.block_ids)))
    back = tuple((host, new) for (_, host), new in zip(out, moved, strict=True))
    runner.run_step(StepPlan(0, (), swap_out=out))
    other = Drive("9", tuple(range(3, 60)), SamplingParams(max_tokens=3), block_ids=(*drive.block_ids, 90, 91, 92, 93))
    run_all(runner, [other])
    runner.run_step(StepPlan(0, (), swap_in=back))
    drive.block_ids = moved
    while not drive.is_done:
        step(runner, [drive])
    assert [drive.output] == expected


def test_copy_on_write_leaves_the_source_as_it_was(runner: ModelRunner) -> None:
    prompt = tuple(range(200, 224))
    params = SamplingParams(max_tokens=6, seed=2)
    one = Drive("0", prompt, params, block_ids=(1, 2, 3))
    two = Drive("1", prompt, replace(params, seed=3), block_ids=(1, 4, 5), computed=23)
    expected = _alone(runner, [one, replace(two, computed=0)])
    step(runner, [one], [one])
    copy = StepPlan(0, (two.next(),), new=(two.new(),), copies=((2, 4),))
    two.output.extend(runner.run_step(copy).token_ids["1"])
    two.computed = 24
    while not (one.is_done and two.is_done):
        step(runner, [d for d in (one, two) if not d.is_done])
    assert [one.output, two.output] == expected


def test_a_poisoned_sequence_fails_alone(model_dir: Path) -> None:
    runner = ModelRunner(model_dir, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE)
    healthy, sick = (
        Drive("0", tuple(range(10, 50)), SamplingParams(max_tokens=9)),
        Drive("1", (3, 4, 5), SamplingParams(max_tokens=9)),
    )
    [expected] = _alone(runner, [healthy])
    give_blocks([healthy, sick], NUM_BLOCKS)
    step(runner, [healthy, sick], [healthy, sick])
    runner._kv[:, :, sick.block_ids[0]] = torch.nan
    result = step(runner, [healthy, sick])
    assert result.failed == {"1": SequenceFailure(FailureKind.NON_FINITE_LOGITS, "non-finite logits")}
    assert "1" not in result.token_ids
    while not healthy.is_done:
        step(runner, [healthy])
    assert healthy.output == expected
    # Its blocks may be used again at once: nothing of it is read.
    heir = replace(healthy, seq_id="2", output=[], computed=0, block_ids=(sick.block_ids[0], 90, 91, 92))
    assert run_all(runner, [heir]) == [expected]


@pytest.mark.parametrize(
    ("scheduled", "words"),
    [
        (Scheduled("77", 0, 1, (1,), samples=True), "does not know"),
        (Scheduled("5", 0, 9, (1,), samples=False), "positions 0 to 9 were scheduled of 3 tokens"),
        (Scheduled("5", 0, 2, (1,), samples=True), "before the last"),
        (Scheduled("5", 0, 3, (), samples=True), "too few"),
        (Scheduled("5", 0, 3, (NUM_BLOCKS,), samples=True), "block id"),
        (Scheduled("5", 0, 0, (1,), samples=False), "positions 0 to 0"),
        (Scheduled("6", 0, 1, (1,), samples=True), "token id"),
    ],
    ids=["unknown", "too many tokens", "too early", "no blocks", "bad block", "no tokens", "bad token"],
)
def test_a_wrong_entry_fails_alone_with_its_reason(runner: ModelRunner, scheduled: Scheduled, words: str) -> None:
    params = SamplingParams(max_tokens=3, temperature=0.0)
    new = tuple(
        NewSequence(str(i), tokens, 3, params) for i, tokens in ((4, (7, 8, 9)), (5, (7, 8, 9)), (6, (999_999,)))
    )
    result = runner.run_step(StepPlan(3, (Scheduled("4", 0, 3, (8,), samples=True), scheduled), new=new))
    assert list(result.token_ids) == ["4"]
    assert result.failed[scheduled.seq_id].kind is FailureKind.DEFECT
    assert words in result.failed[scheduled.seq_id].message


def test_out_of_memory_fails_the_largest_and_serves_the_rest(
    runner: ModelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = runner._decoder.forward

    def tight(batch, kv):
        if len(batch.token_ids) > 40:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(batch, kv)

    monkeypatch.setattr(runner._decoder, "forward", tight)
    big, small = (
        Drive("big", tuple(range(3, 103)), SamplingParams(max_tokens=1)),
        Drive("small", (5, 6), SamplingParams(max_tokens=1)),
    )
    give_blocks([big, small], NUM_BLOCKS)
    result = step(runner, [big, small], [big, small])
    assert result.failed == {"big": SequenceFailure(FailureKind.OUT_OF_MEMORY, "out of memory")}
    assert list(result.token_ids) == ["small"]


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (MemoryError("host"), MemoryError),
        (torch.OutOfMemoryError("CUDA"), MemoryError),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"), MemoryError),
        (RuntimeError("CUDA error: out of memory"), MemoryError),
        (RuntimeError("not enough memory: you tried to allocate"), MemoryError),
        (RuntimeError("shape mismatch"), RuntimeError),
        (ValueError("out of memory"), ValueError),
    ],
    ids=["host", "torch", "cpu allocator", "cuda call", "windows allocator", "other", "other type"],
)
def test_out_of_memory_outside_the_forward_pass_is_a_memory_error(
    runner: ModelRunner, monkeypatch: pytest.MonkeyPatch, error: Exception, raised: type[Exception]
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("engine.core.torch_runner.copy_blocks", fail)
    with pytest.raises(raised) as caught:
        runner.run_step(StepPlan(0, (), copies=((0, 1),)))
    assert type(caught.value) is raised


def test_min_tokens_keeps_the_end_away_and_logit_bias_brings_it(runner: ModelRunner) -> None:
    end = 2
    params = SamplingParams(max_tokens=6, min_tokens=3, logit_bias=((end, 100.0),), seed=4)
    drive = Drive("0", (10, 11, 12), params)
    give_blocks([drive], NUM_BLOCKS)
    [output] = run_all(runner, [drive])
    assert end not in output[:3]
    assert output[3:] == [end] * 3


def test_logprobs_hold_the_drawn_token_and_the_likeliest(runner: ModelRunner) -> None:
    drive = Drive("0", (10, 11, 12), SamplingParams(max_tokens=1, temperature=0.0, num_logprobs=4))
    give_blocks([drive], NUM_BLOCKS)
    result = step(runner, [drive], [drive])
    (found,) = result.logprobs["0"]
    assert len(found.top) == 4
    assert found.top[0] == (drive.output[0], found.chosen)
    assert all(a[1] >= b[1] for a, b in zip(found.top, found.top[1:], strict=False))
    assert result.seconds > 0


def test_a_step_shows_progress_while_it_is_computed_and_replayed(model_dir: Path) -> None:
    """What tells a core that hangs from one that computes a long step."""
    page = HeartbeatPage.private()
    page.write(Heartbeat(0.0, CoreState.STEP))
    use_progress_memory(page.progress_memory())
    runner = ModelRunner(model_dir, num_blocks=128, block_size=BLOCK_SIZE, num_threads=1)
    runner.warm_up()
    assert runner.marks_per_step > runner._config.num_layers
    enough = 3 * runner._config.num_layers
    for number in range(20):  # on a busy machine the one who looks may sleep through most of a step
        [drive] = drives = [Drive(f"{number}", tuple(i % 90 for i in range(1500)), SamplingParams(max_tokens=4))]
        give_blocks(drives, 128)
        seen = set()
        prefill = threading.Thread(target=step, args=(runner, drives, drives))
        started_at = time.monotonic()
        prefill.start()
        while prefill.is_alive():
            seen.add(_progress_at(page))
        assert _progress_at(page) > started_at
        if len(seen) > enough:
            break
    assert len(seen) > enough
    for _ in range(3):  # recorded, or replayed
        before = time.monotonic()
        step(runner, [drive])
        assert before < _progress_at(page) <= time.monotonic()


def _progress_at(page: HeartbeatPage) -> float:
    heartbeat = page.read()
    assert heartbeat is not None
    return heartbeat.progress_at


def test_forgotten_sequences_are_unknown_afterwards(runner: ModelRunner) -> None:
    drive = Drive("0", (10, 11, 12), SamplingParams(max_tokens=5))
    give_blocks([drive], NUM_BLOCKS)
    step(runner, [drive], [drive])
    result = runner.run_step(StepPlan(0, (drive.next(),), forgotten=("0",)))
    assert "does not know" in result.failed["0"].message


def test_info_tells_sizes_that_match_the_byte_budget(model_dir: Path) -> None:
    config = open_model(model_dir).config
    blocks = size_kv(config, "float32", block_size=BLOCK_SIZE, budget_bytes=3_000_000)
    seen: list[tuple[str, float]] = []
    runner = ModelRunner(
        model_dir, num_blocks=blocks, block_size=BLOCK_SIZE, progress=lambda phase, done: seen.append((phase, done))
    )
    runner.warm_up()
    assert runner.info.kv_bytes == blocks * BLOCK_SIZE * kv_bytes_per_token(config, "float32") <= 3_000_000
    assert runner.info.max_model_len == blocks * BLOCK_SIZE
    assert seen[-1] == ("warming_up", 1.0)
    assert ("loading", 1.0) in seen


def test_bfloat16_runs(model_dir: Path) -> None:
    runner = ModelRunner(model_dir, num_blocks=32, block_size=BLOCK_SIZE, dtype="bfloat16")
    runner.warm_up()
    drives = _drives(2, seed=1, max_tokens=4)
    give_blocks(drives, 32)
    assert all(len(output) == 4 for output in run_all(runner, drives))


def test_warm_up_refuses_weights_with_nan(model_dir: Path) -> None:
    runner = ModelRunner(model_dir, num_blocks=8, block_size=BLOCK_SIZE)
    runner._decoder.weights.final_norm.fill_(torch.nan)
    with pytest.raises(BadModelError, match="non-finite"):
        runner.warm_up()


@pytest.mark.parametrize("blocks", [(1, 1), (1, 16), (3, 1)], ids=str)
def test_warm_up_fits_the_smallest_cache(model_dir: Path, blocks: tuple[int, int]) -> None:
    ModelRunner(model_dir, num_blocks=blocks[0], block_size=blocks[1]).warm_up()


def test_unknown_device_and_dtype_are_refused(model_dir: Path) -> None:
    with pytest.raises(DeviceError, match="unknown"):
        ModelRunner(model_dir, num_blocks=1, block_size=16, device="tpux")
    with pytest.raises(ValueError, match="float8"):
        ModelRunner(model_dir, num_blocks=1, block_size=16, dtype="float8")
