from __future__ import annotations

import math
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

from kernels.sample_row import LIKELIEST, SampleRow
from kernels.sampling import sample, uniform

VOCAB = 50
PINNED = ["0.652448486374", "0.701212109522", "0.368189515652", "0.583267164310", "0.510562089894"]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def _logits(rows: int = 1, seed: int = 0, vocab: int = VOCAB) -> torch.Tensor:
    return torch.randn((rows, vocab), generator=torch.Generator().manual_seed(seed)) * 2


def _token(logits: torch.Tensor, **params: Any) -> int | None:
    return sample(logits, [SampleRow(**params)])[0].token_id


def _drawn(logits: torch.Tensor, draws: int = 400, **params: Any) -> Counter[int | None]:
    """Tokens of many positions of one request."""
    rows = [SampleRow(position=i, seed=3, **params) for i in range(draws)]
    return Counter(d.token_id for d in sample(logits.expand(draws, -1), rows))


def test_uniform_is_a_fixed_function_of_seed_and_position() -> None:
    # Pinned: a change would give other tokens after a request moved between two versions.
    found = uniform([0, 0, 1, 2**63 + 5, -1], [0, 1, 0, 7, 2])
    assert [f"{x:.12f}" for x in found] == PINNED


def test_uniform_numbers_look_uniform_over_positions_and_seeds() -> None:
    for seeds, positions in (([7] * 20_000, range(20_000)), (range(20_000), [7] * 20_000)):
        numbers = uniform(list(seeds), list(positions))
        assert 0 <= numbers.min() < numbers.max() < 1
        shares = np.histogram(numbers, 50, (0, 1))[0]
        assert (((shares - 400) ** 2) / 400).sum() < 100  # chi-square of 49 degrees: p about 2e-5
        assert abs(np.corrcoef(numbers[1:], numbers[:-1])[0, 1]) < 0.03


def test_greedy_takes_the_likeliest_and_the_lowest_id_among_equals() -> None:
    logits = _logits()
    assert _token(logits, temperature=0.0) == int(logits.argmax())
    assert _token(torch.zeros(1, VOCAB), temperature=0.0) == 0


def test_draws_follow_the_distribution() -> None:
    logits = torch.tensor([[0.5, 0.3, 0.2]]).log()
    counts = _drawn(logits, 20_000)
    for token, share in enumerate((0.5, 0.3, 0.2)):
        assert counts[token] / 20_000 == pytest.approx(share, abs=0.02)


def test_temperature_sharpens_and_flattens() -> None:
    logits = torch.tensor([[1.0, 0.0]])
    for temperature in (0.5, 2.0):
        share = _drawn(logits, 5_000, temperature=temperature)[0] / 5_000
        assert share == pytest.approx(1 / (1 + math.exp(-1 / temperature)), abs=0.03)


@pytest.mark.parametrize("k", [1, 2, 7, VOCAB, 1_000])
def test_top_k_keeps_the_k_likeliest(k: int) -> None:
    logits = _logits()
    kept = set(logits[0].topk(min(k, VOCAB)).indices.tolist())
    drawn = set(_drawn(logits, 2_000, top_k=k, temperature=3.0))
    assert drawn <= kept
    assert len(drawn) >= min(k, 7)


def test_top_k_of_equals_keeps_exactly_k() -> None:
    assert set(_drawn(torch.zeros(1, VOCAB), top_k=3)) == {0, 1, 2}


@pytest.mark.parametrize(
    ("p", "kept"), [(0.45, {2}), (0.5, {2}), (0.51, {2, 0}), (0.81, {2, 0, 3}), (1.0, {0, 1, 2, 3})]
)
def test_top_p_keeps_the_fewest_that_reach_p(p: float, kept: set[int]) -> None:
    logits = torch.tensor([[0.30, 0.05, 0.50, 0.15]], dtype=torch.float64).log()
    assert set(_drawn(logits, 2_000, top_p=p)) == kept


def test_top_p_of_almost_nothing_keeps_one() -> None:
    assert set(_drawn(_logits(), top_p=1e-9)) == {int(_logits().argmax())}


def test_min_p_is_relative_to_the_likeliest() -> None:
    logits = torch.tensor([[0.5, 0.26, 0.24]]).log()
    assert set(_drawn(logits, min_p=0.5)) == {0, 1}
    assert set(_drawn(logits, min_p=1.0)) == {0}


