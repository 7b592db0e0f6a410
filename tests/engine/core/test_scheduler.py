"""What gets into a step, who has to wait or give way, and how requests end."""

from __future__ import annotations

import msgspec
import pytest

from engine.core.block_pool import BlockPool
from engine.core.cached_prefix import find_cached_prefix
from engine.core.fake_runner import generate
from engine.core.pending_step import PreemptedBy, Preemption
from engine.core.scheduler_config import Refused
from engine.core.sequence import TRANSITIONS, CoreSequence, SequenceState
from engine.protocol.failure import FailureKind, SequenceFailure
from engine.protocol.messages import StepKind
from engine.protocol.step import StepResult, TokenLogprobs
from tests.fixtures.core import VOCAB_SIZE, Bench, make_config, make_request

NON_FINITE = SequenceFailure(FailureKind.NON_FINITE_LOGITS, "non-finite logits")
STEP_FAILED = SequenceFailure(FailureKind.STEP_FAILED, "the step failed: boom")
OUT_OF_MEMORY = SequenceFailure(FailureKind.OUT_OF_MEMORY, "out of memory")


def expected_tokens(request, count: int | None = None) -> list[int]:
    return generate(request.prompt_token_ids, request.sampling, VOCAB_SIZE, request.output_token_ids, count=count)


# --- one request ---


def test_request_gets_the_tokens_of_undisturbed_generation() -> None:
    bench = Bench()
    request = make_request("a", 10, max_tokens=7, seed=3)
    bench.add(request)
    bench.run()
    assert bench.tokens["a"] == expected_tokens(request)
    assert bench.ends["a"].finish_reason == "length"


def test_runner_is_told_of_a_sequence_once() -> None:
    bench = Bench()
    bench.add(make_request("a", max_tokens=3))
    plans = [bench.step() for _ in range(3)]
    assert [len(plan.new) for plan in plans] == [1, 0, 0]
    bench.add(make_request("b", max_tokens=1))
    assert bench.step().forgotten == ("a",)
    assert bench.runner.num_sequences == 1


def test_first_update_says_when_the_request_was_first_scheduled() -> None:
    bench = Bench(make_config(prefill_chunk_tokens=4))
    bench.add(make_request("a", 10, max_tokens=2))
    bench.now = 5.0
    bench.step()
    bench.now = 6.0
    bench.run()
    assert [u.scheduled_at for u in bench.updates] == [5.0, None, None]
    assert bench.updates[0].token_ids == ()
    assert bench.updates[0].num_cached_tokens == 0


def test_step_kind_tells_prompts_from_new_positions() -> None:
    bench = Bench()
    bench.add(make_request("a", max_tokens=3))
    bench.step()
    bench.add(make_request("b", max_tokens=3))
    bench.step()
    bench.step()
    assert [o.kind for o in bench.outcomes] == [StepKind.PREFILL, StepKind.MIXED, StepKind.DECODE]


def test_logprobs_travel_with_their_tokens() -> None:
    bench = Bench()
    bench.add(make_request("a", max_tokens=2, num_logprobs=1))
    bench.run()
    logprobs = [entry for update in bench.updates for entry in update.logprobs]
    assert len(logprobs) == 2
    assert isinstance(logprobs[0], TokenLogprobs)
    assert logprobs[0].top[0][0] == bench.tokens["a"][0]


# --- ends ---


def test_ends_with_the_end_of_sequence_token() -> None:
    request = make_request("a", max_tokens=20)
    eos = expected_tokens(request)[4]
    bench = Bench(make_config(eos_token_ids=(eos,)))
    bench.add(request)
    bench.run()
    assert bench.ends["a"].finish_reason == "stop"
    assert bench.tokens["a"] == expected_tokens(request)[:5]


@pytest.mark.parametrize(
    ("sampling", "count"),
    [
        pytest.param({"ignore_eos": True}, 20, id="ignore_eos"),
        pytest.param({"min_tokens": 6}, 20, id="min_tokens"),
        pytest.param({"min_tokens": 5}, 5, id="min_tokens_reached"),
    ],
)
def test_end_of_sequence_is_passed_over_when_asked(sampling: dict[str, object], count: int) -> None:
    request = make_request("a", max_tokens=20, **sampling)
    eos = expected_tokens(request)[4]
    assert expected_tokens(request).count(eos) == 1
    bench = Bench(make_config(eos_token_ids=(eos,)))
    bench.add(request)
    bench.run()
    assert len(bench.tokens["a"]) == count


