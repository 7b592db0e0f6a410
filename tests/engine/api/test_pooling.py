"""Vectors and scores of real nodes, beside transformers: whatever else runs, and however a text is cut into steps."""

from __future__ import annotations

import base64
import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForSequenceClassification, LlamaConfig, LlamaForSequenceClassification

from engine.text.tokenizer import load_tokenizer
from tests.fixtures.engine import EngineNode, start_node, tiny_model_dir

TEXTS = ["the quick brown fox", "jumps", "over the lazy dog and then it sleeps for a while. " * 9, "the slow brown fox"]
LIMITS = ("--max-num-batched-tokens=48", "--prefill-chunk-tokens=20", "--num-kv-blocks=40", "--max-num-seqs=4")


def with_modules(directory: Path, mode: str, *, normalises: bool) -> Path:
    """A copy of the small model as sentence-transformers saves one, without a head and its prefix."""
    made = directory / mode
    shutil.copytree(tiny_model_dir(), made)
    tensors = load_file(made / "model.safetensors")
    bare = {name.removeprefix("model."): one for name, one in tensors.items() if not name.startswith("lm_head")}
    save_file(bare, made / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((made / "config.json").read_text())
    config |= {"architectures": ["LlamaModel"], "matryoshka_dimensions": [8, 16]}
    (made / "config.json").write_text(json.dumps(config))
    (made / "manifest.json").unlink(missing_ok=True)
    kinds = ["Transformer", "Pooling", *(["Normalize"] if normalises else [])]
    modules = [
        {"idx": i, "name": str(i), "path": f"{i}_{kind}" if i else "", "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    (made / "modules.json").write_text(json.dumps(modules))
    (made / "1_Pooling").mkdir()
    modes = {f"pooling_mode_{name}": name == mode for name in ("cls_token", "mean_tokens", "lasttoken")}
    (made / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 128} | modes))
    return made


@contextlib.contextmanager
def serving(directory: Path, model: Path, *args: str) -> Iterator[EngineNode]:
    limits = (*LIMITS, "--dtype", "float32", *args)
    with start_node(directory, runner="torch", model_dir=model, extra_args=limits) as node:
        yield node


@pytest.fixture(scope="module")
def mean_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineNode]:
    directory = tmp_path_factory.mktemp("mean")
    with serving(directory, with_modules(directory, "mean_tokens", normalises=True)) as node:
        yield node


@pytest.fixture(scope="module")
def client(mean_node: EngineNode) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{mean_node.url}/v1", api_key="x", max_retries=0) as made:
        yield made


def hidden_states(text: str) -> np.ndarray:
    model = AutoModel.from_pretrained(tiny_model_dir(), dtype=torch.float32)
    ids = torch.tensor([load_tokenizer(tiny_model_dir()).encode(text)])
    with torch.inference_mode():
        return np.asarray(model(ids).last_hidden_state[0].double().numpy())


def unit(vector: np.ndarray) -> np.ndarray:
    return np.asarray(vector / np.linalg.norm(vector))


def vectors(node: EngineNode, **body: Any) -> list[np.ndarray]:
    answer = node.http.post("/v1/embeddings", json=body)
    assert answer.status_code == 200, answer.text
    return [np.array(one["embedding"]) for one in answer.json()["data"]]


def test_the_mean_of_all_tokens_is_transformers(mean_node: EngineNode, client: openai.OpenAI) -> None:
    answer = client.embeddings.create(model="tiny", input=TEXTS, encoding_format="float")
    assert [one.index for one in answer.data] == [0, 1, 2, 3]
    for text, one in zip(TEXTS, answer.data, strict=True):
        assert one.embedding == pytest.approx(unit(hidden_states(text).mean(0)), abs=2e-5)
    num_tokens = sum(len(load_tokenizer(tiny_model_dir()).encode(text)) for text in TEXTS)
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (num_tokens, num_tokens)


def test_a_text_alone_is_the_text_among_others(mean_node: EngineNode) -> None:
    together = vectors(mean_node, input=[*TEXTS, *(f"{text} again" for text in TEXTS)])
    for text, found in zip(TEXTS, together, strict=False):
        assert np.array_equal(vectors(mean_node, input=text)[0], found)
    ids = [list(load_tokenizer(tiny_model_dir()).encode(text)) for text in TEXTS]
    assert np.array_equal(vectors(mean_node, input=ids), together[:4])
    assert np.array_equal(vectors(mean_node, input=ids[0])[0], together[0])


def test_base64_is_the_same_numbers(mean_node: EngineNode, client: openai.OpenAI) -> None:
    body = {"input": TEXTS[0], "encoding_format": "base64"}
    sent = mean_node.http.post("/v1/embeddings", json=body).json()["data"][0]["embedding"]
    assert np.array_equal(np.frombuffer(base64.b64decode(sent), "<f4"), vectors(mean_node, input=TEXTS[0])[0])
    assert len(client.embeddings.create(model="tiny", input=TEXTS[0]).data[0].embedding) == 128, "its own default"


def test_a_cut_vector_is_normalised_after_the_cut(mean_node: EngineNode) -> None:
    found = vectors(mean_node, input=TEXTS[0], dimensions=8)[0]
    assert found == pytest.approx(unit(hidden_states(TEXTS[0]).mean(0)[:8]), abs=2e-5)
    bare = vectors(mean_node, input=TEXTS[0], normalize=False)[0]
    assert bare == pytest.approx(hidden_states(TEXTS[0]).mean(0), abs=2e-4)


