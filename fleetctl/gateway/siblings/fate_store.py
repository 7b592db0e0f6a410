"""Fates that an ended worker knew, for those who ask after it: written once, at its end in order."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from fleetctl.kit.whole_file import write_whole

MAX_FILES = 4  # of so many workers that ended last; each has 10 MB at most
_ID_KEY = "request_id"


def keep_fates(folder: Path, worker: int, fates: Iterable[dict[str, Any]]) -> None:
    """Write down how the worker's requests ended, the newest last. Raises OSError."""
    lines = b"\n".join(map(msgspec.json.encode, fates))
    if lines:
        write_whole(folder / f"fates-of-{worker}.jsonl", lines.decode())
    for old in _files(folder)[MAX_FILES:]:
        old.unlink(missing_ok=True)


def find_kept_fate(folder: Path, request_id: str) -> dict[str, Any] | None:
    """The last fate that an ended worker knew of this id."""
    mark = json.dumps({_ID_KEY: request_id}, separators=(",", ":"))[1:-1].encode()
    for path in _files(folder):
        try:
            told = path.read_bytes()
        except OSError:
            continue
        at = told.rfind(mark)
        if at >= 0:
            end = told.find(b"\n", at)
            line = told[told.rfind(b"\n", 0, at) + 1 : end if end >= 0 else len(told)]
            found: dict[str, Any] = msgspec.json.decode(line)
            return found
    return None


def _files(folder: Path) -> list[Path]:
    """The newest first: workers are numbered in their order."""
    return sorted(folder.glob("fates-of-*.jsonl"), key=lambda path: -int(path.stem.rpartition("-")[2]))