def test_stop_token_ends_also_where_end_of_sequence_is_ignored() -> None:
    stop = expected_tokens(make_request("a", max_tokens=20))[2]
    bench = Bench()
    bench.add(make_request("a", max_tokens=20, ignore_eos=True, stop_token_ids=(stop,)))
    bench.run()
    assert bench.ends["a"].finish_reason == "stop"
    assert bench.tokens["a"][-1] == stop
    assert len(bench.tokens["a"]) == 3


def test_ends_at_the_model_length() -> None:
    bench = Bench(make_config(max_model_len=12))
    bench.add(make_request("a", 8, max_tokens=100))
    bench.run()
    assert len(bench.tokens["a"]) == 4
    assert bench.ends["a"].finish_reason == "length"


def test_ends_where_all_blocks_together_are_full() -> None:
    bench = Bench(make_config(num_blocks=3, max_model_len=200))
    bench.add(make_request("a", 8, max_tokens=100))
    bench.run()
    assert len(bench.tokens["a"]) == 12 - 8
    assert bench.ends["a"].finish_reason == "length"


def test_failed_row_ends_alone() -> None:
    bench = Bench()
    bench.add(make_request("a"), make_request("b"))
    plan = bench.plan()
    result = bench.runner.run_step(plan)
    failed = {"a": NON_FINITE}
    bench.take_outcome(
        bench.scheduler.apply(StepResult(result.step_id, result.token_ids, 0.1, failed=failed), bench.now)
    )
    assert bench.ends["a"].finish_reason == "error"
    assert bench.ends["a"].failure == NON_FINITE
    bench.run()
    assert bench.ends["b"].finish_reason == "length"


def test_row_without_a_drawn_token_ends_with_an_error() -> None:
    bench = Bench()
    bench.add(make_request("a"))
    plan = bench.plan()
    bench.take_outcome(bench.scheduler.apply(StepResult(plan.step_id, {}, 0.1), bench.now))
    assert bench.ends["a"].failure == SequenceFailure(FailureKind.DEFECT, "the runner drew no token")


def test_every_state_can_end_and_the_end_is_final() -> None:
    assert TRANSITIONS[SequenceState.FINISHED] == frozenset()
    assert all(SequenceState.FINISHED in after for state, after in TRANSITIONS.items() if after)


# --- refusal ---


@pytest.mark.parametrize(
    ("request_", "complaint"),
    [
        pytest.param(make_request("a", []), "no tokens", id="empty"),
        pytest.param(make_request("a", 200), "can never fit", id="model_length"),
        pytest.param(make_request("a", 190, output=[1] * 11), "can never fit", id="continued"),
        pytest.param(make_request("a", [1, 1000]), "between 0 and 999", id="vocabulary"),
        pytest.param(make_request("a", [1, -1]), "between 0 and 999", id="negative"),
        pytest.param(make_request("a", [1], output=[1000]), "between 0 and 999", id="output_vocabulary"),
        pytest.param(make_request("a", max_tokens=-1), "max_tokens", id="less_than_nothing_asked"),
    ],
)
def test_request_that_can_never_be_served_is_refused_at_once(request_, complaint: str) -> None:
    bench = Bench(make_config(vocab_size=1000))
    refused = bench.add(request_)
    assert isinstance(refused, Refused)
    assert complaint in refused.reason
    assert not refused.is_duplicate
    assert not bench.scheduler.has_work


def test_prompt_larger_than_all_blocks_is_refused_at_once() -> None:
    bench = Bench(make_config(num_blocks=4, max_model_len=200))
    refused = bench.add(make_request("a", 16))
    assert refused is not None
    assert "KV for 16" in refused.reason
    assert bench.add(make_request("b", 15)) is None
    bench.run()
    assert len(bench.tokens["b"]) == 1


