"""What a walk found: every answered question with its evidence, and the cause it ended in, if any."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

AnswerWord = Literal["yes", "no", "unknown"]
Confidence = Literal["confirmed", "likely", "unknown"]


@dataclass(frozen=True, slots=True)
class Evidence:
    """One answered question; the fields of the wire's `Evidence`."""

    question: str
    title: str
    answer: AnswerWord
    query: str = ""
    value: float | None = None
    threshold: str = ""
    unit: str = ""
    age_s: float | None = None
    why_unknown: str = ""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Where a walk ended; the fields of the wire's `Diagnosis`. `cause` None: the tree named none."""

    tree: str
    cause: str | None
    title: str = ""
    confidence: Confidence = "unknown"
    evidence: tuple[Evidence, ...] = ()
    ruled_out: tuple[str, ...] = ()
    not_known: tuple[str, ...] = ()
    at: float = 0.0


def undiagnosed(alert: str, what_to_do: str | None) -> Diagnosis:
    """What stands in the place of a diagnosis when no tree explains `alert`. It names no cause."""
    return Diagnosis(tree="", cause=None, title=f"No tree explains {alert}: {what_to_do or 'see its own description'}")
