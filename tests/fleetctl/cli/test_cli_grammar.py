"""What all commands share: forms of output, what lately means, aliases, `explain`, and what scripts may rely on."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from fleetctl.cli.app import run
from fleetctl.cli.explain import docs_of, first_line
from fleetctl.cli.kinds import MODELS, Kind
from fleetctl.cli.lifecycle import other_size
from fleetctl.wire.alert import Alert, AlertState
from fleetctl.wire.base import Problem
from fleetctl.wire.node import NodePhase
from fleetctl.wire.timeline import TimelineEntry
from tests.fixtures import ROOT
from tests.fixtures.cockpit import make_incident, make_node, make_run
from tests.fixtures.recorded_controller import RecordedController, recorded_controller

Run = Callable[..., tuple[int, str, str]]


def events() -> list[TimelineEntry]:
    """Of now, and not of when this file was read: a suite takes longer than the ten minutes that tests ask for."""
    now = time.time()
    return [
        TimelineEntry(seq=1, at=now - 7200, kind="node.ready", text="node-1: ready", node="node-1"),
        TimelineEntry(seq=2, at=now - 5, kind="node.unreachable", text="node-2: no answer", node="node-2"),
    ]


@pytest.fixture(scope="module")
def controller() -> Iterator[RecordedController]:
    now = time.time()
    nodes = [make_node("node-1"), make_node("node-2", phase=NodePhase.UNREACHABLE, reason="no answer")]
    alert = Alert(
        fingerprint="1", name="LLMNodeDown", severity="page", state=AlertState.FIRING, labels={}, active_at=now - 90
    )
    answers = {
        "/v1/nodes": nodes,
        "/v1/alerts": [alert, alert.model_copy(update={"name": "LLMNodeSlow", "active_at": now - 9000})],
        "/v1/incidents": [make_incident(opened_at=now - 60), make_incident(id="inc-2", opened_at=now - 90_000)],
        "/v1/runs": [make_run(created_at=now - 60)],
        "/v1/events": events(),
        "/v1/actions": Problem(error="the floor: 1 node must stay", remedy="fleetctl scale", exit_code=3),
    }
    with recorded_controller(answers) as made:
        made.statuses["/v1/actions"] = 409
        yield made


@pytest.fixture
def fleetctl(controller: RecordedController, capsys: pytest.CaptureFixture[str]) -> Run:
    def run_it(*words: str) -> tuple[int, str, str]:
        code = run(["--controller", controller.url, *words])
        told = capsys.readouterr()
        return code, told.out, told.err

    return run_it


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("$[*].name", ["node-1", "node-2"]),
        ("{[*].name}", ["node-1", "node-2"]),
        ("[?@.phase=='unreachable'].reason", ["no answer"]),
        ("$[0].gpus", ["[]"]),
        ("$[*].nothing", []),
    ],
)
def test_a_path_prints_each_value_that_it_finds_on_a_line(fleetctl: Run, path: str, wanted: list[str]) -> None:
    code, out, _ = fleetctl("get", "nodes", "-o", f"jsonpath={path}")
    assert (code, out.splitlines()) == (0, wanted)


def test_a_path_that_is_none_is_refused_with_one_that_is(fleetctl: Run) -> None:
    code, out, err = fleetctl("get", "nodes", "-o", "jsonpath=$[")
    assert (code, out) == (2, "")
    assert "jsonpath=$[*].name" in err
    assert fleetctl("get", "nodes", "-o", "tabel")[0] == 2


def test_a_path_of_one_command_is_forgotten_at_the_next(fleetctl: Run) -> None:
    fleetctl("get", "nodes", "-o", "jsonpath=$[*].name")
    assert isinstance(json.loads(fleetctl("get", "nodes", "-o", "json")[1]), list)


@pytest.mark.parametrize(
    ("kind", "since", "wanted"),
    [
        ("events", "10m", ["2"]),
        ("events", "1d", ["1", "2"]),
        ("alerts", "10m", ["LLMNodeDown"]),
        ("incidents", "1h", ["inc-1"]),
        ("runs", "10s", []),
    ],
)
def test_since_keeps_what_happened_so_lately(fleetctl: Run, kind: str, since: str, wanted: list[str]) -> None:
    code, out, _ = fleetctl("get", kind, "--since", since, "-o", "name")
    assert (code, out.split()) == (0, wanted)


def test_since_of_what_has_no_time_is_refused_with_what_has(fleetctl: Run) -> None:
    code, _, err = fleetctl("get", "nodes", "--since", "1h")
    assert code == 2
    assert "incidents" in err
    assert "failures" in err


def test_events_are_told_by_their_own_command(fleetctl: Run) -> None:
    assert fleetctl("events", "--since", "10m", "-l", "node=node-2", "-o", "name")[1].split() == ["2"]


def test_events_that_are_followed_come_once_each_and_as_they_happen(capsys: pytest.CaptureFixture[str]) -> None:
    with recorded_controller({"/v1/events": events()}) as made:
        thread = threading.Thread(
            target=lambda: run(["--controller", made.url, "events", "-f", "-o", "name"]), daemon=True
        )
        thread.start()
        while made.asked.count("GET /v1/events") < 3:
            thread.join(0.01)
        made.answers["/v1/events"] = [events()[1].model_copy(update={"seq": 3})]
        out = ""
        while "3" not in out.split():
            thread.join(0.01)
            out += capsys.readouterr().out
        made.answers["/v1/events"] = Problem(error="the end", exit_code=2)
        thread.join()
    assert list(dict.fromkeys(out.split())) == ["1", "2", "3"]


def test_an_alias_of_the_settings_stands_for_its_words(controller: RecordedController, tmp_path: Path) -> None:
    config = tmp_path / "f.yaml"
    config.write_text("aliases: {bad: 'get nodes -l phase!=ready', get: describe, odd: frobnicate}\n")
    given = ["--config", str(config), "--controller", controller.url]
    assert run([*given, "bad", "-o", "name"]) == 0
    assert run([*given, "get", "nodes"]) == 0, "a command's name is the command"
    assert run([*given, "odd"]) == 2
    assert run([*given, "none"]) == 2


def test_what_an_alias_adds_is_before_what_is_typed_behind_it(fleetctl: Run, tmp_path: Path) -> None:
    config = tmp_path / "f.yaml"
    config.write_text("aliases: {bad: 'get nodes -l phase!=ready'}\n")
    assert fleetctl("--config", str(config), "bad", "-o", "name")[1].split() == ["node-2"]


def test_every_kind_and_field_is_explained(fleetctl: Run) -> None:
    _, out, _ = fleetctl("explain")
    assert [line.split()[0] for line in out.splitlines()[1:]] == list(Kind)
    for kind in Kind:
        code, out, _ = fleetctl("explain", kind, "-o", "json")
        told = json.loads(out)
        assert (code, bool(told["meaning"])) == (0, True), kind
        assert [one["field"] for one in told["fields"]] == list(MODELS[kind].model_fields)
        assert fleetctl("explain", f"{kind.singular}.{told['fields'][0]['field']}")[0] == 0


def test_a_field_is_explained_by_what_stands_beside_it_and_down_to_its_parts(fleetctl: Run) -> None:
    assert "who runs it" in fleetctl("explain", "nodes.provider")[1]
    assert "age_s" in fleetctl("explain", "node.kv_ratio")[1]
    assert "number or not known" in fleetctl("explain", "nodes.kv_ratio.value")[1]
    code, _, err = fleetctl("explain", "nodes.load")
    assert code == 2
    assert "kv_ratio" in err


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("get", "nodes"), 0),
        (("get", "nods"), 2),
        (("frobnicate",), 2),
        (("get", "nodes", "node-9"), 2),
        (("cordon", "node-1", "--yes"), 3),
        (("describe", "run", "run-9"), 2),
    ],
)
def test_exit_codes_are_those_of_the_contract(fleetctl: Run, words: tuple[str, ...], code: int) -> None:
    assert fleetctl(*words)[0] == code


@pytest.mark.parametrize("words", [(), ("runbook",)], ids=str)
def test_a_command_without_its_words_prints_its_help(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(list(words)) == 2
    told = capsys.readouterr()
    assert "Usage: fleetctl" in told.out
    assert told.err == ""


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (("incidents",), "fleetctl get incidents"),
        (("rollouts", "-o", "json"), "fleetctl get rollouts"),
        (("help",), "fleetctl --help"),
        (("help", "drain", "node-1"), "fleetctl drain --help"),
    ],
    ids=str,
)
def test_a_word_that_is_no_command_is_answered_with_the_one_that_was_meant(
    fleetctl: Run, words: tuple[str, ...], command: str
) -> None:
    code, _, err = fleetctl(*words)
    assert code == 2
    assert f"try: {command}\n" in err


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ("get nodes --controller http://a:1 -o wide", "fleetctl --controller http://a:1 get nodes -o wide"),
        ("get --state-dir=/tmp/x nodes", "fleetctl --state-dir=/tmp/x get nodes"),
        ("--log-level debug get nodes --config 'my file'", "fleetctl --log-level debug --config 'my file' get nodes"),
    ],
)
def test_an_option_of_fleetctl_behind_the_command_is_answered_with_the_line_that_works(
    words: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(shlex.split(words)) == 2
    assert f"try: {command}\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("word", "command"),
    [
        ("node-1", "fleetctl describe node node-1"),
        ("inc-20261127-a", "fleetctl describe incident inc-20261127-a"),
        ("run-12", "fleetctl describe run run-12"),
        ("node", "fleetctl describe --help"),  # here the name is missing
    ],
)
def test_what_is_described_without_its_kind_is_answered_with_it(
    word: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["describe", word]) == 2
    assert f"try: {command}\n" in capsys.readouterr().err


@pytest.mark.parametrize(("asked", "is_told"), [(2, False), (5, True)])
def test_a_size_that_an_old_fleet_does_not_take_is_told(asked: int, *, is_told: bool) -> None:
    nodes = [make_node("node-1"), make_node("node-2"), make_node("far", provider="found")]
    told = other_size(nodes, asked, "default")
    assert (told is not None) == is_told
    assert not is_told or "has 2 in pool default: fleetctl scale default --to 5" in str(told)


@pytest.mark.parametrize("words", ["up --nodes many", "load --rate fast", "token create bob --role vewer"])
def test_a_value_of_another_kind_is_told_in_plain_words(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words.split()) == 2
    told = capsys.readouterr().err
    assert re.search("expected a (whole )?number|is not one of 'viewer'", told)
    assert "Value error" not in told
    assert "parse" not in told


@pytest.mark.parametrize("words", [("--help",), ("get", "nodes", "-o", "json"), ("events",)], ids=str)
def test_a_reader_that_goes_away_is_no_error(controller: RecordedController, words: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)  # as of `| true`: nobody reads
    command = [sys.executable, "-m", "fleetctl.cli", "--controller", controller.url, *words]
    ended = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize(
    "url", ["host:7700", "http://", "http://127.0.0.1:99999", "ftp://host", "http://[::1", "http://a b"]
)
def test_a_controller_that_is_no_url_is_bad_input(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--controller", url, "get", "nodes"]) == 2
    assert "give one like http://" in capsys.readouterr().err


@pytest.mark.parametrize("words", [("runbook", word, "run-9") for word in ("approve", "deny", "cancel")], ids=str)
def test_what_answers_takes_yes_as_what_asks_does(fleetctl: Run, words: tuple[str, ...]) -> None:
    code, _, err = fleetctl(*words, "-y")
    assert "option" not in err.lower()
    assert code == fleetctl(*words)[0]


def test_no_answer_is_exit_code_four(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--controller", "http://127.0.0.1:9", "get", "nodes", "-o", "json"]) == 4
    assert json.loads(capsys.readouterr().out)["exit_code"] == 4


def test_no_field_that_scripts_read_has_gone_or_become_another() -> None:
    """Fields may come: add them with `python -m tests.fleetctl.cli.test_cli_grammar`. One that goes breaks scripts."""
    promised = dict(line.split("  ", 1) for line in CONTRACT.read_text().splitlines())
    now = dict(line.split("  ", 1) for line in contract())
    changed = {field: now.get(field) for field, words in promised.items() if now.get(field) != words}
    assert changed == {}, "breaks scripts: CHANGELOG says so, or the field stays"
    assert set(now) <= set(promised), "a new field is promised in tests/data/cli_json_fields.txt"


def models_below(model: type[BaseModel], known: set[type[BaseModel]]) -> set[type[BaseModel]]:
    if model not in known:
        known.add(model)
        for one in docs_of(model):
            if one.below is not None:
                models_below(one.below, known)
    return known


def test_explain_says_of_each_field_what_it_means() -> None:
    every: set[type[BaseModel]] = set()
    for model in MODELS.values():
        models_below(model, every)
    lacking = [
        f"{model.__name__}.{one.name}"
        for model in every
        for one in docs_of(model)
        if not one.meaning or (one.below is not None and one.meaning == first_line(one.below))
    ]
    assert sorted(lacking) == []


CONTRACT = ROOT / "tests/data/cli_json_fields.txt"


def contract() -> list[str]:
    return [f"{kind}.{one.name}  {one.kind}" for kind in Kind for one in docs_of(MODELS[kind])]


if __name__ == "__main__":
    CONTRACT.write_text("".join(f"{line}\n" for line in contract()))