def test_second_request_of_an_id_is_refused_and_the_first_goes_on() -> None:
    bench = Bench()
    bench.add(make_request("a"))
    refused = bench.add(make_request("a"))
    assert refused is not None
    assert refused.is_duplicate
    bench.run()
    assert len(bench.tokens["a"]) == 4
    assert bench.add(make_request("a")) is None, "an id is free again after its request ended"


@pytest.mark.parametrize(
    "changes",
    [
        {"max_num_batched_tokens": 4, "max_num_seqs": 8},
        {"chunked_prefill": False, "max_num_batched_tokens": 207},
        {"num_blocks": 0},
        {"ageing_s": 0.0},
        {"max_model_len": 1},
        {"prefill_chunk_tokens": 0},
        {"num_host_blocks": -1},
        {"block_size": 1, "num_blocks": 1},
    ],
)
def test_contradicting_limits_are_an_error(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="|".join(changes)):
        make_config(**changes)


# --- continuation ---


def test_continues_where_another_node_stopped() -> None:
    whole = make_request("a", 10, max_tokens=12, seed=5)
    before = expected_tokens(whole)[:5]
    bench = Bench()
    bench.add(make_request("a", whole.prompt_token_ids, max_tokens=12, seed=5, output=before))
    bench.run()
    assert before + bench.tokens["a"] == expected_tokens(whole)


@pytest.mark.parametrize(
    ("output", "stop", "reason"), [([7, 8], (), "length"), ([7], (7,), "stop")], ids=["length", "stop"]
)
def test_request_that_was_complete_elsewhere_ends_at_once(output, stop, reason) -> None:
    bench = Bench()
    bench.add(make_request("a", output=output, max_tokens=2, stop_token_ids=stop))
    assert bench.ends["a"].finish_reason == reason
    assert bench.tokens["a"] == []
    assert not bench.scheduler.has_work


# --- the step's budget ---


def test_long_prompt_does_not_stop_the_tokens_of_others() -> None:
    bench = Bench(make_config(num_blocks=1000, max_model_len=2000, prefill_chunk_tokens=None))
    bench.add(make_request("short", 4, max_tokens=30))
    bench.step()
    bench.add(make_request("long", 1500, max_tokens=1))
    while "short" not in bench.ends:
        plan = bench.step()
        assert bench.ids_in(plan)["short"] == 1, "a step without the short request's token"
        assert plan.num_tokens <= 64
        assert plan.scheduled[0].seq_id == "short", "decodes are planned first"


@pytest.mark.parametrize(
    ("prompt_tokens", "parts"), [(16, [16]), (17, [12, 5]), (32, [16, 16]), (40, [16, 12, 12]), (48, [16, 16, 16])]
)
def test_a_prompt_is_computed_in_as_few_parts_as_its_limit_allows_all_about_as_long(
    prompt_tokens: int, parts: list[int]
) -> None:
    bench = Bench(make_config(prefill_chunk_tokens=16, max_num_batched_tokens=64))
    bench.add(make_request("a", prompt_tokens, max_tokens=1))
    assert [bench.ids_in(bench.step())["a"] for _ in parts] == parts
    assert bench.tokens["a"]


def test_several_prompts_share_one_step() -> None:
    bench = Bench(make_config(prefill_chunk_tokens=16, max_num_batched_tokens=40))
    bench.add(*(make_request(name, 40) for name in "abc"))
    assert bench.ids_in(bench.step()) == {"a": 16, "b": 16, "c": 8}


def test_unchunked_prompt_waits_for_a_step_with_room() -> None:
    bench = Bench(make_config(chunked_prefill=False, max_model_len=40, max_num_batched_tokens=48))
    bench.add(make_request("a", 30), make_request("b", 30))
    assert bench.ids_in(bench.step()) == {"a": 30}
    assert bench.ids_in(bench.step()) == {"a": 1, "b": 30}
    bench.run()


def test_no_more_requests_run_than_max_num_seqs() -> None:
    bench = Bench(make_config(max_num_seqs=2))
    bench.add(*(make_request(name) for name in "abc"))
    bench.step()
    assert (bench.scheduler.num_running, bench.scheduler.num_waiting) == (2, 1)
    bench.run()
    assert len(bench.ends) == 3


# --- order ---


