"""Every file that a page names exists. What is history (changelog, decisions) may name what is gone."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator

import pytest

from tests.fixtures import ROOT

TRACKED = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
PAGES = [
    name
    for name in TRACKED
    if name.endswith(".md") and name != "CHANGELOG.md" and not name.startswith("docs/decisions/")
]
NAMED = re.compile(r"`([\w./-]+\.(?:py|yaml|toml|md|tcss|prom|ini))`")
READERS_OWN = re.compile(  # made by whoever follows the page
    r"\./fleetctl\.yaml|\.fleetctl/.*|verbs/NAME\.py|(causes|objectives|pages|policies|rules|trees)/[\w-]+\.\w+"
)


def named_files(page: str) -> Iterator[str]:
    for name in NAMED.findall((ROOT / page).read_text()):
        if not READERS_OWN.fullmatch(name):
            yield name


def exists(page: str, name: str) -> bool:
    """By its path from the root, or by the end of its path inside the page's own top folder (pages of `docs`: all)."""
    top = page.partition("/")[0]
    within = ("",) if top == "docs" or "/" not in page else (f"{top}/", f"tests/{top}/")
    return any(path == name or (path.startswith(within) and path.endswith("/" + name)) for path in TRACKED)


@pytest.mark.parametrize("page", PAGES)
def test_every_file_that_a_page_names_exists(page: str) -> None:
    missing = sorted({name for name in named_files(page) if not exists(page, name)})
    assert missing == []
