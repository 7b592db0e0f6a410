"""The quality gate tells a model that is itself from one that was rounded, and is shut by limits."""

from __future__ import annotations

import json
import math
import re
import shutil
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest
import structlog
import torch

from engine.__main__ import main
from engine.model.golden_tasks import BadTasksError, GoldenTask, TaskScores, read_tasks, solved
from engine.model.make import make_model
from engine.model.quality import Candidate, Quality, QualityLimits, compare
from tests.fixtures.gguf_model import Type, write_gguf

TEXT = "The scheduler plans a step, and the runner turns the plan into tensors. " * 40


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "small")


def test_a_model_agrees_with_itself(small: Path) -> None:
    found = compare(Candidate(small), Candidate(small), TEXT, max_tokens=400)
    assert found.agreement == 1.0
    assert found.mean_kl == pytest.approx(0.0, abs=1e-9)
    assert found.perplexity == found.reference_perplexity
    assert found.tokens == 399  # each but the first is predicted once


def test_fewer_bits_are_further_away(small: Path) -> None:
    eight, four = (
        compare(Candidate(small, quantization=kind), Candidate(small), TEXT, max_tokens=400)
        for kind in ("int8", "int4")
    )
    assert 0 < eight.mean_kl < four.mean_kl
    assert eight.p99_kl >= eight.mean_kl
    assert eight.agreement > 0.9
    assert math.isclose(eight.perplexity, eight.reference_perplexity, rel_tol=0.05)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_keys_and_values_in_eight_bits_are_near(small: Path, dtype: str) -> None:
    whole, e4m3 = (
        compare(Candidate(small, dtype, kv_cache_dtype=kind), Candidate(small, dtype), TEXT, max_tokens=400)
        for kind in ("int8", "fp8")
    )
    assert 0 < whole.mean_kl < e4m3.mean_kl < 0.05
    assert whole.agreement > 0.9


def test_limits_name_what_was_passed_and_nothing_passes_as_not_a_number() -> None:
    found = Quality(10, 3.0, 3.0, agreement=0.9, mean_kl=0.2, p99_kl=0.4)
    assert QualityLimits(0.3, 0.8).broken(found) == []
    assert QualityLimits(0.1).broken(found) == ["mean KL 0.2 is above --max-kl 0.1"]
    assert QualityLimits(None, 0.95).broken(found) == ["agreement 0.9 is below --min-agreement 0.95"]
    assert len(QualityLimits(9.0, 0.0).broken(Quality(10, 3.0, 3.0, math.nan, math.nan, math.nan))) == 2


def test_tasks_that_the_reference_solves_are_to_be_kept() -> None:
    found = Quality(10, 3.0, 3.0, 1.0, 0.0, 0.0, TaskScores(count=20, solved=11, reference_solved=10, kept=8))
    assert QualityLimits(min_tasks_kept=0.8).broken(found) == []
    assert QualityLimits(min_tasks_kept=0.9).broken(found) == ["0.8 of the solved tasks is below --min-tasks-kept 0.9"]
    unknown = replace(found, tasks=TaskScores(20, 0, 0, 0))
    assert [line.partition(":")[0] for line in QualityLimits(min_tasks_kept=0.0).broken(unknown)] == [
        "of no task is known that the reference solves it"
    ]


def test_a_task_is_solved_where_the_right_answer_is_the_likeliest() -> None:
    """A model that expects the next letter."""

    def logits(tokens: tuple[int, ...]) -> torch.Tensor:
        return torch.nn.functional.one_hot(torch.tensor(tokens) + 1, 200).float() * 5

    tasks = [GoldenTask("abc", "d", ("x", "yz")), GoldenTask("abc", "x", ("d",)), GoldenTask("ab", "cd", ("cx", "c"))]
    encode = lambda text: list(text.encode())  # noqa: E731
    assert solved(tasks, encode, logits, max_tokens=8) == [True, False, False]  # a tie is no answer
    with pytest.raises(BadTasksError, match="task 1: 4 tokens; 3 are the most"):
        solved(tasks, encode, logits, max_tokens=3)


def test_our_own_tasks_can_be_read_and_differ() -> None:
    tasks = read_tasks(files("engine").joinpath("data/golden_tasks.jsonl").read_text(encoding="utf-8"))
    assert len({task.prompt for task in tasks}) == len(tasks) == 48
    assert all(task.right not in task.wrong for task in tasks)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no task"),
        ('\n{"prompt": "a", "right": "b"}', "line 2: Object missing required field `wrong`"),
        ('{"prompt": "a", "right": "b", "wrong": []}', "line 1: a prompt, what is right"),
        ("{", "line 1: "),
    ],
)
def test_a_line_that_is_no_task_is_named(text: str, message: str) -> None:
    with pytest.raises(BadTasksError, match=re.escape(message)):
        read_tasks(text)


def test_the_command_prints_a_table_and_its_exit_code_is_the_gate(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text").write_text(TEXT)
    asked = ["quality", str(small), "--quantization", "int4", "--text", str(tmp_path / "text"), "--max-tokens", "100"]
    (tmp_path / "tasks").write_text('{"prompt": "the", "right": " node", "wrong": [" x"]}\n' * 2)
    asked += ["--tasks", str(tmp_path / "tasks")]
    assert main([*asked, "--max-kl", "50"]) == 0
    said = capsys.readouterr().out
    assert "nats a token" in said
    assert "of 2 (reference " in said
    assert main([*asked, "--max-kl", "0"]) == 3
    assert "is above --max-kl 0" in capsys.readouterr().err
    assert main(["quality", str(small)]) == 2
    assert "nothing to compare" in capsys.readouterr().err


def test_events_of_loading_do_not_get_between_the_rows_of_the_table(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_gguf(small, tmp_path / "small.gguf", Type.Q8_0, others={"ffn_down": Type.F16})
    (tmp_path / "text").write_text(TEXT)
    asked = ["quality", str(file), "--kv-cache-dtype", "int8", "--text", str(tmp_path / "text"), "--max-tokens", "40"]
    before = structlog.get_config()
    assert main(asked) == 0
    assert structlog.get_config() == before
    said = capsys.readouterr()
    assert said.out.startswith("tokens  ")
    assert "weights.quantised" in said.err


def test_another_tokenizer_is_refused(small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(small, tmp_path / "other")
    (tmp_path / "other" / "manifest.json").unlink()
    file = tmp_path / "other" / "tokenizer.json"
    tree = json.loads(file.read_text())
    tree["pre_tokenizer"]["add_prefix_space"] = True
    file.write_text(json.dumps(tree))
    assert main(["quality", str(tmp_path / "other"), "--reference", str(small)]) == 2
    assert "has another tokenizer" in capsys.readouterr().err
