"""`fleetctl replay` as it is typed: what would have been said, and whether that is what was expected."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

import diagnostics
from alerts.series.store import SeriesStore
from diagnostics.blackbox import BlackBox, record_series, write
from fleetctl.cli.app import run
from tests.diagnostics.test_diagnosis_over_store import BEGIN, RULES, SCOPE, fill
from tests.fixtures.incident import make_record

CONTENT = Path(diagnostics.__file__).parent
BRANCHES = {
    "questions": [
        {
            "id": "slow",
            "ask": "Are its steps long?",
            "query": 'max(llm:step_seconds:mean{node="{{node}}"})',
            "when": "> 0.05",
            "unit": "seconds",
            "if_yes": "hot",
        }
    ],
    "verdicts": [{"id": "hot", "cause": "gpu_thermal", "title": "{{where}} takes {{slow}} a step"}],
}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two minutes of a pool in which one node turns slow."""
    store = SeriesStore()
    fill(store, BEGIN, BEGIN + 60, {})
    fill(store, BEGIN + 65, BEGIN + 125, {"node-2": {"llm:step_seconds:mean": 0.07}})
    path = tmp_path_factory.mktemp("replay") / "x.blackbox.jsonl.gz"
    series = record_series(store.dump(BEGIN, BEGIN + 125))
    correction = {"cause": "gpu_fault", "by": "ann", "at": BEGIN, "was": "slow_node"}
    record = make_record(scope=SCOPE, handling={"correction": correction})
    write(path, BlackBox(record, BEGIN + 125, BEGIN, BEGIN + 125, series, "test"))
    return path


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rules") / "edited.yaml"
    path.write_text(RULES)
    return path


def test_what_was_said_and_when_is_the_document_and_an_expectation_is_the_exit_code(
    file: Path, rules: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["replay", str(file), "--rules", str(rules), "-o", "json"]
    assert run([*words, "--expect", "recorded"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["recorded"] == "gpu_fault"
    kinds = [one["kind"] for one in said["told"]]
    assert kinds[:3] == ["alert", "incident", "verdict"]
    assert said["told"][0]["at"] - BEGIN < 125
    cause = said["said"]
    assert run([*words, "--expect", cause or "none"]) == 0
    capsys.readouterr()


def test_without_the_edited_rule_nothing_is_said_and_bad_files_are_bad_input(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["replay", str(tmp_path / "none.gz")]) == 2
    assert run(["replay", str(file), "--rules", str(tmp_path / "none.yaml")]) == 2
    assert run(["replay", str(file), "--expect", "no_such_cause"]) == 2
    assert "no_such_cause" in capsys.readouterr().err


def test_an_edited_tree_and_edited_questions_are_what_the_incident_is_judged_by(
    file: Path, rules: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def cause(*edited: str) -> str | None:
        assert run(["replay", str(file), "--rules", str(rules), "-o", "json", *edited]) == 0
        said: str | None = json.loads(capsys.readouterr().out)["said"]
        return said

    assert cause() == "slow_node"
    builtin = yaml.safe_load((CONTENT / "questions" / "compute.yaml").read_text())["questions"]
    blind = next(one for one in builtin if one["id"] == "slow_steps") | {"when": "> 100"}
    blind.pop("unless", None)
    questions = tmp_path / "blind.yaml"
    questions.write_text(yaml.safe_dump({"questions": [blind]}))
    assert cause("--questions", str(questions)) != "slow_node"
    walked = tmp_path / "latency.yaml"
    tree = yaml.safe_load((CONTENT / "trees" / "latency.yaml").read_text())
    kept = {key: tree[key] for key in ("tree", "title", "symptoms")}
    walked.write_text(yaml.safe_dump(kept | BRANCHES))
    assert cause("--tree", str(walked)) == "gpu_thermal"


def test_a_recording_is_shown_at_a_speed_of_its_own(
    file: Path, rules: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["replay", str(file), "--rules", str(rules), "--speed", "1e9"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [word for line in lines for word in ("alert", "incident", "verdict") if f"  {word}  " in line][:3] == [
        "alert",
        "incident",
        "verdict",
    ]
