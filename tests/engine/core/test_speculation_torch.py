"""Tokens ahead on a real model: not one bit of an answer depends on them, whatever runs around it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from engine.core.scheduler import Scheduler
from engine.core.scheduler_config import SchedulerConfig
from engine.core.speculation_config import Method, SpeculationConfig
from engine.core.torch_runner import ModelRunner
from engine.model.directory import open_model
from engine.model.drafter_directory import open_drafter
from engine.model.make import make_model
from engine.protocol.grammar import json_grammar, regex_grammar
from engine.protocol.messages import AddSequence
from engine.protocol.step import RepetitionLimit, SamplingParams, ThinkingBudget, TokenLogprobs
from tests.fixtures.core import make_config
from tests.fixtures.eagle import drafter_config, knowing_drafter, random_drafter, write_drafter
from tests.fixtures.engine import tiny_model_dir
from tests.fixtures.grammar import PERSON, make_book
from tests.fixtures.medusa import knowing_heads, next_words, random_heads, walking_model, write_heads

BLOCK_SIZE = 8
NUM_BLOCKS = 80
ROOMY = {"num_blocks": NUM_BLOCKS, "block_size": BLOCK_SIZE, "max_model_len": 300, "max_num_batched_tokens": 128}
ALWAYS = SpeculationConfig(num_speculative_tokens=5, prompt_lookup_min=1, is_adaptive=False)


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def runner(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModelRunner:
    directory: Path = make_model(tmp_path_factory.mktemp("models") / "small")
    return _warm(directory, request.param)


def _warm(directory: Path, dtype: str, **changes: object) -> ModelRunner:
    torch.set_num_threads(1)
    runner = ModelRunner(
        directory,
        num_blocks=NUM_BLOCKS,
        block_size=BLOCK_SIZE,
        num_host_blocks=100,
        dtype=dtype,
        num_threads=1,
        **changes,  # type: ignore[arg-type]
    )
    runner.warm_up()
    return runner


# A model of random weights says anything but what it said before; a bias makes it choose among few tokens.
FEW = tuple((token_id, 100.0) for token_id in (300, 301, 302))
SHAPES: list[dict[str, object]] = [
    {"temperature": 0.0},
    {"temperature": 0.7, "top_p": 0.9, "num_logprobs": 3},
    {"temperature": 1.0, "presence_penalty": 0.6, "frequency_penalty": 0.4, "num_logprobs": 0},
    {"temperature": 0.0, "repetition_penalty": 1.1},
    {"temperature": 0.8, "min_tokens": 12, "stop_token_ids": (301,)},
    {"temperature": 1.2, "top_k": 2, "min_p": 0.05},
    {"temperature": 0.9, "num_prompt_logprobs": 1},
    {"temperature": 0.9, "allowed_token_ids": (301, 302, 303)},
    {"temperature": 0.9, "bad_words": ((301, 302), (302,)), "num_logprobs": 2, "logprob_token_ids": (300, 302)},
    {"temperature": 0.9, "thinking": ThinkingBudget(4, 301, 303)},
    {"temperature": 0.9, "repetition": RepetitionLimit(1, 3, 4)},
]
REQUESTS = [
    AddSequence(
        f"r{i}",
        tuple((11 * (i % 2) + 7 * j) % 900 + 5 for j in range(20)) + (300, 301, 302) * (i + 1),
        SamplingParams(max_tokens=30, seed=i, ignore_eos=True, logit_bias=FEW, **shape),  # type: ignore[arg-type]
        float(i),
    )
    for i, shape in enumerate(SHAPES)
]

Answer = tuple[list[int], list[TokenLogprobs], list[TokenLogprobs]]


def serve(
    runner: ModelRunner, config: SchedulerConfig, requests: list[AddSequence]
) -> tuple[dict[str, Answer], set[str], int]:
    """Each request's tokens and log probabilities, how sequences were preempted, and how many proposals were right."""
    scheduler = Scheduler(config)
    answers: dict[str, Answer] = {request.seq_id: ([], [], []) for request in requests}
    how: set[str] = set()
    accepted = 0
    for request in requests:
        assert scheduler.add(request, 100.0) is None
    while (plan := scheduler.plan(100.0)) is not None:
        outcome = scheduler.apply(runner.run_step(plan), 100.0)
        how |= {preemption.how.value for preemption in outcome.preemptions}
        accepted += sum(outcome.accepted_per_position)
        for update in outcome.updates:
            assert update.failure is None, update.failure
            tokens, logprobs, prompt_logprobs = answers[update.seq_id]
            tokens += update.token_ids
            logprobs += update.logprobs
            prompt_logprobs += update.prompt_logprobs
        assert scheduler.check_integrity() is None
    assert scheduler.pool.num_used == 0
    return answers, how, accepted


