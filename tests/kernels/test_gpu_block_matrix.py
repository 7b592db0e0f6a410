"""The Triton products with weights in blocks against their dequantised numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
import torch

from kernels.block_weight import BlockWeight, GroupKind, Kind, empty_blocks, quantised
from kernels.layer_ops import silu_mul
from kernels.linear import pack_blocks
from tests.fixtures.gpu_kernels import ON_DEVICES, TOLERANCE, Run, runner

pytest.importorskip("triton", reason="needs Triton")
SOME_KINDS = pytest.mark.parametrize("kind", ["int4", "int4 with offsets", "int4 with zeros", "int8", "fp8"])
MULTIPLY, EXPAND, KEPT_BYTES = (f"tests.fixtures.gpu_blocks:{name}" for name in ("multiply", "expand", "kept_bytes"))


@pytest.fixture(params=ON_DEVICES)
def run(request: pytest.FixtureRequest) -> Run:
    torch.manual_seed(0)
    return runner(request.param)


def random_blocks(kind: Kind, rows: int, width: int) -> BlockWeight:
    weight = empty_blocks(rows, width, kind)
    is_fp8 = kind == "fp8"  # whose largest codes are no numbers
    low, high = (-128, 128) if kind.startswith("int8") else (0, 127) if is_fp8 else (0, 16)
    weight.codes.copy_(torch.randint(low, high, (rows, width)) + torch.randint(2, (rows, width)) * 128 * is_fp8)
    weight.scales.copy_(torch.randn(weight.scales.shape) * 0.05)
    if weight.offsets is not None:
        zeros, offsets = torch.randint(17, weight.offsets.shape), torch.randn(weight.offsets.shape) * 0.05
        weight.offsets.copy_(zeros if "zeros" in kind else offsets)
    return weight


def assert_is_product(found: torch.Tensor, x: torch.Tensor, weight: BlockWeight, bias: torch.Tensor | None) -> None:
    """Within the roundings of a sum in float32, and of its result to its type."""
    numbers = weight.dequantised().double()
    expected = x.double() @ numbers.T + (0 if bias is None else bias.double())
    size = x.double().abs() @ numbers.abs().T + (0 if bias is None else bias.double().abs())
    slack = size * 2**-20 + expected.abs() * (0 if x.dtype == torch.float32 else TOLERANCE[x.dtype])
    assert found.dtype == x.dtype
    assert ((found.double() - expected).abs() <= slack).all()


def grouped(weight: BlockWeight, columns: int) -> BlockWeight:
    """As of a checkpoint whose groups are wider: its blocks of 32 have copies of a group's scale and zero."""
    index = torch.arange(weight.scales.shape[1]) * 32 // columns
    offsets = None if weight.offsets is None else weight.offsets[:, index]
    return BlockWeight(weight.kind, weight.codes, weight.scales[:, index], offsets)


@pytest.mark.parametrize("kind", get_args(GroupKind))
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_gpu_products_are_those_of_the_dequantised_numbers(run: Run, kind: Kind, dtype: torch.dtype) -> None:
    weight, bias, x = random_blocks(kind, 66, 96), torch.randn(66).to(dtype), torch.randn(3, 96).to(dtype)
    assert_is_product(run(MULTIPLY, x, bias, weight), x, weight, bias)


@SOME_KINDS
@pytest.mark.parametrize(("shape", "rows"), [((2, 32), 0), ((2, 32), 17), ((130, 128), 64)], ids=str)
def test_gpu_products_of_prompts_are_those_of_the_dequantised_numbers(
    run: Run, kind: Kind, shape: tuple[int, int], rows: int
) -> None:
    weight, x = random_blocks(kind, *shape), torch.randn(rows, shape[1]).half()
    assert_is_product(run(MULTIPLY, x, None, weight), x, weight, None)


@pytest.mark.parametrize("kind", get_args(GroupKind))
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_gpu_expands_a_weight_to_its_numbers(run: Run, kind: Kind, dtype: torch.dtype) -> None:
    weight = random_blocks(kind, 66, 96)
    found, wanted = run(EXPAND, torch.empty(0, dtype=dtype), weight), weight.dequantised().to(dtype)
    assert found.dtype == dtype
    torch.testing.assert_close(found, wanted, atol=1e-6, rtol=TOLERANCE[dtype])


