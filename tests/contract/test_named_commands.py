"""Every command that a page, an error, a rule or a tree names can be typed as it stands there, and shows something.

A command is found in code spans and code blocks of Markdown, in code spans of docstrings, and in all other strings,
where it ends at the first punctuation. The real command line parses it: the way of the command, its options, the number
of its arguments, and a verb's own grammar. What only looks is run as well, against recorded answers. What a reader
fills in is written in capitals (`NODE`) or comes from an f-string. A command may be named alone (`fleetctl drain`).
"""

from __future__ import annotations

import argparse
import ast
import re
import shlex
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import pytest
import typer.main
import yaml

from engine.__main__ import _parser as node_parser
from fleetctl.cli.app import build, run
from fleetctl.wire.diagnosis import Diagnosis
from fleetctl.wire.gateway import Gateway, GatewayPhase
from fleetctl.wire.pool import Pool, Revision
from fleetctl.wire.receipt import DrainReceipt
from fleetctl.wire.routing import RoutingTable
from fleetctl.wire.runbook import RunbookInfo
from fleetctl.wire.status import Status
from runbooks.command import parse_command
from runbooks.errors import RunbookError
from runbooks.verbs import VERBS
from tests.fixtures import ROOT
from tests.fixtures.cockpit import make_incident, make_node, make_run
from tests.fixtures.recorded_controller import RecordedController, recorded_controller

TRACKED = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
PACKAGES = ("alerts", "diagnostics", "engine", "fleetctl", "kernels", "runbooks")
HISTORY = re.compile(r"CHANGELOG\.md|docs/decisions/.*|tests/.*")

SPAN = re.compile(r"`+([^`]+)`+")
BLOCK = re.compile(r"^(`{3,})(\w*)\n(.*?)^\1$", re.MULTILINE | re.DOTALL)
IN_PROSE = re.compile(r"\bfleetctl ([a-z-][^\n,;:()|#\"`\[]*)")
PLACEHOLDER = re.compile(r"\{\{\s*\w+\s*\}\}|\b[A-Z]{2,}\b(?!=)")
SPEAKS_OF_ITSELF = {
    "as",
    "block",
    "blocks",
    "does",
    "engine",
    "knows",
    "reads",
}  # what the product does, not what is typed
READS_A_PAST = re.compile(r"--(prometheus|from)\b")  # needs a Prometheus or a file: see tests/diagnostics/test_past.py
WRITES_A_PAGE = re.compile(r"--html\b")  # see tests/e2e/test_incident_from_the_command_line.py
ONLY_LOOKS = re.compile(
    r"(get|describe|diagnose|status|config|(runbook|incident) (show|list)|alerts (list|explain|coverage))\b"
)


class Named(NamedTuple):
    place: str
    text: str  # without `fleetctl`


def in_markdown(place: str, text: str) -> Iterator[Named]:
    for block in BLOCK.finditer(text):
        body = block[3].replace("\\\n", " ")
        yield from (Named(place, line) for line in map(command_of, body.splitlines()) if line is not None)
    for span in SPAN.findall(BLOCK.sub("", text)):
        line = command_of(" ".join(span.split()))
        if line is not None:
            yield Named(place, line)


def command_of(line: str) -> str | None:
    """What is typed after `fleetctl` in a line of a block or in a code span; an explanation stands two spaces apart."""
    match = re.match(r"\s*(?:\$ )?fleetctl\s+([^#>&]*?)(?=\s{2,}|[#>&]|$)", line)
    return match[1].strip() if match else None


def in_python(path: str, source: str) -> Iterator[Named]:
    tree = ast.parse(source)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            text = node.value
        elif isinstance(node, ast.JoinedStr):
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "FILLED" for part in node.values)
        else:
            continue
        place = f"{path}:{node.lineno}"
        yield from in_markdown(place, text)
        if id(node) not in docstrings:
            for match in IN_PROSE.finditer(SPAN.sub("", text)):
                yield Named(place, match[1].strip().rstrip("."))


def in_yaml(path: str, source: str) -> Iterator[Named]:
    def texts(tree: Any) -> Iterator[str]:
        if isinstance(tree, dict):
            for value in tree.values():
                yield from texts(value)
        elif isinstance(tree, list):
            for value in tree:
                yield from texts(value)
        elif isinstance(tree, str):
            yield tree

    for document in yaml.load_all(source, yaml.CSafeLoader):
        for text in texts(document):
            yield from in_markdown(path, text)
            for match in IN_PROSE.finditer(SPAN.sub("", text)):
                yield Named(path, match[1].strip().rstrip("."))