@pytest.fixture(scope="module")
def alone(runner: ModelRunner) -> dict[str, Answer]:
    """Each request by itself, a token a step."""
    config = make_config(**ROOMY, prefill_chunk_tokens=None, prefix_caching=False)
    return {r.seq_id: serve(runner, config, [r])[0][r.seq_id] for r in REQUESTS}


@pytest.mark.parametrize(
    ("changes", "disturbed_by"),
    [
        pytest.param({"max_num_seqs": 1}, None, id="alone"),
        pytest.param({"prefix_caching": False}, None, id="batched"),
        pytest.param({"prefill_chunk_tokens": 5, "max_num_batched_tokens": 24}, None, id="chunked"),
        pytest.param({"num_blocks": 22}, "recompute", id="recomputed"),
        pytest.param({"num_blocks": 22, "num_host_blocks": 100}, "swap", id="swapped"),
    ],
)
def test_answers_are_those_of_a_token_a_step(runner, alone, changes: dict[str, object], disturbed_by: str) -> None:
    answers, how, accepted = serve(runner, make_config(**{**ROOMY, **changes, "speculation": ALWAYS}), REQUESTS)
    assert answers == alone
    assert accepted > 40
    assert disturbed_by is None or disturbed_by in how


def test_answer_goes_on_with_its_tokens_after_a_move(runner, alone) -> None:
    moved = [
        AddSequence(r.seq_id, r.prompt_token_ids, r.sampling, 0.0, 0, tuple(alone[r.seq_id][0][:-1][: 2 + i]))
        for i, r in enumerate(REQUESTS)
    ]
    answers, _, accepted = serve(runner, make_config(**ROOMY, speculation=ALWAYS), moved)
    assert {r.seq_id: [*r.output_token_ids, *answers[r.seq_id][0]] for r in moved} == {
        seq_id: answer[0] for seq_id, answer in alone.items()
    }
    assert accepted > 20


@pytest.fixture(scope="module")
def drafting(runner: ModelRunner, tmp_path_factory: pytest.TempPathFactory) -> Callable[[bool], ModelRunner]:
    """The same model with another one that proposes for it: itself, or one that knows nothing of it."""
    directory = runner._model.path
    made = {True: directory, False: make_model(tmp_path_factory.mktemp("models") / "other", seed=7)}
    dtype = str(runner._dtype).removeprefix("torch.")
    return lambda is_same: _warm(directory, dtype, drafter=open_model(made[is_same]))


@pytest.mark.parametrize("is_same", [True, False])
@pytest.mark.parametrize(
    ("changes", "disturbed_by"),
    [
        pytest.param({}, None, id="batched"),
        pytest.param({"num_blocks": 22}, "recompute", id="recomputed"),
        pytest.param({"num_blocks": 22, "num_host_blocks": 100}, "swap", id="swapped"),
    ],
)
def test_a_draft_model_changes_no_answer(
    drafting, alone, is_same: bool, changes: dict[str, object], disturbed_by: str
) -> None:
    always = SpeculationConfig("draft", num_speculative_tokens=4, is_adaptive=False)
    config = make_config(**{**ROOMY, **changes, "speculation": always})
    answers, how, _ = serve(drafting(is_same), config, REQUESTS)
    assert answers == alone
    assert disturbed_by is None or disturbed_by in how


def test_a_model_that_drafts_for_itself_is_always_right(drafting) -> None:
    """Its KV must be that of the tokens that were accepted, whatever was proposed before."""
    always = SpeculationConfig("draft", num_speculative_tokens=4, is_adaptive=False)
    request = AddSequence("a", tuple(range(40, 90)), SamplingParams(max_tokens=41, temperature=0.0), 0.0)
    scheduler, runner = Scheduler(make_config(**ROOMY, speculation=always)), drafting(True)
    scheduler.add(request, 0.0)
    counts = []
    while (plan := scheduler.plan(0.0)) is not None:
        outcome = scheduler.apply(runner.run_step(plan), 0.0)
        counts.append((outcome.num_draft_tokens, sum(outcome.accepted_per_position)))
    assert sum(proposed for proposed, _ in counts) > 25
    assert all(proposed == accepted for proposed, accepted in counts)


@pytest.fixture(scope="module", params=["medusa", "eagle3"])
def proposing(
    request: pytest.FixtureRequest, runner: ModelRunner, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Method, ModelRunner]:
    """The same model with Medusa heads, or an EAGLE-3 drafter, that know nothing of it."""
    directory, folder = runner._model.path, tmp_path_factory.mktemp("models") / "drafter"
    vocab_size = open_model(directory).config.vocab_size
    is_medusa = request.param == "medusa"
    tensors = random_heads(directory, 3) if is_medusa else random_drafter(vocab_size)
    for name, tensor in tensors.items():
        # of few tokens, as the model is made to choose among few: some proposals are right by chance
        if name.startswith("lm_head"):
            tensor[303:] = tensor[:300] = 0.0
    if is_medusa:
        write_heads(folder, tensors, {"num_heads": 3})
    else:
        write_drafter(folder, tensors, drafter_config(vocab_size))
    dtype = str(runner._dtype).removeprefix("torch.")
    return request.param, _warm(directory, dtype, drafter=open_drafter(request.param, folder, open_model(directory)))