def test_smaller_priority_is_served_first() -> None:
    bench = Bench(make_config(max_num_seqs=1))
    bench.add(make_request("batch", priority=5), make_request("chat", priority=0))
    bench.run()
    assert list(bench.ends) == ["chat", "batch"]


def test_equal_priority_is_served_in_order_of_arrival() -> None:
    bench = Bench(make_config(max_num_seqs=1))
    bench.now = 10.0
    bench.add(make_request("late", arrived_at=9.0), make_request("early", arrived_at=8.0))
    bench.run()
    assert list(bench.ends) == ["early", "late"]


def test_low_priority_is_served_in_the_end_however_many_others_keep_coming() -> None:
    bench = Bench(make_config(max_num_seqs=1, ageing_s=10.0))
    bench.add(make_request("patient", priority=3, max_tokens=1))
    count = 0
    while "patient" not in bench.ends:
        count += 1
        bench.add(make_request(f"urgent-{count}", arrived_at=bench.now, max_tokens=2))
        bench.step()
        bench.now += 1.0
        assert bench.now <= 70.0
    assert bench.now >= 30.0, "three levels of priority were worth less than their time"


def test_request_too_big_for_now_is_not_overtaken_for_ever() -> None:
    bench = Bench(make_config(num_blocks=10, max_model_len=40))
    bench.add(make_request("a", 16, max_tokens=8), make_request("big", 36, max_tokens=2))
    bench.step()
    bench.now = 1.0
    bench.add(make_request("small", 4, arrived_at=1.0, max_tokens=2))
    bench.run()
    assert list(bench.ends) == ["a", "big", "small"]


def test_nobody_starts_into_blocks_that_others_will_need() -> None:
    bench = Bench(make_config(num_blocks=16, max_model_len=64))
    bench.add(make_request("teacher", 4, max_tokens=40))
    bench.run()  # outputs are 40 tokens long, as far as anybody knows
    bench.add(*(make_request(name, 4, max_tokens=40) for name in "abc"))
    bench.run()
    assert not bench.preemptions


# --- preemption ---


def crowded(**changes: object) -> Bench:
    """Three requests in a pool of twelve blocks: they run out when each wants its fifth."""
    bench = Bench(make_config(num_blocks=12, max_model_len=40, prefix_caching=False, **changes))
    bench.now = 3.0
    for index, name in enumerate(["first", "second", "third"]):
        bench.add(make_request(name, 10, arrived_at=float(index), max_tokens=20))
    return bench


def test_newest_is_preempted_when_blocks_run_out() -> None:
    bench = crowded()
    bench.run()
    assert bench.preemptions[0].seq_id == "third"
    assert {p.seq_id for p in bench.preemptions} <= {"second", "third"}
    for name in ("first", "second", "third"):
        assert bench.tokens[name] == expected_tokens(make_request(name, 10, max_tokens=20))


def test_lowest_priority_is_preempted_before_newer_ones() -> None:
    bench = Bench(make_config(num_blocks=12, max_model_len=40, prefix_caching=False))
    bench.now = 2.0
    bench.add(make_request("batch", 10, arrived_at=0.0, priority=1, max_tokens=20))
    bench.add(make_request("x", 10, arrived_at=1.0, max_tokens=20))
    bench.add(make_request("y", 10, arrived_at=2.0, max_tokens=20))
    while not bench.preemptions:
        bench.step()
    assert bench.preemptions[0].seq_id == "batch"


def test_preemption_is_recorded_with_who_for_whom_and_what_was_lost() -> None:
    bench = crowded()
    while not bench.preemptions:
        bench.step()
    record = Preemption("third", 3.0, PreemptedBy.RECOMPUTE, lost_tokens=16, num_blocks=4, for_seq_id="first")
    assert bench.preemptions == [record]
    assert bench.outcomes[-1].preemptions == (record,)
    bench.run()
    told = sum(u.preempted for u in bench.updates if u.seq_id == "third")
    assert told == sum(p.seq_id == "third" for p in bench.preemptions) >= 1


def test_preempted_request_is_sent_to_the_runner_again_with_its_output() -> None:
    bench = crowded()
    resent = []
    while bench.scheduler.has_work:
        plan = bench.step()
        resent += [new for new in plan.new if len(new.token_ids) > new.num_prompt_tokens]
        assert not {new.seq_id for new in plan.new} & set(plan.forgotten)
    assert resent
    assert all(new.num_prompt_tokens == 10 for new in resent)


