"""What a walk found: every answered question with its evidence, and the cause it ended in, if any."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, Protocol

AnswerWord = Literal["yes", "no", "unknown"]
Confidence = Literal["confirmed", "likely", "unknown"]
Speaks = Literal["", "for", "against"]
NO_LABELS: Mapping[str, str] = MappingProxyType({})


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
    usual: str = ""  # of a yes that compares with the past: the same against this hour of other days
    speaks: Speaks = ""  # of the cause that was named


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What was found; the fields of the wire's `Diagnosis`. `cause` None: none was named."""

    tree: str
    cause: str | None
    title: str = ""
    confidence: Confidence = "unknown"
    evidence: tuple[Evidence, ...] = ()
    ruled_out: tuple[str, ...] = ()
    not_known: tuple[str, ...] = ()
    at: float = 0.0  # when its evidence was read
    probability: float | None = None  # of the cause; None: nothing was scored
    also: str | None = None  # a second cause that is at work beside it
    runner_up: str | None = None  # the next best cause
    runner_up_probability: float | None = None
    tells_apart: str = ""  # what would tell the two apart
    why_not: Mapping[str, str] = field(default_factory=dict)  # cause to what ruled it out
    onset: float | None = None  # when it began, and between which two times for certain
    onset_early: float | None = None
    onset_late: float | None = None
    changes: tuple[str, ...] = ()  # what changed just before, nearest first
    since: float | None = None  # since when the same is said, where the evidence was read again; else since `at`
    looked_at: float | None = None  # when it was asked last, where it was asked again
    then_found: str = ""  # what was found then, where that is not what stands
    awaits: str = ""  # why nothing is to be done about the cause yet; "": nothing is waited for
    is_of_one: bool = False  # one node of a wider scope has it, and the walk does not say which
    its_node: str = ""  # that node, where it was told apart since; the title names it then

    @property
    def said_since(self) -> float:
        """Since when this cause is named with this confidence."""
        return self.at if self.since is None else self.since


def in_brief(diagnosis: Diagnosis) -> str:
    """Cause and confidence, as a person says them; without a cause what is said in its place."""
    return f"{diagnosis.cause} ({diagnosis.confidence})" if diagnosis.cause else diagnosis.title


ITSELF = "the alert is the cause; "
"""How a reason begins where there is nothing behind an alert that could be found."""
SAYS_ITSELF = "says itself what is wrong"


NOTHING_WRONG = "nothing was wrong"


class Verdict(Protocol):
    """A diagnosis, or the record of one, as far as it says whether anything is left to find."""

    @property
    def cause(self) -> str | None: ...
    @property
    def confidence(self) -> str: ...
    @property
    def title(self) -> str: ...


def instead_of_a_cause(found: Verdict | None) -> str:
    """What is known where no cause has a name, in words: that the alert says what is wrong, or that nothing is. "": a
    cause is named, or is to be found yet."""
    if found is None or found.cause is not None:
        return ""
    if SAYS_ITSELF in found.title:
        return "its alert says the cause"
    return NOTHING_WRONG if found.confidence == "confirmed" else ""


def what_to_do(reason: str, labels: Mapping[str, str]) -> str:
    """What a person does, of a reason why no tree explains an alert: its labels in their places, `{{receiver}}`."""
    told = re.sub(r"\{\{(\w+)\}\}", lambda found: labels.get(found[1]) or found[1].upper(), reason)
    return told.removeprefix(ITSELF)


def undiagnosed(alert: str, reason: str | None, labels: Mapping[str, str] = NO_LABELS) -> Diagnosis:
    """What stands in the place of a diagnosis when no tree explains `alert`, for this reason. It names no cause."""
    if reason is None:
        return Diagnosis(tree="", cause=None, title=f"No tree explains {alert}: see its own description")
    said = f"{alert} {SAYS_ITSELF}" if reason.startswith(ITSELF) else f"No tree explains {alert}"
    return Diagnosis(tree="", cause=None, title=f"{said}: {what_to_do(reason, labels)}")
