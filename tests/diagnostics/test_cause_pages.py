"""A page per cause: those that are in the docs are the ones that the YAML makes."""

from __future__ import annotations

from diagnostics.cause import builtin_causes
from diagnostics.cause_pages import INDEX, MADE_BY, cause_pages
from diagnostics.evidence.knowledge import builtin_knowledge
from tests.fixtures import ROOT

FOLDER = ROOT / "docs" / "causes"


def test_pages_of_the_docs_are_current() -> None:
    pages = cause_pages(builtin_causes(), builtin_knowledge().questions)
    there = {path.name: path.read_text("utf-8") for path in FOLDER.glob("*.md")}
    old = sorted(name for name in pages.keys() | there.keys() if pages.get(name) != there.get(name))
    assert old == [], "run `fleetctl content docs docs/causes`"


def test_page_says_how_a_cause_is_told_from_what_looks_like_it_and_what_to_do() -> None:
    pages = cause_pages(builtin_causes(), builtin_knowledge().questions)
    page = pages["seats_full.md"]
    assert MADE_BY in page
    assert "| must be | `kv_free` Has more than half of the KV cache been free for a minute? | < 50 % |" in page
    asked = "Has more than half of the KV cache been free for a minute?"
    assert f"(overload.md) (`overload`): {asked} Yes: `seats_full`, no: `overload`." in page
    assert "Nothing is proposed. By hand:" in page
    assert "`fleetctl runbook run rollback-pool`" in pages["prefix_by_upgrade.md"]
    assert all(f"({name})" in pages[INDEX] for name in pages if name != INDEX)