def test_gpu_products_of_long_prompts_are_those_of_the_dequantised_numbers(run: Run) -> None:
    weight, x, bias = random_blocks("int4 with offsets", 66, 96), torch.randn(200, 96), torch.randn(66)
    assert_is_product(run(MULTIPLY, x, bias, weight), x, weight, bias)


@SOME_KINDS
def test_gpu_adds_up_columns_that_are_shared_out(run: Run, kind: Kind) -> None:
    weight, bias = random_blocks(kind, 5, 1056), torch.randn(5).half()
    x = torch.randn(2, 1056).half()
    assert_is_product(run(MULTIPLY, x, bias, weight), x, weight, bias)


@pytest.mark.parametrize("kind", ["int4", "int4 with zeros", "int8 with wide scales", "fp8"])
@pytest.mark.parametrize("group", [64, 128, 768])
def test_gpu_keeps_one_scale_for_each_group_of_a_checkpoint(run: Run, kind: Kind, group: int) -> None:
    weight, x = grouped(random_blocks(kind, 64, 768), group), torch.randn(3, 768).half()
    assert_is_product(run(MULTIPLY, x, None, weight), x, weight, None)
    codes = 64 * 768 // (2 if kind.startswith("int4") else 1)
    of_scale = {"int4": 2, "int4 with zeros": 3}.get(kind, 4)
    assert run(KEPT_BYTES, x, weight) == codes + 64 * (768 // group) * of_scale


def test_gpu_multiplies_columns_that_lie_in_an_order_of_their_own(run: Run) -> None:
    weight, x = replace(random_blocks("int4", 70, 96), order=torch.randperm(96)), torch.randn(3, 96)
    assert_is_product(run(MULTIPLY, x, None, weight), x, weight, None)


@pytest.mark.parametrize("kind", ["w8a8", "w8a8 asymmetric", "w8a8 static"])
def test_gpu_multiplies_weights_of_w8a8_with_inputs_as_they_are(run: Run, kind: Kind) -> None:
    rounded = quantised(torch.randn(70, 160), "w8a8")
    weight = BlockWeight(kind, rounded.codes, rounded.scales, inputs=torch.ones(70, 2) if "static" in kind else None)
    x = torch.randn(5, 160)
    assert_is_product(run(MULTIPLY, x, None, weight), x, weight, None)


@pytest.mark.parametrize("kind", ["int4", "int4 with offsets", "fp8"])
def test_gpu_gates_a_product(run: Run, kind: Kind) -> None:
    weight, bias, x = random_blocks(kind, 130, 64), torch.randn(130), torch.randn(9, 64)
    wanted = silu_mul(x.double() @ weight.dequantised().double().T + bias.double()).float()
    found = run(MULTIPLY, x, bias, weight, is_gated=True)
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)


def test_gpu_row_of_a_decoding_batch_has_the_bits_that_it_has_alone(run: Run) -> None:
    weight, x = random_blocks("int4", 70, 2048), torch.randn(16, 2048).half()  # its columns are shared out
    together = run(MULTIPLY, x, None, weight)
    for row in (0, 7, 15):
        assert torch.equal(run(MULTIPLY, x[row : row + 1], None, weight)[0], together[row])


def test_gpu_number_that_is_none_spoils_its_output_only(run: Run) -> None:
    weight = random_blocks("fp8", 5, 64)
    weight.codes[3, 40] = 0xFF
    found = run(MULTIPLY, torch.ones(2, 64), None, weight)
    assert found[:, 3].isnan().all()
    assert found[:, [0, 1, 2, 4]].isfinite().all()


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_public_linear_on_a_gpu_multiplies_blocks(kind: str) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA GPU here")
    weight = torch.randn(4096, 1024, device="cuda").bfloat16()
    matrix = pack_blocks(weight, weight.dtype, kind, device="cuda")
    assert sum(tensor.nbytes for tensor in matrix.tensors()) < weight.nbytes * 0.6
    for rows in (1, 16, 64):
        x = torch.randn(rows, 1024, device="cuda").bfloat16()
        assert_is_product(matrix(x).cpu(), x.cpu(), quantised(weight.cpu(), kind), None)
