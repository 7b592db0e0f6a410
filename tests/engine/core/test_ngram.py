"""What is proposed from a sequence's own tokens."""

from __future__ import annotations

import numpy as np
import pytest

from engine.core.ngram import Proposal, TokenHistory, find_draft


def draft_of(tokens: str, *, min_match: int = 2, max_match: int = 4, num_tokens: int = 3) -> tuple[str, int] | None:
    """One letter is one token."""
    found = find_draft(
        np.array([ord(letter) for letter in tokens]), min_match=min_match, max_match=max_match, num_tokens=num_tokens
    )
    return None if found is None else ("".join(map(chr, found.token_ids)), found.match_length)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        pytest.param("abcdefgh..cd", ("efg", 2), id="what_followed_follows"),
        pytest.param("abcdXX..bcdYY..abcd", ("XX.", 4), id="the_longest_match_wins"),
        pytest.param("cdXX..cdYY.,cd", ("YY.", 2), id="of_equal_ones_the_latest"),
        pytest.param("abcabcab", ("cab", 4), id="a_period_goes_on"),
        pytest.param("....xaaa", ("aaa", 2), id="a_period_of_one"),
        pytest.param("abcd", None, id="nothing_comes_back"),
        pytest.param("xd..yd", None, id="too_short_a_match"),
        pytest.param("d", None, id="one_token"),
    ],
)
def test_draft_is_what_came_after_the_same_tokens(tokens: str, expected: tuple[str, int] | None) -> None:
    assert draft_of(tokens) == expected


def test_no_more_is_proposed_than_asked_for() -> None:
    assert draft_of("abcabcab", num_tokens=1) == ("c", 4)
    assert draft_of("abcabcab", num_tokens=0) is None


def test_history_grows_with_its_sequence() -> None:
    history, tokens = TokenHistory(), list(range(700))
    for count in (1, 5, 5, 300, 700):
        assert history.follow(tokens[:count]).tolist() == tokens[:count]


def test_drafts_are_plain_numbers() -> None:
    found = find_draft(np.array([1, 2, 3, 1, 2]), min_match=2, max_match=2, num_tokens=4)
    assert found == Proposal((3, 1, 2, 3), 2)
    assert all(type(token_id) is int for token_id in found.token_ids), "they travel in messages"