def test_presence_and_frequency_penalties_read_output_counts() -> None:
    logits = torch.tensor([[2.0, 1.5, 0.0]])
    assert _token(logits, temperature=0.0, presence_penalty=1.0, output_counts={0: 1}) == 1
    assert _token(logits, temperature=0.0, frequency_penalty=0.2, output_counts={0: 2}) == 0
    assert _token(logits, temperature=0.0, frequency_penalty=0.2, output_counts={0: 3}) == 1
    assert _token(logits, temperature=0.0, presence_penalty=-2.0, output_counts={2: 1}) == 0
    assert _token(logits, temperature=0.0, presence_penalty=-2.1, output_counts={2: 1}) == 2


def test_repetition_penalty_lowers_positive_and_negative_logits() -> None:
    assert _token(torch.tensor([[2.0, 1.5]]), temperature=0.0, repetition_penalty=1.5, seen={0}) == 1
    assert _token(torch.tensor([[-1.0, -1.2]]), temperature=0.0, repetition_penalty=1.5, seen={0}) == 1


def test_bias_and_bans_decide_and_ids_past_the_vocabulary_are_left_out() -> None:
    logits = torch.tensor([[2.0, 1.5, 0.0]])
    assert _token(logits, temperature=0.0, logit_bias=((2, 5.0), (99, 100.0))) == 2
    assert _token(logits, temperature=0.0, banned=(0, 99)) == 1
    assert set(_drawn(logits, banned=(1,))) == {0, 2}


def test_a_row_draws_the_same_token_alone_and_beside_any_other() -> None:
    options: list[dict[str, Any]] = [
        {},
        {"temperature": 0.0},
        {"top_p": 0.7},
        {"top_k": 5, "temperature": 1.7},
        {"min_p": 0.1},
        {"presence_penalty": 1.0, "output_counts": {3: 2}},
        {"repetition_penalty": 1.3, "seen": {1, 2, 3}, "banned": (4,)},
        {"logit_bias": ((7, 2.0),), "num_logprobs": 3},
    ]
    rows = [SampleRow(seed=i, position=i * 7 % 11, **options[i % len(options)]) for i in range(40)]
    logits = _logits(40, seed=5, vocab=1_191)
    together = sample(logits, rows)
    assert together == [sample(logits[i : i + 1].clone(), [row])[0] for i, row in enumerate(rows)]
    assert together[::-1] == sample(logits.flip(0), rows[::-1])


def test_logits_are_not_changed() -> None:
    logits = _logits(2)
    before = logits.clone()
    sample(logits, [SampleRow(banned=(1,), top_p=0.5, min_p=0.1), SampleRow(temperature=0.0, logit_bias=((1, 3.0),))])
    assert torch.equal(logits, before)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_not_finite_gives_no_token_and_spares_the_others(value: float) -> None:
    logits = _logits(3)
    logits[1, 4] = value
    rows = [SampleRow(num_logprobs=1), SampleRow(num_logprobs=1), SampleRow()]
    found = sample(logits, rows)
    assert found[1].token_id is None
    assert found[1].logprob is None
    assert [found[0], found[2]] == sample(logits[[0, 2]], [rows[0], rows[2]])


def test_logprobs_are_the_models_own_whatever_shapes_the_draw() -> None:
    logits = _logits()
    expected = logits[0].log_softmax(-1)
    found = sample(logits, [SampleRow(temperature=0.3, banned=(0,), top_k=2, num_logprobs=5)])[0]
    assert found.logprob == pytest.approx(float(expected[found.token_id]))
    assert [i for i, _ in found.top] == expected.topk(5).indices.tolist()
    assert len(sample(logits, [SampleRow(num_logprobs=500)])[0].top) == VOCAB
    assert sample(logits, [SampleRow(num_logprobs=0)])[0].top == ()


