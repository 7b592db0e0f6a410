"""compressed-tensors and FP8 directories compute what transformers computes from their dequantised weights."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from structlog.testing import capture_logs

from engine.model.config import BadConfigError
from engine.model.directory import BadModelError, open_model
from engine.model.packed_weights import packed_format
from engine.model.weights import load_weights
from kernels.block_weight import BlockWeight
from tests.engine.model.test_gguf_model import _logits, wide  # noqa: F401
from tests.engine.model.test_model_logits import _prompt

Parts: TypeAlias = dict[str, torch.Tensor]
E4M3_MAX = 448.0


def _words(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Numbers around 0 of the last axis in 32-bit words, the first one lowest."""
    many = 32 // bits
    padded = torch.nn.functional.pad(codes.to(torch.int64) + 2 ** (bits - 1), (0, -codes.shape[-1] % many))
    words = sum(padded[..., i::many] << (bits * i) for i in range(many))
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


def _whole(weight: torch.Tensor, bits: int, columns: int, *, dtype: torch.dtype = torch.bfloat16) -> tuple[Parts, Any]:
    """Codes and scales of symmetric groups, and the numbers that they say."""
    groups, top = weight.unflatten(1, (-1, columns)), 2 ** (bits - 1) - 1
    scales = (groups.abs().amax(-1) / top).to(dtype)
    codes = (groups / scales.float()[..., None]).round().clamp(-top - 1, top)
    said = (codes * scales.float()[..., None]).flatten(1)
    return {"codes": codes.flatten(1).to(torch.int8), "weight_scale": scales}, said


def _packed(weight: torch.Tensor, bits: int, columns: int) -> tuple[Parts, torch.Tensor]:
    parts, said = _whole(weight, bits, columns)
    codes = parts.pop("codes")
    return {**parts, "weight_packed": _words(codes, bits), "weight_shape": torch.tensor(weight.shape)}, said


def _w4a16(weight: torch.Tensor) -> tuple[Parts, torch.Tensor]:
    return _packed(weight, 4, 128)


def _w8a16(weight: torch.Tensor) -> tuple[Parts, torch.Tensor]:
    return _packed(weight, 8, weight.shape[1])


def _w4a16_with_zeros(weight: torch.Tensor) -> tuple[Parts, torch.Tensor]:
    groups = weight.unflatten(1, (-1, 64))
    low, high = groups.amin(-1), groups.amax(-1)
    scales = ((high - low) / 15).bfloat16()
    zeros = (-8 - low / scales.float()).round().clamp(-8, 7)
    codes = (groups / scales.float()[..., None] + zeros[..., None]).round().clamp(-8, 7)
    parts = {
        "weight_packed": _words(codes.flatten(1), 4),
        "weight_scale": scales,
        "weight_zero_point": _words(zeros.T, 4).T.contiguous(),
        "weight_shape": torch.tensor(weight.shape),
    }
    return parts, ((codes - zeros[..., None]) * scales.float()[..., None]).flatten(1)


