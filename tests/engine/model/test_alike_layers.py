"""Of layers that are alike Python goes through the first ones, and the others' launches are the same to the bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.model import recorded_steps
from engine.model.batch import Batch
from engine.model.decoder import Decoder
from engine.model.decoder_stack import DecoderStack
from engine.model.directory import open_model
from engine.model.weights import load_weights
from kernels.cpu.recorder import Launch, Recorder
from kernels.quantization import QUANTIZATIONS, Quantization
from tests.engine.model import test_model_logits
from tests.engine.model.test_model_logits import Paged, _make, _prompt
from tests.fixtures.cpu_paths import CPU_PATHS, take_path

LENGTHS = (40, 23, 60, 111)


class Layered(Paged):
    def __init__(self, path: Path, dtype: torch.dtype, kind: Quantization | None = None) -> None:
        super().__init__(path)
        model = open_model(path)
        weights = load_weights(model, dtype=dtype, device="cpu", quantization=kind)
        self.decoder, self.kv = Decoder(model.config, weights, num_positions=512), self.kv.to(dtype)
        self.decoder.prepare()

    def prompts(self) -> list[torch.Tensor]:
        """Last logits of prompts of several lengths, one after the other, in two chunks, and then together."""
        tokens = {i: _prompt(i, length) for i, length in enumerate(LENGTHS)}
        return [
            *(
                self.logits({0: one}, [(0, start, count)]).clone()
                for one in tokens.values()
                for start, count in ((0, len(one) - 5), (len(one) - 5, 5))
            ),
            self.logits(tokens, [(i, 0, len(one)) for i, one in tokens.items()]).clone(),
        ]


def _model(path: Path, num_layers: int, monkeypatch: pytest.MonkeyPatch, family: str = "llama biases") -> Path:
    monkeypatch.setitem(test_model_logits.SMALL, "num_hidden_layers", num_layers)
    monkeypatch.setitem(test_model_logits.SMALL, "hidden_size", 64)
    monkeypatch.setitem(test_model_logits.SMALL, "intermediate_size", 96)
    _make(path, family)
    return path


def _one_by_one(monkeypatch: pytest.MonkeyPatch, made: Layered) -> list[torch.Tensor]:
    """Every layer of every row, launched as it comes."""

    def forward(batch: Batch, kv: torch.Tensor) -> torch.Tensor:
        return made.decoder.logits(made.decoder.hidden(batch, kv), batch.sample_rows)

    with monkeypatch.context() as patch:
        patch.setattr(recorded_steps, "MAX_GATHERED_ROWS", 0)
        patch.setattr(made.decoder, "forward", forward)
        return made.prompts()


def _counting(monkeypatch: pytest.MonkeyPatch) -> list[Launch]:
    gone_through: list[Launch] = []
    add = Recorder.add

    def count(recorder: Recorder, launch: Launch) -> None:
        gone_through.append(launch)
        add(recorder, launch)

    monkeypatch.setattr(Recorder, "add", count)
    return gone_through


@pytest.mark.parametrize("path", CPU_PATHS)
@pytest.mark.parametrize("num_layers", [1, 6, 7])
def test_prompts_have_the_bits_of_layers_that_are_gone_through_one_by_one(
    tmp_path: Path, num_layers: int, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dtype = take_path(path, monkeypatch)
    model = _model(tmp_path, num_layers, monkeypatch)
    made = Layered(model, dtype)
    expected = _one_by_one(monkeypatch, Layered(model, dtype))
    for _ in range(2):
        assert all(map(torch.equal, made.prompts(), expected))
    made.kv = torch.full_like(made.kv, torch.nan)  # a node that slept has another cache
    assert all(map(torch.equal, made.prompts(), expected))


@pytest.mark.parametrize("kind", QUANTIZATIONS)
def test_so_have_those_of_weights_that_are_rounded(
    tmp_path: Path, kind: Quantization, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = _model(tmp_path, 6, monkeypatch, "qwen3")
    made, expected = (
        Layered(model, torch.bfloat16, kind),
        _one_by_one(monkeypatch, Layered(model, torch.bfloat16, kind)),
    )
    for _ in range(2):
        assert all(map(torch.equal, made.prompts(), expected))


def test_behind_the_last_attention_rows_are_computed_that_are_sampled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Layered(_model(tmp_path, 1, monkeypatch), torch.float32)
    rows: list[int] = []
    rest = DecoderStack.rest

    def note(stack: DecoderStack, out: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows.append(out.shape[0])
        return rest(stack, out, residual)

    monkeypatch.setattr(DecoderStack, "rest", note)
    made.logits({0: _prompt(0, 40), 1: _prompt(1, 30)}, [(0, 0, 40), (1, 0, 30)])
    assert rows == [2]
    made.logits({0: _prompt(2, 40), 1: _prompt(3, 30)}, [(0, 0, 20), (1, 0, 30)])
    assert rows == [2], "recorded"


@pytest.mark.parametrize("num_layers", [12, 13])
def test_python_goes_through_the_first_layers_alone(
    tmp_path: Path, num_layers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Layered(_model(tmp_path, num_layers, monkeypatch), torch.float32)
    gone_through = _counting(monkeypatch)
    made.prompts()
    gone_through.clear()
    tokens = _prompt(9, 77)
    made.logits({0: tokens}, [(0, 0, 77)])
    with_copies = len(gone_through)
    monkeypatch.setattr(recorded_steps.AlikeLayers, "complete", lambda *_: None)
    gone_through.clear()
    made.logits({0: tokens}, [(0, 0, 77)])
    whole = len(gone_through) - with_copies
    assert whole - 1 > num_layers * 6, "every layer's"
    assert with_copies < whole * 0.45


def test_layers_of_several_windows_are_gone_through_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Layered(_model(tmp_path, 7, monkeypatch, "qwen2 window on some layers"), torch.float32)
    expected = _one_by_one(monkeypatch, made)
    for _ in range(2):
        assert all(map(torch.equal, made.prompts(), expected))
