"""A model's own sampling defaults hold for what a request leaves open, and only for that."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.config import BadConfigError
from engine.node.generation_config import SamplingDefaults, read_sampling_defaults
from tests.fixtures.engine import EngineNode, spawn_node, start_node, tiny_model_dir


def model_with(tmp_path: Path, **generation: Any) -> Path:
    """The small model with another generation_config.json, unsigned."""
    directory = tmp_path / "model"
    shutil.copytree(tiny_model_dir(), directory)
    (directory / "manifest.json").unlink()
    tree = json.loads((directory / "generation_config.json").read_text())
    (directory / "generation_config.json").write_text(json.dumps({**tree, **generation}))
    return directory


@pytest.fixture(scope="module")
def greedy_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_with(tmp_path_factory.mktemp("greedy"), temperature=0.0, max_new_tokens=7, min_p=0.1)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, greedy_dir: Path) -> Iterator[EngineNode]:
    with start_node(tmp_path_factory.mktemp("node"), model_dir=greedy_dir, runner="torch") as running:
        yield running


def text(node: EngineNode, **body: Any) -> str:
    answer = node.http.post(
        "/v1/completions", json={"prompt": "once upon", "max_tokens": 12, "ignore_eos": True, **body}
    )
    return str(answer.json()["choices"][0]["text"])


def test_what_a_request_leaves_open_is_the_models(node: EngineNode) -> None:
    assert len({text(node, seed=seed) for seed in range(4)}) == 1, "greedy, whatever the seed"
    assert text(node) == text(node, temperature=0)


def test_what_a_request_says_wins(node: EngineNode) -> None:
    assert len({text(node, seed=seed, temperature=1.0, min_p=0) for seed in range(4)}) > 1


def test_the_length_of_an_answer_is_the_models_unless_the_request_says(node: EngineNode) -> None:
    def tokens(**body: Any) -> int:
        body = {"messages": [{"role": "user", "content": "hi"}], "ignore_eos": True, **body}
        return int(node.http.post("/v1/chat/completions", json=body).json()["usage"]["completion_tokens"])

    assert tokens() == 7
    assert tokens(max_tokens=9) == 9


def test_the_defaults_are_shown(node: EngineNode) -> None:
    shown = node.http.get("/info").json()["sampling_defaults"]
    assert (shown["temperature"], shown["min_p"], shown["top_p"]) == (0.0, 0.1, 1.0)
    assert node.events("node.sampling_defaults")[0]["temperature"] == 0.0


def test_the_file_can_be_left_out(tmp_path: Path, greedy_dir: Path) -> None:
    with start_node(tmp_path, model_dir=greedy_dir, extra_args=("--generation-config", "vllm")) as plain:
        assert plain.http.get("/info").json()["sampling_defaults"]["temperature"] == 1.0
        assert plain.events("node.sampling_defaults") == []


def test_a_bad_value_ends_the_start_with_one_line(tmp_path: Path) -> None:
    node = spawn_node(tmp_path, model_dir=model_with(tmp_path, top_p=1.5))
    assert node.proc.wait(timeout=60) == 2
    assert node.log_text().startswith("error: ")
    assert "generation_config.json: top_p: must be a number from 1e-09 to 1" in node.log_text()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("{}", SamplingDefaults()),
        ('{"temperature": null, "do_sample": false, "max_length": 20}', SamplingDefaults()),
        ('{"temperature": 0.6, "top_p": 0.95, "top_k": 20}', SamplingDefaults(temperature=0.6, top_p=0.95, top_k=20)),
        ('{"top_k": -1, "repetition_penalty": 1.05}', SamplingDefaults(repetition_penalty=1.05)),
    ],
)
def test_what_files_say(tmp_path: Path, content: str, expected: SamplingDefaults) -> None:
    (tmp_path / "generation_config.json").write_text(content)
    assert read_sampling_defaults(tmp_path) == expected


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        "{",
        '{"temperature": "hot"}',
        '{"temperature": NaN}',
        '{"top_k": 1.5}',
        '{"max_new_tokens": 0}',
        "[" * 9999,
    ],
)
def test_a_broken_file_is_named_with_a_remedy(tmp_path: Path, content: str) -> None:
    (tmp_path / "generation_config.json").write_text(content)
    with pytest.raises(BadConfigError, match=r"generation_config.json: .*--generation-config vllm"):
        read_sampling_defaults(tmp_path)


def test_no_file_is_no_default(tmp_path: Path) -> None:
    assert read_sampling_defaults(tmp_path) == SamplingDefaults()


def test_the_files_ends_of_text_count_only_when_it_is_read(tmp_path: Path) -> None:
    """Every token but the tokenizer's own is made an end of text."""
    directory = model_with(tmp_path, eos_token_id=list(range(40, 500)))

    def length(*extra: str) -> int:
        with start_node(tmp_path, model_dir=directory, extra_args=extra) as node:
            answer = node.http.post("/v1/completions", json={"prompt": "once", "max_tokens": 50, "seed": 1}).json()
            return int(answer["usage"]["completion_tokens"])

    assert length() < 10
    assert length("--generation-config", "vllm") == 50
