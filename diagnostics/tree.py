"""What a decision tree is. It must not know how a question is answered; its YAML file is read in `tree_file`.

A tree is a list of questions in the order an engineer asks them. Each has one PromQL query, a limit, and three
branches. A branch leads to a question further down the file, to a verdict, to the next question (`continue`) or
to the end (`end`). Since no branch leads up, every walk ends.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from diagnostics.value_format import format_value

CONTINUE = "continue"  # the question below
END = "end"  # stop without naming a cause

COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
}


@dataclass(frozen=True, slots=True)
class Limit:
    """`value <comparison> bound` is the yes of a question."""

    comparison: str
    bound: float

    def holds(self, value: float) -> bool:
        """Whether a value answers yes."""
        return COMPARISONS[self.comparison](value, self.bound)


@dataclass(frozen=True, slots=True)
class Question:
    """One thing an engineer would look at, and where each answer leads."""

    id: str
    ask: str  # the question in words
    query: str  # PromQL template
    pool_query: str | None  # asked instead when the scope names no node
    limit: Limit
    unit: str
    rules_out: str | None  # the cause that a "no" excludes
    if_yes: str
    if_no: str
    if_unknown: str
    optional: bool = False  # not everybody can tell: unknown does not lower the verdict's confidence

    @property
    def threshold(self) -> str:
        """The limit as text with its unit, e.g. "> 200 ms"."""
        return f"{self.limit.comparison} {format_value(self.limit.bound, self.unit)}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A leaf: the cause that the answers on the way here name."""

    id: str
    cause: str
    title: str  # template: {{where}}, {{value}} of the deciding question, or a question's id for its value
    at_most: Literal["confirmed", "likely"]  # "likely" where the evidence is only that two things coincide


class AlertKind(NamedTuple):
    """What an alert is a symptom of, for judging which alerts are one incident."""

    tree: str
    stands_alone: bool


@dataclass(frozen=True, slots=True)
class Tree:
    """The questions for one family of symptoms."""

    name: str
    title: str
    symptoms: tuple[str, ...]  # the alerts that it explains
    stands_alone: frozenset[str]  # those of them that are never a part of another tree's incident
    max_age_s: float  # a value older than this is no evidence
    questions: tuple[Question, ...]
    verdicts: Mapping[str, Verdict]
    ask: tuple[str, ...] = ()  # names of shared questions, in the order in which a verdict shows them
    onset: tuple[str, ...] = ()  # PromQL templates of the series in which the beginning is looked for

    @property
    def is_judged(self) -> bool:
        """Whether its causes are scored by evidence; else its own branches name one."""
        return bool(self.ask)

    def position(self, question_id: str) -> int | None:
        """Where the question stands in the order; None when there is no such question."""
        return next((i for i, question in enumerate(self.questions) if question.id == question_id), None)


def alert_kinds(trees: Mapping[str, Tree]) -> dict[str, AlertKind]:
    """Each alert that a tree explains, with what it is a symptom of."""
    return {name: AlertKind(tree.name, name in tree.stands_alone) for tree in trees.values() for name in tree.symptoms}


def tree_for_alert(trees: Mapping[str, Tree], alertname: str) -> Tree | None:
    """The tree that explains the alert; None when none does."""
    return next((tree for tree in trees.values() if alertname in tree.symptoms), None)
