"""AWQ and GPTQ directories compute the logits of their dequantised weights; other ways to quantise are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.model.config import BadConfigError
from engine.model.directory import BadModelError, open_model
from engine.model.packed_weights import packed_format
from engine.model.weights import DenseWeights, kept_bytes, load_weights
from kernels.block_weight import BlockWeight
from tests.engine.model.test_gguf_model import _logits, wide  # noqa: F401

GROUP = 64


def _words(codes: torch.Tensor, bits: int, order: tuple[int, ...]) -> torch.Tensor:
    """Numbers of the last axis into words, number `order[i]` of each run into the i-th lowest bits."""
    many = 32 // bits
    runs = codes.to(torch.int64).unflatten(-1, (-1, many))
    words = sum(runs[..., place] << (bits * i) for i, place in enumerate(order))
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


def _packed(
    weight: torch.Tensor, method: str, bits: int, act_order: bool
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """A matrix `[rows, width]` as its parts, and the numbers that they say."""
    rows, width = weight.shape
    groups = torch.arange(width) // GROUP
    if act_order:
        groups = groups[torch.randperm(width, generator=torch.Generator().manual_seed(1))]
    top = 2**bits - 1
    scales, zeros = torch.empty(width // GROUP, rows), torch.empty(width // GROUP, rows)
    codes = torch.empty(width, rows)
    for group in range(width // GROUP):
        own = weight.T[groups == group]
        low, high = own.amin(0), own.amax(0)
        scales[group] = ((high - low) / top).half().float()
        zeros[group] = (-low / scales[group]).round().clamp(1, top)
        codes[groups == group] = (own / scales[group] + zeros[group]).round().clamp(0, top)
    said = ((codes - zeros[groups]) * scales[groups]).T.contiguous()
    plain = tuple(range(32 // bits))
    if method == "awq":
        order = (0, 2, 4, 6, 1, 3, 5, 7)
        parts = {"qweight": _words(codes, bits, order), "qzeros": _words(zeros, bits, order)}
        return {**parts, "scales": scales.half()}, said
    parts = {"qweight": _words(codes.T, bits, plain).T.contiguous(), "qzeros": _words(zeros - 1, bits, plain)}
    return {**parts, "scales": scales.half(), "g_idx": groups.int()}, said


def _write(source: Path, target: Path, told: dict[str, Any], *, act_order: bool = False) -> tuple[Path, Path]:
    """The packed directory, and the plain one of the same numbers."""
    packed, plain = target / "packed", target / "plain"
    config = json.loads((source / "config.json").read_text())
    tensors, numbers = {}, load_file(source / "model.safetensors")
    for name, tensor in list(numbers.items()):
        if "_proj." not in name:
            tensors[name] = tensor
            continue
        parts, numbers[name] = _packed(tensor.float(), told["quant_method"], told["bits"], act_order)
        tensors |= {name.removesuffix("weight") + ending: part for ending, part in parts.items()}
    for path, found, extra in ((packed, tensors, {"quantization_config": told}), (plain, numbers, {})):
        path.mkdir()
        (path / "config.json").write_text(json.dumps({**config, **extra}))
        save_file(found, path / "model.safetensors", metadata={"format": "pt"})
    return packed, plain


@pytest.mark.parametrize(
    ("method", "bits", "act_order"),
    [("awq", 4, False), ("gptq", 4, False), ("gptq", 4, True), ("gptq", 8, False)],
)
def test_logits_are_those_of_the_dequantised_weights(
    wide: Path,  # noqa: F811
    tmp_path: Path,
    method: str,
    bits: int,
    act_order: bool,
) -> None:
    told = {"quant_method": method, "bits": bits, "group_size": GROUP, "desc_act": act_order}
    packed, plain = _write(wide, tmp_path, told, act_order=act_order)
    assert open_model(packed).weight_bytes < open_model(plain).weight_bytes / 2
    if act_order:  # a row is summed in the order of the groups
        torch.testing.assert_close(_logits(packed), _logits(plain), atol=1e-5, rtol=1e-5)
    else:
        assert torch.equal(_logits(packed), _logits(plain))


@pytest.mark.parametrize(("method", "act_order"), [("awq", False), ("gptq", False), ("gptq", True)])
def test_bytes_are_reckoned_before_anything_is_loaded(
    wide: Path,  # noqa: F811
    tmp_path: Path,
    method: str,
    act_order: bool,
) -> None:
    told = {"quant_method": method, "bits": 4, "group_size": GROUP, "desc_act": act_order}
    packed, plain = (open_model(path) for path in _write(wide, tmp_path, told, act_order=act_order))
    found, whole = (kept_bytes(model, dtype=torch.float32, device="cuda") for model in (packed, plain))
    assert found < whole / 2


def test_act_order_stays_in_blocks_where_matrices_of_the_same_inputs_have_one(
    wide: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    told = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": True}
    packed, _ = _write(wide, tmp_path, told, act_order=True)
    layer = load_weights(open_model(packed), dtype=torch.float32, device="cpu").layers[0]
    assert isinstance(layer.mlp, DenseWeights)
    for matrix in (layer.qkv, layer.output, layer.mlp.gate_up, layer.mlp.down):
        assert isinstance(matrix, BlockWeight)
        assert matrix.kind == "int4 with zeros"
        assert matrix.order is not None
        assert not torch.equal(matrix.order, torch.arange(matrix.shape[1]))
    tensors = load_file(packed / "model.safetensors")
    groups = "model.layers.0.self_attn.k_proj.g_idx"
    tensors[groups] = tensors[groups].flip(0).contiguous()
    save_file(tensors, packed / "model.safetensors", metadata={"format": "pt"})
    layer = load_weights(open_model(packed), dtype=torch.float32, device="cpu").layers[0]
    assert isinstance(layer.qkv, torch.Tensor)  # keys have another order than queries
    assert isinstance(layer.output, BlockWeight)


def test_a_part_that_is_missing_is_named(wide: Path, tmp_path: Path) -> None:  # noqa: F811
    packed, _ = _write(wide, tmp_path, {"quant_method": "awq", "bits": 4})
    tensors = load_file(packed / "model.safetensors")
    del tensors["model.layers.0.self_attn.q_proj.qzeros"]
    save_file(tensors, packed / "model.safetensors")
    with pytest.raises(BadModelError, match=r"no tensor model\.layers\.0\.self_attn\.q_proj\.weight"):
        open_model(packed)


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"quant_method": "bitsandbytes"}, "'bitsandbytes' is not supported; awq, gptq, compressed-tensors, fp8 are"),
        ({"quant_method": "gptq", "bits": 3}, "bits: 3 is not supported with gptq"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "'gemv' is not supported; gemm is"),
        ("int4", "None is not supported"),
    ],
)
def test_other_ways_to_quantise_are_refused(told: Any, message: str) -> None:
    with pytest.raises(BadConfigError, match=message):
        packed_format({"quantization_config": told})