def _w4a16_in_order_of_activations(weight: torch.Tensor) -> tuple[Parts, torch.Tensor]:
    order = torch.randperm(weight.shape[1], generator=torch.Generator().manual_seed(5))
    parts, said = _packed(weight[:, order], 4, 128)
    back = order.argsort()
    codes, _ = _whole(weight[:, order], 4, 128)
    parts["weight_packed"] = _words(codes["codes"][:, back], 4)
    return {**parts, "weight_g_idx": (back // 128).int()}, said[:, back]


def _w8a8(weight: torch.Tensor) -> tuple[Parts, torch.Tensor]:
    """As SmoothQuant's: a scale for each row; activations are rounded, or not, by who serves it."""
    parts, said = _whole(weight, 8, weight.shape[1])
    return {"weight": parts["codes"], "weight_scale": parts["weight_scale"]}, said


def _w8a8_wide(weight: torch.Tensor) -> tuple[Parts, torch.Tensor]:
    parts, said = _whole(weight, 8, weight.shape[1], dtype=torch.float32)
    return {"weight": parts["codes"], "weight_scale": parts["weight_scale"]}, said


def _w8a8_with_zeros(weight: torch.Tensor) -> tuple[Parts, torch.Tensor]:
    parts, _ = _w8a8(weight)
    zeros = torch.randint(-20, 20, (weight.shape[0], 1), dtype=torch.int8)
    said = (parts["weight"].float() - zeros) * parts["weight_scale"].float()
    return {**parts, "weight_zero_point": zeros}, said


def _e4m3(weight: torch.Tensor, scales: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`scales` are those of all numbers."""
    codes = (weight / scales).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
    return codes, codes.float() * scales


def _fp8_of_rows(weight: torch.Tensor) -> tuple[Parts, torch.Tensor]:
    scales = (weight.abs().amax(1, keepdim=True) / E4M3_MAX).bfloat16()
    codes, said = _e4m3(weight, scales.float())
    return {"weight": codes, "weight_scale": scales}, said


def _fp8_of_matrix(weight: torch.Tensor) -> tuple[Parts, torch.Tensor]:
    scale = weight.abs().amax() / E4M3_MAX
    codes, said = _e4m3(weight, scale)
    return {"weight": codes, "weight_scale": scale, "input_scale": torch.tensor(0.02)}, said


def _fp8_of_squares(weight: torch.Tensor) -> tuple[Parts, torch.Tensor]:
    """As DeepSeek's and Qwen3's: squares of 96, the last ones smaller."""
    rows, width = weight.shape
    padded = torch.nn.functional.pad(weight, (0, -width % 96, 0, -rows % 96))
    scales = padded.unflatten(0, (-1, 96)).unflatten(2, (-1, 96)).abs().amax((1, 3)) / E4M3_MAX
    spread = scales.repeat_interleave(96, 0).repeat_interleave(96, 1)[:rows, :width]
    codes, said = _e4m3(weight, spread)
    return {"weight": codes, "weight_scale_inv": scales}, said


def _scheme(bits: int, kind: str = "int", **more: Any) -> dict[str, Any]:
    """A `quantization_config` as llm-compressor writes it, less what nobody reads."""
    weights = {"num_bits": bits, "type": kind, "symmetric": True, **more}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None}
    formats = {("int", 4): "pack-quantized", ("int", 8): "int-quantized", ("float", 8): "float-quantized"}
    told = {"quant_method": "compressed-tensors", "format": formats[kind, bits], "ignore": ["lm_head"]}
    return {**told, "config_groups": {"group_0": group}, "quantization_status": "compressed"}


SCHEMES: dict[str, tuple[Callable[[torch.Tensor], tuple[Parts, torch.Tensor]], dict[str, Any], str | None]] = {
    "W4A16": (_w4a16, _scheme(4, group_size=128), "int4"),
    "W4A16 with zeros": (_w4a16_with_zeros, _scheme(4, group_size=64, symmetric=False), "int4 with zeros"),
    "W4A16 act-order": (_w4a16_in_order_of_activations, _scheme(4, actorder="group"), "int4"),
    "W8A16": (_w8a16, {**_scheme(8), "format": "pack-quantized"}, "int8"),
    "W8A8": (_w8a8, _scheme(8, strategy="channel"), "int8"),
    "W8A8, scales in float32": (_w8a8_wide, _scheme(8, strategy="channel"), "int8 with wide scales"),
    "W8A8 with zeros": (_w8a8_with_zeros, _scheme(8, symmetric=False), None),
    "FP8 of rows": (_fp8_of_rows, _scheme(8, "float", strategy="channel"), "fp8"),
    "FP8 of matrices": (_fp8_of_matrix, {"quant_method": "fp8", "activation_scheme": "static"}, "fp8"),
    "FP8 of squares": (_fp8_of_squares, {"quant_method": "fp8", "weight_block_size": [96, 96]}, "fp8"),
}


def _write(source: Path, target: Path, scheme: str) -> tuple[Path, Path]:
    """The quantised directory, and the plain one of the same numbers."""
    packed, plain = target / "packed", target / "plain"
    round_off, told, _ = SCHEMES[scheme]
    config = json.loads((source / "config.json").read_text())
    tensors, numbers = {}, load_file(source / "model.safetensors")
    for name, tensor in list(numbers.items()):
        if "_proj." not in name:
            tensors[name] = tensor
            continue
        parts, numbers[name] = round_off(tensor.float())
        numbers[name] = numbers[name].contiguous()
        tensors |= {name.removesuffix("weight") + ending: part.contiguous() for ending, part in parts.items()}
    for path, found, extra in ((packed, tensors, {"quantization_config": told}), (plain, numbers, {})):
        path.mkdir()
        (path / "config.json").write_text(json.dumps({**config, **extra}))
        save_file(found, path / "model.safetensors", metadata={"format": "pt"})
    return packed, plain


@pytest.mark.parametrize("scheme", SCHEMES)
def test_logits_are_those_of_the_dequantised_weights(wide: Path, tmp_path: Path, scheme: str) -> None:  # noqa: F811
    packed, plain = _write(wide, tmp_path, scheme)
    found = _logits(packed)
    if "act-order" in scheme:  # a row is summed in the order of the groups
        torch.testing.assert_close(found, _logits(plain), atol=1e-5, rtol=1e-5)
    else:
        assert torch.equal(found, _logits(plain))
    reference = transformers.AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32).eval()
    with torch.inference_mode():
        wanted = reference(torch.tensor([_prompt(1, 30)])).logits[0, -2:]
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_cpu_keeps_what_it_can_multiply_as_it_lies_and_says_what_it_expanded(
    wide: Path,  # noqa: F811
    tmp_path: Path,
    scheme: str,
) -> None:
    packed, _ = _write(wide, tmp_path, scheme)
    with capture_logs() as logs:
        weights = load_weights(open_model(packed), dtype=torch.bfloat16, device="cpu")
    layer, kind = weights.layers[0], SCHEMES[scheme][2]
    matrices = (layer.qkv, layer.output, layer.mlp.gate_up, layer.mlp.down)
    assert {m.kind if isinstance(m, BlockWeight) else None for m in matrices} == {kind}
    (told,) = [line for line in logs if line["event"] == "weights.quantised"]
    assert set(told["kept_bytes"]) == ({kind} - {None})
    assert (told["expanded_bytes"] == 0) is (kind is not None)


def test_float16_gets_numbers(wide: Path, tmp_path: Path) -> None:  # noqa: F811
    packed, plain = _write(wide, tmp_path, "FP8 of squares")
    found, wanted = (
        load_weights(open_model(path), dtype=torch.float16, device="cpu").layers[1] for path in (packed, plain)
    )
    assert torch.equal(found.qkv, wanted.qkv)


def test_scales_of_another_shape_are_named(wide: Path, tmp_path: Path) -> None:  # noqa: F811
    packed, _ = _write(wide, tmp_path, "FP8 of squares")
    tensors = load_file(packed / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight_scale_inv"] = torch.ones(5, 3)
    save_file(tensors, packed / "model.safetensors")
    with pytest.raises(BadModelError, match=r"layers\.1\.mlp\.up_proj\.weight_scale_inv: scales \[5, 3\] fit no"):
        open_model(packed)


def test_codes_without_scales_are_named_with_a_remedy(wide: Path, tmp_path: Path) -> None:  # noqa: F811
    packed, _ = _write(wide, tmp_path, "W8A8")
    tensors = load_file(packed / "model.safetensors")
    del tensors["model.layers.0.self_attn.k_proj.weight_scale"]
    save_file(tensors, packed / "model.safetensors")
    with pytest.raises(BadModelError, match=r"k_proj\.weight is I8; serve the unquantised model, or one whose"):
        open_model(packed)


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({**_scheme(4), "format": "nvfp4-pack-quantized"}, "format: 'nvfp4-pack-quantized' is not supported; pack-"),
        ({**_scheme(4), "format": "marlin-24"}, "format: 'marlin-24' is not supported"),
        ({**_scheme(4), "sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config.format: 'sparse-24"),
        ({**_scheme(4), "transform_config": {"config_groups": {"u": {}}}}, "transform_config: 'rotations'"),
        ({**_scheme(8), "config_groups": {}}, "config_groups: {} is not supported"),
        ({**_scheme(8), "config_groups": {"g": {"weights": {"num_bits": 3}}}}, "g.weights: '3 bits int' is not"),
        ({"quant_method": "fp8", "fmt": "e5m2"}, "fmt: 'e5m2' is not supported; e4m3 is"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "weight_block_size: [128] is not supported"),
    ],
)
def test_other_schemes_are_refused_with_a_remedy(told: dict[str, Any], message: str) -> None:
    with pytest.raises(BadConfigError, match=re.escape(message)) as refused:
        packed_format({"quantization_config": told})
    assert "serve the model in another rounding, or the unquantised one" in str(refused.value)
