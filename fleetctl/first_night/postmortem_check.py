"""Whether a post-mortem is true: what it states, beside what the harness counted as a client and did itself."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

SERVED_TOLERANCE, SERVED_TOLERANCE_RATIO = 8, 0.15  # at both ends the gateway's counters are a second old

_ONSET = re.compile(r"It began (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)")
_CAUSE = re.compile(r"Cause: \*\*(?P<cause>[^*]+)\*\*")
_LOST = re.compile(r"^\| lost \| (?P<lost>[^|]+) \|", re.MULTILINE)
_SERVED = re.compile(r"^\| requests served meanwhile \| (?P<served>[^|]+) \|", re.MULTILINE)
_RUN = re.compile(r"^### (?P<title>.+): (?P<status>\w+)$", re.MULTILINE)
_DONE = re.compile(r"^## What was done$(?P<part>.*?)^## ", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Stated:
    """What a post-mortem says. None: it says nothing of that."""

    began_at: float | None
    cause: str | None
    lost: int | None
    runs: tuple[str, ...]  # their statuses, in order
    served: int | None = None  # requests of the incident's time


@dataclass(frozen=True, slots=True)
class Known:
    """What the harness knows by itself."""

    injected_at: float
    lost: int  # from the injection to the incident's end, as clients saw it
    lost_late: int  # of other requests, those that ended in the seconds around that end
    causes: Collection[str]  # those that are right; empty: none is asked for
    runs: Sequence[str]  # statuses of the runs that it approved
    ended_at: Sequence[float] = ()  # every request of its clients
    onset_within_s: float = 30.0  # of the injection
    over_at: float = 0.0  # Unix seconds of the incident's end


def read_postmortem(page: str) -> Stated:
    """The statements of a page in Markdown."""
    began = _ONSET.search(page)
    cause = _CAUSE.search(page)
    lost = _LOST.search(page)
    served = _SERVED.search(page)
    done = _DONE.search(page)
    return Stated(
        began_at=datetime.fromisoformat(began[1]).replace(tzinfo=UTC).timestamp() if began else None,
        cause=cause["cause"].replace("\\", "") if cause else None,
        lost=int(lost["lost"]) if lost and lost["lost"].strip().isdecimal() else None,
        runs=tuple(match["status"] for match in _RUN.finditer(done["part"])) if done else (),
        served=int(served["served"]) if served and served["served"].strip().isdecimal() else None,
    )


def false_statements(stated: Stated, known: Known) -> tuple[str, ...]:
    """What the page states that is not so, each as a sentence's half. What it leaves open is not false."""
    false: list[str] = []
    if stated.lost is not None and not known.lost <= stated.lost <= known.lost + known.lost_late:
        false.append(f"says lost {stated.lost}, clients lost {known.lost}")
    if stated.began_at is not None and (gap := abs(stated.began_at - known.injected_at)) > known.onset_within_s:
        false.append(f"its onset is {gap:.0f} s off")
    if stated.served is not None and stated.began_at is not None:
        served = sum(stated.began_at <= at <= known.over_at for at in known.ended_at)
        if abs(stated.served - served) > max(SERVED_TOLERANCE, SERVED_TOLERANCE_RATIO * served):
            false.append(f"says {stated.served} requests were served, clients had {served}")
    if known.causes and stated.cause is not None and stated.cause not in known.causes:
        false.append(f"names {stated.cause}")
    if list(stated.runs) != list(known.runs):
        false.append(f"lists runs {', '.join(stated.runs) or 'none'}, there were {', '.join(known.runs) or 'none'}")
    return tuple(false)
