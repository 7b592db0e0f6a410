"""Attention's cases of `kernels.bench`: decode by bytes, prefill by products, against torch's SDPA and flashinfer."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

DTYPE = torch.bfloat16
BLOCK_SIZE = 16
FLASHINFER_WORKSPACE_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Case:
    """One operation at one size. `num_bytes` must be read or written; `num_flops` None where bytes are all that counts.

    `providers` are by name, each with a function that does the work once; ours is "triton". `is_captured`: none of it
    waits for the device.
    """

    op: str
    size: str
    num_bytes: int
    num_flops: int | None
    providers: dict[str, Callable[[], object]]
    is_captured: bool = True


def attention_cases() -> Iterator[Case]:
    """A model of 1B and one of 8B parameters; decode from 8k tokens of context, prefill whole and in chunks."""
    for heads, kv_heads, head_dim in ((32, 8, 64), (32, 8, 128)):
        for num_seqs, length in ((1, 8192), (8, 8192), (64, 8192), (8, 32_768), (1, 131_072)):
            yield _case("attention decode", _Paged(num_seqs, 1, length, heads, kv_heads, head_dim))
        for num_queries, length in ((512, 512), (2048, 8192), (8192, 8192)):
            yield _case("attention prefill", _Paged(1, num_queries, length, heads, kv_heads, head_dim))


class _Paged:
    """A batch of equal sequences in a paged cache, whose blocks lie in random order."""

    def __init__(self, num_seqs: int, num_queries: int, length: int, heads: int, kv_heads: int, head_dim: int) -> None:
        self.num_seqs, self.num_queries, self.length = num_seqs, num_queries, length
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        per_seq = length // BLOCK_SIZE
        shape = (num_seqs * per_seq, BLOCK_SIZE, kv_heads, head_dim)
        self.k, self.v = (torch.randn(shape, dtype=DTYPE, device="cuda") for _ in range(2))
        self.q = torch.randn((num_seqs * num_queries, heads, head_dim), dtype=DTYPE, device="cuda")
        self.tables = torch.randperm(num_seqs * per_seq).to(torch.int32).view(num_seqs, per_seq)
        self.lens = torch.full((num_seqs,), length, dtype=torch.int32)
        self.starts = torch.arange(num_seqs + 1, dtype=torch.int32) * num_queries

    @property
    def num_bytes(self) -> int:
        """Keys and values in, queries in, results out."""
        return self.k.nbytes + self.v.nbytes + 2 * self.q.nbytes

    @property
    def num_flops(self) -> int:
        """Of both products, over the keys that each query sees."""
        seen = self.num_queries * (2 * self.length - self.num_queries + 1) // 2
        return 4 * self.num_seqs * self.heads * self.head_dim * seen


def _case(op: str, batch: _Paged) -> Case:
    size = f"seqs={batch.num_seqs} queries={batch.num_queries} keys={batch.length}"
    providers = {"triton": _by_triton(batch), "sdpa": _by_sdpa(batch)}
    if importlib.util.find_spec("flashinfer") is not None:
        providers["flashinfer"] = _by_flashinfer(batch)
    shape = f"heads={batch.heads}/{batch.kv_heads}x{batch.head_dim}"
    return Case(op, f"{size} {shape}", batch.num_bytes, batch.num_flops, providers)


def _by_triton(batch: _Paged) -> Callable[[], Tensor]:
    from kernels.gpu.paged_attention import paged_attention, plan_attention

    arrangement = (batch.tables, batch.lens, batch.starts)
    plan = plan_attention(*arrangement, num_heads=batch.heads, num_kv_heads=batch.kv_heads, device="cuda")
    scale = batch.head_dim**-0.5
    return lambda: paged_attention(batch.q, batch.k, batch.v, *arrangement, scale=scale, plan=plan)


def _by_sdpa(batch: _Paged) -> Callable[[], Tensor]:
    """torch's attention over contiguous keys and values: it is spared looking up pages."""
    from torch.nn.attention.bias import causal_lower_right

    def by_seq(x: Tensor, heads: int) -> Tensor:
        return x.reshape(batch.num_seqs, -1, heads, batch.head_dim).transpose(1, 2)

    q, k, v = by_seq(batch.q, batch.heads), by_seq(batch.k, batch.kv_heads), by_seq(batch.v, batch.kv_heads)
    attend = partial(torch.nn.functional.scaled_dot_product_attention, q, k, v, enable_gqa=True)
    if batch.num_queries in (1, batch.length):
        return partial(attend, is_causal=batch.num_queries > 1)
    return partial(attend, attn_mask=causal_lower_right(batch.num_queries, batch.length))


def _by_flashinfer(batch: _Paged) -> Callable[[], Tensor]:
    flashinfer = importlib.import_module("flashinfer")
    workspace = torch.empty(FLASHINFER_WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")
    ends = torch.arange(batch.num_seqs + 1, dtype=torch.int32, device="cuda") * batch.tables.shape[1]
    blocks = batch.tables.flatten().cuda()
    last = torch.full((batch.num_seqs,), BLOCK_SIZE, dtype=torch.int32, device="cuda")
    shape = (batch.heads, batch.kv_heads, batch.head_dim, BLOCK_SIZE)
    if batch.num_queries == 1:
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=True)
        wrapper.plan(ends, blocks, last, *shape, q_data_type=DTYPE, kv_data_type=DTYPE)
    else:
        wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD")
        wrapper.plan(
            batch.starts.cuda(), ends, blocks, last, *shape, causal=True, q_data_type=DTYPE, kv_data_type=DTYPE
        )
    return lambda: wrapper.run(batch.q, (batch.k, batch.v))
