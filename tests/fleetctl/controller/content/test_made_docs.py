"""Pages of causes in a folder: written, kept current, and nobody else's file is touched."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleetctl.controller.content.load import load_content
from fleetctl.controller.content.made_docs import write_cause_docs
from fleetctl.kit.errors import BadInputError


def test_writes_what_changed_and_touches_no_file_of_somebody_else(tmp_path: Path) -> None:
    content = load_content([])
    note = tmp_path / "note.md"
    note.write_text("mine", "utf-8")
    changed, num_pages = write_cause_docs(content, tmp_path)
    assert len(changed) == num_pages == len(list(tmp_path.glob("*.md"))) - 1
    gone = tmp_path / "gone.md"
    gone.write_text((tmp_path / "overload.md").read_text("utf-8"), "utf-8")
    assert write_cause_docs(content, tmp_path, dry_run=True) == (["gone.md"], num_pages)
    assert write_cause_docs(content, tmp_path) == (["gone.md"], num_pages)
    assert not gone.exists()
    assert note.read_text("utf-8") == "mine"


def test_page_in_the_place_of_somebody_elses_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("mine", "utf-8")
    with pytest.raises(BadInputError, match=r"README\.md was not made by this command"):
        write_cause_docs(load_content([]), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["README.md"]
