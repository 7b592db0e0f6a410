"""Mixtures of experts in compiled kernels: torch's result, the same bits in every batch, recorded like all others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest
import torch

from kernels.block_weight import quantised
from kernels.cpu.expert_matrices import ExpertMatrices
from kernels.cpu.recorder import Arena, Recorder
from kernels.cpu.recording import Recording
from kernels.experts import Experts, mix_experts, together
from kernels.linear import pack_blocks
from kernels.quantization import QUANTIZATIONS, Quantization
from tests.fixtures.cpu_paths import CPU_PATHS, take_path

EXPERTS, PER_TOKEN, WIDTH, INNER = 9, 3, 128, 96
Kind = Quantization | None


@pytest.fixture(params=[1, 2, 5], ids=lambda count: f"{count}-threads", autouse=True)
def _threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


class Layer(NamedTuple):
    gate_up: Experts
    down: Experts
    plain: tuple[list[torch.Tensor], list[torch.Tensor]]  # the numbers that are computed with

    def mix(self, x: torch.Tensor, scores: torch.Tensor, *, renormalise: bool = True) -> torch.Tensor:
        return mix_experts(x, scores, self.gate_up, self.down, per_token=PER_TOKEN, renormalise=renormalise)


def _layer(dtype: torch.dtype, kind: Kind = None) -> Layer:
    sides, plain = [], []
    for shape, is_gated in (((2 * INNER, WIDTH), True), ((WIDTH, INNER), False)):
        weights = [(torch.randn(shape) * shape[1] ** -0.5).to(dtype) for _ in range(EXPERTS)]
        sides.append(together([pack_blocks(weight, dtype, kind, is_gated=is_gated) for weight in weights]))
        plain.append([weight if kind is None else quantised(weight, kind).dequantised() for weight in weights])
    return Layer(*sides, (plain[0], plain[1]))


def _rows(count: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(count, WIDTH).to(dtype), torch.randn(count, EXPERTS).to(dtype)


@pytest.mark.parametrize("renormalise", [False, True], ids=["shares of all", "renormalised"])
@pytest.mark.parametrize("kind", [None, *QUANTIZATIONS], ids=str)
@pytest.mark.parametrize("path", CPU_PATHS)
def test_a_mixture_equals_its_reference(
    path: str, kind: Kind, renormalise: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    dtype = take_path(path, monkeypatch)
    layer = _layer(dtype, kind)
    assert isinstance(layer.gate_up, ExpertMatrices)
    x, scores = _rows(70, dtype)
    gate_up, down = ([weight.double() for weight in side] for side in layer.plain)
    options = {"per_token": PER_TOKEN, "renormalise": renormalise}
    expected = mix_experts(x.double(), scores.double(), gate_up, down, **options)
    tolerance = (
        5e-2 if kind in ("w8a8", "w4a8") else 1e-5 if dtype == torch.float32 else 2e-2
    )  # whose inputs are rounded
    found = layer.mix(x, scores, renormalise=renormalise)
    torch.testing.assert_close(found.double(), expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("kind", [None, *QUANTIZATIONS], ids=str)
@pytest.mark.parametrize("path", CPU_PATHS)
def test_a_row_has_the_same_bits_alone_and_beside_others_of_its_experts(
    path: str, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    dtype = take_path(path, monkeypatch)
    layer = _layer(dtype, kind)
    x, scores = _rows(1100, dtype)  # more than are dealt out at a time
    scores[:40, 4] = 9.0  # crowds one expert
    scores[:, 7] = -9.0  # which nobody takes
    together_ = layer.mix(x, scores)
    for rows in (slice(0, 1), slice(3, 9), slice(20, 84), slice(1090, 1100)):
        assert torch.equal(layer.mix(x[rows], scores[rows]), together_[rows])


@pytest.mark.parametrize("kind", [None, *QUANTIZATIONS], ids=str)
@pytest.mark.parametrize("rows", [1, 8, 33])
@pytest.mark.parametrize("path", CPU_PATHS)
def test_a_replay_goes_through_the_experts_that_are_chosen_now(
    path: str, rows: int, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    dtype = take_path(path, monkeypatch)
    layer = _layer(dtype, kind)
    batches = [_rows(rows, dtype) for _ in range(6)]
    expected = [layer.mix(*batch) for batch in batches]
    x, scores = (part.clone() for part in batches[0])
    with Recorder(Arena()) as recorder:
        found = layer.mix(x, scores)
    recording = Recording(recorder)
    for batch, wanted in [*zip(batches, expected, strict=True)][::-1] * 5:
        x.copy_(batch[0])
        scores.copy_(batch[1])
        recording.replay()
        assert torch.equal(found, wanted)


def test_of_equal_scores_the_first_experts_are_taken() -> None:
    layer = _layer(torch.float32)
    x, scores = _rows(5, torch.float32)
    level = layer.mix(x, torch.zeros_like(scores))
    first = torch.full_like(scores, -50.0)
    first[:, :PER_TOKEN] = 0.0
    torch.testing.assert_close(level, layer.mix(x, first))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("expert", [0, EXPERTS - 1])
def test_a_row_with_such_a_score_is_not_finite_and_alone_in_that(bad: float, expert: int) -> None:
    layer = _layer(torch.float32)
    x, scores = _rows(6, torch.float32)
    expected = layer.mix(x, scores)
    scores[2, expert] = bad
    found = layer.mix(x, scores)
    assert found[2].isnan().all()
    others = [0, 1, 3, 4, 5]
    assert torch.equal(found[others], expected[others])


def test_experts_that_are_not_packed_alike_are_computed_one_by_one() -> None:
    layer = _layer(torch.float32)
    blocks = pack_blocks(layer.plain[0][0], torch.float32, "int8", is_gated=True)
    mixed = together([blocks, *(layer.gate_up[i] for i in range(1, EXPERTS))])
    assert isinstance(mixed, list)
    x, scores = _rows(7, torch.float32)
    found = layer._replace(gate_up=mixed).mix(x, scores)
    torch.testing.assert_close(found, layer.mix(x, scores), atol=0.05, rtol=0.05)
