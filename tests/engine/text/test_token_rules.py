"""What a request's own rules let be drawn at each place."""

from __future__ import annotations

import numpy as np
import pytest

from engine.protocol.step import SamplingParams, ThinkingBudget
from engine.text.grammar_compiler import allowed_ids
from engine.text.token_rules import TokenRules, mask_of, rules_of

VOCAB = 100
PROMPT = [7, 8]


def rules(output: tuple[int, ...] = (), prompt: list[int] = PROMPT, **sampling: object) -> TokenRules:
    params = SamplingParams(max_tokens=9, **sampling)  # type: ignore[arg-type]
    return TokenRules(params, [*prompt, *output], len(prompt))


def drawable(made: TokenRules, ahead: tuple[int, ...] = (), grammar: tuple[int, ...] | None = None) -> list[int] | None:
    mask = made.mask(None if grammar is None else mask_of(grammar), ahead)
    return None if mask is None else allowed_ids(mask, VOCAB).tolist()


def test_a_request_without_rules_has_none() -> None:
    assert rules_of(SamplingParams(max_tokens=1), [1], 1) is None


def test_only_allowed_tokens_and_of_those_what_the_grammar_takes() -> None:
    made = rules(allowed_token_ids=(3, 64, 99))
    assert drawable(made) == [3, 64, 99]
    assert drawable(made, grammar=(1, 3, 64)) == [3, 64]
    assert drawable(made, grammar=(1, 2)) == [1, 2], "nothing would be left: the grammar wins"


@pytest.mark.parametrize(
    ("output", "ahead", "expected"),
    [((), (), {9}), ((4,), (), {5, 9}), ((3, 4), (), {5, 6, 9}), ((3,), (4,), {5, 6, 9}), ((4, 1), (), {9})],
)
def test_a_bad_words_last_token_is_banned_behind_its_others(
    output: tuple[int, ...], ahead: tuple[int, ...], expected: set[int]
) -> None:
    words = ((9,), (4, 5), (3, 4, 6), (8, 7))  # the prompt ends with 8: it does not count
    assert set(rules(output, bad_words=words).banned(ahead)) == expected
    one_by_one = rules(bad_words=words)
    for token_id in output:
        one_by_one.extend([token_id])
    assert set(one_by_one.banned(ahead)) == expected


BUDGET = ThinkingBudget(2, start_id=50, end_id=51)


@pytest.mark.parametrize(
    ("prompt", "output", "must_end"),
    [
        (PROMPT, (), False),
        (PROMPT, (50,), False),
        (PROMPT, (50, 1), False),
        (PROMPT, (50, 1, 2), True),
        (PROMPT, (1, 2, 3, 4), False),
        (PROMPT, (50, 1, 2, 51), False),
        (PROMPT, (50, 1, 51, 9, 50, 3), True),  # what was thought before counts
        ([50, 5, 5, 5], (1,), False),  # opened by the prompt, whose own tokens do not count
        ([50], (1, 2), True),
        ([50, 51], (1, 2), False),
    ],
)
def test_thinking_is_closed_when_its_budget_is_spent(
    prompt: list[int], output: tuple[int, ...], must_end: bool
) -> None:
    expected = [51] if must_end else None
    assert drawable(rules(output, prompt, thinking=BUDGET)) == expected
    assert drawable(rules((), prompt, thinking=BUDGET), output) == expected
    one_by_one = rules((), prompt, thinking=BUDGET)
    one_by_one.extend(output)
    assert drawable(one_by_one) == expected


def test_a_budget_of_nothing_closes_at_once() -> None:
    made = rules((50,), thinking=ThinkingBudget(0, 50, 51), allowed_token_ids=(1, 2))
    assert drawable(made) == [51]


def test_masks_have_a_bit_for_each_id() -> None:
    assert np.array_equal(allowed_ids(mask_of((0, 31, 32)), VOCAB), [0, 31, 32])
