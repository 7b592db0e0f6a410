"""Compiling a CPU's kernels before they are needed, so that a node's first start takes as long as the next.

Each is compiled by calling its public function on a few numbers: so it is what this CPU, this dtype, this quantisation
and such a KV cache take, and nothing else. It is kept by `kernels.cpu.kernel_cache`; without a folder to keep it in,
this is for nothing.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed

import torch

from kernels.cpu.instructions import allowed
from kernels.cpu.kernel_cache import cache_folder, is_complete, mark_complete
from kernels.cpu.likeliest import likeliest
from kernels.cpu.recorder import Arena, Recorder
from kernels.cpu.recording import Recording
from kernels.experts import mix_experts, together
from kernels.kv_codes import KvCacheDtype, kv_format
from kernels.layer_ops import full_tables, rms_norm, rope_store, store_rows
from kernels.linear import pack_blocks, row_linear
from kernels.paged_attention import paged_attention
from kernels.quantization import Quantization
from kernels.sample_row import LIKELIEST, SampleRow
from kernels.sampling import sample

__all__ = ["DTYPES", "cache_folder", "compile_ahead", "is_compiled"]

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
_BLOCK, _HEADS, _HEAD_DIM, _WIDTH = 16, 2, 64, 64


def is_compiled(
    dtype: str, quantization: Quantization | None = None, kv: KvCacheDtype = "auto", *, has_experts: bool = True
) -> bool:
    """Whether `compile_ahead` was here before, or there is nothing that it could do."""
    if dtype not in DTYPES or cache_folder() is None:
        return True
    marks = {_mark(dtype, quantization, kv, has_experts=of) for of in (True, has_experts)}
    return any(is_complete(mark) for mark in marks)


def compile_ahead(
    dtype: str,
    quantization: Quantization | None = None,
    kv: KvCacheDtype = "auto",
    *,
    has_experts: bool = True,
    jobs: int = 1,
    report: Callable[[str], None] = lambda name: None,
) -> None:
    """Compiles in so many processes, this one if there is one; `report` hears of each kernel that is done.

    `has_experts`: also what only mixtures of experts need.
    The last one that a start needs comes first: a node that starts meanwhile compiles from the other end.
    """
    names = [name for name in reversed(_CALLS) if has_experts or name != "experts"]
    if jobs == 1:
        for name in names:
            _compile(name, dtype, quantization, kv)
            report(name)
    else:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(min(jobs, len(names)), mp_context=context) as pool:
            found = {pool.submit(_compile, name, dtype, quantization, kv): name for name in names}
            for done in as_completed(found):
                done.result()
                report(found[done])
    mark_complete(_mark(dtype, quantization, kv, has_experts=has_experts))


def _mark(dtype: str, quantization: Quantization | None, kv: KvCacheDtype, *, has_experts: bool) -> str:
    # Codes of both kinds have the same kernels.
    parts = [dtype, quantization or "plain", *([] if kv == "auto" else ["kv"]), *([] if has_experts else ["dense"])]
    return "-".join([*parts, allowed().name.lower()])


def _compile(name: str, dtype: str, quantization: Quantization | None, kv: KvCacheDtype) -> None:
    torch.set_num_threads(1)
    with torch.inference_mode():
        _CALLS[name](DTYPES[dtype], quantization, kv)


def _norm(dtype: torch.dtype, quantization: Quantization | None, kv: KvCacheDtype) -> None:
    x = torch.zeros(1, _WIDTH, dtype=dtype)
    rms_norm(x, x[0], 1e-5)


def _linear(dtype: torch.dtype, quantization: Quantization | None, kv: KvCacheDtype) -> None:
    weight = torch.zeros(2 * _WIDTH, _WIDTH, dtype=dtype)
    # of a quantised model the head has eight bits
    for kind in {quantization, quantization and "int8"}:
        packed = pack_blocks(weight, dtype, kind)
        for rows in (1, 8):  # few may have a kernel of their own
            row_linear(weight[:rows], packed)


def _experts(dtype: torch.dtype, quantization: Quantization | None, kv: KvCacheDtype) -> None:
    weight, x = torch.zeros(2 * _WIDTH, _WIDTH, dtype=dtype), torch.zeros(1, _WIDTH, dtype=dtype)
    gate_up = together([pack_blocks(weight, dtype, quantization, is_gated=True)] * 2)
    down = together([pack_blocks(weight[:_WIDTH], dtype, quantization)] * 2)
    mix_experts(x, x[:, :2].contiguous(), gate_up, down, per_token=1, renormalise=False)


def _drafts(dtype: torch.dtype, quantization: Quantization | None, kv: KvCacheDtype) -> None:
    x, one = torch.zeros(1, _WIDTH, dtype=dtype), torch.zeros(1, dtype=torch.int64)
    store_rows(x, x.clone(), one)
    likeliest(x, None, torch.zeros(_WIDTH, _WIDTH, dtype=dtype), one)


def _caches(dtype: torch.dtype, kv: KvCacheDtype) -> Sequence[torch.Tensor]:
    stored, row = kv_format(kv, dtype, _HEAD_DIM)
    return [torch.zeros(2, _BLOCK, _HEADS, row, dtype=stored) for _ in range(2)]


def _rope(dtype: torch.dtype, quantization: Quantization | None, kv: KvCacheDtype) -> None:
    qkv = torch.zeros(1, 4 * _HEADS * _HEAD_DIM, dtype=dtype)
    rope_store(qkv, *full_tables(torch.zeros(1, _HEAD_DIM // 2)), *_caches(dtype, kv), torch.tensor([3]))


def _attention(dtype: torch.dtype, quantization: Quantization | None, kv: KvCacheDtype) -> None:
    tables, one = torch.tensor([[0]], dtype=torch.int32), torch.tensor([1], dtype=torch.int32)
    q, starts = torch.zeros(1, 2 * _HEADS, _HEAD_DIM, dtype=dtype), torch.tensor([0, 1], dtype=torch.int32)
    paged_attention(q, *_caches(dtype, kv), tables, one, starts, scale=0.1)


def _draw(dtype: torch.dtype, quantization: Quantization | None, kv: KvCacheDtype) -> None:
    for row in (SampleRow(), LIKELIEST):
        sample(torch.zeros(1, _WIDTH, dtype=dtype), [row])


def _replay(dtype: torch.dtype, quantization: Quantization | None, kv: KvCacheDtype) -> None:
    x = torch.zeros(1, _WIDTH, dtype=dtype)
    with Recorder(Arena()) as recorder:
        rms_norm(x, x[0], 1e-5)
    Recording(recorder).replay()


# In the order in which a start needs them; what most models have no use for is the helper's last.
_CALLS: dict[str, Callable[[torch.dtype, Quantization | None, KvCacheDtype], None]] = {
    "experts": _experts,
    "drafts": _drafts,
    "norm": _norm,
    "linear": _linear,
    "rope": _rope,
    "attention": _attention,
    "draw": _draw,
    "replay": _replay,
}
