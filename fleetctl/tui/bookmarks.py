"""Places that a person wants to come back to: a screen, what it was about, and its filter; kept in a file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import structlog

from fleetctl.kit.whole_file import write_whole
from fleetctl.tui.place import Place, Visit

log = structlog.get_logger()

MAX = 9  # a digit leads to each


@dataclass(frozen=True, slots=True)
class Bookmark:
    """One of them."""

    visit: Visit
    words: str = ""  # of the filter

    @property
    def label(self) -> str:
        """For people."""
        filtered = f"/{self.words}" if self.words else ""
        return "  ".join(filter(None, (self.visit.place.label, self.visit.subject or "", filtered)))


class Bookmarks:
    """The newest last. Without a file they last as long as the cockpit does."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self.kept: tuple[Bookmark, ...] = _read(path) if path is not None else ()

    def toggle(self, mark: Bookmark) -> bool:
        """Keep it, or drop it where it is kept; whether it is kept now. The oldest goes when there are too many."""
        is_new = mark not in self.kept
        self.kept = (*self.kept, mark)[-MAX:] if is_new else tuple(one for one in self.kept if one != mark)
        if self._path is not None:
            rows = [{"place": m.visit.place.value, "subject": m.visit.subject, "words": m.words} for m in self.kept]
            try:
                write_whole(self._path, json.dumps(rows, indent=1))
            except OSError as error:
                log.warning("bookmarks.not_stored", path=str(self._path), error=str(error))
        return is_new


def _read(path: Path) -> tuple[Bookmark, ...]:
    """What the file has; nothing of what is no bookmark."""
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        found = [
            Bookmark(Visit(Place(row["place"]), row.get("subject")), str(row.get("words", "")))
            for row in rows
            if row.get("place") in list(Place)
        ]
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, TypeError, AttributeError, KeyError) as error:
        log.warning("bookmarks.unreadable", path=str(path), error=str(error))
        return ()
    return tuple(found[-MAX:])