def test_preempted_request_finds_its_blocks_again() -> None:
    bench = Bench(make_config(num_blocks=12, max_model_len=40))
    for name in "abc":
        bench.add(make_request(name, 10, max_tokens=20))
    bench.run()
    lost = sum(p.lost_tokens for p in bench.preemptions)
    computed = sum(o.kind is not StepKind.DECODE for o in bench.outcomes)
    assert lost > 0
    assert computed
    # look-ups after a preemption are no queries: the hit ratio speaks of prompts
    assert bench.scheduler.pool.queries_tokens == 30


def test_swapped_request_loses_no_tokens() -> None:
    bench = crowded(num_host_blocks=20)
    plans = []
    while bench.scheduler.has_work:
        plans.append(bench.step())
    swaps = [p for p in bench.preemptions if p.how is PreemptedBy.SWAP]
    assert swaps
    assert all(p.lost_tokens == 0 for p in swaps)
    assert sum(len(p.swap_in) for p in plans) == sum(len(p.swap_out) for p in plans)
    assert bench.scheduler.host_blocks.num_free == 20
    for name in ("first", "second", "third"):
        assert bench.tokens[name] == expected_tokens(make_request(name, 10, max_tokens=20))


def test_host_blocks_are_held_until_they_were_read() -> None:
    bench = crowded(num_host_blocks=20)
    num_swapped_in = 0
    while bench.scheduler.has_work:
        plan = bench.plan()
        free = bench.scheduler.host_blocks.num_free
        bench.finish_step(plan)
        num_swapped_in += len(plan.swap_in)
        assert bench.scheduler.host_blocks.num_free >= free + len(plan.swap_in)
    assert num_swapped_in


def test_nobody_starts_in_the_step_in_which_somebody_gave_way() -> None:
    bench = Bench(make_config(num_blocks=16, max_model_len=60, max_num_seqs=3, prefix_caching=False))
    bench.add(*(make_request(name, size, max_tokens=30) for name, size in [("a", 10), ("b", 10), ("big", 26)]))
    bench.step()
    bench.add(make_request("tiny", 2, priority=-9, max_tokens=1))  # first in the queue, kept out by max_num_seqs alone
    while not bench.preemptions:
        plan = bench.step()
    assert plan.new == ()
    assert [new.seq_id for new in bench.step().new] == ["tiny"]


def test_recomputes_when_the_host_has_no_room() -> None:
    bench = crowded(num_host_blocks=1)
    bench.run()
    assert {p.how for p in bench.preemptions} == {PreemptedBy.RECOMPUTE}


@pytest.mark.parametrize(
    ("swap_s", "how"), [(1e-6, PreemptedBy.SWAP), (10.0, PreemptedBy.RECOMPUTE)], ids=["cheap", "dear"]
)
def test_swaps_only_where_measured_to_be_cheaper(swap_s: float, how: PreemptedBy) -> None:
    bench = crowded(num_host_blocks=20)
    for num_tokens in (1, 10, 100):
        bench.scheduler.preemption_cost.observe(num_tokens, 0.001 + num_tokens * 0.001)
    bench.scheduler.preemption_cost.observe(10, 0.011 + 5 * swap_s, num_swapped_blocks=5)
    while not bench.preemptions:
        bench.step()
    assert bench.preemptions[0].how is how


def test_abort_of_a_swapped_request_frees_its_host_blocks() -> None:
    bench = crowded(num_host_blocks=20)
    while not bench.preemptions:
        bench.step()
    bench.abort("third")
    assert bench.scheduler.host_blocks.num_free == 20
    bench.run()
    assert bench.ends["third"].finish_reason == "abort"


# --- prefix cache ---


def test_second_request_starts_from_the_shared_prefix() -> None:
    bench = Bench()
    shared = list(range(20))
    bench.add(make_request("a", [*shared, 500, 501], max_tokens=2))
    bench.run()
    bench.add(make_request("b", [*shared, 600, 601, 602], max_tokens=2))
    plan = bench.step()
    assert (plan.scheduled[0].start, plan.scheduled[0].num_tokens) == (20, 3)
    bench.run()
    assert bench.updates[-2].num_cached_tokens == 20
    assert bench.tokens["b"] == expected_tokens(make_request("b", [*shared, 600, 601, 602], max_tokens=2))
    assert (bench.scheduler.pool.queries_tokens, bench.scheduler.pool.hits_tokens) == (45, 20)
    assert sum(o.prefix_hits_tokens for o in bench.outcomes) == 20