def test_scores_are_cosines_of_vectors(mean_node: EngineNode) -> None:
    of = [unit(hidden_states(text).mean(0)) for text in TEXTS]
    one_to_many = mean_node.http.post("/v1/score", json={"text_1": TEXTS[0], "text_2": TEXTS[1:]}).json()
    assert [one["score"] for one in one_to_many["data"]] == pytest.approx([of[0] @ other for other in of[1:]], abs=1e-5)
    pairs = mean_node.http.post("/score", json={"queries": TEXTS[:2], "documents": TEXTS[2:]}).json()
    assert [one["score"] for one in pairs["data"]] == pytest.approx([of[0] @ of[2], of[1] @ of[3]], abs=1e-5)
    body = {"query": TEXTS[0], "documents": [TEXTS[1], {"text": TEXTS[3]}, TEXTS[2]], "top_n": 2}
    ranking = mean_node.http.post("/v1/rerank", json=body).json()["results"]
    expected = sorted(((of[0] @ of[at], index) for index, at in enumerate((1, 3, 2))), reverse=True)[:2]
    assert [one["index"] for one in ranking] == [index for _, index in expected]
    assert [one["relevance_score"] for one in ranking] == pytest.approx([score for score, _ in expected], abs=1e-5)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/embeddings", {"input": []}, "input"),
        ("/v1/embeddings", {"input": "x", "dimensions": 9}, "dimensions"),
        ("/v1/embeddings", {"input": "x", "dimensions": 129}, "dimensions"),
        ("/v1/embeddings", {"input": "x", "encoding_format": "int8"}, "encoding_format"),
        ("/v1/embeddings", {"input": [[5, 10**7]]}, "input"),
        ("/v1/embeddings", {"input": [5] * 5000}, "input"),
        ("/v1/score", {"text_1": ["a", "b"], "text_2": ["c"]}, None),
        ("/v1/completions", {"prompt": "x"}, "model"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}, "model"),
    ],
)
def test_errors_name_the_field(mean_node: EngineNode, path: str, body: dict[str, Any], param: str | None) -> None:
    answer = mean_node.http.post(path, json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_long_inputs_are_cut_when_asked_for(mean_node: EngineNode) -> None:
    last = list(load_tokenizer(tiny_model_dir()).encode(TEXTS[2]))[-5:]
    cut = vectors(mean_node, input=TEXTS[2], truncate_prompt_tokens=5)[0]
    assert np.array_equal(cut, vectors(mean_node, input=last)[0])


def test_counts_of_vectors_are_exact(mean_node: EngineNode) -> None:
    def counts() -> list[float]:
        names = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total")
        ended = mean_node.metric("vllm:request_success_total", finished_reason="stop")
        return [*(mean_node.metric(name) or 0 for name in names), ended or 0]

    before = counts()
    vectors(mean_node, input=[[7, 8, 9], [10, 11]])
    assert [after - old for after, old in zip(counts(), before, strict=True)] == [5, 0, 2]


def test_a_generating_model_gives_vectors_when_told_to(tmp_path: Path) -> None:
    with serving(tmp_path, tiny_model_dir(), "--task", "embed") as node:
        assert node.http.get("/info").json()["task"] == "embed"
        for text, found in zip(TEXTS, vectors(node, input=TEXTS), strict=True):
            assert found == pytest.approx(unit(hidden_states(text)[-1]), abs=2e-5)
        again = vectors(node, input=TEXTS[2])[0]
        assert again == pytest.approx(unit(hidden_states(TEXTS[2])[-1]), abs=2e-5), "from its cached prefix"
    with start_node(tmp_path) as node:
        refused = node.http.post("/v1/embeddings", json={"input": "x"})
        assert refused.status_code == 400
        assert "--task embed" in refused.json()["error"]["message"]


def test_a_head_for_classes_scores_pairs(tmp_path: Path) -> None:
    model = tmp_path / "reranker"
    shutil.copytree(tiny_model_dir(), model)
    (model / "manifest.json").unlink(missing_ok=True)
    config = LlamaConfig.from_pretrained(tiny_model_dir(), num_labels=1, pad_token_id=0)
    torch.manual_seed(4)
    LlamaForSequenceClassification(config).to(torch.float32).save_pretrained(model)
    with serving(tmp_path, model) as node:
        pairs = [(TEXTS[0], text) for text in TEXTS[1:]]
        reference = AutoModelForSequenceClassification.from_pretrained(model, dtype=torch.float32)
        rust = load_tokenizer(model).rust
        with torch.inference_mode():
            logits = [float(reference(torch.tensor([rust.encode(*pair).ids])).logits[0, 0]) for pair in pairs]
        bare = node.http.post("/v1/score", json={"text_1": TEXTS[0], "text_2": TEXTS[1:], "normalize": False}).json()
        assert [one["score"] for one in bare["data"]] == pytest.approx(logits, abs=1e-4)
        shares = node.http.post("/v1/score", json={"text_1": TEXTS[0], "text_2": TEXTS[1:]}).json()
        expected = [1 / (1 + np.exp(-logit)) for logit in logits]
        assert [one["score"] for one in shares["data"]] == pytest.approx(expected, abs=1e-4)
        refused = node.http.post("/v1/embeddings", json={"input": "x"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "task_not_served")


def test_a_pooling_that_is_not_known_is_refused_at_the_start(tmp_path: Path) -> None:
    made = with_modules(tmp_path, "cls_token", normalises=True)
    with pytest.raises(AssertionError, match="the last token and the mean are known here"):
        with start_node(tmp_path, runner="torch", model_dir=made):
            pass
