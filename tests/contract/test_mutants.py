"""`make mutants` itself: a planted survivor is found, an equivalent mutant is not counted, a choice is kept."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures import ROOT

CODE = """
def price(tokens: int, per_token: int) -> int:
    return tokens * per_token


def is_long(tokens: int) -> bool:
    return tokens > 100
"""
# Nothing asks at 100: `>` may be `>=`. Nothing asks at 101 either: 100 may be 101.
TESTS = """
from engine.price import is_long, price


def test_price():
    assert price(2, 3) == 6
    assert is_long(1000)
    assert not is_long(1)
"""
PLAN = """
goal: 0.95
targets:
  price: {files: [engine/*.py], tests: [tests/test_price.py]}
equivalent:
"""
EQUIVALENT = """
  - {file: engine/price.py, old: "return tokens > 100", new: ["*101"], why: planted}
"""
STALE = """
  - {file: engine/price.py, old: "return tokens / per_token", new: "*", why: that line is gone}
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A small repository of a package and its test."""
    for name, text in (
        ("engine/__init__.py", ""),
        ("engine/price.py", CODE),
        ("tests/test_price.py", TESTS),
        ("pyproject.toml", "[tool.pytest.ini_options]\npythonpath = ['.']\nmarkers = ['serial', 'gpu', 'e2e']\n"),
        ("plan.yaml", PLAN),
    ):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    for words in (
        ("init", "-q"),
        ("add", "."),
        ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "first"),
    ):
        subprocess.run(("git", *words), cwd=tmp_path, check=True)
    return tmp_path


def mutants(clone: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "mutants.py"), "--root", str(clone), "--jobs", "1", *words]
    command += ["--plan", str(clone / "plan.yaml")]
    return subprocess.run(command, check=False, capture_output=True, text=True)


def test_a_survivor_is_shown_with_its_line_an_equivalent_does_not_count_and_a_stale_entry_is_named(clone: Path) -> None:
    (clone / "plan.yaml").write_text(PLAN + EQUIVALENT + STALE)
    done = mutants(clone)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "engine/price.py:7 is_long survived" in done.stdout
    assert "  - return tokens > 100\n  + return tokens >= 100\n" in done.stdout
    assert "| engine/price.py | 3 | 1 | 0 | 1 | 0 | 1 | 50.0% |" in done.stdout
    assert [line for line in done.stdout.splitlines() if line.endswith("drop the entry")] == [
        "equivalent: engine/price.py: no mutant of 'return tokens / per_token' is ('*',): drop the entry"
    ]


def test_only_changed_lines_are_mutated_against_a_base(clone: Path) -> None:
    code = clone / "engine" / "price.py"
    code.write_text(CODE.replace("tokens * per_token", "per_token * tokens"))
    done = mutants(clone, "--base", "HEAD")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| engine/price.py | 1 | 1 |" in done.stdout


def test_an_unknown_revision_or_target_is_bad_input(clone: Path) -> None:
    assert mutants(clone, "--base", "nowhere").returncode == 2
    done = mutants(clone, "--target", "prices")
    assert done.returncode == 2
    assert "TARGET=prices: one of price" in done.stderr
