"""What the controller judges and acts by: signals, rules, trees, causes, pages and policies, as one value.

It is never changed: a reload makes another one, and everything that reads content sees the old one or the new one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from alerts.evaluation.rules import RuleGroup
from diagnostics.cause import Cause
from diagnostics.evidence.knowledge import Knowledge, knowledge_of
from diagnostics.evidence.question import Question
from diagnostics.tree import Tree
from fleetctl.kit.errors import BadInputError
from fleetctl.settings.controller import PolicyName
from runbooks.approval import ApprovalRule
from runbooks.page import Page

BUILT_IN = "built-in"
MAX_TOLD = 20  # problems in one error message; `fleetctl content check` has them all

Kind = Literal[
    "signal", "objective", "rule", "case", "tree", "question", "cause", "page", "policy", "approval", "no_tree"
]


@dataclass(frozen=True, slots=True)
class ContentObject:
    """One named thing and where it is from. `overrides`: the sources of those of its name that it replaces."""

    kind: Kind
    name: str
    source: str  # BUILT_IN, or the user's folder
    file: str
    overrides: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ContentProblem:
    """One fault in a content file. `line` counts from 1, 0 where it is not known; `place` names the thing there."""

    severity: Literal["error", "warning"]
    file: str
    line: int
    place: str
    reason: str
    remedy: str = ""

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        mark = "warning" if self.severity == "warning" else ""
        parts = [part for part in (where, mark, self.place, self.reason) if part]
        return ": ".join(parts) + (f"; {self.remedy}" if self.remedy else "")


class BadContentError(BadInputError):
    """Content that can't be used. `problems` are all of them, warnings too; nothing of it is in force."""

    def __init__(self, problems: Sequence[ContentProblem]) -> None:
        errors = [problem for problem in problems if problem.severity == "error"]
        assert errors
        told = [f"  {problem}" for problem in errors[:MAX_TOLD]]
        if len(errors) > MAX_TOLD:
            told.append(f"  and {len(errors) - MAX_TOLD} more")
        noun = "error" if len(errors) == 1 else "errors"
        super().__init__(
            "\n".join([f"content: {len(errors)} {noun}", *told]), remedy="fleetctl content check DIR, offline"
        )
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True)
class Content:
    """Checked: every name that one object says of another is there."""

    signals: tuple[RuleGroup, ...]  # recording rules of what engines emit; evaluated first
    rules: tuple[RuleGroup, ...]  # objectives, then alerts
    trees: Mapping[str, Tree]
    questions: Mapping[str, Question]  # that causes and trees name
    causes: Mapping[str, Cause]
    pages: Mapping[str, Page]
    no_tree: Mapping[str, str]  # alert to what to do, where no tree explains it
    policies: Mapping[str, PolicyName]  # cause to what happens with its page
    approvals: Mapping[str, ApprovalRule]  # by name; the built-in ones that none of the user's replaces too
    rule_files: tuple[Path, ...]  # of all sources; what is overridden in them is not in force
    cases: tuple[Path, ...]  # unit tests of the users' rules
    objects: tuple[ContentObject, ...]
    warnings: tuple[ContentProblem, ...] = ()

    @property
    def groups(self) -> tuple[RuleGroup, ...]:
        """All rules in the order of their evaluation."""
        return self.signals + self.rules

    @property
    def knowledge(self) -> Knowledge:
        """What evidence is judged by."""
        return knowledge_of(self.questions, self.causes)

    def page_for_cause(self, cause: str) -> Page | None:
        """The page that the cause names; else, of those that say they treat it, the first with the lowest risk."""
        known = self.causes.get(cause)
        if known is not None and known.page in self.pages:
            return self.pages[known.page]
        risks = {"low": 0, "medium": 1, "high": 2}
        fitting = [page for page in self.pages.values() if cause in page.causes]
        return min(fitting, key=lambda page: (risks.get(page.risk, 3), page.name), default=None)


def alert_names(groups: Iterable[RuleGroup]) -> set[str]:
    """The names of the alerts of these rules."""
    return {rule.name for group in groups for rule in group.rules if rule.kind == "alert"}


def recorded_names(groups: Iterable[RuleGroup]) -> set[str]:
    """The metric names that these rules record."""
    return {rule.name for group in groups for rule in group.rules if rule.kind == "record"}