def test_prefix_is_not_shared_across_salts() -> None:
    bench = Bench()
    bench.add(make_request("a", range(20), salt="tenant-a"))
    bench.run()
    bench.add(make_request("b", range(20), salt="tenant-b"))
    assert bench.step().scheduled[0].start == 0


def test_blocks_can_not_be_found_before_their_kv_is_computed() -> None:
    bench = Bench()
    bench.add(make_request("a", range(12)), make_request("b", [*range(4), *range(50, 60)]))
    plan = bench.plan()
    assert [row.start for row in plan.scheduled] == [0, 0]
    assert bench.scheduler.pool.num_cached == 0
    bench.finish_step(plan)
    assert bench.scheduler.pool.num_cached == 5
    bench.run()


@pytest.mark.parametrize("prefill_chunk_tokens", [8, 512])
def test_a_beginning_that_many_bring_at_once_is_computed_once(prefill_chunk_tokens: int) -> None:
    bench = Bench(make_config(prefill_chunk_tokens=prefill_chunk_tokens))
    shared = range(100, 120)
    requests = [make_request(name, [*shared, 500 + i, 600 + i, 700 + i], max_tokens=2) for i, name in enumerate("abcd")]
    bench.add(*requests)
    plans = []
    while bench.scheduler.has_work:
        plans.append(bench.step())
    num_computed = sum(row.num_tokens for plan in plans for row in plan.scheduled)
    assert num_computed == 20 + 4 * 3 + 4  # and each one's second token
    assert len(plans) <= 5
    for request in requests:
        assert bench.tokens[request.seq_id] == expected_tokens(request)


def test_who_waits_for_anothers_blocks_lets_those_behind_pass() -> None:
    bench = Bench()
    bench.add(make_request("a", range(12)), make_request("b", range(12)), make_request("c", range(60, 70)))
    assert [row.seq_id for row in bench.step().scheduled] == ["a", "c"]
    assert [row.seq_id for row in bench.step().scheduled] == ["a", "c", "b"]
    bench.run()
    assert bench.tokens["b"] == expected_tokens(make_request("b", range(12)))


def test_who_waits_for_blocks_of_a_request_that_ends_computes_them_itself() -> None:
    bench = Bench(make_config(prefill_chunk_tokens=8))
    bench.add(make_request("a", range(40)), make_request("b", range(40)))
    assert [row.seq_id for row in bench.step().scheduled] == ["a"]
    bench.scheduler.abort("a")
    assert [(row.seq_id, row.start) for row in bench.step().scheduled] == [("b", 8)]
    bench.run()
    assert bench.tokens["b"] == expected_tokens(make_request("b", range(40)))


def test_what_a_probe_computes_is_waited_for_by_nobody() -> None:
    bench = Bench()
    bench.add(msgspec.structs.replace(make_request("a", range(12)), is_probe=True), make_request("b", range(12)))
    assert [row.seq_id for row in bench.step().scheduled] == ["a", "b"]


def test_blocks_of_a_failed_step_can_not_be_found() -> None:
    bench = Bench()
    bench.add(make_request("a", range(12)))
    bench.plan()
    bench.take_outcome(bench.scheduler.fail(STEP_FAILED, bench.now))
    assert bench.scheduler.pool.num_cached == 0


def test_blocks_of_a_request_with_nan_logits_leave_the_prefix_cache() -> None:
    bench = Bench(make_config(prefill_chunk_tokens=8))
    bench.add(make_request("a", range(12)))
    bench.step()
    assert bench.scheduler.pool.num_cached == 2
    plan = bench.plan()
    result = StepResult(plan.step_id, {}, 0.1, failed={"a": NON_FINITE})
    bench.take_outcome(bench.scheduler.apply(result, bench.now))
    assert bench.scheduler.pool.num_cached == 0
    bench.add(make_request("b", range(12)))
    assert bench.step().scheduled[0].start == 0


