"""The Triton kernels for keys and values in eight bits against their torch references."""

from __future__ import annotations

import pytest
import torch

from kernels import kv_codes
from kernels.kv_cache import store_kv
from tests.fixtures.gpu_kernels import ON_DEVICES, TOLERANCE, Run, runner
from tests.kernels.test_gpu_attention import BLOCK_SIZE, WORK, Batch

pytest.importorskip("triton", reason="needs Triton")
KINDS = pytest.mark.parametrize("kind", list(kv_codes.DTYPES))


@pytest.fixture(params=ON_DEVICES)
def run(request: pytest.FixtureRequest) -> Run:
    torch.manual_seed(0)
    return runner(request.param)


def _caches(kind: str, num_blocks: int, block_size: int, kv_heads: int, head_dim: int) -> list[torch.Tensor]:
    shape = (num_blocks, block_size, kv_heads, kv_codes.row_bytes(head_dim))
    return [torch.full(shape, -1, dtype=torch.int8).view(kv_codes.DTYPES[kind]) for _ in "kv"]


@KINDS
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_gpu_store_rounds_as_the_reference_to_the_bit_and_writes_named_slots_only(
    run: Run, kind: str, dtype: torch.dtype
) -> None:
    fused = (torch.randn(6, 9, 12) * torch.logspace(-3, 2, 6)[:, None, None]).to(dtype)
    fused[2, 4] = 0.0
    k, v = fused[:, 3:6], fused[:, 6:]
    found, wanted = _caches(kind, 5, 4, 3, 12), _caches(kind, 5, 4, 3, 12)
    slots = torch.tensor([14, 0, 19, 7, 3, 5])
    store_kv(k, v, *wanted, slots)
    run("kernels.gpu.kv_codes:store_codes", k, v, *found, slots)
    for cache, expected in zip(found, wanted, strict=True):
        assert torch.equal(cache, expected)
    run("kernels.gpu.kv_codes:store_codes", k[:1], v[:1], *found, torch.tensor([-1]))
    assert torch.equal(found[0], wanted[0]), "a negative slot writes nothing"


@KINDS
@pytest.mark.parametrize("window", [None, 50])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "dtype"),
    [(4, 2, 16, torch.float32), (7, 1, 24, torch.float32), (8, 2, 32, torch.bfloat16), (3, 3, 64, torch.float16)],
    ids=str,
)
def test_gpu_attention_reads_codes_as_their_numbers(
    run: Run, kind: str, heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype, window: int | None
) -> None:
    batch = Batch(WORK[:5], heads, kv_heads, head_dim, dtype)
    caches = _caches(kind, len(batch.k_cache), BLOCK_SIZE, kv_heads, head_dim)
    for index, (length, _) in enumerate(batch.work):
        at = torch.arange(length)
        slots = batch.tables[index, at // BLOCK_SIZE].long() * BLOCK_SIZE + at % BLOCK_SIZE
        store_kv(batch.k[index], batch.v[index], *caches, slots)
        for rows in (batch.k, batch.v):
            rows[index] = kv_codes.dequantised(*kv_codes.quantised(rows[index], caches[0].dtype))
    batch.k_cache, batch.v_cache = caches
    near = max(TOLERANCE[dtype] * 3, 1e-4)
    for index, found in enumerate(batch.attend(run, window)):
        torch.testing.assert_close(found.double(), batch.expected(index, window), atol=near, rtol=near)