@cache
def every_command() -> tuple[Named, ...]:
    return tuple(read_commands())


def read_commands() -> Iterator[Named]:
    readers = {".md": in_markdown, ".py": in_python, ".yaml": in_yaml, ".yml": in_yaml}
    for path in TRACKED:
        reader = readers.get(PurePosixPath(path).suffix)
        if reader is not None and not HISTORY.fullmatch(path) and "fleetctl " in (text := (ROOT / path).read_text()):
            yield from reader(path, text)


@cache
def command_line() -> Any:
    return typer.main.get_command(build())


def why_not(text: str, *, may_be_a_name: bool = True) -> str | None:
    """What is wrong with a command; None when it can be typed."""
    if text.startswith("FILLED"):
        return None  # a verb of the table with its usage, both filled in
    text = text.replace("--FILLED-port FILLED", "--gateway-port 1")
    try:
        words = shlex.split(
            PLACEHOLDER.sub(
                "node-1", text.replace("--FILLED-port", "--gateway-port").replace("-port FILLED", "-port 1")
            )
        )
    except ValueError as error:
        return str(error)
    command, path = command_line(), []
    while words and words[0].startswith("-"):
        word = words.pop(0)
        option = next((one for one in command.params if word.partition("=")[0] in one.opts), None)
        if option is None and word not in ("--help", "-h"):
            return f"there is no option {word}"
        if option is not None and not option.is_flag and "=" not in word:
            words = words[1:]
    while words and hasattr(command, "commands") and not is_group_itself(command, words):
        if words[0] in ("--help", "-h"):
            return None
        if words[0] not in command.commands:
            return f"there is no command {' '.join([*path, words[0]])}"
        path.append(words.pop(0))
        command = command.commands[path[-1]]
    if not words and (may_be_a_name or not path):
        return None
    if hasattr(command, "commands") and not is_group_itself(command, words):
        return f"{' '.join(path)}: which of its commands?"
    try:
        command.make_context(command.name, list(words))
    except typer.Exit:
        return None  # --help
    except Exception as error:  # typer's own copy of click raises what it likes  # noqa: BLE001
        return str(getattr(error, "message", error)) or type(error).__name__
    if " ".join(path) in VERBS and "FILLED" not in text and "{{" not in text:
        return why_not_a_verb([*path, *words])
    return None


def is_group_itself(command: Any, words: list[str]) -> bool:
    """Whether the words go to a group that is a command too: `shed --below standard` beside `shed remove`."""
    return bool(command.invoke_without_command and words and words[0].startswith("-") and words[0] != "--help")


def why_not_a_verb(words: list[str]) -> str | None:
    try:
        parse_command(shlex.join(word for word in words if word not in ("--dry-run", "-y", "--yes")))
    except RunbookError as error:
        return str(error)
    return None


def alternatives(text: str) -> Iterator[str]:
    """`content list|check` stands for both."""
    word = next((word for word in text.split() if "|" in word and not word.startswith("-")), None)
    if word is None:
        yield text
    else:
        for one in word.split("|"):
            yield from alternatives(text.replace(word, one, 1))


def test_every_named_command_can_be_typed() -> None:
    commands = [named for named in every_command() if named.text.partition(" ")[0] not in SPEAKS_OF_ITSELF]
    assert len(commands) > 100
    wrong = [
        f"{named.place}: fleetctl {text}: {why}"
        for named in commands
        for text in alternatives(named.text)
        if (why := why_not(text)) is not None
    ]
    assert wrong == []


@pytest.mark.parametrize(
    "text",
    [
        "logz node-1",
        "get nodes --frob",
        "describe node",
        "node logs a b",
        "scale default --to x",
        "runbook",
        "drain a b",
    ],
)
def test_a_command_that_can_not_be_typed_is_noticed(text: str) -> None:
    assert why_not(text, may_be_a_name=False) is not None


