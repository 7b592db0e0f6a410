"""The scheduler at its limits: the last block, the last token of the budget, the last sequence looked at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest

from engine.core.block_pool import BlockPool
from engine.core.cached_prefix import find_cached_prefix
from engine.core.pending_step import PreemptedBy
from engine.core.scheduler_config import Refused
from engine.core.sequence import CoreSequence, SequenceState
from engine.core.sequence_queue import SequenceQueue
from engine.protocol.failure import FailureKind, SequenceFailure
from engine.protocol.step import StepResult
from tests.fixtures.core import Bench, make_config, make_request

STEP_FAILED = SequenceFailure(FailureKind.STEP_FAILED, "boom")
OUT_OF_MEMORY = SequenceFailure(FailureKind.OUT_OF_MEMORY, "out of memory")


# --- steps ---


def test_steps_are_numbered_from_one() -> None:
    bench = Bench()
    bench.add(make_request("a", max_tokens=3))
    assert [bench.step().step_id for _ in range(3)] == [1, 2, 3]


def test_sequences_are_listed_until_they_end() -> None:
    bench = Bench()
    bench.add(make_request("a", max_tokens=1), make_request("b", max_tokens=2))
    assert list(bench.scheduler.sequences) == ["a", "b"]
    bench.step()
    assert list(bench.scheduler.sequences) == ["b"]


def test_equal_order_is_served_as_it_was_added() -> None:
    bench = Bench(make_config(max_num_seqs=1))
    bench.add(*(make_request(name, max_tokens=1) for name in "badc"))
    bench.run()
    assert list(bench.ends) == list("badc")


def test_an_arrival_in_the_future_counts_as_now() -> None:
    """A skewed clock must not put a request behind all that come after it."""
    bench = Bench(make_config(max_num_seqs=1))
    bench.now = 1.0
    bench.add(make_request("skewed", arrived_at=1e9, max_tokens=1))
    bench.now = 2.0
    bench.add(make_request("later", arrived_at=2.0, max_tokens=1))
    bench.run()
    assert list(bench.ends) == ["skewed", "later"]


# --- the step's budget ---


def test_a_running_prefill_waits_while_the_budget_is_spent() -> None:
    bench = Bench(make_config(max_num_batched_tokens=16, prefill_chunk_tokens=8))
    bench.add(make_request("a", 60, max_tokens=1), make_request("b", 60, max_tokens=1))
    assert bench.ids_in(bench.step()) == {"a": 8, "b": 8}
    bench.scheduler.config = replace(bench.config, prefill_chunk_tokens=None)
    assert bench.ids_in(bench.step()) == {"a": 16}


def test_an_unchunked_prompt_may_take_the_last_token_of_the_budget_and_none_overtakes_it() -> None:
    bench = Bench(make_config(chunked_prefill=False, max_model_len=40, max_num_batched_tokens=48))
    bench.add(make_request("a", 30), make_request("b", 18), make_request("c", 30), make_request("d", 2))
    assert bench.ids_in(bench.step()) == {"a": 30, "b": 18}
    assert bench.ids_in(bench.step()) == {"a": 1, "b": 1, "c": 30, "d": 2}


def test_an_unchunked_prompt_that_does_not_fit_is_overtaken_by_nobody() -> None:
    bench = Bench(make_config(chunked_prefill=False, max_model_len=40, max_num_batched_tokens=48))
    bench.add(make_request("a", 30), make_request("b", 19), make_request("c", 2))
    assert bench.ids_in(bench.step()) == {"a": 30}


def test_decodes_leave_the_rest_of_the_budget_to_prefills() -> None:
    bench = Bench(make_config(max_num_batched_tokens=10, prefill_chunk_tokens=None))
    bench.add(make_request("a", 3), make_request("b", 30))
    assert bench.ids_in(bench.step()) == {"a": 3, "b": 7}
    assert bench.ids_in(bench.step()) == {"a": 1, "b": 9}


# --- admission ---


def two_running(num_blocks: int) -> Bench:
    """After two steps "a" holds the two blocks that it will ever need; "b" needs two and waits."""
    bench = Bench(make_config(num_blocks=num_blocks, prefix_caching=False))
    bench.add(make_request("a", 4, max_tokens=4))
    bench.step()
    bench.step()
    bench.add(make_request("b", 5, max_tokens=3))
    return bench


@pytest.mark.parametrize(("num_blocks", "is_admitted"), [(4, True), (3, False)])
def test_a_sequence_is_admitted_into_the_last_block_that_it_will_need(num_blocks: int, is_admitted: bool) -> None:
    assert ("b" in bench_ids(two_running(num_blocks))) is is_admitted


def bench_ids(bench: Bench) -> dict[str, int]:
    return bench.ids_in(bench.step())


@pytest.mark.parametrize(("num_blocks", "is_admitted"), [(4, True), (3, False)])
def test_shared_blocks_are_not_needed_twice(num_blocks: int, is_admitted: bool) -> None:
    """Two blocks of "b" are those of "a"; both will need one more."""
    bench = Bench(make_config(num_blocks=num_blocks))
    bench.add(make_request("a", range(8), max_tokens=4))
    bench.step()
    bench.add(make_request("b", [*range(8), 50], max_tokens=3))
    assert ("b" in bench_ids(bench)) is is_admitted


def test_what_one_admission_promises_is_not_promised_to_the_next() -> None:
    """Each will need two blocks; five are enough for two of them beside the one that runs."""
    bench = Bench(make_config(num_blocks=6, prefix_caching=False))
    bench.add(make_request("a", 4, max_tokens=4))
    bench.step()
    bench.add(*(make_request(name, 4, max_tokens=4) for name in "bcd"))
    assert list(bench_ids(bench)) == ["a", "b", "c"]


def test_max_num_seqs_holds_within_one_step() -> None:
    bench = Bench(make_config(max_num_seqs=3))
    bench.add(*(make_request(name, max_tokens=9) for name in "abcd"))
    assert list(bench_ids(bench)) == ["a", "b", "c"]
    bench.abort("b")
    assert list(bench_ids(bench)) == ["a", "c", "d"]


@pytest.mark.parametrize(("num_passed_over", "is_seen"), [(33, True), (34, False)])
def test_a_bounded_number_of_waiting_sequences_is_looked_at(num_passed_over: int, is_seen: bool) -> None:
    """Three may start, and 32 more are looked at: the one that leads, those that wait for it, then another."""
    bench = Bench(make_config(num_blocks=400, max_num_seqs=4))
    bench.add(make_request("runs", 4, max_tokens=50))
    bench.step()
    bench.add(make_request("leads", range(16)))
    bench.add(*(make_request(f"follows-{i}", range(16)) for i in range(num_passed_over)))
    bench.add(make_request("other", range(60, 70)))
    assert ("other" in bench_ids(bench)) is is_seen


# --- prefix caching ---


def test_without_prefix_caching_nothing_is_cached_and_nobody_waits_for_anothers_blocks() -> None:
    bench = Bench(make_config(prefix_caching=False))
    bench.add(make_request("a", range(12)), make_request("b", range(12)))
    assert list(bench_ids(bench)) == ["a", "b"]
    assert bench.scheduler.pool.num_cached == 0
    assert [o.prefix_queries_tokens for o in bench.outcomes] == [0]


def test_a_lookup_that_may_find_nothing_counts_as_a_query() -> None:
    bench = Bench()
    bench.add(make_request("a", range(12), max_tokens=1))
    bench.run()
    bench.scheduler.finds_prefixes = False
    bench.add(make_request("b", range(12)), make_request("c", range(12)))
    assert [row.start for row in bench.step().scheduled] == [0, 0]
    assert (bench.outcomes[-1].prefix_queries_tokens, bench.outcomes[-1].prefix_hits_tokens) == (24, 0)


def test_queries_and_hits_are_those_of_the_step() -> None:
    bench = Bench()
    bench.add(make_request("a", range(10), max_tokens=1))
    bench.run()
    bench.add(make_request("b", [*range(9), 70], max_tokens=1), make_request("c", [*range(5), 80], max_tokens=1))
    bench.step()
    assert (bench.outcomes[-1].prefix_queries_tokens, bench.outcomes[-1].prefix_hits_tokens) == (16, 12)


@pytest.mark.parametrize("changes", [{"is_probe": True}, {"logprobs": 1}], ids=["probe", "prompt_logprobs"])
def test_who_must_compute_the_prompt_itself_neither_looks_it_up_nor_waits(changes: dict[str, object]) -> None:
    bench = Bench()
    bench.add(make_request("a", range(12), max_tokens=1))
    bench.run()
    before = bench.scheduler.pool.queries_tokens
    request = make_request("b", range(12), num_prompt_logprobs=changes.get("logprobs"))
    bench.add(msgspec.structs.replace(request, is_probe=bool(changes.get("is_probe"))))
    assert bench.step().scheduled[0].start == 0
    assert bench.scheduler.pool.queries_tokens == before


def test_what_a_probe_computes_is_not_cached() -> None:
    bench = Bench()
    bench.add(msgspec.structs.replace(make_request("probe", range(12), max_tokens=1), is_probe=True))
    bench.run()
    assert bench.scheduler.pool.num_cached == 0
    assert bench.outcomes[0].probe_tokens == 12


def test_waits_for_another_when_half_of_what_it_lacks_is_being_computed() -> None:
    """Both have 16 cached tokens; "a" computes one more block that is half of what "b" would compute now."""
    bench = Bench()
    bench.add(make_request("warm", range(16), max_tokens=1))
    bench.run()
    shared = [*range(16), 50, 51, 52, 53]
    bench.add(make_request("a", [*shared, 9]), make_request("b", [*shared, 60, 61, 62, 63]))
    assert list(bench_ids(bench)) == ["a"]
    bench.add(make_request("c", [*shared, 70, 71, 72, 73, 74]))
    assert bench.ids_in(bench.step()) == {"a": 1, "b": 4, "c": 5}


def test_computes_itself_when_less_than_half_of_what_it_lacks_is_being_computed() -> None:
    bench = Bench()
    bench.add(make_request("a", range(4)), make_request("b", [*range(4), *range(60, 65)]))
    assert bench.ids_in(bench.step()) == {"a": 4, "b": 9}


def test_nobody_waits_for_a_block_that_is_not_full_after_the_step() -> None:
    bench = Bench(make_config(prefill_chunk_tokens=3))
    bench.add(make_request("a", range(12)), make_request("b", range(12)))
    assert bench_ids(bench) == {"a": 3, "b": 3}


def test_a_copy_of_a_block_of_one_token_needs_a_free_block() -> None:
    bench = Bench(make_config(block_size=1, num_blocks=3, max_model_len=200))
    bench.add(make_request("a", range(2), max_tokens=1))
    bench.run()
    leaked = bench.scheduler.pool.allocate(1)
    assert leaked is not None
    bench.add(make_request("b", range(2), max_tokens=1))
    plan = bench.scheduler.plan(bench.now)
    assert plan is not None
    assert [(row.start, row.num_tokens) for row in plan.scheduled] == [(1, 1)]
    assert plan.copies == ()


def test_a_swapped_sequence_shares_every_full_block_before_its_last_token() -> None:
    pool = BlockPool(8, 4)
    sequence = CoreSequence(make_request("a", 17), (0.0, 0))
    block_ids = pool.allocate(4)
    assert block_ids is not None
    for block_id, content in zip(block_ids, sequence.contents_for(4), strict=True):
        pool.register(block_id, content)
    sequence.move_to(SequenceState.RUNNING)
    sequence.move_to(SequenceState.SWAPPED)
    sequence.num_computed_tokens = 6
    assert find_cached_prefix(sequence, pool) == (block_ids, None, 16)


# --- failed steps and rows ---


def test_a_failed_step_ends_every_sequence_of_it() -> None:
    bench = Bench()
    bench.add(make_request("a", 4), make_request("b", 8))
    bench.plan()
    outcome = bench.take_outcome(bench.scheduler.fail(STEP_FAILED, bench.now))
    assert {name: end.failure for name, end in bench.ends.items()} == {"a": STEP_FAILED, "b": STEP_FAILED}
    assert outcome.preemptions == ()


def test_out_of_memory_of_a_step_whose_sequences_were_all_aborted_ends_nobody() -> None:
    bench = Bench()
    bench.add(make_request("a"))
    bench.plan()
    bench.abort("a")
    assert bench.scheduler.fail(OUT_OF_MEMORY, bench.now).updates == []
    assert not bench.scheduler.has_work


def test_of_equally_large_rows_the_newest_pays_for_out_of_memory() -> None:
    bench = Bench()
    bench.add(make_request("old", 8), make_request("new", 8))
    bench.plan()
    bench.take_outcome(bench.scheduler.fail(OUT_OF_MEMORY, bench.now))
    assert list(bench.ends) == ["new"]
    (record,) = bench.preemptions
    assert (record.seq_id, record.how, record.lost_tokens, record.num_blocks) == (
        "old",
        PreemptedBy.FAILED_STEP,
        0,
        2,
    )


def test_tokens_that_a_failed_step_cost_are_counted() -> None:
    bench = Bench()
    bench.add(make_request("old", 8, max_tokens=9))
    bench.step()
    bench.add(make_request("big", 12))
    bench.now = 7.0
    bench.plan()
    (record,) = bench.take_outcome(bench.scheduler.fail(OUT_OF_MEMORY, bench.now)).preemptions
    assert (record.seq_id, record.at, record.lost_tokens, record.num_blocks) == ("old", 7.0, 8, 3)
    assert record.for_seq_id is None


def test_the_rows_after_a_failed_one_get_their_tokens_in_the_same_step() -> None:
    bench = Bench()
    bench.add(*(make_request(name) for name in "abc"))
    plan = bench.plan()
    bench.abort("a")
    failed = {"b": SequenceFailure(FailureKind.NON_FINITE_LOGITS, "NaN")}
    bench.take_outcome(
        bench.scheduler.apply(StepResult(plan.step_id, {"a": (1,), "c": (2,)}, 0.1, failed=failed), bench.now)
    )
    assert bench.tokens["c"] == [2]


# --- preemption ---


def test_swapping_both_ways_is_measured() -> None:
    bench = Bench(make_config(num_blocks=12, max_model_len=40, prefix_caching=False, num_host_blocks=20))
    bench.add(*(make_request(name, 10, max_tokens=20) for name in "abc"))
    moved = 0
    while bench.scheduler.has_work:
        plan = bench.step()
        moved += len(plan.swap_in) + len(plan.swap_out)
    assert moved
    seconds = bench.scheduler.preemption_cost.swap_seconds(1)
    assert seconds == pytest.approx(bench.runner.cost.swapped_block_s, rel=0.5)


# --- what was asked about ---


def test_a_prompt_that_is_only_scored_ends_without_a_token() -> None:
    bench = Bench(make_config(prefill_chunk_tokens=8))
    bench.add(make_request("a", 12, max_tokens=0, num_prompt_logprobs=0))
    plans = [bench.step(), bench.step()]
    assert [row.samples for plan in plans for row in plan.scheduled] == [False, False]
    assert (bench.ends["a"].finish_reason, bench.tokens["a"]) == ("length", [])
    assert sum(len(update.prompt_logprobs) for update in bench.updates) == 11


def test_a_finished_output_tells_how_long_outputs_become_and_a_probe_does_not() -> None:
    bench = Bench()
    bench.add(msgspec.structs.replace(make_request("probe", max_tokens=9), is_probe=True))
    bench.run()
    assert bench.scheduler.output_length.mean_tokens is None
    bench.add(make_request("a", max_tokens=5))
    bench.run()
    assert bench.scheduler.output_length.mean_tokens == 5


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "is_refused"),
    [
        pytest.param(199, 1, False, id="one token left"),
        pytest.param(200, 0, False, id="no token asked"),
        pytest.param(200, 1, True, id="no token left"),
        pytest.param(201, 0, True, id="prompt too long"),
    ],
)
def test_a_prompt_may_fill_the_model_but_for_the_tokens_it_asks(prompt: int, max_tokens: int, is_refused: bool) -> None:
    bench = Bench()
    refused = bench.add(make_request("a", prompt, max_tokens=max_tokens, num_prompt_logprobs=0))
    assert isinstance(refused, Refused) is is_refused


# --- integrity ---


def lose_sequence(bench: Bench) -> None:
    del bench.scheduler.sequences["a"]


def claim_more_than_its_blocks_hold(bench: Bench) -> None:
    bench.scheduler.sequences["a"].num_computed_tokens = 21


def leak_block(bench: Bench) -> None:
    bench.scheduler.pool.allocate(1)


def leak_host_block(bench: Bench) -> None:
    bench.scheduler.host_blocks.allocate(1)


@pytest.mark.parametrize(
    ("break_it", "found"),
    [
        (lose_sequence, "1 sequences, 1 run and 1 wait"),
        (claim_more_than_its_blocks_hold, "sequence a: runs with 5 device and 0 host blocks, 6 needed"),
        (leak_block, "reference count is 1, holders are 0"),
        (leak_host_block, "host blocks: free and held together are 2"),
    ],
    ids=["lost sequence", "too few blocks", "leaked block", "leaked host block"],
)
def test_integrity_check_names_what_is_wrong(break_it: Callable[[Bench], None], found: str) -> None:
    bench = Bench(make_config(max_num_seqs=1, num_host_blocks=3))
    bench.add(make_request("a", 20, max_tokens=30), make_request("b"))
    bench.step()
    bench.step()
    assert bench.scheduler.check_integrity() is None
    break_it(bench)
    assert found in (bench.scheduler.check_integrity() or "")


def test_pools_are_rebuilt_whole() -> None:
    bench = Bench(make_config(num_host_blocks=3))
    bench.add(make_request("a", range(12)))
    bench.run()
    leak_block(bench)
    leak_host_block(bench)
    bench.scheduler.rebuild_pools()
    assert bench.scheduler.check_integrity() is None
    pool = bench.scheduler.pool
    assert (pool.num_free, pool.num_blocks, pool.block_size, pool.num_cached) == (64, 64, 4, 0)
    assert bench.scheduler.host_blocks.num_free == 3


@pytest.mark.parametrize("is_planned", [False, True], ids=["waiting", "in a step"])
def test_pools_are_not_rebuilt_under_a_sequence(is_planned: bool) -> None:
    bench = Bench()
    bench.add(make_request("a"))
    if is_planned:
        bench.plan()
        bench.abort("a")
    with pytest.raises(AssertionError):
        bench.scheduler.rebuild_pools()


def test_orders_of_sequences_are_their_own() -> None:
    assert CoreSequence(make_request("a"), (1.0, 2)).order == (1.0, 2)


@pytest.mark.parametrize("order", [(0.0, 0), (1.0, 0), (9.0, 0)], ids=["before", "same order", "behind"])
def test_a_sequence_that_is_not_queued_can_not_be_taken_out(order: tuple[float, int]) -> None:
    queue = SequenceQueue()
    queue.add(CoreSequence(make_request("a"), (1.0, 0)))
    with pytest.raises(KeyError, match="b"):
        queue.remove(CoreSequence(make_request("b"), order))
    assert [sequence.seq_id for sequence in queue] == ["a"]
