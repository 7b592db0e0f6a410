"""The walkthroughs in docs/ name files, functions and log events that exist: eight hops each.

A hop is a heading `## N. Title`, a list of places (`- `path.py`: `Class.method`, `function``), and two paragraphs,
`**Decided**:` and `**Goes wrong**:`.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.fixtures import ROOT

WALKTHROUGHS = [ROOT / "docs" / f"{name}.md" for name in ("one-sample", "one-request")]
PACKAGES = ("alerts", "diagnostics", "engine", "fleetctl", "kernels", "runbooks")

_HOP = re.compile(r"^## (\d+)\. ", re.MULTILINE)
_PLACE = re.compile(r"^- `([\w/]+\.py)`(?:: (.+))?$", re.MULTILINE)
_EVENT = re.compile(r"`([a-z]+\.[a-z_]+)`")


def hops(path: Path) -> list[str]:
    return _HOP.split(path.read_text())[2::2]


def names_in(path: Path) -> set[str]:
    """Functions and classes of a module, methods as `Class.method`, attributes that a class or module assigns."""
    found: set[str] = set()

    def walk(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(prefix + node.name)
            if isinstance(node, ast.ClassDef):
                walk(node.body, f"{node.name}.")

    walk(ast.parse(path.read_text()).body, "")
    return found


@pytest.mark.parametrize("path", WALKTHROUGHS, ids=lambda path: path.stem)
def test_walkthrough_has_eight_hops_that_each_say_what_is_decided_and_what_goes_wrong(path: Path) -> None:
    assert _HOP.findall(path.read_text()) == [str(number) for number in range(1, 9)]
    for hop in hops(path):
        assert _PLACE.search(hop), hop
        assert "**Decided**:" in hop, hop
        assert "**Goes wrong**:" in hop, hop


@pytest.mark.parametrize("path", WALKTHROUGHS, ids=lambda path: path.stem)
def test_every_file_and_function_of_a_walkthrough_exists(path: Path) -> None:
    for file, listed in _PLACE.findall(path.read_text()):
        assert (ROOT / file).is_file(), f"{path.name}: {file} is not there"
        missing = set(re.findall(r"`([^`]+)`", listed)) - names_in(ROOT / file)
        assert not missing, f"{path.name}: {file} has no {', '.join(sorted(missing))}"


@pytest.mark.parametrize("path", WALKTHROUGHS, ids=lambda path: path.stem)
def test_every_log_event_of_a_walkthrough_is_logged(path: Path) -> None:
    sources = "".join(file.read_text() for package in PACKAGES for file in (ROOT / package).rglob("*.py"))
    events = set(_EVENT.findall(path.read_text()))
    assert {event for event in events if f'"{event}"' not in sources} == set()
