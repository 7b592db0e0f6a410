"""compressed-tensors W8A8 directories: inputs of products are rounded as `quantization_config` says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from engine.model.directory import open_model
from engine.model.packed_weights import packed_format
from engine.model.weights import load_weights
from kernels.block_weight import BlockWeight
from kernels.cpu.byte_matrix import ByteMatrix
from tests.engine.model.test_compressed_tensors import _scheme, _w8a8
from tests.engine.model.test_gguf_model import _logits, wide  # noqa: F401
from tests.engine.model.test_model_logits import _prompt

FIXED = 0.02
Rounding = Callable[[torch.Tensor], torch.Tensor]


def _inputs(**told: Any) -> dict[str, Any]:
    return {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True, **told}


def _config(inputs: dict[str, Any]) -> dict[str, Any]:
    config = _scheme(8, strategy="channel")
    config["config_groups"]["group_0"]["input_activations"] = inputs
    return config


def _by_token(x: torch.Tensor) -> torch.Tensor:
    scale = x.abs().amax(-1, keepdim=True) / 127
    return (x / scale).round().clamp(-128, 127) * scale


def _by_token_asymmetric(x: torch.Tensor) -> torch.Tensor:
    low, high = x.amin(-1, keepdim=True).clamp(max=0), x.amax(-1, keepdim=True).clamp(min=0)
    scale = (high - low) / 255
    zero = (-128 - low / scale).round()
    return (((x / scale).round() + zero).clamp(-128, 127) - zero) * scale


def _static(x: torch.Tensor) -> torch.Tensor:
    return (x / FIXED).round().clamp(-128, 127) * FIXED


def _static_with_zero(x: torch.Tensor) -> torch.Tensor:
    return ((x / FIXED).round() + 20).clamp(-128, 127).sub(20) * FIXED


SCHEMES: dict[str, tuple[dict[str, Any], dict[str, torch.Tensor], str, Rounding]] = {
    "by token": (_inputs(), {}, "w8a8", _by_token),
    "by token, asymmetric": (_inputs(symmetric=False), {}, "w8a8 asymmetric", _by_token_asymmetric),
    "calibrated": (
        _inputs(strategy="tensor", dynamic=False),
        {"input_scale": torch.tensor([FIXED])},
        "w8a8 static",
        _static,
    ),
    "calibrated, with a zero": (
        _inputs(strategy="tensor", dynamic=False, symmetric=False),
        {"input_scale": torch.tensor(FIXED), "input_zero_point": torch.tensor([20], dtype=torch.int8)},
        "w8a8 static",
        _static_with_zero,
    ),
}


def _write(source: Path, target: Path, scheme: str) -> tuple[Path, Path]:
    """The quantised directory, and the plain one of the same numbers."""
    told, beside, _, _ = SCHEMES[scheme]
    config = json.loads((source / "config.json").read_text())
    tensors, numbers = {}, load_file(source / "model.safetensors")
    for name, tensor in list(numbers.items()):
        if "_proj." in name:
            parts, numbers[name] = _w8a8(tensor.float())
            tensors |= {name.removesuffix("weight") + ending: part for ending, part in {**parts, **beside}.items()}
        else:
            tensors[name] = tensor
    packed, plain = target / "packed", target / "plain"
    for path, found, extra in ((packed, tensors, {"quantization_config": _config(told)}), (plain, numbers, {})):
        path.mkdir()
        (path / "config.json").write_text(json.dumps({**config, **extra}))
        found = {name: tensor.clone().contiguous() for name, tensor in found.items()}
        save_file(found, path / "model.safetensors", metadata={"format": "pt"})
    return packed, plain


@pytest.mark.parametrize("scheme", SCHEMES)
def test_logits_are_those_of_rounded_inputs(wide: Path, tmp_path: Path, scheme: str) -> None:  # noqa: F811
    packed, plain = _write(wide, tmp_path, scheme)
    *_, kind, rounding = SCHEMES[scheme]
    found, without = _logits(packed), _logits(plain)
    reference = transformers.AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float64).eval()
    for name, module in reference.named_modules():
        if name.endswith("_proj"):
            module.register_forward_pre_hook(lambda module, given: (rounding(given[0]),))
    with torch.inference_mode():
        wanted = reference(torch.tensor([_prompt(1, 30)])).logits[0, -2:].float()
    off, rounded_by = (found - wanted).abs().max(), (without - wanted).abs().max()
    assert off < 0.001 * rounded_by, f"off by {off}; rounding itself changes logits by {rounded_by}"
    layer = load_weights(open_model(packed), dtype=torch.bfloat16, device="cpu").layers[0]
    matrices = (layer.qkv, layer.output, layer.mlp.gate_up, layer.mlp.down)
    assert {matrix.kind for matrix in matrices if isinstance(matrix, BlockWeight)} == {kind}


def test_packed_they_are_multiplied_as_bytes(wide: Path, tmp_path: Path) -> None:  # noqa: F811
    packed, _ = _write(wide, tmp_path, "by token")
    weights = load_weights(open_model(packed), dtype=torch.bfloat16, device="cpu")
    weights.pack()
    layer = weights.layers[1]
    assert all(isinstance(m, ByteMatrix) for m in (layer.qkv, layer.output, layer.mlp.gate_up, layer.mlp.down))


@pytest.mark.parametrize(
    "told",
    [
        None,
        _inputs(dynamic=True, strategy="tensor"),  # a scale of the batch
        _inputs(dynamic=True, strategy="group", group_size=128),
        _inputs(dynamic="local"),
        _inputs(num_bits=4),
        _inputs(type="float"),
    ],
)
def test_inputs_of_other_schemes_stay_as_they_are(told: dict[str, Any] | None) -> None:
    found = packed_format({"quantization_config": _config(told)})  # type: ignore[arg-type] # None: none are rounded
    assert found is not None
    assert found.inputs is None


def test_without_a_calibrated_scale_inputs_stay_as_they_are(wide: Path, tmp_path: Path) -> None:  # noqa: F811
    packed, _ = _write(wide, tmp_path, "calibrated")
    tensors = load_file(packed / "model.safetensors")
    save_file({name: t for name, t in tensors.items() if "input_scale" not in name}, packed / "model.safetensors")
    layer = load_weights(open_model(packed), dtype=torch.bfloat16, device="cpu").layers[0]
    assert isinstance(layer.qkv, BlockWeight)
    assert layer.qkv.kind == "int8"


def test_schemes_that_want_several_kinds_of_inputs_get_none() -> None:
    config = _config(_inputs())
    config["config_groups"]["group_1"] = _scheme(8)["config_groups"]["group_0"]
    found = packed_format({"quantization_config": config})
    assert found is not None
    assert found.inputs is None
