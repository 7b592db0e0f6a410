"""The glossary's names are in the code, and the names that it retired are not."""

from __future__ import annotations

import io
import re
import tokenize

import pytest

from tests.fixtures import ROOT

GLOSSARY = ROOT / "docs" / "glossary.md"
PACKAGES = ("alerts", "diagnostics", "engine", "fleetctl", "kernels", "runbooks")


def tables() -> dict[str, list[list[str]]]:
    """Rows by the first column's head, without head and rule."""
    found: dict[str, list[list[str]]] = {}
    rows: list[list[str]] = []
    is_open = False
    for line in GLOSSARY.read_text().splitlines():
        if not line.startswith("|"):
            is_open = False
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not is_open:
            rows = found.setdefault(cells[0], [])
            is_open = True
        elif not set(cells[0]) <= set("-"):
            rows.append(cells)
    return found


@pytest.fixture(scope="module")
def identifiers() -> dict[str, set[str]]:
    """Every identifier of the code, with the files that it is in. Text and comments are none."""
    found: dict[str, set[str]] = {}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
                if token.type == tokenize.NAME:
                    found.setdefault(token.string, set()).add(str(path.relative_to(ROOT)))
    return found


def test_names_that_the_glossary_gives_are_in_the_code(identifiers: dict[str, set[str]]) -> None:
    terms = tables()["term"]
    assert len(terms) > 15
    assert {len(row) for row in terms} == {4}
    named = {name for row in terms for name in re.findall(r"`(\w+)`", row[2])}
    assert named - set(identifiers) == set()


def test_no_term_has_two_rows() -> None:
    terms = [row[0] for row in tables()["term"]]
    assert len(terms) == len(set(terms))


def test_retired_names_are_gone_from_where_they_stood(identifiers: dict[str, set[str]]) -> None:
    retired = tables()["retired"]
    assert retired
    for name, folders, instead in retired:
        for folder in folders.replace("`", "").split(", "):
            assert (ROOT / folder).is_dir(), folder
            kept = {path for path in identifiers.get(name.strip("`"), ()) if path.startswith(folder)}
            assert not kept, f"{name} is retired in {folder}, use {instead}: {kept}"
