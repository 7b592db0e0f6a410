"""Which of several nodes that should answer alike answers wrong: by their majority, never by one word. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from fleetctl.engines.greedy_answer import Answer, difference


class Verdict(StrEnum):
    """What the vote says of one node."""

    RIGHT = "right"
    WRONG = "wrong"  # most of at least three nodes answer alike, and it does not
    UNKNOWN = "unknown"  # nobody can say who is right


@dataclass(frozen=True, slots=True)
class Judged:
    """A verdict, and how it came about where it is not plain."""

    verdict: Verdict
    why: str = ""


@dataclass(frozen=True, slots=True)
class Vote:
    """`recorded`: what is known from now on; `was_replaced`: most nodes answer otherwise than it was."""

    judged: Mapping[str, Judged]
    recorded: Answer | None
    was_replaced: bool = False


def vote(answers: Mapping[str, Answer], recorded: Answer | None) -> Vote:
    """Judge what nodes answered last against each other, and against what was recorded.

    A node is wrong only where more than half of all agree with each other and not with it: with two nodes that differ
    nobody knows, and half of them are never taken out. A node alone is held against what was recorded.
    """
    names = sorted(answers)
    if not names:
        return Vote({}, recorded)
    if len(names) == 1:
        return _alone(names[0], answers[names[0]], recorded)
    agree = {one: {other for other in names if not difference(answers[one], answers[other])} for one in names}
    # The recorded answer decides between two that have as many.
    best = max(
        names, key=lambda one: (len(agree[one]), recorded is not None and not difference(answers[one], recorded))
    )
    num, most = len(names), len(agree[best])
    if 2 * most <= num:
        why = f"{num} nodes of its revision differ, and no more than half of them agree: nobody can say who is right"
        return Vote(dict.fromkeys(names, Judged(Verdict.UNKNOWN, why)), recorded)
    judged = {
        name: Judged(Verdict.RIGHT)
        # Agreement is not transitive: whoever agrees with most is right, also where another one has more friends.
        if name in agree[best] or 2 * len(agree[name]) > num
        else Judged(Verdict.WRONG, f"{difference(answers[name], answers[best])} ({most} of {num} nodes)")
        for name in names
    }
    if recorded is not None and any(not difference(answers[one], recorded) for one in agree[best]):
        return Vote(judged, recorded)
    return Vote(judged, answers[best], was_replaced=recorded is not None)


def _alone(name: str, answer: Answer, recorded: Answer | None) -> Vote:
    if recorded is None:
        return Vote({name: Judged(Verdict.RIGHT, "its first answer: it is what later ones are held to")}, answer)
    if differs := difference(answer, recorded):
        why = f"not as its revision answered first: {differs}; no other node can say who is right"
        return Vote({name: Judged(Verdict.UNKNOWN, why)}, recorded)
    return Vote({name: Judged(Verdict.RIGHT)}, recorded)
