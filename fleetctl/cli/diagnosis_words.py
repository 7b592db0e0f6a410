"""A verdict in a few lines: how sure, what else it could be, since when, and what changed before."""

from __future__ import annotations

from fleetctl.cli.moment import clock
from fleetctl.wire.diagnosis import Diagnosis

MAX_RULED_OUT = 6  # of the causes that are told; the JSON has all


def confidence_words(diagnosis: Diagnosis) -> str:
    """The word and, where it was scored, the number: "confirmed, 97 %"."""
    if diagnosis.probability is None:
        return diagnosis.confidence
    return f"{diagnosis.confidence}, {diagnosis.probability:.0%}".replace("%", " %")


def verdict_fields(diagnosis: Diagnosis, *, is_over: bool = False) -> list[tuple[str, str]]:
    """What stands below a cause; of what is empty nothing is to be said. `is_over`: nothing is waited for any more."""
    return [
        ("not yet treated", "" if is_over else diagnosis.awaits),
        ("and also", diagnosis.also or ""),
        ("or else", _runner_up(diagnosis)),
        ("tells apart", diagnosis.tells_apart),
        ("evidence of", _evidence_of(diagnosis)),
        ("began", _began(diagnosis)),
        ("changed before", "; ".join(one for one in diagnosis.changes if not _is_later(one))),
        ("changed after", "; ".join(one for one in diagnosis.changes if _is_later(one))),
        ("ruled out", _ruled_out(diagnosis)),
    ]


def _is_later(change: str) -> bool:
    """Whether all of it was after the beginning: it is not what began it."""
    return change.partition(", by what")[0].endswith("after it began") and "before it began" not in change


def _runner_up(diagnosis: Diagnosis) -> str:
    if not diagnosis.runner_up:
        return ""
    share = diagnosis.runner_up_probability
    return diagnosis.runner_up + (f" ({share:.0%})".replace("%", " %") if share is not None else "")


def _evidence_of(diagnosis: Diagnosis) -> str:
    """When the evidence of a verdict that stands was read, and what was found where it was asked later."""
    if diagnosis.looked_at is None:
        return ""
    if not diagnosis.then_found:
        return f"{clock(diagnosis.at)}; it says the same since {clock(diagnosis.since or diagnosis.at)}"
    return f"{clock(diagnosis.at)}; asked again {clock(diagnosis.looked_at)}: {diagnosis.then_found}"


def _began(diagnosis: Diagnosis) -> str:
    """The onset with its bounds, where they are apart."""
    early, late = diagnosis.onset_early, diagnosis.onset_late
    if diagnosis.onset is None:
        return ""
    if early is None or late is None or late - early < 1:
        return clock(diagnosis.onset)
    return f"{clock(diagnosis.onset)} (between {clock(early)} and {clock(late)})"


def _ruled_out(diagnosis: Diagnosis) -> str:
    if not diagnosis.why_not:
        return ", ".join(diagnosis.ruled_out)
    shown = ", ".join(list(diagnosis.why_not)[:MAX_RULED_OUT])
    left = len(diagnosis.why_not) - MAX_RULED_OUT
    return f"{shown} and {left} more" if left > 0 else shown
