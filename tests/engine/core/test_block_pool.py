"""Blocks: who holds them, who can find them, in which order they go."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from engine.core.block import BlockContent, FreeList, extend_contents
from engine.core.block_pool import BlockPool, HostBlocks

SIZE = 4


def contents_of(*token_ids: int, salt: str = "") -> list[BlockContent]:
    contents: list[BlockContent] = []
    extend_contents(contents, token_ids, SIZE, salt)
    return contents


def prompt(first: int, num_blocks: int) -> list[int]:
    return list(range(first, first + num_blocks * SIZE))


def hold_cached(pool: BlockPool, token_ids: list[int], salt: str = "") -> list[int]:
    """Allocates and registers the full blocks of these tokens."""
    contents = contents_of(*token_ids, salt=salt)
    block_ids = pool.allocate(len(contents))
    assert block_ids is not None
    for block_id, content in zip(block_ids, contents, strict=True):
        assert pool.register(block_id, content)
    return block_ids


def check(pool: BlockPool, *held: list[int]) -> None:
    problem = pool.check_integrity(held)
    assert problem is None, problem


def test_allocates_all_or_nothing() -> None:
    pool = BlockPool(3, SIZE)
    first = pool.allocate(2)
    assert first is not None
    assert pool.allocate(2) is None
    assert pool.num_free == 1
    check(pool, first)


def test_shared_blocks_are_counted_while_several_hold_them() -> None:
    pool = BlockPool(4, SIZE)
    block_ids = hold_cached(pool, prompt(0, 2))
    assert (pool.num_shared, pool.num_kept) == (0, 0)
    pool.share(block_ids)
    pool.share(block_ids[:1])
    assert pool.num_shared == 2
    pool.release(block_ids)
    assert pool.num_shared == 1
    check(pool, block_ids, block_ids[:1])
    pool.release(block_ids)
    pool.release(block_ids[:1])
    assert (pool.num_shared, pool.num_kept, pool.num_kept_reused, pool.num_used) == (0, 2, 2, 0)
    check(pool)


def test_shared_block_is_freed_by_its_last_holder() -> None:
    pool = BlockPool(2, SIZE)
    block_ids = hold_cached(pool, prompt(0, 1))
    pool.share(block_ids)
    pool.release(block_ids)
    assert pool.num_used == 1
    pool.release(block_ids)
    assert pool.num_used == 0
    check(pool)


def test_freed_prefix_is_found_again_with_the_same_blocks() -> None:
    pool = BlockPool(8, SIZE)
    block_ids = hold_cached(pool, prompt(0, 3))
    pool.release(block_ids)
    assert pool.num_free == 8
    assert pool.match(contents_of(*prompt(0, 4))) == block_ids


def test_prefix_is_not_found_under_another_salt() -> None:
    pool = BlockPool(8, SIZE)
    hold_cached(pool, prompt(0, 2), salt="tenant-a")
    assert pool.match(contents_of(*prompt(0, 2), salt="tenant-b")) == []


def test_same_tokens_after_another_beginning_are_another_block() -> None:
    pool = BlockPool(8, SIZE)
    hold_cached(pool, prompt(0, 2))
    assert pool.match(contents_of(*prompt(40, 1), *prompt(4, 1))) == []


def test_colliding_hash_with_other_tokens_is_a_miss() -> None:
    pool = BlockPool(4, SIZE)
    hold_cached(pool, prompt(0, 1))
    wanted = contents_of(*prompt(0, 1))[0]
    forged = dataclasses.replace(wanted, token_bytes=contents_of(*prompt(9, 1))[0].token_bytes)
    assert pool.match([forged]) == []


def test_unregistered_block_can_not_be_found() -> None:
    pool = BlockPool(4, SIZE)
    assert pool.allocate(1) is not None
    assert pool.match(contents_of(*prompt(0, 1))) == []


def test_second_copy_of_a_prefix_stays_private() -> None:
    pool = BlockPool(4, SIZE)
    first = hold_cached(pool, prompt(0, 1))
    second = pool.allocate(1)
    assert second is not None
    assert not pool.register(second[0], contents_of(*prompt(0, 1))[0])
    assert pool.match(contents_of(*prompt(0, 1))) == first
    check(pool, first, second)


def test_blank_blocks_go_before_any_cached_one() -> None:
    pool = BlockPool(4, SIZE)
    cached = hold_cached(pool, prompt(0, 2))
    pool.release(cached)
    assert pool.eviction_order()[:2] == [2, 3]
    taken = pool.allocate(2)
    assert taken == [2, 3]
    assert pool.match(contents_of(*prompt(0, 2))) == cached


def test_tail_of_a_sequence_is_evicted_before_its_head() -> None:
    pool = BlockPool(3, SIZE)
    head, middle, tail = hold_cached(pool, prompt(0, 3))
    pool.release([head, middle, tail])
    assert pool.eviction_order() == [tail, middle, head]
    assert pool.allocate(1) == [tail]
    assert pool.match(contents_of(*prompt(0, 3))) == [head, middle]


def test_least_recently_used_sequence_is_evicted_first() -> None:
    pool = BlockPool(4, SIZE)
    old = hold_cached(pool, prompt(0, 2))
    new = hold_cached(pool, prompt(100, 2))
    pool.release(old)
    pool.release(new)
    assert pool.eviction_order() == [old[1], old[0], new[1], new[0]]


def test_block_that_was_found_again_outlives_those_used_once() -> None:
    pool = BlockPool(4, SIZE)
    old = hold_cached(pool, prompt(0, 2))
    pool.release(old)
    pool.share(old)
    new = hold_cached(pool, prompt(100, 2))
    pool.release(old)
    pool.release(new)
    assert pool.eviction_order() == [new[1], new[0], old[1], old[0]]
    check(pool)


def test_prefix_that_returns_after_eviction_counts_as_found_again() -> None:
    pool = BlockPool(4, SIZE)
    pool.release(hold_cached(pool, prompt(0, 1)))
    everything = pool.allocate(4)
    assert everything is not None
    pool.release(everything)
    back = hold_cached(pool, prompt(0, 1))
    once = hold_cached(pool, prompt(100, 1))
    pool.release(back)
    pool.release(once)
    assert pool.eviction_order()[-2:] == [once[0], back[0]]


def test_reused_blocks_can_not_crowd_out_all_others() -> None:
    pool = BlockPool(4, SIZE)
    block_ids = hold_cached(pool, prompt(0, 4))
    pool.share(block_ids)
    pool.release(block_ids)
    pool.release(block_ids)
    check(pool)
    # two of four stay protected, the others queue up as if used once
    assert pool.eviction_order() == [block_ids[3], block_ids[2], block_ids[1], block_ids[0]]
    newest = pool.allocate(1)
    assert newest == [block_ids[3]]


@pytest.mark.parametrize(("num_blocks", "block_size"), [(0, 1), (1, 0)])
def test_pool_without_a_block_of_a_token_is_refused(num_blocks: int, block_size: int) -> None:
    assert BlockPool(1, 1).num_free == 1
    with pytest.raises(ValueError, match=f"at least one block of one token, got {num_blocks} of {block_size}"):
        BlockPool(num_blocks, block_size)


def test_lookups_add_up() -> None:
    pool = BlockPool(1, SIZE)
    assert (pool.queries_tokens, pool.hits_tokens) == (0, 0)
    pool.record_lookup(10, 4)
    pool.record_lookup(6, 1)
    assert (pool.queries_tokens, pool.hits_tokens) == (16, 5)


def test_each_change_is_counted_once_and_nothing_else_is() -> None:
    pool = BlockPool(2, SIZE)
    (content,) = contents_of(*prompt(0, 1))
    counts = [pool.num_changes]
    held = pool.allocate(1)
    assert held is not None
    counts.append(pool.num_changes)
    for change in (
        lambda: pool.register(held[0], content),
        lambda: pool.share(held),
        lambda: pool.release(held),
        lambda: pool.forget(held),
        pool.forget_cached,
    ):
        change()
        counts.append(pool.num_changes)
    assert counts == [0, 1, 2, 3, 4, 5, 6]
    assert pool.allocate(2) is None
    assert pool.match([content]) == []
    assert pool.num_changes == 6
    assert pool.allocate(1) is not None
    assert pool.num_changes == 7


def test_oldest_of_too_many_reused_blocks_is_evicted_like_one_used_once() -> None:
    pool = BlockPool(4, SIZE)
    reused = [hold_cached(pool, prompt(start, 1)) for start in (0, 100, 200)]
    for block_ids in reused:
        pool.share(block_ids)
        pool.release(block_ids)
        pool.release(block_ids)
    once = hold_cached(pool, prompt(300, 1))
    pool.release(once)
    assert pool.eviction_order() == [*reused[0], *once, *reused[1], *reused[2]]
    check(pool)


def test_hit_takes_a_block_out_of_the_middle_of_the_free_list() -> None:
    pool = BlockPool(3, SIZE)
    a, b, c = (hold_cached(pool, prompt(start, 1))[0] for start in (0, 100, 200))
    for block_id in (a, b, c):
        pool.release([block_id])
    pool.share([b])
    assert pool.eviction_order() == [a, c]
    check(pool, [b])


def test_copy_on_write_leaves_a_private_block_in_place() -> None:
    pool = BlockPool(2, SIZE)
    block_ids = pool.allocate(1)
    assert block_ids is not None
    assert pool.copy_on_write(block_ids[0]) == block_ids[0]


@pytest.mark.parametrize("num_holders", [1, 2])
def test_copy_on_write_gives_another_block_for_a_cached_one(num_holders: int) -> None:
    pool = BlockPool(2, SIZE)
    (source,) = hold_cached(pool, prompt(0, 1))
    for _ in range(num_holders - 1):
        pool.share([source])
    target = pool.copy_on_write(source)
    assert target not in (None, source)
    assert pool.ref_count(source) == num_holders, "the source stays held until the copy is done"


def test_copy_on_write_says_so_when_no_block_is_free() -> None:
    pool = BlockPool(1, SIZE)
    (source,) = hold_cached(pool, prompt(0, 1))
    assert pool.copy_on_write(source) is None


def test_a_reset_empties_the_cache_and_keeps_references() -> None:
    pool = BlockPool(4, SIZE)
    held = hold_cached(pool, prompt(0, 1))
    pool.release(hold_cached(pool, prompt(100, 1)))
    pool.forget_cached()
    assert pool.num_cached == 0
    assert pool.match(contents_of(*prompt(0, 1))) == []
    check(pool, held)


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        pytest.param(lambda pool: setattr(pool._blocks[0], "ref_count", 2), "reference count", id="count"),
        pytest.param(lambda pool: pool._blocks[2].home.remove(pool._blocks[2]), "free list", id="lost"),
        pytest.param(lambda pool: setattr(pool._blocks[3], "previous", pool._blocks[0]), "point back", id="link"),
        pytest.param(lambda pool: pool._cached.clear(), "its hash leads", id="table"),
        pytest.param(lambda pool: setattr(pool._blocks[1], "is_reused", True), "counts as reused", id="blank"),
        pytest.param(
            lambda pool: setattr(
                pool._blocks[0],
                "content",
                dataclasses.replace(pool._blocks[0].content, token_bytes=b"x" * 4 * SIZE),
            ),
            "does not follow",
            id="chain",
        ),
    ],
)
def test_integrity_check_names_what_is_wrong(spoil, complaint) -> None:
    pool = BlockPool(4, SIZE)
    held = hold_cached(pool, prompt(0, 1))
    check(pool, held)
    spoil(pool)
    assert complaint in (pool.check_integrity([held]) or "")


def test_integrity_check_misses_no_holder() -> None:
    pool = BlockPool(4, SIZE)
    held = pool.allocate(1)
    assert held is not None
    assert "holders are 0" in (pool.check_integrity([]) or "")
    assert "holders are 2" in (pool.check_integrity([held, held]) or "")
    assert "does not exist" in (pool.check_integrity([held, [77]]) or "")
    assert "block 4 is held but does not exist" in (pool.check_integrity([held, [4]]) or "")


def test_empty_free_list_has_no_first() -> None:
    with pytest.raises(IndexError, match="blank"):
        FreeList("blank").pop_first()


def test_host_blocks_are_given_once() -> None:
    host = HostBlocks(2)
    assert host.check_integrity([[]]) is None
    held = host.allocate(2)
    assert held is not None
    assert host.allocate(1) is None
    assert host.check_integrity([held]) is None
    assert "each of 2 once" in (host.check_integrity([]) or "")
    host.release(held)
    assert host.num_free == 2


@pytest.mark.parametrize(("num_blocks", "block_size"), [(0, 1), (1, 0)])
def test_a_pool_has_at_least_one_block_of_one_token(num_blocks: int, block_size: int) -> None:
    with pytest.raises(ValueError, match="at least one block"):
        BlockPool(num_blocks, block_size)


def test_the_smallest_pool_works() -> None:
    pool = BlockPool(1, 1)
    assert (pool.num_blocks, pool.num_free, pool.num_used, pool.num_cached, pool.block_size) == (1, 1, 0, 0, 1)
    assert pool.allocate(1) == [0]
    assert (pool.num_free, pool.num_used) == (0, 1)


def test_a_cached_block_is_told_from_one_that_is_not() -> None:
    pool = BlockPool(3, SIZE)
    (cached,) = hold_cached(pool, prompt(0, 1))
    plain = pool.allocate(1)
    assert plain is not None
    assert pool.is_cached(cached) is True
    assert pool.is_cached(plain[0]) is False
    assert pool.num_cached == 1


def test_every_change_is_counted_and_nothing_else() -> None:
    """An unchanged count lets the integrity check be left out."""
    pool = BlockPool(3, SIZE)
    counts = [pool.num_changes]

    def changed() -> int:
        counts.append(pool.num_changes)
        return counts[-1] - counts[-2]

    content = contents_of(*prompt(0, 1))[0]
    block_ids = pool.allocate(1)
    assert block_ids is not None
    assert changed() == 1
    assert pool.register(block_ids[0], content)
    assert changed() == 1
    pool.share(block_ids)
    assert changed() == 1
    pool.release(block_ids)
    assert changed() == 1
    pool.forget(block_ids)
    assert changed() == 1
    pool.forget_cached()
    assert changed() == 1
    assert pool.allocate(9) is None
    pool.match([content])
    pool.num_free_among(block_ids)
    pool.record_lookup(5, 3)
    assert changed() == 0


def test_a_prefix_is_not_found_past_its_first_missing_block() -> None:
    pool = BlockPool(4, SIZE)
    block_ids = pool.allocate(3)
    assert block_ids is not None
    contents = contents_of(*prompt(0, 3))
    for index in (0, 2):
        assert pool.register(block_ids[index], contents[index])
    assert pool.match(contents) == [block_ids[0]]


def test_at_most_half_of_the_blocks_are_protected_as_reused() -> None:
    pool = BlockPool(7, SIZE)
    reused = hold_cached(pool, prompt(0, 4))
    pool.share(reused)
    pool.release(reused)
    once = hold_cached(pool, prompt(100, 1))
    pool.release(reused)
    pool.release(once)
    # Three of seven stay protected; the oldest of the four queues up before what was used once since.
    assert pool.eviction_order()[2:] == [reused[3], once[0], reused[2], reused[1], reused[0]]


def test_no_more_reused_blocks_are_free_than_may_be_protected() -> None:
    pool = BlockPool(4, SIZE)
    held = hold_cached(pool, prompt(0, 3))
    pool.share(held)
    pool.release(held)
    pool._max_reused = 9
    pool.release(held)
    pool._max_reused = 2
    assert "3 reused blocks are free, the limit is 2" in (pool.check_integrity([]) or "")
    pool._max_reused = 3
    assert pool.check_integrity([]) is None


def returns_as_reused(pool: BlockPool, first: int) -> bool:
    """Whether a prefix that comes back now counts as found again: it then outlives one that is new."""
    back = hold_cached(pool, prompt(first, 1))
    new = hold_cached(pool, prompt(7000 + first, 1))
    pool.release(new)
    pool.release(back)
    return pool.eviction_order()[-1] == back[0] and pool._blocks[back[0]].is_reused


def evict_all(pool: BlockPool) -> None:
    everything = pool.allocate(pool.num_free)
    assert everything is not None
    pool.release(everything)


def test_evicted_prefixes_are_remembered_for_as_many_as_there_are_blocks() -> None:
    pool = BlockPool(3, SIZE)
    for first in (0, 100, 200, 300):
        pool.release(hold_cached(pool, prompt(first, 1)))
        evict_all(pool)
    # Four were evicted, three are remembered: the first is not.
    assert not returns_as_reused(pool, 0)
    pool = BlockPool(3, SIZE)
    for first in (0, 100, 200):
        pool.release(hold_cached(pool, prompt(first, 1)))
        evict_all(pool)
    assert returns_as_reused(pool, 0)


def test_a_reset_forgets_what_was_evicted_too() -> None:
    pool = BlockPool(3, SIZE)
    pool.release(hold_cached(pool, prompt(0, 1)))
    evict_all(pool)
    pool.forget_cached()
    assert not returns_as_reused(pool, 0)


def test_a_prefix_that_came_back_is_evicted_as_new_once_more() -> None:
    """What is remembered of an eviction is used up by the return."""
    pool = BlockPool(3, SIZE)
    pool.release(hold_cached(pool, prompt(0, 1)))
    evict_all(pool)
    block_ids = hold_cached(pool, prompt(0, 1))
    pool.forget(block_ids)
    pool.release(block_ids)
    assert not returns_as_reused(pool, 0)


def test_lookups_are_counted_in_tokens() -> None:
    pool = BlockPool(3, SIZE)
    assert (pool.queries_tokens, pool.hits_tokens) == (0, 0)
    pool.record_lookup(10, 4)
    pool.record_lookup(6, 0)
    assert (pool.queries_tokens, pool.hits_tokens) == (16, 4)


def test_blocks_without_a_reference_are_told_among_others() -> None:
    pool = BlockPool(4, SIZE)
    held = hold_cached(pool, prompt(0, 2))
    pool.share(held[:1])
    pool.release(held)
    assert pool.num_free_among(held) == 1
    assert pool.num_free_among(held[:1]) == 0
    assert pool.num_free_among([]) == 0


def test_forgetting_held_blocks_leaves_others_cached_and_the_references_as_they_are() -> None:
    pool = BlockPool(4, SIZE)
    wrong, right = hold_cached(pool, prompt(0, 2)), hold_cached(pool, prompt(100, 1))
    plain = pool.allocate(1)
    assert plain is not None
    pool.forget([*plain, *wrong])
    assert [pool.is_cached(block_id) for block_id in (*wrong, *right)] == [False, False, True]
    assert [pool.ref_count(block_id) for block_id in (*wrong, *right, *plain)] == [1, 1, 1, 1]
    pool.release(wrong)
    assert pool.eviction_order() == [wrong[1], wrong[0]]
    check(pool, right, plain)


def test_a_reset_makes_free_blocks_blank() -> None:
    pool = BlockPool(4, SIZE)
    once, again = hold_cached(pool, prompt(0, 1)), hold_cached(pool, prompt(100, 1))
    pool.share(again)
    for table in (again, again, once):
        pool.release(table)
    pool.forget_cached()
    assert pool.allocate(4) is not None
    assert pool.num_cached == 0


CONTENT, OTHER = contents_of(*prompt(0, 2))


@pytest.mark.parametrize(
    "misuse",
    [
        pytest.param(lambda pool: pool.release([1]), id="release of a free block"),
        pytest.param(lambda pool: pool.share([0]), id="share of a block that is not cached"),
        pytest.param(lambda pool: pool.register(1, CONTENT), id="register of a free block"),
        pytest.param(lambda pool: pool.register(0, CONTENT) and pool.register(0, OTHER), id="register twice"),
        pytest.param(lambda pool: pool.forget([1]), id="forget of a free block"),
        pytest.param(lambda pool: pool.copy_on_write(1), id="copy of a free block"),
    ],
)
def test_misuse_is_caught_at_once(misuse: Callable[[BlockPool], object]) -> None:
    pool = BlockPool(2, SIZE)
    assert pool.allocate(1) == [0]
    with pytest.raises(AssertionError, match=r"block \d"):
        misuse(pool)


def make_free_but_unlisted(pool: BlockPool) -> None:
    pool._blocks[2].home.remove(pool._blocks[2])  # type: ignore[union-attr]
    pool._blank._length += 1


def put_into_the_wrong_list(pool: BlockPool) -> None:
    block = pool._blocks[2]
    pool._blank.remove(block)
    pool._reused.append(block)


def mark_blank_as_reused(pool: BlockPool) -> None:
    pool._blocks[2].is_reused = True


def cut_content_short(pool: BlockPool) -> None:
    (block,) = pool._cached.values()
    assert block.content is not None
    block.content = dataclasses.replace(block.content, token_bytes=b"xy")


def cache_a_hash_twice(pool: BlockPool) -> None:
    (block,) = pool._cached.values()
    pool._cached[b"other"] = block


def lengthen_a_list(pool: BlockPool) -> None:
    pool._once._length += 1


def cut_the_end_off(pool: BlockPool) -> None:
    pool._blank._end.previous = pool._blocks[1]


def claim_another_home(pool: BlockPool) -> None:
    pool._blocks[2].home = pool._once


def shorten_a_list(pool: BlockPool) -> None:
    pool._blank._length -= 1


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (put_into_the_wrong_list, "block 2: is in list reused, belongs to blank"),
        (mark_blank_as_reused, "block 2: has no content but counts as reused"),
        (cut_content_short, "block 0: its content is not a full block"),
        (cache_a_hash_twice, "2 cached hashes for another number of blocks with content"),
        (lengthen_a_list, "list once: 0 blocks are linked, its length is 1"),
        (cut_the_end_off, "list blank: its end does not point back to its last block"),
        (claim_another_home, "list blank: block 2 does not name this list as its home"),
        (shorten_a_list, "list blank: more blocks are linked than its length 2"),
        (make_free_but_unlisted, "list blank: 2 blocks are linked, its length is 3"),
    ],
)
def test_each_contradiction_in_the_books_has_its_message(spoil: Callable[[BlockPool], None], complaint: str) -> None:
    pool = BlockPool(4, SIZE)
    held = hold_cached(pool, prompt(0, 1))
    check(pool, held)
    spoil(pool)
    assert complaint in (pool.check_integrity([held]) or "")


def test_a_held_block_that_counts_as_reused_without_content_is_found() -> None:
    pool = BlockPool(2, SIZE)
    held = pool.allocate(1)
    assert held is not None
    pool._blocks[held[0]].is_reused = True
    assert "has no content but counts as reused" in (pool.check_integrity([held]) or "")


def test_host_blocks_are_given_lowest_first_and_all_or_none() -> None:
    host = HostBlocks(3)
    assert host.num_blocks == 3
    assert host.allocate(2) == [0, 1]
    assert host.allocate(2) is None
    assert host.num_free == 1
    assert host.allocate(1) == [2]
    host.release([1])
    assert host.check_integrity([[0], [2]]) is None
    assert "held together are 4" in (host.check_integrity([[0], [2], [2]]) or "")
    assert HostBlocks(0).check_integrity([]) is None


class PoolMachine(RuleBasedStateMachine):
    """Random holders against a model: tables of block ids, and what each block was registered to hold."""

    tables = Bundle("tables")

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(9, SIZE)
        self.held: dict[int, list[int]] = {}
        self.next_table = 0

    def keep(self, block_ids: list[int]) -> int:
        self.next_table += 1
        self.held[self.next_table] = block_ids
        return self.next_table

    @rule(target=tables, word=st.lists(st.integers(0, 1), min_size=0, max_size=4), salt=st.sampled_from(["", "b"]))
    def start(self, word: list[int], salt: str) -> object:
        """A sequence whose blocks are named by a word over {0, 1}: prefixes collide often."""
        contents = contents_of(*[letter for letter in word for _ in range(SIZE)], salt=salt)
        found = self.pool.match(contents)
        for block_id, content in zip(found, contents, strict=False):
            assert self.pool._blocks[block_id].content == content
        free, hits_free = self.pool.num_free, self.pool.num_free_among(found)
        self.pool.share(found)
        assert self.pool.num_free == free - hits_free
        rest = self.pool.allocate(len(contents) - len(found))
        if rest is None:
            self.pool.release(found)
            return multiple()
        for block_id, content in zip(rest, contents[len(found) :], strict=True):
            self.pool.register(block_id, content)
        assert self.pool.match(contents) != [] or not contents
        return self.keep(found + rest)

    @rule(target=tables, count=st.integers(0, 10))
    def allocate(self, count: int) -> object:
        free = self.pool.num_free
        block_ids = self.pool.allocate(count)
        if block_ids is None:
            assert count > free
            return multiple()
        assert len(set(block_ids)) == count
        return self.keep(block_ids)

    @rule(table=consumes(tables))
    def release(self, table: int) -> None:
        self.pool.release(self.held.pop(table))

    @rule(table=tables, index=st.integers(0, 3))
    def write(self, table: int, index: int) -> None:
        block_ids = self.held[table]
        if index >= len(block_ids):
            return
        source = block_ids[index]
        target = self.pool.copy_on_write(source)
        if target is None:
            assert self.pool.num_free == 0
        elif target != source:
            block_ids[index] = target
            self.pool.release([source])
            assert not self.pool.is_cached(target)
            assert self.pool.ref_count(target) == 1

    @rule(table=tables)
    def distrust(self, table: int) -> None:
        self.pool.forget(self.held[table])
        assert not any(self.pool.is_cached(block_id) for block_id in self.held[table])

    @rule()
    def forget(self) -> None:
        self.pool.forget_cached()

    @invariant()
    def is_sound(self) -> None:
        check(self.pool, *self.held.values())
        held = {block_id for table in self.held.values() for block_id in table}
        assert self.pool.num_used == len(held)
        assert held.isdisjoint(self.pool.eviction_order())


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
