"""What is replayed is what was recorded, in its order, on whatever lies in memory now."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from kernels.block_weight import quantised
from kernels.cpu import instructions
from kernels.cpu.byte_matrix import ByteMatrix
from kernels.cpu.nibble_matrix import NibbleMatrix
from kernels.cpu.pair_matrix import PairMatrix
from kernels.cpu.panel_matrix import PanelMatrix
from kernels.cpu.recorder import Arena, Recorder, RecordingError, computing_constants
from kernels.cpu.recording import Recording
from kernels.cpu.rms_norm import rms_norm
from kernels.cpu.sampling import draw
from kernels.cpu.silu_mul import silu_mul
from kernels.cpu.vector_matrix import VectorMatrix
from kernels.sample_row import SampleRow

WIDTH = 96
WEIGHT = torch.ones(WIDTH)  # tasks hold addresses: it must outlive them
WEIGHTS = {torch.float32: WEIGHT, torch.bfloat16: WEIGHT.bfloat16()}


@pytest.fixture(params=[1, 2, 5], ids=lambda count: f"{count}-threads")
def _threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def _chain(x: torch.Tensor, matrix: PanelMatrix, arena: Arena | None = None) -> torch.Tensor:
    """Thirty dependent tasks, of many pieces and of one."""
    residual = x
    for _ in range(10):
        if arena is not None:
            arena.next_generation()
        x, residual = rms_norm(x, WEIGHTS[x.dtype], 1e-5, residual)
        x = silu_mul(matrix(x))
    return x


def _bytes(weight: torch.Tensor) -> ByteMatrix:
    return ByteMatrix(quantised(weight, "w8a8"), weight.dtype)


def _nibbles(weight: torch.Tensor) -> NibbleMatrix:
    return NibbleMatrix(quantised(weight, "w4a8"), weight.dtype)


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("rows", [1, 3, 200])
@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        (VectorMatrix, torch.float32),
        (VectorMatrix, torch.bfloat16),
        (PairMatrix, torch.bfloat16),
        (_bytes, torch.bfloat16),
        (_nibbles, torch.bfloat16),
    ],
    ids=["float32", "bfloat16 widened", "bfloat16 in pairs", "bytes", "nibbles"],
)
def test_a_replay_computes_from_the_inputs_of_now_what_the_tasks_would_have(
    rows: int, kind: Callable[[torch.Tensor], PanelMatrix], dtype: torch.dtype
) -> None:
    if kind is PairMatrix and not instructions.has_dot():
        pytest.skip("this CPU multiplies no pairs")
    matrix = kind((torch.randn(2 * WIDTH, WIDTH) * WIDTH**-0.5).to(dtype))
    first, second = torch.randn(rows, WIDTH).to(dtype), torch.randn(rows, WIDTH).to(dtype)
    expected = [_chain(x, matrix) for x in (first, second)]
    arena, place = Arena(), first.clone()
    with Recorder(arena) as recorder:
        result = _chain(place, matrix, arena)
    recording = Recording(recorder)
    assert torch.equal(result, expected[0])
    for _ in range(20):
        for x, wanted in zip((second, first), reversed(expected), strict=True):
            place.copy_(x)
            recording.replay()
            assert torch.equal(result, wanted)


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("watches", [True, False])
def test_what_is_deferred_is_done_by_the_replay_on_what_lies_in_memory_then(watches: bool) -> None:
    matrix, arena = VectorMatrix(torch.randn(2 * WIDTH, WIDTH) * WIDTH**-0.5), Arena()
    x, later = torch.randn(70, WIDTH), torch.randn(70, WIDTH)
    expected = _chain(later, matrix)
    with Recorder(arena, defers=True, watches=watches) as recorder:
        result = _chain(x, matrix, arena)
    x.copy_(later)
    Recording(recorder).replay()
    assert torch.equal(result, expected)


def test_recordings_share_an_arena_and_leave_each_others_tasks_alone() -> None:
    matrix, arena = VectorMatrix(torch.randn(2 * WIDTH, WIDTH) * WIDTH**-0.5), Arena()
    kept = []
    for rows in (1, 7, 2, 7, 64):
        place = torch.randn(rows, WIDTH)
        expected = _chain(place, matrix)
        with Recorder(arena) as recorder:
            result = _chain(place, matrix, arena)
        kept.append((Recording(recorder), result, expected))
    for recording, result, expected in [*kept, *reversed(kept)]:
        recording.replay()
        assert torch.equal(result, expected)


def test_what_is_done_outside_is_not_kept() -> None:
    x = torch.randn(4, WIDTH)
    with Recorder(Arena()) as recorder:
        inside = rms_norm(x, WEIGHT, 1e-5)
    recording = Recording(recorder)
    outside = rms_norm(x, WEIGHT, 1e-5)
    expected = inside.clone()
    inside.zero_()
    outside.zero_()
    recording.replay()
    assert torch.equal(inside, expected)
    assert not outside.any()


def test_an_arena_keeps_what_was_allocated_in_this_generation_and_the_one_before() -> None:
    arena = Arena()
    made = []
    for generation in range(6):
        arena.next_generation()
        shapes = (((5, 3), torch.float32), ((2,), torch.int64))
        made.append([arena.allocate(shape, dtype).fill_(generation) for shape, dtype in shapes])
        for ago, tensors in enumerate(reversed(made[-2:])):
            assert all((tensor == generation - ago).all() for tensor in tensors)


def _replayable(x: torch.Tensor) -> Recording:
    with Recorder(Arena()) as recorder:
        silu_mul(x)
    return Recording(recorder)


def test_what_torch_computes_inside_is_refused_as_no_replay_would_repeat_it() -> None:
    x, arena = torch.randn(8, WIDTH), Arena()
    with pytest.raises(RecordingError, match="add"):
        with Recorder(arena):
            rms_norm(x + 1, WEIGHT, 1e-5)
    with pytest.raises(RecordingError, match="clone"):
        with Recorder(arena):
            rms_norm(x[:, ::2], WEIGHT[: WIDTH // 2], 1e-5)


def test_constants_may_be_computed_inside() -> None:
    x = torch.randn(8, WIDTH)
    with Recorder(Arena()) as recorder:
        with computing_constants():
            weight = WEIGHT * 2
        result = rms_norm(x, weight, 1e-5)
    expected = result.clone()
    del weight
    result.zero_()
    Recording(recorder).replay()
    assert torch.equal(result, expected)


def test_a_recording_keeps_what_its_tasks_read_alive() -> None:
    x = torch.randn(8, 2 * WIDTH)
    storage = StorageWeakRef(x.untyped_storage())
    recording = _replayable(x)
    del x
    assert not storage.expired()
    del recording
    assert storage.expired()


def test_a_draw_is_refused_as_its_tokens_are_read_in_python() -> None:
    logits, uniforms = torch.zeros(2, 8), np.zeros(2)
    with pytest.raises(RecordingError, match="result to Python"):
        with Recorder(Arena()):
            draw(logits, logits, [SampleRow(), SampleRow()], uniforms)


def test_half_a_step_is_no_recording() -> None:
    x, recorder = torch.randn(4, 2 * WIDTH), Recorder(Arena())
    with contextlib.suppress(KeyError), recorder:
        silu_mul(x)
        raise KeyError
    with pytest.raises(RecordingError, match="part of a step"):
        Recording(recorder)
    _replayable(torch.randn(4, 2 * WIDTH)).replay()


def test_recorders_are_not_nested() -> None:
    with Recorder(Arena()):
        with pytest.raises(RecordingError, match="nested"):
            Recorder(Arena()).__enter__()


def test_launches_of_other_threads_are_not_recorded() -> None:
    x = torch.randn(4, 2 * WIDTH)
    with Recorder(Arena()) as recorder:
        other = threading.Thread(target=silu_mul, args=(x,))
        other.start()
        other.join()
    assert recorder.launches == []


def test_two_replays_in_one_arena_at_a_time_are_refused() -> None:
    x, arena = torch.randn(4, 2 * WIDTH), Arena()
    with Recorder(arena) as recorder:
        silu_mul(x)
    recording = Recording(recorder)
    with arena.replaying:
        with pytest.raises(RecordingError, match="another thread"):
            recording.replay()
    recording.replay()
