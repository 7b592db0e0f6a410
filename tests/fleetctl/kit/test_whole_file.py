from __future__ import annotations

import stat
from pathlib import Path

import pytest

from fleetctl.kit.whole_file import write_whole


@pytest.mark.parametrize("is_durable", [False, True])
def test_the_new_text_takes_the_place_of_the_old_for_its_owner_alone(tmp_path: Path, is_durable: bool) -> None:
    path = tmp_path / "new" / "page.md"
    for text in ("old, and longer", "neu: ä"):
        write_whole(path, text, is_durable=is_durable)
    assert path.read_text(encoding="utf-8") == "neu: ä"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [one.name for one in path.parent.iterdir()] == ["page.md"]


def test_a_write_that_fails_names_its_path_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.mkdir()  # can't be replaced by a file
    with pytest.raises(OSError, match=r"page\.md") as failed:
        write_whole(path, "text")
    assert failed.value.filename == str(path)
    assert [one.name for one in tmp_path.iterdir()] == ["page.md"]
