"""EAGLE-3: over whole texts it proposes what the formula says, whatever KV and features went through before, and a
drafter of another model is refused by name.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from engine.core.scheduler import Scheduler
from engine.core.speculation_config import SpeculationConfig
from engine.core.torch_runner import ModelRunner
from engine.model.directory import BadModelError, open_model
from engine.model.eagle_directory import open_eagle
from engine.protocol.messages import AddSequence
from engine.protocol.step import SamplingParams
from tests.fixtures.core import make_config
from tests.fixtures.eagle import FEATURE_LAYERS, drafter_config, random_drafter, say, write_drafter
from tests.fixtures.engine import tiny_model_dir

VOCAB = 1191
NUM_TOKENS = 3


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    return LlamaForCausalLM.from_pretrained(tiny_model_dir(), dtype=torch.float32).eval()  # type: ignore[no-any-return]


def _proposals(
    path: Path, prompts: list[list[int]], num_output_tokens: int, **limits: object
) -> list[tuple[list[int], tuple[int, ...]]]:
    """Every proposal that was made, with the text that it was made for."""
    torch.set_num_threads(1)
    target = open_model(tiny_model_dir())
    runner = ModelRunner(
        target,
        num_blocks=60,
        block_size=8,
        num_host_blocks=60,
        dtype="float32",
        num_threads=1,
        drafter=open_eagle(path, target.config),
    )
    runner.warm_up()
    always = SpeculationConfig("eagle3", num_speculative_tokens=NUM_TOKENS, is_adaptive=False)
    sizes: dict[str, object] = {"num_blocks": 60, "block_size": 8, "max_model_len": 200, "max_num_batched_tokens": 64}
    scheduler = Scheduler(make_config(**{**sizes, **limits, "speculation": always}))
    texts: dict[str, list[int]] = {}
    found, how = [], set()
    for i, prompt in enumerate(prompts):
        texts[f"s{i}"] = list(prompt)
        sampling = SamplingParams(max_tokens=num_output_tokens, temperature=0.0, ignore_eos=True)
        scheduler.add(AddSequence(f"s{i}", tuple(prompt), sampling, float(i)), 0.0)
    while (plan := scheduler.plan(0.0)) is not None:
        result = runner.run_step(plan)
        outcome = scheduler.apply(result, 0.0)
        how |= {preemption.how.value for preemption in outcome.preemptions}
        for update in outcome.updates:
            texts[update.seq_id] += update.token_ids
        found += [(list(texts[seq_id]), said) for seq_id, said in result.proposals.items()]
    assert ("swap" in how) == ("num_host_blocks" in limits)
    return found


def _prompts(*lengths: int) -> list[list[int]]:
    random = np.random.default_rng(3)
    return [random.integers(300, VOCAB, length).tolist() for length in lengths]


@torch.inference_mode()
def _streams(model: LlamaForCausalLM, text: list[int]) -> list[torch.Tensor]:
    states = model(torch.tensor([text]), output_hidden_states=True).hidden_states
    return [states[layer][0] for layer in FEATURE_LAYERS]


@pytest.mark.parametrize(
    ("lengths", "limits"),
    [
        pytest.param([5], {}, id="short"),
        pytest.param([50], {"prefill_chunk_tokens": 16}, id="chunked"),
        pytest.param([40, 3, 25], {}, id="batched"),
        pytest.param([30, 31, 32, 33], {"num_blocks": 22, "num_host_blocks": 60}, id="swapped"),
    ],
)
def test_proposals_are_those_of_the_formula(
    model: LlamaForCausalLM, tmp_path: Path, lengths: list[int], limits: dict[str, object]
) -> None:
    tensors = random_drafter(VOCAB)
    path = write_drafter(tmp_path / "drafter", tensors, drafter_config(VOCAB))
    found = _proposals(path, _prompts(*lengths), 24, **limits)
    assert len(found) > 20
    embedding = model.get_input_embeddings().weight.detach()
    for text, said in found:
        assert said == say(tensors, embedding, _streams(model, text), text, len(said))


@pytest.mark.parametrize("window", [6, 20])
def test_a_long_text_is_seen_through_a_window(
    model: LlamaForCausalLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    """So that little has to be caught up with, and nothing is seen that was not computed."""
    monkeypatch.setattr("engine.model.eagle.WINDOW", window)
    tensors = random_drafter(VOCAB)
    path = write_drafter(tmp_path / "drafter", tensors, drafter_config(VOCAB))
    embedding = model.get_input_embeddings().weight.detach()
    for text, said in _proposals(path, _prompts(70, 12), 20):
        assert said == say(tensors, embedding, _streams(model, text), text, len(said), window=window)


@pytest.mark.parametrize(
    ("own_vocabulary", "has_embedding", "norms_residual", "name"),
    [(595, False, False, "midlayer."), (None, True, True, "layers.0."), (None, False, True, "model.layers.0.")],
)
def test_drafters_as_they_are_published(
    model: LlamaForCausalLM,
    tmp_path: Path,
    own_vocabulary: int | None,
    has_embedding: bool,
    norms_residual: bool,
    name: str,
) -> None:
    tensors = random_drafter(VOCAB, own_vocabulary, has_embedding=has_embedding)
    config = drafter_config(
        VOCAB,
        norm_before_residual=norms_residual,
        eagle_config={"eagle_aux_hidden_state_layer_ids": list(FEATURE_LAYERS), "use_aux_hidden_state": True},
    )
    if own_vocabulary is not None:
        config["draft_vocab_size"] = own_vocabulary
    stored = {key.replace("midlayer.", name): tensor for key, tensor in tensors.items()}
    path = write_drafter(tmp_path / "drafter", stored, config)
    embedding = model.get_input_embeddings().weight.detach()
    found = _proposals(path, _prompts(12), 16)
    assert found
    for text, said in found:
        expected = say(tensors, embedding, _streams(model, text), text, len(said), norms_residual=norms_residual)
        assert said == expected


def test_a_prefix_from_the_cache_has_its_features(model: LlamaForCausalLM, tmp_path: Path) -> None:
    (prompt,) = _prompts(40)
    tensors = random_drafter(VOCAB)
    path = write_drafter(tmp_path / "drafter", tensors, drafter_config(VOCAB))
    found = _proposals(path, [prompt, [*prompt[:32], 400, 401]], 12, max_num_seqs=1)
    embedding = model.get_input_embeddings().weight.detach()
    assert sum(text[32] == 400 for text, _ in found) > 5
    for text, said in found:
        assert said == say(tensors, embedding, _streams(model, text), text, len(said))


@pytest.mark.parametrize(
    ("config", "changed", "words"),
    [
        ({"vocab_size": 32_000}, {}, "config.json: vocab_size: 32000, the model's is 1191"),
        ({"target_hidden_size": 64}, {}, "config.json: target_hidden_size: 64, the model's is 128"),
        ({"num_hidden_layers": 2}, {}, "config.json: num_hidden_layers: 2, a drafter of one layer is supported"),
        ({"draft_vocab_size": 1192}, {}, "config.json: draft_vocab_size: expected a whole number from 1 to 1191"),
        ({"draft_vocab_size": 500}, {}, r"tensor lm_head.weight is \[1191, 128\], \[500, 128\] is called for"),
        ({"norm_before_fc": True}, {}, "config.json: norm_before_fc: True is not supported"),
        ({"hidden_size": 64}, {}, "no tensor embed_tokens.weight, and the model's embeddings are 128 wide"),
        (
            {"eagle_aux_hidden_state_layer_ids": [1, 2, 4]},
            {},
            "eagle_aux_hidden_state_layer_ids: expected 3 layers of the model's 4",
        ),
        ({}, {"fc.weight": np.zeros((128, 128), np.float32)}, r"tensor fc.weight is \[128, 128\], \[128, 384\] is"),
        ({}, {"midlayer.hidden_norm.weight": None}, "no tensor layers.0.hidden_norm.weight, which config.json calls"),
        ({}, {"norm.weight": np.zeros(128, np.int8)}, "tensor norm.weight is I8"),
        (
            {},
            {"midlayer.self_attn.q_norm.weight": np.zeros(32, np.float32)},
            "tensor midlayer.self_attn.q_norm.weight is of no place",
        ),
    ],
)
def test_a_drafter_of_another_model_is_refused(
    tmp_path: Path, config: dict[str, object], changed: dict[str, object], words: str
) -> None:
    tensors: dict[str, object] = random_drafter(VOCAB) | changed  # type: ignore[operator]
    kept = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    path = write_drafter(tmp_path / "drafter", kept, drafter_config(VOCAB) | config)  # type: ignore[arg-type]
    with pytest.raises(BadModelError, match=words):
        open_eagle(path, open_model(tiny_model_dir()).config)
