"""Packed matrices and gathered attention: right, and the same bits in every batch."""

from __future__ import annotations

import pytest
import torch

from kernels.attention_plan import plan_attention
from kernels.gathered_attention import measure_shape, plan_gathered
from kernels.packed_matrix import can_pack, pack
from kernels.paged_attention import paged_attention

DTYPES = [torch.float32, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(96, 64), (130, 48), (1280, 768), (256, 1100)])
def test_packed_products_are_right_and_do_not_depend_on_other_rows(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(7)
    weight = (torch.randn(shape, generator=generator) * shape[1] ** -0.5).to(dtype)
    packed = pack(weight)
    if packed is None:
        assert not can_pack(dtype) or dtype == torch.bfloat16
        pytest.skip("this CPU has no packed product whose rows agree")
    x = torch.randn((336, shape[1]), generator=generator).to(dtype)
    bias = torch.randn(shape[0], generator=generator).to(dtype)
    expected = x.double() @ weight.double().T + bias.double()
    tolerance = 1e-5 if dtype == torch.float32 else 0.03
    torch.testing.assert_close(packed(x, bias).double(), expected, atol=tolerance, rtol=tolerance)
    whole, smallest = packed(x), packed.tiles[-1]
    for start in range(0, 336, smallest):
        assert torch.equal(packed(x[start : start + smallest].contiguous()), whole[start : start + smallest])


def _ragged(dtype: torch.dtype, heads: int, kv_heads: int, width: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(11)
    block_size, lens, counts = 16, [1, 15, 300, 513, 700, 90, 129], [1, 1, 1, 1, 200, 90, 129]
    tables = torch.zeros((len(lens), 44), dtype=torch.int32)
    order = torch.randperm(400, generator=generator).to(torch.int32)
    used = 0
    for i, length in enumerate(lens):
        need = -(-length // block_size)
        tables[i, :need] = order[used : used + need]
        used += need
    # Blocks that nobody owns, and rows past a sequence's end, hold what must never be read.
    caches = torch.full((2, 400, block_size, kv_heads, width), torch.nan, dtype=dtype)
    for i, length in enumerate(lens):
        for position in range(length):
            block = int(tables[i, position // block_size])
            caches[:, block, position % block_size] = torch.randn((2, kv_heads, width), generator=generator).to(dtype)
    starts = torch.tensor([0, *torch.tensor(counts).cumsum(0).tolist()], dtype=torch.int32)
    q = torch.randn((int(starts[-1]) + 3, heads, width), generator=generator).to(dtype)
    return q, caches[0], caches[1], tables, torch.tensor(lens, dtype=torch.int32), starts


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [None, 70, 600])
@pytest.mark.parametrize(("heads", "kv_heads", "width"), [(12, 4, 64), (4, 4, 32), (8, 1, 128)])
def test_gathered_attention_equals_the_reference(
    dtype: torch.dtype, window: int | None, heads: int, kv_heads: int, width: int
) -> None:
    shape = measure_shape(dtype, width, heads, kv_heads)
    if shape is None:
        pytest.skip("this CPU's products depend on the number of rows")
    q, k, v, tables, lens, starts = _ragged(dtype, heads, kv_heads, width)
    sizes = {"block_size": 16, "num_heads": heads, "num_kv_heads": kv_heads, "sliding_window": window}
    plan = plan_gathered(tables, lens, starts, **sizes, shape=shape)
    found = paged_attention(q, k, v, tables, lens, starts, scale=width**-0.5, plan=plan)
    reference = plan_attention(tables, lens, starts, **sizes)
    expected = paged_attention(q, k, v, tables, lens, starts, scale=width**-0.5, plan=reference)
    tolerance = 1e-5 if dtype == torch.float32 else 0.02
    torch.testing.assert_close(found.float(), expected.float(), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [None, 70])
def test_gathered_attention_gives_a_sequence_the_same_bits_alone(dtype: torch.dtype, window: int | None) -> None:
    shape = measure_shape(dtype, 64, 12, 4)
    if shape is None:
        pytest.skip("this CPU's products depend on the number of rows")
    q, k, v, tables, lens, starts = _ragged(dtype, 12, 4, 64)
    sizes = {"block_size": 16, "num_heads": 12, "num_kv_heads": 4, "sliding_window": window, "shape": shape}

    def attend(q: torch.Tensor, tables: torch.Tensor, lens: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
        plan = plan_gathered(tables, lens, starts, **sizes)
        return paged_attention(q, k, v, tables, lens, starts, scale=0.125, plan=plan)

    together = attend(q, tables, lens, starts)
    for i in range(len(lens)):
        first, last = int(starts[i]), int(starts[i + 1])
        own = (q[first:last], tables[i : i + 1], lens[i : i + 1], torch.tensor([0, last - first], dtype=torch.int32))
        assert torch.equal(attend(*own), together[first:last])
        # The last query of a prompt, as a decoding one.
        single = (q[last - 1 : last], tables[i : i + 1], lens[i : i + 1], torch.tensor([0, 1], dtype=torch.int32))
        assert torch.equal(attend(*single), together[last - 1 : last])
