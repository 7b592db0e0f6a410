"""KV blocks behind a sliding window are given up at once, and nothing that is said depends on it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import MistralConfig, MistralForCausalLM

from engine.core.scheduler import Scheduler
from engine.core.torch_runner import ModelRunner
from engine.model.directory import open_model
from engine.protocol.messages import AddSequence
from engine.protocol.step import SamplingParams
from tests.fixtures.core import Bench, make_config, make_request

WINDOW, BLOCK_SIZE, NUM_TOKENS = 24, 8, 90
PROMPTS = [[(7 * j + 11 * i) % 200 + 3 for j in range(50 + 9 * i)] for i in range(4)]


def test_a_long_answer_holds_what_its_window_sees() -> None:
    bench = Bench(make_config(num_blocks=40, max_model_len=160, window_tokens=10, prefill_chunk_tokens=8))
    bench.add(make_request("long", 60, max_tokens=90, ignore_eos=True))
    most = bench.config.most_blocks_held
    assert most is not None
    held = []
    while bench.scheduler.has_work:
        bench.step()
        held += [len(one.held_block_ids) for one in bench.scheduler.sequences.values()]
    assert len(bench.tokens["long"]) == 90
    assert max(held) <= most == 6
    assert held[-1] <= 4


def test_more_requests_run_than_whole_texts_would_fit() -> None:
    changes = {"num_blocks": 40, "max_model_len": 160, "prefill_chunk_tokens": 8, "max_num_seqs": 8}
    running = {}
    for window in (None, 10):
        bench = Bench(make_config(**changes, window_tokens=window))
        bench.add(*(make_request(f"r{i}", 60, max_tokens=90, ignore_eos=True) for i in range(8)))
        most = 0
        while bench.scheduler.has_work:
            bench.step()
            most = max(most, bench.scheduler.num_running)
        running[window] = most, len(bench.preemptions)
    assert running[10] > running[None]
    assert running[10][1] == 0


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(5)
    config = MistralConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=512,
        sliding_window=WINDOW,
        initializer_range=0.2,
    )
    made = tmp_path_factory.mktemp("mistral")
    MistralForCausalLM(config).to(torch.float32).save_pretrained(made)
    return made


def reference(directory: Path, prompt: list[int]) -> list[int]:
    model = MistralForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")
    token_ids = list(prompt)
    with torch.inference_mode():
        for _ in range(NUM_TOKENS):
            token_ids.append(int(model(torch.tensor([token_ids]), use_cache=False).logits[0, -1].argmax()))
    return token_ids[len(prompt) :]


@pytest.mark.parametrize("prefix_caching", [True, False])
def test_answers_are_transformers(directory: Path, prefix_caching: bool) -> None:
    model = open_model(directory)
    assert model.config.widest_window == WINDOW
    runner = ModelRunner(model, num_blocks=30, block_size=BLOCK_SIZE, dtype="float32", num_threads=1)
    runner.warm_up()
    config = make_config(
        num_blocks=30,
        block_size=BLOCK_SIZE,
        max_model_len=200,
        prefill_chunk_tokens=16,
        prefix_caching=prefix_caching,
        window_tokens=WINDOW,
    )
    scheduler = Scheduler(config)
    sampling = SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0, ignore_eos=True)
    for index, prompt in enumerate(PROMPTS):
        assert scheduler.add(AddSequence(f"r{index}", tuple(prompt), sampling, 0.0), 1.0) is None
    said: dict[str, list[int]] = {}
    most_running = 0
    while (plan := scheduler.plan(1.0)) is not None:
        for update in scheduler.apply(runner.run_step(plan), 1.0).updates:
            assert update.failure is None, update.failure
            said.setdefault(update.seq_id, []).extend(update.token_ids)
        most_running = max(most_running, scheduler.num_running)
        assert scheduler.check_integrity() is None
    assert most_running > 1, "blocks of one are taken by others while it goes on"
    for index, prompt in enumerate(PROMPTS):
        assert said[f"r{index}"] == reference(directory, prompt)
