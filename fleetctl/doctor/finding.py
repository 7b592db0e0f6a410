"""What a check found: one line, and the command or change that mends it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Health(StrEnum):
    """What a check says. Only `bad` makes the command fail."""

    good = "good"
    doubtful = "doubtful"  # works, but not as it should
    bad = "bad"
    unknown = "unknown"  # could not be looked at: neither good nor bad
    unused = "unused"  # nothing of the kind is set up here


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. `mend` is what to do, where there is something to do."""

    check: str
    health: Health
    seen: str
    mend: str = ""
