"""Grammars in a real runner: the same tokens whatever runs beside, and after any interruption."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import jsonschema_rs
import pytest
import torch

from engine.core.torch_runner import ModelRunner
from engine.protocol.failure import FailureKind
from engine.protocol.grammar import choice_grammar, json_grammar, regex_grammar
from engine.protocol.step import NewSequence, SamplingParams, Scheduled, StepPlan
from tests.fixtures.engine import tiny_model_dir
from tests.fixtures.grammar import PERSON, make_book, tiny_tokenizer
from tests.fixtures.runner import BLOCK_SIZE, Drive, give_blocks, run_all, step

NUM_BLOCKS = 256
EOS = tiny_tokenizer().eos_token_ids
PERSON_GRAMMAR = json_grammar(PERSON)


@pytest.fixture(scope="module")
def runner() -> ModelRunner:
    torch.set_num_threads(1)
    made = ModelRunner(tiny_model_dir(), num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, grammars=make_book())
    made.warm_up()
    return made


def _drives() -> list[Drive]:
    """With grammars and without, greedy and random, with and without other things that shape the draw."""
    grammars = [PERSON_GRAMMAR, None, regex_grammar("[a-z ]{40,60}"), None, json_grammar({"type": "object"})]
    shapes: list[dict[str, float]] = [{}, {"top_p": 0.9}, {"presence_penalty": 0.5}, {}, {"temperature": 0.0}]
    return [
        Drive(i, tuple(range(40 * i + 5, 40 * i + 5 + 9 * i + 1)), SamplingParams(max_tokens=25, seed=i, **shape))
        if grammar is None
        else Drive(
            i,
            tuple(range(40 * i + 5, 40 * i + 5 + 9 * i + 1)),
            SamplingParams(max_tokens=25, seed=i, grammar=grammar, num_logprobs=1, **shape),
        )
        for i, (grammar, shape) in enumerate(zip(grammars, shapes, strict=True))
    ]


def _alone(runner: ModelRunner, drives: list[Drive]) -> list[list[int]]:
    found = []
    for single in [d.again() for d in drives]:
        give_blocks([single], NUM_BLOCKS)
        found += run_all(runner, [single])
    return found


def _run_to_end(runner: ModelRunner, drive: Drive) -> str:
    """The text up to the end of sequence, which must come."""
    give_blocks([drive], NUM_BLOCKS)
    result = step(runner, [drive], [drive])
    while drive.output[-1] not in EOS:
        assert not result.failed
        assert not drive.is_done, "no end"
        result = step(runner, [drive])
    runner.run_step(StepPlan(0, (), forgotten=(drive.seq_id,)))
    return tiny_tokenizer().decode(drive.output, skip_special_tokens=True)


def test_random_weights_write_json_that_validates(runner: ModelRunner) -> None:
    for seed in range(6):
        params = SamplingParams(max_tokens=600, seed=seed, grammar=PERSON_GRAMMAR, temperature=0.3 * seed)
        text = _run_to_end(runner, Drive(0, (10, 11, 12), params))
        jsonschema_rs.validate(PERSON, json.loads(text))


def test_same_tokens_and_logprobs_alone_and_in_any_batch(runner: ModelRunner) -> None:
    expected = _alone(runner, _drives())
    for stagger, backwards in ((0, False), (3, True)):
        together = _drives()
        give_blocks(together, NUM_BLOCKS, backwards=backwards)
        assert run_all(runner, together, stagger=stagger) == expected


@pytest.mark.parametrize("at", [1, 6, 17])
def test_same_tokens_after_preemption_with_recompute(runner: ModelRunner, at: int) -> None:
    expected = _alone(runner, _drives())
    drives = _drives()
    give_blocks(drives, NUM_BLOCKS)
    step(runner, drives, drives)
    for _ in range(at - 1):
        step(runner, drives)
    victims = [drives[0], drives[2], drives[4]]
    runner.run_step(StepPlan(0, (), forgotten=tuple(d.seq_id for d in victims)))
    step(runner, [drives[1], drives[3]])
    for victim in victims:
        victim.computed, victim.chunk = 0, 7
    step(runner, drives, victims)
    while not all(d.is_done for d in drives):
        step(runner, [d for d in drives if not d.is_done])
    assert [d.output for d in drives] == expected


def test_sequences_without_a_grammar_draw_what_they_draw_without_neighbours_that_have_one(runner: ModelRunner) -> None:
    plain = [d for d in _drives() if d.sampling.grammar is None]
    give_blocks(plain, NUM_BLOCKS)
    assert run_all(runner, plain) == [
        out for d, out in zip(_drives(), _alone(runner, _drives()), strict=True) if d.sampling.grammar is None
    ]


def test_the_end_of_the_grammar_wins_over_min_tokens_and_ignore_eos(runner: ModelRunner) -> None:
    for changes in ({"min_tokens": 50}, {"ignore_eos": True}):
        params = SamplingParams(max_tokens=60, grammar=choice_grammar(["yes"]), **changes)
        assert _run_to_end(runner, Drive(0, (10, 11), params)) == "yes"


def test_min_tokens_keeps_the_end_away_while_the_grammar_can_go_on(runner: ModelRunner) -> None:
    biased = tuple((token_id, 100.0) for token_id in EOS)
    params = SamplingParams(max_tokens=60, grammar=regex_grammar("a{1,30}"), logit_bias=biased)
    assert len(_run_to_end(runner, Drive(0, (10, 11), params))) == 1
    longer = Drive(0, (10, 11), replace(params, min_tokens=5))
    assert re.fullmatch("a+", _run_to_end(runner, longer))
    assert len(longer.output) == 6


def test_a_grammar_that_can_not_be_followed_fails_its_sequence_alone(runner: ModelRunner) -> None:
    healthy = Drive(0, (10, 11), SamplingParams(max_tokens=3))
    give_blocks([healthy], NUM_BLOCKS)
    params = SamplingParams(max_tokens=5, grammar=choice_grammar(["yes"]))
    other = tiny_tokenizer().encode("no")
    strangers = NewSequence(1, (10, *other), 1, params)
    broken = NewSequence(2, (10,), 1, replace(params, grammar="{"))
    rows = (healthy.next(), Scheduled(1, 0, 1 + len(other), (200,), samples=True), Scheduled(2, 0, 1, (201,), True))
    result = runner.run_step(StepPlan(0, rows, new=(healthy.new(), strangers, broken)))
    assert list(result.token_ids) == [0]
    assert [result.failed[i].kind for i in (1, 2)] == [FailureKind.GRAMMAR] * 2
    assert "does not fit the grammar" in result.failed[1].message
    assert "its grammar" in result.failed[2].message
    runner.run_step(StepPlan(0, (), forgotten=(0, 1, 2)))


def test_a_runner_without_grammars_fails_only_who_asks_for_one() -> None:
    bare = ModelRunner(tiny_model_dir(), num_blocks=16, block_size=BLOCK_SIZE)
    plain = Drive(0, (10, 11), SamplingParams(max_tokens=2))
    asking = Drive(1, (10, 11), SamplingParams(max_tokens=2, grammar=PERSON_GRAMMAR))
    give_blocks([plain, asking], 16)
    result = step(bare, [plain, asking], [plain, asking])
    assert list(result.token_ids) == [0]
    assert result.failed[1].kind is FailureKind.DEFECT
    assert "without grammars" in result.failed[1].message
