"""The index of what nodes were sent: longest match, memory of each node's size, and nothing left behind."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetctl.gateway.routing.prefix_blocks import (
    MAX_BLOCKS,
    NUM_SMALL,
    SMALL_TOKENS,
    text_blocks,
    token_blocks,
    tokens_before,
)
from fleetctl.gateway.routing.prefix_index import PrefixIndex

SYSTEM = "You answer questions about the house. " * 30


def test_prompts_share_as_many_blocks_as_they_have_whole_ones_in_common() -> None:
    one, other = text_blocks(SYSTEM + "a" * 500, "m"), text_blocks(SYSTEM + "b" * 500, "m")
    common = len(SYSTEM) // (4 * SMALL_TOKENS)
    assert one[:common] == other[:common]
    assert not set(one[common:]) & set(other[common:])
    assert text_blocks(SYSTEM, "m") == one[:common]
    assert not set(text_blocks(SYSTEM, "another model")) & set(one), "another model's KV is another"


def test_a_long_prompt_has_few_blocks_and_a_huge_one_no_more_than_the_limit() -> None:
    assert len(text_blocks("x" * 400_000, "m")) == 64 + (400_000 // 4 - 2048) // 256
    assert len(text_blocks("x" * 8_000_000, "m")) == MAX_BLOCKS
    assert tokens_before(NUM_SMALL) == NUM_SMALL * SMALL_TOKENS
    assert tokens_before(NUM_SMALL + 1) == NUM_SMALL * SMALL_TOKENS + 256
    assert len(token_blocks(list(range(100)), "m")) == 3


def test_the_node_with_the_longest_part_is_known_though_all_hold_the_system_prompt() -> None:
    index = PrefixIndex()
    for node in ("a", "b", "c"):
        index.note_routed(node, text_blocks(SYSTEM + f"{node} asks" * 60, "m"))
    match = index.match(text_blocks(SYSTEM + "b asks" * 60 + "and then more" * 40, "m"))
    system_tokens = tokens_before(len(SYSTEM) // 128)
    assert match.tokens_of("a") == match.tokens_of("c") == system_tokens
    assert match.tokens_of("b") > system_tokens
    assert match.tokens_of("d") == 0
    assert match.holders(2) == ["b"], "what everybody holds tells nobody apart"
    assert match.shared_tokens(3) == system_tokens
    index.check_integrity()


def test_a_node_forgets_what_its_cache_no_longer_holds_oldest_first() -> None:
    index = PrefixIndex()
    index.set_cache_tokens("a", 1000)
    prompts = [text_blocks(f"{i}" * 1600, "m") for i in range(4)]  # 400 tokens each
    for blocks in prompts[:2]:
        index.note_routed("a", blocks)
    index.note_routed("a", prompts[0])  # used again
    index.note_routed("a", prompts[2])
    assert [index.match(blocks).tokens_of("a") > 0 for blocks in prompts] == [True, False, True, False]
    assert index.num_tokens <= 1000
    index.check_integrity()


def test_a_node_whose_process_is_new_holds_nothing_and_leaves_nothing_behind() -> None:
    index = PrefixIndex()
    blocks = text_blocks(SYSTEM, "m")
    index.note_routed("a", blocks)
    index.note_routed("b", blocks)
    index.forget_node("a")
    assert (index.match(blocks).tokens_of("a"), index.match(blocks).tokens_of("b") > 0) == (0, True)
    index.keep_only([])
    assert (index.num_parts, index.num_tokens) == (0, 0)
    assert index.match(blocks).path == ()
    index.check_integrity()


def test_memory_is_bounded_over_all_nodes() -> None:
    index = PrefixIndex(max_parts=100)
    for number in range(1000):
        index.note_routed(f"node-{number % 10}", text_blocks(f"{number} " * 200, "m"))
    assert index.num_parts <= 100
    index.check_integrity()


CHAINS = st.lists(st.integers(0, 2), min_size=1, max_size=12)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), CHAINS), max_size=40), st.sampled_from("abc"))
def test_any_sequence_of_prompts_keeps_tree_and_holdings_together(
    routed: list[tuple[str, list[int]]], gone: str
) -> None:
    index = PrefixIndex(max_parts=24)
    index.set_cache_tokens("a", 12 * SMALL_TOKENS)
    held: dict[str, set[tuple[int, ...]]] = {"a": set(), "b": set(), "c": set()}
    for node, prompt in routed:
        chain = tuple(hash(tuple(prompt[: at + 1])) for at in range(len(prompt)))
        index.note_routed(node, chain)
        held[node].add(chain)
        index.check_integrity()
        assert index.match(chain).tokens_of(node) == tokens_before(len(chain)), "what was sent last is held"
        for other in "abc":
            longest = max((_common(chain, one) for one in held[other]), default=0)
            assert index.match(chain).tokens_of(other) <= tokens_before(longest), "never more than was sent"
    index.forget_node(gone)
    index.check_integrity()


def _common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


@pytest.mark.parametrize("text", ["", "short", "\ud800" * 600, "日本語" * 300])
def test_odd_texts_are_no_error(text: str) -> None:
    index = PrefixIndex()
    index.note_routed("a", text_blocks(text, None))
    index.match(text_blocks(text, None))