def test_generated_tokens_are_found_by_the_next_turn_of_a_conversation() -> None:
    bench = Bench()
    first = make_request("a", 10, max_tokens=11)
    bench.add(first)
    bench.run()
    history = [*first.prompt_token_ids, *bench.tokens["a"]]
    bench.add(make_request("b", [*history, 1, 2, 3]))
    # the last token was drawn but never computed, so 20 of 21
    assert bench.step().scheduled[0].start == 20


def test_wholly_cached_prompt_computes_its_last_token_in_a_copy() -> None:
    bench = Bench()
    bench.add(make_request("a", range(12)))
    bench.step()
    bench.add(make_request("b", range(12), seed=9))
    plan = bench.step()
    row = next(row for row in plan.scheduled if row.seq_id == "b")
    assert (row.start, row.num_tokens, row.samples) == (11, 1, True)
    ((source, target),) = plan.copies
    assert row.block_ids[-1] == target != source
    bench.run()
    assert bench.tokens["b"] == expected_tokens(make_request("b", range(12), seed=9))


def test_wholly_cached_prompt_computes_its_last_block_where_a_copy_has_no_room() -> None:
    bench = Bench(make_config(num_blocks=3, max_model_len=200))
    bench.add(make_request("a", range(8), max_tokens=1))
    bench.run()
    # the only block that is neither shared nor to be copied is taken by somebody else
    held = bench.scheduler.pool.allocate(1)
    assert held is not None
    bench.add(make_request("b", range(8), max_tokens=1, seed=2))
    plan = bench.scheduler.plan(bench.now)
    assert plan is not None
    assert [(row.start, row.num_tokens) for row in plan.scheduled] == [(4, 4)]
    assert plan.copies == ()
    bench.take(bench.scheduler.apply(bench.runner.run_step(plan), bench.now).updates)
    assert bench.tokens["b"] == expected_tokens(make_request("b", range(8), max_tokens=1, seed=2))


def test_cache_hit_does_not_hide_a_lack_of_blocks() -> None:
    bench = Bench(make_config(num_blocks=3, max_model_len=200))
    bench.add(make_request("a", range(11), max_tokens=1))
    bench.run()
    bench.add(make_request("b", [*range(8), 70, 71], max_tokens=1))
    assert bench.step().scheduled[0].start == 8


def test_without_prefix_caching_everything_is_computed() -> None:
    bench = Bench(make_config(prefix_caching=False))
    bench.add(make_request("a", range(12)))
    bench.run()
    bench.add(make_request("b", range(12)))
    assert bench.step().scheduled[0].start == 0
    assert bench.scheduler.pool.queries_tokens == 0


def test_copied_block_is_held_until_the_copy_is_done() -> None:
    bench = Bench()
    bench.add(make_request("a", range(12), max_tokens=1))
    bench.run()
    bench.add(make_request("b", range(12), max_tokens=1))
    plan = bench.plan()
    ((source, _),) = plan.copies
    assert bench.scheduler.pool.ref_count(source) == 1
    bench.finish_step(plan)
    assert bench.scheduler.pool.ref_count(source) == 0


@pytest.mark.parametrize(
    ("num_computed", "num_cached_blocks", "shared", "num_tokens"),
    [
        pytest.param(6, 0, 0, 6, id="all_from_the_host"),
        pytest.param(6, 1, 1, 6, id="first_block_still_here"),
        pytest.param(6, 3, 3, 12, id="somebody_came_further"),
        pytest.param(6, 4, 3, 12, id="somebody_has_all"),
        pytest.param(14, 4, 3, 14, id="block_to_be_written_is_not_shared"),
    ],
)
def test_swapped_request_takes_the_longer_of_host_and_cache(
    num_computed: int, num_cached_blocks: int, shared: int, num_tokens: int
) -> None:
    pool = BlockPool(8, 4)
    request = CoreSequence(make_request("a", 16), (0.0, 0))
    block_ids = pool.allocate(num_cached_blocks)
    assert block_ids is not None
    for block_id, content in zip(block_ids, request.contents_for(4), strict=False):
        pool.register(block_id, content)
    request.move_to(SequenceState.RUNNING)
    request.move_to(SequenceState.SWAPPED)
    request.num_computed_tokens = num_computed
    assert find_cached_prefix(request, pool) == (block_ids[:shared], None, num_tokens)


