"""What counts of a row with proposals: its tokens are those of drawing one by one, and so is their distribution."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
import torch

from engine.model.verification import accept
from kernels.sample_row import Drawn, SampleRow
from kernels.sampling import sample

NUM_SEEDS, VOCAB, LENGTH, START = 20_000, 4, 3, 0
SEEDS = range(1000, 1000 + NUM_SEEDS)
# A token's logits depend on the one before alone, so that every answer's chance is known.
LOGITS = torch.tensor([[1.5, 0.2, -1.0, 0.6], [0.0, 0.0, 2.0, -0.5], [0.3, 1.0, 0.1, 0.9], [-1.0, 0.4, 0.8, 0.0]])


def draw(last: list[int], seeds: list[int], position: int) -> list[Drawn]:
    rows = [SampleRow(seed=seed, position=position) for seed in seeds]
    return sample(LOGITS[last], rows)


def one_by_one() -> list[tuple[int, ...]]:
    outputs: list[tuple[int, ...]] = [() for _ in SEEDS]
    for position in range(LENGTH):
        drawn = draw([output[-1] if output else START for output in outputs], list(SEEDS), position)
        outputs = [(*output, one.token_id or 0) for output, one in zip(outputs, drawn, strict=True)]
    return outputs


def with_proposals(proposal: tuple[int, ...]) -> tuple[list[tuple[int, ...]], list[int]]:
    """Outputs, and how many proposals of each first step were right."""
    before = (START, *proposal)
    drawn = [draw([before[position]] * NUM_SEEDS, list(SEEDS), position) for position in range(len(before))]
    outputs = [accept(proposal, row).token_ids for row in zip(*drawn, strict=True)]
    right = [len(output) - 1 for output in outputs]
    for position in range(1, LENGTH):
        short = [i for i, output in enumerate(outputs) if len(output) == position]
        if short:
            found = draw([outputs[i][-1] for i in short], [SEEDS[i] for i in short], position)
            for i, one in zip(short, found, strict=True):
                outputs[i] = (*outputs[i], one.token_id or 0)
    return [output[:LENGTH] for output in outputs], right


@pytest.mark.parametrize("proposal", [(0, 0), (1, 2), (3, 1), (2, 2), (1, 2, 1)], ids=str)
def test_each_seed_has_the_tokens_that_it_has_without_proposals(proposal: tuple[int, ...]) -> None:
    assert with_proposals(proposal)[0] == one_by_one()


@pytest.mark.parametrize("proposal", [(0, 0), (1, 2), (2, 2)], ids=str)
def test_answers_come_as_often_as_the_model_has_them(proposal: tuple[int, ...]) -> None:
    """Pearson's chi-squared over all 64 answers; 103.4 is passed once in a thousand times. Seeds are fixed."""
    chances = torch.softmax(LOGITS, dim=-1)
    outputs, right = with_proposals(proposal)
    counts, statistic = Counter(outputs), 0.0
    for answer in itertools.product(range(VOCAB), repeat=LENGTH):
        expected = NUM_SEEDS * float(
            torch.tensor([chances[a, b] for a, b in itertools.pairwise((START, *answer))]).double().prod()
        )
        statistic += (counts[answer] - expected) ** 2 / expected
    assert statistic < 103.4
    # As often as rejection sampling accepts a proposal that is certain: by the model's own chance of it.
    first, both = (sum(count >= n for count in right) / NUM_SEEDS for n in (1, 2))
    assert first == pytest.approx(float(chances[START, proposal[0]]), abs=0.012)
    assert both == pytest.approx(float(chances[START, proposal[0]] * chances[proposal[0], proposal[1]]), abs=0.012)


def test_logits_that_are_not_finite_end_what_counts() -> None:
    found = accept((5, 6), [Drawn(5, -0.5), Drawn(None), Drawn(6, -0.1)])
    assert found.token_ids == (5,)
    assert [entry.chosen for entry in found.logprobs] == [-0.5]
    assert accept((5,), [Drawn(None), Drawn(5)]).token_ids == ()