def test_hidden_tokens_are_never_drawn_at_the_edges_of_the_uniform(monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (0.0, 1 - 2.0**-53):
        monkeypatch.setattr("kernels.sampling.uniform", lambda seeds, positions, n=number: np.full(len(seeds), n))
        assert _token(_logits(), top_k=1) == int(_logits().argmax())
        assert _token(_logits(), banned=(0, VOCAB - 1)) not in (0, VOCAB - 1)
        for vocab in (100, 3000, 3001):
            rows = [SampleRow(banned=(0, vocab - 1))] * 200
            found = {d.token_id for d in sample(_logits(200, vocab=vocab), rows)}
            assert found == {1 if number == 0 else vocab - 2}


def test_bfloat16_logits_are_drawn_in_float32() -> None:
    logits = _logits().bfloat16()
    assert _token(logits, seed=1) == _token(logits.float(), seed=1)


def _plain_weights(row: torch.Tensor, params: SampleRow) -> torch.Tensor:
    """The probabilities that a row is drawn from, by sorting the whole vocabulary, float64."""
    scaled = row.double() / max(params.temperature, 1e-5)
    if params.min_p > 0:
        scaled = scaled.masked_fill(scaled < scaled.max() + math.log(params.min_p), -math.inf)
    values, order = scaled.sort(descending=True, stable=True)
    if 0 < params.top_k < len(row):
        values[params.top_k :] = -math.inf
    shares = values.softmax(-1)
    hidden = shares.cumsum(-1) - shares >= (params.top_p if params.top_p < 1 else math.inf)
    hidden[0] = False
    return torch.empty_like(values).scatter_(0, order, values.masked_fill(hidden, -math.inf)).softmax(-1)


FILTERS: list[dict[str, Any]] = [  # no top_p that a number of equals reaches exactly: rounding would decide
    {},
    {"top_k": 1},
    {"top_k": 40},
    {"top_p": 0.9037},
    {"top_p": 0.3071, "temperature": 2.5},
    {"min_p": 0.05},
    {"top_k": 30, "top_p": 0.8123, "min_p": 0.01, "temperature": 0.7},
    {"top_p": 0.99912, "temperature": 5.0},
]


@pytest.mark.parametrize("vocab", [1, 2, 255, 256, 257, 5000])
@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_tokens_are_those_of_a_whole_sort_and_a_whole_sum(vocab: int, filters: dict[str, Any]) -> None:
    logits = _logits(64, seed=vocab, vocab=vocab)
    logits[1::7] = logits[1::7].round()  # equals at every edge
    logits[2::7] = 1.5
    rows = [SampleRow(seed=i, position=i, **filters) for i in range(64)]
    drawn = [d.token_id for d in sample(logits, rows)]
    for row, params, token in zip(logits, rows, drawn, strict=True):
        sums = _plain_weights(row, params).cumsum(-1)
        number = float(uniform([params.seed], [params.position])[0])
        expected = int(torch.searchsorted(sums, number * float(sums[-1]), right=True))
        # A number next to the border of two tokens may fall on either side of it.
        assert token == expected or float((sums - number).abs().min()) < 1e-5


def test_a_row_whose_tokens_are_all_hidden_gives_none() -> None:
    nothing = np.zeros(2, dtype=np.int32)
    found = sample(_logits(2), [SampleRow(allowed=nothing), SampleRow(temperature=0.0, allowed=nothing)])
    assert [d.token_id for d in found] == [None, None]


@pytest.mark.parametrize("threads", [1, 2])
def test_rows_are_drawn_once_whatever_the_threads(threads: int) -> None:
    torch.set_num_threads(threads)
    logits = _logits(37, vocab=3000)
    rows = [SampleRow(seed=i, top_p=0.7) for i in range(37)]
    assert sample(logits, rows) == [sample(logits[i : i + 1], [row])[0] for i, row in enumerate(rows)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("vocab", [1, 255, 8192, 50_001])
def test_the_likeliest_alone_is_what_a_greedy_draw_gives(vocab: int, dtype: torch.dtype) -> None:
    logits = torch.randn(12, vocab, generator=torch.Generator().manual_seed(vocab)).to(dtype)
    logits[1, -1] = logits[1].max()  # equals
    logits[2], logits[2, 0] = 0.0, -0.0
    logits[3, vocab // 2], logits[4, 0], logits[5] = math.nan, math.inf, -math.inf
    logits[6] = -logits[6].abs() - 1.0
    logits[7, 0] = -math.inf
    rows = [SampleRow(temperature=0.0) for _ in range(12)]
    assert sample(logits, [LIKELIEST] * 12) == sample(logits, rows)
    assert sample(logits[:1], [LIKELIEST]) == sample(logits[:1], rows[:1])
    assert sample(logits[:2], [LIKELIEST, rows[1]]) == sample(logits[:2], rows[:2])


def test_the_likeliest_of_a_step_are_not_those_of_one_of_its_size_before() -> None:
    """A draw's launch is used again, by each thread its own."""
    steps = [_logits(3, seed=seed, vocab=300) for seed in range(40)]
    expected = [step.argmax(-1).tolist() for step in steps]

    def drawn(_: int) -> list[list[int | None]]:
        return [[one.token_id for one in sample(step, [LIKELIEST] * 3)] for step in steps]

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(drawn, range(8))) == [expected] * 8
