"""A page per action: those that are in the docs are the ones that the verbs make."""

from __future__ import annotations

from runbooks.page import load_library
from runbooks.verb_pages import INDEX, page_name, verb_pages
from runbooks.verbs import VERBS
from tests.fixtures import ROOT

FOLDER = ROOT / "docs" / "actions"


def test_pages_of_the_docs_are_current() -> None:
    pages = verb_pages(VERBS, load_library())
    there = {path.name: path.read_text("utf-8") for path in FOLDER.glob("*.md")}
    old = sorted(name for name in pages.keys() | there.keys() if pages.get(name) != there.get(name))
    assert old == [], "run `fleetctl content docs docs/actions --of actions`"


def test_page_says_what_an_action_takes_does_and_how_it_is_taken_back() -> None:
    pages = verb_pages(VERBS, load_library())
    assert all(f"({page_name(verb)})" in pages[INDEX] for verb in VERBS.values())
    drain = pages["drain.md"]
    assert "fleetctl drain node-2 --deadline 30s --dry-run" in drain
    assert "| `--deadline` | duration | `30s` | when to move what has not finished |" in drain
    assert "its requests finish or move to others first; refused below the [capacity floor]" in drain
    assert "[replace-node](../../runbooks/library/replace-node.md)" in drain
    assert "| undone by | `fleetctl limits node-2 --before` |" in pages["limits.md"]
