"""The Triton sampler draws what the reference draws."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kernels.sample_row import SampleRow
from kernels.sampling import sample, uniform
from tests.fixtures.gpu_kernels import ON_DEVICES, Run, runner

pytest.importorskip("triton", reason="needs Triton")
VOCAB = 300
PARAMETERS = {
    "greedy": {"temperature": 0.0},
    "plain": {},
    "cold": {"temperature": 0.3},
    "hot": {"temperature": 5.0},
    "top-k": {"top_k": 7},
    "top-k of all": {"top_k": VOCAB},
    "top-p": {"top_p": 0.6},
    "top-p 0": {"top_p": 0.0},
    "min-p": {"min_p": 0.1},
    "all filters": {"top_k": 40, "top_p": 0.8, "min_p": 0.01, "temperature": 1.5},
    "penalties": {
        "repetition_penalty": 1.7,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.3,
        "seen": list(range(0, VOCAB, 3)),
        "output_counts": {0: 2, 3: 1, 100: 5},
        "top_k": 30,
    },
    "bias and bans": {"logit_bias": [(5, 4.0), (VOCAB + 9, 1.0)], "banned": [1, 2, 6], "top_p": 0.9},
    "grammar": {"allowed": np.packbits(np.arange(320) % 7 == 3, bitorder="little").view(np.int32), "top_p": 0.95},
    "grammar of one token": {"allowed": np.packbits(np.arange(320) == 299, bitorder="little").view(np.int32)},
}


@pytest.fixture(params=ON_DEVICES)
def run(request: pytest.FixtureRequest) -> Run:
    torch.set_num_threads(1)
    return runner(request.param)


def _tokens(run: Run, logits: torch.Tensor, rows: list[SampleRow]) -> list[int | None]:
    return [drawn.token_id for drawn in run("kernels.gpu.sampling:sample", logits, rows)]


def test_gpu_uniform_numbers_are_those_of_the_cpu(run: Run) -> None:
    seeds, positions = [0, 1, 2**63 - 1, -1, -(2**63), 12345], [0, 0, 1, 7, 2**40, 99]
    found = run("tests.fixtures.gpu_uniform:uniform", torch.tensor(seeds), torch.tensor(positions))
    assert np.array_equal(found.numpy(), uniform(seeds, positions))


@pytest.mark.parametrize("kind", ["spread", "tied"])
def test_gpu_draws_are_those_of_the_reference(run: Run, kind: str) -> None:
    parameters = list(PARAMETERS.values()) * 2
    logits = torch.randn((len(parameters), VOCAB), generator=torch.Generator().manual_seed(1)) * 2
    if kind == "tied":  # many equal scores: thresholds cut through them, low ids stay
        logits = logits.round()
    rows = [SampleRow(seed=i - 5, position=i * i, **p) for i, p in enumerate(parameters)]
    expected = [drawn.token_id for drawn in sample(logits, rows)]
    assert _tokens(run, logits, rows) == expected


def test_gpu_draws_over_several_blocks_of_the_vocabulary(run: Run) -> None:
    vocab = 9001
    logits = torch.randn((3, vocab), generator=torch.Generator().manual_seed(2)).bfloat16()
    rows = [SampleRow(seed=4), SampleRow(seed=5, top_p=0.7), SampleRow(temperature=0.0)]
    assert _tokens(run, logits, rows) == [drawn.token_id for drawn in sample(logits, rows)]


@pytest.mark.parametrize("kind", ["spread", "tied"])
def test_gpu_draws_from_rows_that_many_programs_share(run: Run, kind: str) -> None:
    vocab = 9_000  # 5 parts; of equal scores the first ones stay, wherever they lie
    logits = torch.randn((6, vocab), generator=torch.Generator().manual_seed(6)) * 2
    if kind == "tied":
        logits = logits.round()
    rows = [
        SampleRow(seed=1, top_k=700, top_p=0.9),
        SampleRow(seed=2, top_k=40),
        SampleRow(temperature=0.0),
        SampleRow(seed=3, top_p=0.5),
        SampleRow(seed=4),
        SampleRow(seed=5, top_p=0.95, min_p=0.02),
    ]
    expected = [drawn.token_id for drawn in sample(logits, rows)]
    assert _tokens(run, logits, rows) == expected
    assert _tokens(run, logits[3:4], rows[3:4]) == expected[3:4]


def test_gpu_row_without_an_answer_is_none_and_its_neighbours_are_not(run: Run) -> None:
    logits = torch.randn((4, VOCAB), generator=torch.Generator().manual_seed(3))
    logits[0, 7], logits[1, 8], logits[2, 9] = torch.nan, torch.inf, -torch.inf
    rows = [SampleRow(temperature=0.0), SampleRow(), SampleRow(top_k=3), SampleRow(seed=1, num_logprobs=2)]
    found = run("kernels.gpu.sampling:sample", logits, rows)
    assert [drawn.token_id for drawn in found[:3]] == [None, None, None]
    expected = sample(logits, rows)[3]
    assert found[3].token_id == expected.token_id
    assert found[3].logprob == pytest.approx(expected.logprob, abs=1e-5)
    assert [token for token, _ in found[3].top] == [token for token, _ in expected.top]
