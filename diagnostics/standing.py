"""When a newer verdict takes the place of the one that stands. Pure: both come in, and when each was found."""

from __future__ import annotations

from diagnostics.diagnosis import Diagnosis
from diagnostics.evidence.judge import RANK
from diagnostics.incident import Incident

REPLACE_AFTER_S = 10.0  # another cause must be confirmed for this long before it replaces a confirmed one
RULED_OUT_FOR_S = 60.0  # a cause that fresh evidence rules out so long is replaced by one that is less sure


def is_outgrown(incident: Incident, standing: Diagnosis) -> bool:
    """Whether the incident became wider since: what explains one node need not explain them all."""
    return incident.widened_at is not None and standing.at < incident.widened_at


def is_better(found: Diagnosis, standing: Diagnosis) -> bool:
    """Whether a newer walk replaces the standing one: never a named cause by none, nor a surer one by a less sure.

    That nothing is wrong holds until a cause is named, however sure it was.
    """
    if (found.cause is None) != (standing.cause is None):
        return found.cause is not None
    if RANK[found.confidence] != RANK[standing.confidence]:
        return RANK[found.confidence] > RANK[standing.confidence]
    return True


def weigh(found: Diagnosis, standing: Diagnosis, rival: Diagnosis | None) -> tuple[bool, Diagnosis | None]:
    """Whether a newer verdict replaces the standing one now, and which is its rival from now on.

    `rival`: what would replace it once it has stood for long enough; its `at` is since when.
    """
    if (after_s := stands_before_replacing(found, standing)) is None:
        return False, None
    if rival is None or rival.cause != found.cause:
        rival = found
    return (True, None) if found.at - rival.at >= after_s else (False, rival)


def stands_before_replacing(found: Diagnosis, standing: Diagnosis) -> float | None:
    """For how long a newer verdict must be found before it replaces the standing one (seconds); None: it does not.

    A better one at once; in place of a confirmed cause, or of another that is as likely, a little later. One that is
    no surer replaces what fresh evidence rules out; it must stand longer, because an incident that ends takes its
    evidence with it.
    """
    if is_better(found, standing):
        is_rival = standing.cause is not None and found.cause != standing.cause
        is_surer = RANK[found.confidence] > RANK[standing.confidence]
        return REPLACE_AFTER_S if is_rival and (standing.confidence == "confirmed" or not is_surer) else 0.0
    if found.cause is not None and found.cause != standing.cause and standing.cause in found.ruled_out:
        return RULED_OUT_FOR_S
    return None
