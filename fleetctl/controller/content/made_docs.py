"""Pages that are made from content and verbs, written into a folder: those that changed, and no file of others."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from diagnostics import cause_pages
from fleetctl.controller.content.content import Content
from fleetctl.engines import engine_pages
from fleetctl.kit.errors import BadInputError
from runbooks import verb_pages
from runbooks.verbs import VERBS


def write_cause_docs(content: Content, folder: Path, *, dry_run: bool = False) -> tuple[list[str], int]:
    """A page per cause. Names of the pages that were old, and how many there are; see `_write`."""
    pages = cause_pages.cause_pages(content.causes, content.questions)
    return _write(pages, cause_pages.MADE_BY, folder, dry_run)


def write_action_docs(content: Content, folder: Path, *, dry_run: bool = False) -> tuple[list[str], int]:
    """A page per action. Names of the pages that were old, and how many there are; see `_write`."""
    return _write(verb_pages.verb_pages(VERBS, content.pages), verb_pages.MADE_BY, folder, dry_run)


def write_engine_docs(folder: Path, *, dry_run: bool = False) -> tuple[list[str], int]:
    """A page per engine. Names of the pages that were old, and how many there are; see `_write`."""
    return _write(engine_pages.engine_pages(), engine_pages.MADE_BY, folder, dry_run)


def _write(pages: Mapping[str, str], made_by: str, folder: Path, dry_run: bool) -> tuple[list[str], int]:
    """Pages of what is gone are removed. Raises BadInputError where a page would take the place of another's file."""
    there = {path.name: path.read_text("utf-8") for path in folder.glob("*.md")} if folder.is_dir() else {}
    foreign = {name for name, text in there.items() if made_by not in text}
    if taken := sorted(foreign & pages.keys()):
        raise BadInputError(
            f"{folder / taken[0]} was not made by this command", remedy="give the pages their own folder"
        )
    ours = there.keys() - foreign
    changed = sorted(name for name in pages.keys() | ours if pages.get(name) != there.get(name))
    if dry_run:
        return changed, len(pages)
    folder.mkdir(parents=True, exist_ok=True)
    for name in changed:
        if name in pages:
            (folder / name).write_text(pages[name], "utf-8")
        else:
            (folder / name).unlink()
    return changed, len(pages)