@pytest.fixture(scope="module")
def controller() -> Iterator[RecordedController]:
    node = make_node("node-1")
    gateway = Gateway(name="node-1", url="http://127.0.0.1:7800", phase=GatewayPhase.READY)
    revision = Revision(id="rev-9b2e01c4d3aa", model="demo")
    page = RunbookInfo(name="replace-node", title="Replace", risk="medium", causes=[], inputs={}, page="# Replace\n")
    status = Status(
        version="1",
        started_at=0,
        epoch=1,
        policy="ask",
        now=1,
        nodes_ready=1,
        nodes_total=1,
        firing=0,
        open_incidents=0,
        loops={},
    )
    receipt = DrainReceipt(
        id="node-1", node="node-1", state="drained", begun_at=1, ended_at=2, sums={}, summary="lost 0", is_complete=True
    )
    answers = {
        "/v1/receipts": [receipt],
        "/v1/receipts/node-1": receipt,
        "/v1/nodes": [node, make_node("node-2")],
        "/v1/nodes/node-1": node,
        "/v1/groups": [],
        "/v1/gpus": [],
        "/v1/failures": [],
        "/v1/failures/groups": [],
        "/v1/pools": [Pool(name="default", wanted=1)],
        "/v1/pools/node-1": Pool(name="node-1", wanted=1),
        "/v1/revisions": [revision],
        "/v1/revisions/rev-9b2e01c4d3aa": revision,
        "/v1/revisions/node-1": revision,
        "/v1/gateways": [gateway],
        "/v1/gateways/node-1": gateway,
        "/v1/runs": [make_run()],
        "/v1/runs/run-1": make_run(),
        "/v1/incidents": [make_incident()],
        "/v1/incidents/inc-1": make_incident(),
        "/v1/alerts": make_incident().alerts,
        "/v1/events": [],
        "/v1/traffic-rules": [],
        "/v1/tenants": [],
        "/v1/routing": RoutingTable(version=1, routes=[]),
        "/v1/freezes": [],
        "/v1/rollouts": [],
        "/v1/notifications": [],
        "/v1/silences": [],
        "/v1/tokens": [],
        "/v1/audit": [],
        "/v1/runbooks": [page],
        **{f"/v1/runbooks/{name}": page for name in ("replace-node", "lower-seats")},
        "/v1/status": status,
        "/v1/diagnose": Diagnosis(tree="latency", cause="slow_node", title="slow", confidence="confirmed"),
    }
    with recorded_controller(answers) as made:
        yield made


def test_every_named_command_that_only_looks_shows_something(
    controller: RecordedController, capsys: pytest.CaptureFixture[str]
) -> None:
    named = {text for one in every_command() for text in alternatives(one.text) if ONLY_LOOKS.match(text)}
    named = {text for text in named if not (READS_A_PAST.search(text) or WRITES_A_PAGE.search(text))}
    wanted = sorted({filled(text) for text in named if why_not(text, may_be_a_name=False) is None})
    assert len(wanted) > 15
    wrong = []
    for text in wanted:
        words = [word for word in shlex.split(text) if word not in ("-w", "--watch")]
        code = run(["--controller", controller.url, *words])
        if code != 0:
            wrong.append(f"fleetctl {shlex.join(words)}: {code}: {capsys.readouterr().err}")
    assert wrong == []


def filled(text: str) -> str:
    """With names that the recorded controller knows, by the word before."""
    rules = (
        (r"(?<=describe run )(ID|FILLED)", "run-1"),
        (r"(?<=describe incident )(ID|FILLED)", "inc-1"),
        (r"(?<=incident show )(ID|FILLED)", "inc-1"),
        (r"(?<=runbook show )(NAME|FILLED)", "replace-node"),
        (r"(?<=alerts explain )(NAME|FILLED)", "LLMNodeSlow"),
        (r"(?<=config explain )(KEY|FILLED)", "controller.port"),
        (r"(?<=get )FILLED", "nodes"),
        (r"(?<=\bincident=)ID", "inc-1"),
        (r"\b(NODE|NAME|FILLED|ID)\b", "node-1"),
    )
    for pattern, name in rules:
        text = re.sub(pattern, name, text)
    return text


NODE_COMMAND = re.compile(
    r"(?:fleetctl-node|python -m engine) (serve|drain|check|make-model|get-model|quality)\b([^`\n#&>]*)"
)


def test_every_named_command_of_a_node_can_be_typed() -> None:
    pages = [path for path in TRACKED if path.endswith(".md") and not HISTORY.fullmatch(path)]
    found = [
        (path, match[1], shlex.split(match[2]))
        for path in pages
        for match in NODE_COMMAND.finditer((ROOT / path).read_text())
    ]
    assert len(found) > 3
    wrong = []
    for path, name, words in found:
        if not words:
            continue  # only named
        try:
            node_parser().parse_args([name, *words])
        except (SystemExit, argparse.ArgumentError):
            wrong.append(f"{path}: fleetctl-node {name} {shlex.join(words)}")
    assert wrong == []


def test_every_named_target_of_make_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        (path, target)
        for path in TRACKED
        if path.endswith(".md") and not HISTORY.fullmatch(path)
        for span in SPAN.findall((ROOT / path).read_text())
        for target in re.findall(r"^\s*make ([a-z-]+)", span, re.MULTILINE)
    }
    assert len(named) > 8
    assert {(path, target) for path, target in named if target not in targets} == set()
