"""What is replayed is what was recorded, in its order, on whatever lies in memory now."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from kernels.cpu.recording import Recording, Room
from kernels.cpu.rms_norm import rms_norm
from kernels.cpu.silu_mul import silu_mul
from kernels.cpu.vector_matrix import VectorMatrix

WIDTH = 96
WEIGHT = torch.ones(WIDTH)  # tasks hold addresses: it must outlive them


@pytest.fixture(params=[1, 2, 5], ids=lambda count: f"{count}-threads")
def _threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def _chain(x: torch.Tensor, matrix: VectorMatrix, room: Room | None = None) -> torch.Tensor:
    """Thirty dependent tasks, of many pieces and of one."""
    residual = x
    for _ in range(10):
        if room is not None:
            room.turn()
        x, residual = rms_norm(x, WEIGHT, 1e-5, residual)
        x = silu_mul(matrix(x))
    return x


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("rows", [1, 3, 200])
def test_a_replay_computes_from_the_inputs_of_now_what_the_tasks_would_have(rows: int) -> None:
    matrix = VectorMatrix(torch.randn(2 * WIDTH, WIDTH) * WIDTH**-0.5)
    first, second = torch.randn(rows, WIDTH), torch.randn(rows, WIDTH)
    expected = [_chain(x, matrix) for x in (first, second)]
    room, place = Room(), first.clone()
    recording = Recording(room)
    with recording:
        result = _chain(place, matrix, room)
    assert torch.equal(result, expected[0])
    for _ in range(20):
        for x, wanted in zip((second, first), reversed(expected), strict=True):
            place.copy_(x)
            recording.replay()
            assert torch.equal(result, wanted)


def test_recordings_share_a_room_and_leave_each_others_tasks_alone() -> None:
    matrix, room = VectorMatrix(torch.randn(2 * WIDTH, WIDTH) * WIDTH**-0.5), Room()
    kept = []
    for rows in (1, 7, 2, 7, 64):
        place = torch.randn(rows, WIDTH)
        expected, recording = _chain(place, matrix), Recording(room)
        with recording:
            result = _chain(place, matrix, room)
        kept.append((recording, result, expected, place))
    for recording, result, expected, _ in [*kept, *reversed(kept)]:
        recording.replay()
        assert torch.equal(result, expected)


def test_what_is_done_outside_is_not_kept() -> None:
    room, x = Room(), torch.randn(4, WIDTH)
    recording = Recording(room)
    with recording:
        inside = rms_norm(x, WEIGHT, 1e-5)
    outside = rms_norm(x, WEIGHT, 1e-5)
    expected = inside.clone()
    inside.zero_()
    outside.zero_()
    recording.replay()
    assert torch.equal(inside, expected)
    assert not outside.any()


def test_a_room_keeps_what_was_made_in_this_turn_and_the_one_before() -> None:
    room = Room()
    made = []
    for turn in range(6):
        room.turn()
        made.append([room.take((5, 3), torch.float32).fill_(turn), room.take((2,), torch.int64).fill_(turn)])
        for ago, tensors in enumerate(reversed(made[-2:])):
            assert all((tensor == turn - ago).all() for tensor in tensors)
