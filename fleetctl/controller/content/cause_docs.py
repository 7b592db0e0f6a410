"""The pages of causes, written into a folder: those that changed, and no file that this did not write."""

from __future__ import annotations

from pathlib import Path

from diagnostics.cause_pages import MADE_BY, cause_pages
from fleetctl.controller.content.content import Content
from fleetctl.kit.errors import BadInputError


def write_cause_docs(content: Content, folder: Path, *, dry_run: bool = False) -> tuple[list[str], int]:
    """Names of the pages that were old, and how many there are. Pages of causes that are gone are removed.

    Raises BadInputError where a page would take the place of a file of somebody else's.
    """
    pages = cause_pages(content.causes, content.questions)
    there = {path.name: path.read_text("utf-8") for path in folder.glob("*.md")} if folder.is_dir() else {}
    foreign = {name for name, text in there.items() if MADE_BY not in text}
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