# --- abort and failed steps ---


def test_abort_ends_a_waiting_a_running_and_no_unknown_request() -> None:
    bench = Bench(make_config(max_num_seqs=1))
    bench.add(make_request("a"), make_request("b"))
    bench.step()
    bench.abort("a")
    bench.abort("b")
    bench.abort("never-seen")
    assert {i: u.finish_reason for i, u in bench.ends.items()} == {"a": "abort", "b": "abort"}
    assert bench.scheduler.pool.num_used == 0
    assert not bench.scheduler.has_work


def test_token_of_a_step_that_an_abort_overtook_is_dropped() -> None:
    bench = Bench()
    bench.add(make_request("a"), make_request("b"))
    plan = bench.plan()
    bench.abort("a")
    bench.finish_step(plan)
    assert bench.tokens["a"] == []
    assert len(bench.tokens["b"]) == 1
    bench.run()


def test_failed_step_ends_its_requests_and_no_others() -> None:
    bench = Bench(make_config(max_num_seqs=1))
    bench.add(make_request("a"), make_request("b"))
    bench.plan()
    bench.take_outcome(bench.scheduler.fail(STEP_FAILED, bench.now))
    assert bench.ends["a"].failure == STEP_FAILED
    bench.run()
    assert bench.tokens["b"] == expected_tokens(make_request("b"))


def test_what_a_failed_step_was_to_forget_is_forgotten_by_the_next() -> None:
    bench = Bench()
    bench.add(make_request("a", max_tokens=1))
    bench.step()
    bench.add(make_request("b"))
    assert bench.plan().forgotten == ("a",)
    bench.take_outcome(bench.scheduler.fail(STEP_FAILED, bench.now))
    bench.add(make_request("c"))
    assert bench.step().forgotten == ("a", "b")


def test_out_of_memory_costs_the_largest_row_and_the_others_start_over() -> None:
    bench = Bench()
    bench.add(make_request("small", 4, max_tokens=6))
    bench.step()
    bench.add(make_request("big", 16), make_request("other", 8))
    bench.plan()
    outcome = bench.scheduler.fail(OUT_OF_MEMORY, bench.now)
    bench.take_outcome(outcome)
    assert list(bench.ends) == ["big"]
    assert {p.seq_id: p.how for p in outcome.preemptions} == {
        "small": PreemptedBy.FAILED_STEP,
        "other": PreemptedBy.FAILED_STEP,
    }
    plan = bench.step()
    assert {new.seq_id for new in plan.new} == {"small", "other"}
    assert plan.forgotten == ("big",), "a sequence that is new in a step must not be forgotten in it"
    bench.run()
    assert bench.tokens["small"] == expected_tokens(make_request("small", 4, max_tokens=6))
    assert bench.tokens["other"] == expected_tokens(make_request("other", 8))


def test_kv_that_a_failed_step_was_to_swap_out_is_not_trusted() -> None:
    bench = crowded(num_host_blocks=20)
    while not (plan := bench.plan()).swap_out:
        bench.finish_step(plan)
    bench.take_outcome(bench.scheduler.fail(STEP_FAILED, bench.now))
    assert bench.scheduler.host_blocks.num_free == 20
    bench.run()
    assert bench.tokens["third"] == expected_tokens(make_request("third", 10, max_tokens=20))


def test_plans_alternate_with_their_results() -> None:
    bench = Bench()
    bench.add(make_request("a"))
    plan = bench.plan()
    with pytest.raises(AssertionError, match="not in"):
        bench.scheduler.plan(0.0)
    with pytest.raises(AssertionError, match="awaited"):
        bench.scheduler.apply(StepResult(plan.step_id + 1, {}, 0.0), 0.0)


def test_integrity_check_sees_a_request_whose_blocks_are_gone() -> None:
    bench = Bench()
    bench.add(make_request("a", 10))
    bench.step()
    request = next(iter(bench.scheduler._running))
    bench.scheduler.pool.release(request.block_ids)
    assert "reference count" in (bench.scheduler.check_integrity() or "")
