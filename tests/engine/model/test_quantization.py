"""Matrices rounded at load: near the logits of the model, those of its rounded numbers, the same in any batch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.core.runner_loader import load_runner
from engine.model.decoder import Decoder
from engine.model.directory import open_model
from engine.model.make import make_model
from engine.model.recorded_steps import can_record
from engine.model.weights import load_weights
from engine.protocol.core_config import CoreConfig
from kernels.cpu.block_matrix import BlockMatrix
from kernels.quantization import QUANTIZATIONS, Quantization
from tests.engine.model.test_gguf_model import wide  # noqa: F401
from tests.engine.model.test_model_logits import Paged, _prompt
from tests.fixtures.gguf_model import Type, write_gguf

WORST = {"int8": 0.04, "int4": 0.4, "w8a8": 0.06, "w4a8": 0.4}  # of the logits' own spread


class Rounded(Paged):
    def __init__(self, path: Path, kind: Quantization | None, dtype: torch.dtype = torch.float32) -> None:
        super().__init__(path)
        model = open_model(path)
        weights = load_weights(model, dtype=dtype, device="cpu", quantization=kind)
        self.decoder, self.kv = Decoder(model.config, weights, num_positions=512), self.kv.to(dtype)
        self.decoder.prepare()


@pytest.mark.parametrize("kind", QUANTIZATIONS)
def test_logits_stay_near_those_of_the_model(wide: Path, kind: Quantization) -> None:  # noqa: F811
    tokens = _prompt(1, 40)
    found, wanted = (Rounded(wide, of).logits({0: tokens}, [(0, 0, 40)]) for of in (kind, None))
    assert 0 < (found - wanted).std() < WORST[kind] * wanted.std()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", QUANTIZATIONS)
def test_alone_and_in_a_batch_a_sequence_has_the_same_bits(
    wide: Path,  # noqa: F811
    kind: Quantization,
    dtype: torch.dtype,
) -> None:
    """Also by recorded steps: the second step of three sequences is a replay."""
    paged = Rounded(wide, kind, dtype)
    assert can_record(paged.decoder.weights)
    prompts = {i: _prompt(i, 20 + i) for i in range(3)}
    together = [
        paged.logits(prompts, [(i, 0, 18 + i) for i in range(3)]).clone(),
        paged.logits(prompts, [(i, 18 + i, 1) for i in range(3)]).clone(),
        paged.logits(prompts, [(i, 19 + i, 1) for i in range(3)]).clone(),
    ]
    alone = Rounded(wide, kind, dtype)
    for i in range(3):
        steps = [(i, 0, 7), (i, 7, 11 + i), (i, 18 + i, 1), (i, 19 + i, 1)]
        found = [alone.logits({i: prompts[i]}, [step]).clone() for step in steps]
        for step, whole in zip(found[1:], together, strict=True):
            assert torch.equal(step[0], whole[i])


def test_blocks_of_a_file_are_computed_as_they_lie(wide: Path, tmp_path: Path) -> None:  # noqa: F811
    for kind in ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q3_K", "Q4_K", "Q5_K", "Q6_K"):
        model = open_model(write_gguf(wide, tmp_path / f"{kind}.gguf", Type[kind]))
        weights = load_weights(model, dtype=torch.float32, device="cpu")
        weights.pack()
        layer = weights.layers[0]
        matrices = (weights.head, layer.qkv, layer.output, layer.mlp.gate_up, layer.mlp.down)
        assert all(isinstance(matrix, BlockMatrix) for matrix in matrices)


def test_float16_has_no_such_kernels_and_is_refused(tmp_path: Path) -> None:
    model = make_model(tmp_path / "small")
    config = CoreConfig(model_dir=str(model), dtype="float16", quantization="int4", num_kv_blocks=8)
    with pytest.raises(ValueError, match="--quantization int4: on a CPU its kernels are for float32 and bfloat16"):
        load_runner(config, lambda phase, done: None)
