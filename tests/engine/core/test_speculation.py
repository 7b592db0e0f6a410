"""Tokens ahead in the scheduler: the same tokens in fewer steps, and nobody pays for proposals."""

from __future__ import annotations

from dataclasses import replace

from engine.core.fake_runner import generate
from engine.core.speculation_config import SpeculationConfig
from engine.protocol.messages import AddSequence
from engine.protocol.step import SamplingParams, StepPlan
from tests.fixtures.core import Bench, make_config, make_request

VOCAB_SIZE = 2  # so few that a proposal is often right
ALWAYS = SpeculationConfig(num_speculative_tokens=4, prompt_lookup_min=1, prompt_lookup_max=3, is_adaptive=False)
PROMPT = (0, 1, 1, 0, 1)


def make_bench(**changes: object) -> Bench:
    return Bench(make_config(**{"speculation": ALWAYS, **changes}), vocab_size=VOCAB_SIZE)


def drafts_in(plan: StepPlan) -> dict[str, int]:
    return {row.seq_id: len(row.draft) for row in plan.scheduled if row.draft}


def test_same_tokens_come_in_fewer_steps() -> None:
    sampling = SamplingParams(max_tokens=60, seed=3, num_logprobs=1)
    with_drafts, without = make_bench(), make_bench(speculation=None)
    steps = []
    for bench in (with_drafts, without):
        bench.add(AddSequence("a", PROMPT, sampling, 0.0))
        steps.append(bench.run())
        assert bench.tokens["a"] == generate(PROMPT, sampling, VOCAB_SIZE)
        assert sum(len(update.logprobs) for update in bench.updates) == 60
    assert steps[0] < 0.7 * steps[1]
    counted = [outcome.accepted_per_position for outcome in with_drafts.outcomes]
    accepted = sum(map(sum, counted))
    # the first token is drawn without a draft, each other step draws one and what was right of its draft
    assert steps[0] + accepted == 60
    assert sum(outcome.num_draft_tokens for outcome in with_drafts.outcomes) > accepted
    assert with_drafts.scheduler.pool.num_used == 0


def test_no_step_computes_more_than_the_rest_of_an_answer() -> None:
    bench = make_bench()
    bench.add(AddSequence("a", PROMPT, SamplingParams(max_tokens=6), 0.0))
    while bench.scheduler.has_work:
        left = 6 - len(bench.tokens["a"])
        plan = bench.step()
        assert drafts_in(plan).get("a", 0) < left
    assert len(bench.tokens["a"]) == 6


def test_answer_ends_at_a_stop_token_inside_of_a_draft() -> None:
    sampling = SamplingParams(max_tokens=80, seed=1, min_tokens=20, stop_token_ids=(0,))
    expected = generate(PROMPT, sampling, VOCAB_SIZE)
    end = next(i for i, token in enumerate(expected) if i >= 19 and token == 0)
    for seed_config in (ALWAYS, replace(ALWAYS, num_speculative_tokens=9)):
        bench = make_bench(speculation=seed_config)
        bench.add(AddSequence("a", PROMPT, sampling, 0.0))
        bench.run()
        assert bench.tokens["a"] == expected[: end + 1]
        assert bench.ends["a"].finish_reason == "stop"


def test_proposals_take_what_is_left_of_the_step() -> None:
    bench = make_bench(max_num_batched_tokens=9, max_num_seqs=8, prefill_chunk_tokens=8)
    bench.add(AddSequence("a", PROMPT, SamplingParams(max_tokens=40), 0.0))
    bench.step()
    bench.add(make_request("b", [0, 1] * 12))
    plan = bench.step()
    assert bench.ids_in(plan)["b"] == 8, "a prompt's chunk goes before proposals"
    assert plan.num_tokens <= 9


def test_nobody_is_preempted_for_proposals() -> None:
    """Two sequences that fill the pool exactly: proposals may not take the block that the other one needs."""
    bench = make_bench(num_blocks=10, block_size=4, max_model_len=20, max_num_batched_tokens=64)
    for seq_id in ("a", "b"):
        bench.add(AddSequence(seq_id, PROMPT, SamplingParams(max_tokens=15, seed=len(seq_id)), 0.0))
    bench.run()
    assert not bench.preemptions


def test_cached_prefix_holds_accepted_tokens_only() -> None:
    bench = make_bench()
    sampling = SamplingParams(max_tokens=30, seed=5)
    bench.add(AddSequence("a", PROMPT, sampling, 0.0))
    bench.run()
    whole = (*PROMPT, *bench.tokens["a"])
    bench.add(AddSequence("b", whole, SamplingParams(max_tokens=1), 0.0))
    bench.run()  # the runner raises where a cached block does not hold what it should
    assert bench.scheduler.pool.hits_tokens == (len(whole) - 1) // 4 * 4


def test_moved_answer_goes_on_with_its_tokens() -> None:
    sampling = SamplingParams(max_tokens=50, seed=2)
    expected = generate(PROMPT, sampling, VOCAB_SIZE)
    bench = make_bench()
    bench.add(AddSequence("a", PROMPT, sampling, 0.0, output_token_ids=tuple(expected[:17])))
    bench.run()
    assert bench.tokens["a"] == expected[17:]


def test_draft_model_is_asked_for_no_more_than_can_be_used() -> None:
    drafted = make_bench(speculation=SpeculationConfig("draft", num_speculative_tokens=5, is_adaptive=False))
    sampling = SamplingParams(max_tokens=40, seed=3)
    drafted.add(AddSequence("a", PROMPT, sampling, 0.0))
    steps = 0
    while drafted.scheduler.has_work:
        left = 40 - len(drafted.tokens["a"])
        plan = drafted.step()
        steps += 1
        (row,) = plan.scheduled
        assert len(row.draft) < left
        assert row.num_wanted < left
    assert drafted.tokens["a"] == generate(PROMPT, sampling, VOCAB_SIZE)
    assert steps < 20, "three of four proposals are right"


def test_probes_get_no_proposals() -> None:
    bench = make_bench()
    bench.add(AddSequence("probe", PROMPT * 3, SamplingParams(max_tokens=20), 0.0, is_probe=True))
    bench.run()
    assert all(outcome.num_drafts == 0 for outcome in bench.outcomes)


def test_aborted_between_plan_and_result_leaves_nothing_behind() -> None:
    bench = make_bench()
    bench.add(AddSequence("a", PROMPT, SamplingParams(max_tokens=50), 0.0))
    for _ in range(3):
        bench.step()
    plan = bench.plan()
    assert drafts_in(plan)
    bench.abort("a")
    outcome = bench.finish_step(plan)
    assert outcome.num_drafts == 0
    assert bench.scheduler.pool.num_used == 0