@pytest.mark.parametrize(
    ("changes", "disturbed_by"),
    [
        pytest.param({"max_num_seqs": 1}, None, id="alone"),
        pytest.param({}, None, id="batched"),
        pytest.param({"prefill_chunk_tokens": 5, "max_num_batched_tokens": 24}, None, id="chunked"),
        pytest.param({"num_blocks": 22}, "recompute", id="recomputed"),
        pytest.param({"num_blocks": 22, "num_host_blocks": 100}, "swap", id="swapped"),
    ],
)
def test_medusa_heads_and_eagle_change_no_answer(
    proposing, alone, changes: dict[str, object], disturbed_by: str
) -> None:
    method, runner = proposing
    always = SpeculationConfig(method, num_speculative_tokens=3, is_adaptive=False)
    answers, how, accepted = serve(runner, make_config(**{**ROOMY, **changes, "speculation": always}), REQUESTS)
    assert answers == alone
    assert accepted > 10
    assert disturbed_by is None or disturbed_by in how


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("method", ["medusa", "eagle3"])
def test_what_knows_the_text_is_always_right(tmp_path: Path, method: Method, dtype: str, count: int) -> None:
    """In steps that are recorded and in ones that are not, whose rows other sequences' prompts share."""
    model = walking_model(tmp_path / "model")
    if method == "medusa":
        folder = write_heads(tmp_path / "drafter", knowing_heads(model, 3), {"num_heads": 3})
    else:
        folder = write_drafter(tmp_path / "drafter", *knowing_drafter(model))
    runner = _warm(model, dtype, drafter=open_drafter(method, folder, open_model(model)))
    always = SpeculationConfig(method, num_speculative_tokens=3, is_adaptive=False)
    scheduler = Scheduler(make_config(**ROOMY, prefill_chunk_tokens=8, speculation=always))
    following, said = next_words(open_model(model).config.vocab_size), {}
    for i in range(count):
        prompt = tuple(range(400 + i, 420 + i + 9 * i))
        said[f"w{i}"] = [prompt[-1]]
        scheduler.add(AddSequence(f"w{i}", prompt, SamplingParams(max_tokens=41, temperature=0.0), 0.0), 0.0)
    proposed = accepted = 0
    while (plan := scheduler.plan(0.0)) is not None:
        outcome = scheduler.apply(runner.run_step(plan), 0.0)
        proposed, accepted = proposed + outcome.num_draft_tokens, accepted + sum(outcome.accepted_per_position)
        for update in outcome.updates:
            said[update.seq_id] += update.token_ids
    assert proposed == accepted > 25 * count
    for words in said.values():
        assert words[1:] == [following[word] for word in words[:-1]]


@pytest.mark.parametrize("method", ["ngram", "medusa", "eagle3"])
def test_grammars_are_followed_at_each_proposal(tmp_path: Path, method: Method) -> None:
    changes: dict[str, object] = {}
    if method == "medusa":
        write_heads(tmp_path / "drafter", random_heads(tiny_model_dir(), 4), {"num_heads": 4})
    elif method == "eagle3":
        vocab_size = open_model(tiny_model_dir()).config.vocab_size
        write_drafter(tmp_path / "drafter", random_drafter(vocab_size), drafter_config(vocab_size))
    if method != "ngram":
        changes["drafter"] = open_drafter(method, tmp_path / "drafter", open_model(tiny_model_dir()))
    runner = _warm(tiny_model_dir(), "float32", grammars=make_book(), **changes)
    always = ALWAYS if method == "ngram" else SpeculationConfig(method, 4, is_adaptive=False)
    grammars = [json_grammar(PERSON), regex_grammar("(ab){20,30}c"), regex_grammar("[a-z ]{40,60}"), None]
    requests = [
        AddSequence(
            f"g{i}",
            tuple(range(40 * i + 5, 40 * i + 25)),
            SamplingParams(max_tokens=40, seed=i, grammar=grammar, num_logprobs=1, temperature=0.7 * (i % 2)),
            float(i),
        )
        for i, grammar in enumerate(grammars)
    ]
    one_by_one, _, none = serve(runner, make_config(**ROOMY), requests)
    ahead, _, accepted = serve(runner, make_config(**ROOMY, speculation=always), requests)
    assert ahead == one_by_one
    assert none == 0
    assert method != "ngram" or accepted > 10
