"""Kernels allocate nothing and say whether they came to their end: a launch that failed is an error, never a result."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from numba import carray

from kernels.cpu import kernel_cache, parallel_region
from kernels.cpu.dtypes import INT64
from kernels.cpu.likeliest import likeliest
from kernels.cpu.parallel_region import KernelError, ParallelRegion
from kernels.cpu.peak import multiply_in_cache
from kernels.cpu.recorder import Arena, Recorder
from kernels.cpu.recording import AT_TASK, Recording
from kernels.cpu.task import enter, field, leave, next_chunk, offsets_of, pointer
from kernels.experts import mix_experts, together
from kernels.kv_codes import KvCacheDtype, kv_format
from kernels.layer_ops import full_tables, rms_norm, rope_store, silu_mul
from kernels.linear import pack, pack_blocks, row_linear
from kernels.paged_attention import paged_attention
from kernels.quantization import QUANTIZATIONS, Quantization
from kernels.sample_row import SampleRow
from kernels.sampling import sample
from tests.fixtures.cpu_paths import CPU_PATHS, can_take, take_path

GUARD = 0xA5
GUARD_BYTES = 64


@pytest.fixture(params=[1, 2], ids=["one-thread", "two-threads"], autouse=True)
def _threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


class FailingTask(NamedTuple):
    num_chunks: int
    failing: int
    done: np.ndarray


AT = offsets_of(FailingTask)


def _fail(task):
    enter(task)
    done = carray(pointer(task, AT.done, INT64), (field(task, AT.num_chunks),))
    chunk = next_chunk(task)
    while chunk < field(task, AT.num_chunks):
        if chunk == field(task, AT.failing):
            raise ValueError
        done[chunk] += 1
        chunk = next_chunk(task)
    leave(task)


_failing = ParallelRegion(_fail)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_kernel_that_raises_is_an_error_of_its_launch() -> None:
    done = np.zeros(100, dtype=np.int64)
    _failing.launch(2, FailingTask(len(done), -1, done))
    assert done.all()
    for failing in (0, 99):
        with pytest.raises(KernelError, match="test_kernel_memory"):
            _failing.launch(2, FailingTask(len(done), failing, done))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_kernel_that_raises_is_an_error_of_its_replay() -> None:
    done = np.zeros(100, dtype=np.int64)
    with Recorder(Arena()) as recorder:
        _failing.launch(2, FailingTask(len(done), -1, done))
    launch = recorder.launches[0]
    recording = Recording(recorder)
    recording.replay()
    recording._rows[0, AT_TASK + AT.failing] = 50
    with pytest.raises(KernelError, match="recorded step"):
        recording.replay()
    recording._rows[0, AT_TASK + AT.failing] = -1
    recording.replay()
    assert launch.fields[AT.failing] == -1


def _forget_to_enter(task):
    leave(task)


def test_a_body_that_never_entered_is_an_error() -> None:
    with pytest.raises(KernelError):
        ParallelRegion(_forget_to_enter).launch(1, FailingTask(0, 0, np.zeros(1, dtype=np.int64)))


def _attention(dtype: torch.dtype, width: int, heads: int, kv_heads: int, kind: KvCacheDtype = "auto") -> None:
    stored, row = kv_format(kind, dtype, width)
    lens, counts = [1, 15, 300, 90], [1, 1, 200, 90]
    tables = torch.arange(4 * 19, dtype=torch.int32).view(4, 19)
    caches = torch.randn(2, 76, 16, kv_heads, row).to(stored)
    starts = torch.tensor([0, *np.cumsum(counts).tolist()], dtype=torch.int32)
    q = torch.randn(sum(counts), heads, width).to(dtype)
    paged_attention(q, *caches, tables, torch.tensor(lens, dtype=torch.int32), starts, scale=0.1)


def _rope(dtype: torch.dtype, width: int, kind: KvCacheDtype = "auto") -> None:
    stored, row = kv_format(kind, dtype, width)
    cos, sin = full_tables(torch.rand(40, width // 2))
    caches = torch.zeros(2, 4, 16, 2, row, dtype=stored)
    rope_store(torch.randn(40, 8 * width).to(dtype), cos, sin, *caches, torch.arange(40), eps=1e-5)


def _draws() -> None:
    rows = [SampleRow(), SampleRow(temperature=1.0, top_p=0.7), SampleRow(temperature=1.0, top_k=999)]
    sample(torch.randn(3, 1003), [*rows])
    sample(torch.zeros(3, 1003), rows)  # all in one bin


def _product(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    weight = pack((torch.randn(shape)).to(dtype))
    for rows in (0, 1, 5, 16, 33, 600):
        row_linear(torch.randn(rows, shape[1]).to(dtype), weight)


def _block_product(dtype: torch.dtype, kind: Quantization) -> None:
    weight = pack_blocks(torch.randn(130, 160).to(dtype), dtype, kind)
    for rows in (0, 1, 3, 5, 16, 33, 600):
        row_linear(torch.randn(rows, 160).to(dtype), weight)


def _experts(dtype: torch.dtype, kind: Quantization | None = None) -> None:
    torch.manual_seed(1)
    gate_up, down = (
        together([pack_blocks(torch.randn(shape).to(dtype), dtype, kind, is_gated=is_gated) for _ in range(7)])
        for shape, is_gated in (((2 * 96, 160), True), ((160, 96), False))
    )
    for rows in (1, 3, 90):
        x, scores = torch.randn(rows, 160).to(dtype), torch.randn(rows, 7).to(dtype)
        mix_experts(x, scores, gate_up, down, per_token=3, renormalise=True)


def _norm(dtype: torch.dtype) -> None:
    x, weight = torch.ones(9, 33).to(dtype), torch.ones(33).to(dtype)
    rms_norm(x, weight, 1e-5)
    rms_norm(x, weight, 1e-5, x)


CALLS: dict[str, Callable[[torch.dtype], object]] = {
    "rms_norm": _norm,
    "silu_mul": lambda dtype: silu_mul(torch.ones(9, 66).to(dtype)),
    "rope_store": lambda dtype: [_rope(dtype, width) for width in (6, 64)],
    "rope_store of codes": lambda dtype: [_rope(dtype, width, kind) for width in (6, 64) for kind in ("int8", "fp8")],
    "products": lambda dtype: [_product(dtype, shape) for shape in ((70, 96), (130, 33), (64, 2048))],
    "products of blocks": lambda dtype: [_block_product(dtype, kind) for kind in QUANTIZATIONS],
    "experts": lambda dtype: [_experts(dtype, kind) for kind in (None, *QUANTIZATIONS)],
    "attention": lambda dtype: [_attention(dtype, *shape) for shape in ((64, 12, 4), (80, 34, 2), (6, 2, 1))],
    "attention of codes": lambda dtype: [
        _attention(dtype, *shape, kind) for shape in ((64, 12, 4), (80, 34, 2), (6, 2, 1)) for kind in ("int8", "fp8")
    ],
    "likeliest": lambda dtype: likeliest(
        torch.randn(5, 90).to(dtype), None, torch.randn(90, 33).to(dtype), torch.empty(5, dtype=torch.int64)
    ),
    "draws": lambda dtype: _draws(),
    "peak": lambda dtype: multiply_in_cache(dtype, chunks=3, rounds=2),
}


@pytest.mark.parametrize("path", CPU_PATHS)
@pytest.mark.parametrize("call", CALLS)
def test_kernels_keep_to_the_scratch_that_the_host_counted(
    call: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a thread computes in ends where the next thread's begins: a byte too far is another's wrong token."""
    dtype = take_path(path, monkeypatch)
    taken: list[torch.Tensor] = []
    encode = parallel_region.encode

    def exactly(num_bytes: int) -> int:
        taken.append(torch.full((num_bytes + 4096,), GUARD, dtype=torch.uint8))
        return taken[-1].data_ptr()

    def guarded(task: tuple[object, ...], *, scratch: int, scratch_bytes: int) -> array[int]:
        return encode(task, scratch=scratch, scratch_bytes=scratch_bytes + GUARD_BYTES)

    monkeypatch.setattr(parallel_region, "scratch_of_thread", exactly)
    monkeypatch.setattr(parallel_region, "encode", guarded)
    sizes: list[int] = []
    launch = ParallelRegion.launch

    def noted(self: ParallelRegion, max_threads: int, task: tuple[object, ...], scratch_bytes: int = 0) -> None:
        launch(self, max_threads, task, scratch_bytes)
        sizes.append(scratch_bytes)

    monkeypatch.setattr(ParallelRegion, "launch", noted)
    CALLS[call](dtype)
    assert len(taken) == len(sizes) > 0
    for memory, size in zip(taken, sizes, strict=True):
        for thread in range(torch.get_num_threads()):
            first = thread * (size + GUARD_BYTES) + size
            assert (memory[first : first + GUARD_BYTES] == GUARD).all(), f"thread {thread} wrote past {size} bytes"


def test_memory_that_cannot_be_had_is_the_hosts_error() -> None:
    with pytest.raises(RuntimeError, match="memory"):
        _failing.launch(1, FailingTask(1, -1, np.zeros(1, dtype=np.int64)), 1 << 60)


def test_compiled_kernels_have_no_allocator_in_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """numba reports what it can't allocate as an exception, which compiled code on a team's threads can't raise."""
    for path in filter(can_take, CPU_PATHS):
        with monkeypatch.context() as patch:
            for call in CALLS.values():
                call(take_path(path, patch))
    folder = kernel_cache.cache_folder()
    assert folder is not None
    files = [Path(path) for path in folder.glob("*.kernel")]
    assert len(files) >= 8
    for file in files:
        assert b"NRT_Allocate" not in file.read_bytes(), file.name
