"""Several sources of content as one: of two objects with one name the later source's counts, and that is recorded.

The name of a signal is its rule group: all series of one engine are exchanged together. Alerts and objectives go by
their own names, so that one threshold can be changed without a copy of its file. An alert belongs to one tree: a later
source's tree takes its symptoms from the earlier one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from alerts.evaluation.rules import Rule, RuleGroup
from diagnostics.cause import Cause
from diagnostics.evidence.question import Question
from diagnostics.tree import Tree
from fleetctl.controller.content.content import BUILT_IN, Content, ContentObject, ContentProblem, Kind
from fleetctl.controller.content.folder import shown_file
from fleetctl.settings.controller import PolicyName
from runbooks.approval import DEFAULT_RULES, ApprovalRule
from runbooks.page import Page

OBJECTIVE_PREFIX = "llm:objective_"
T = TypeVar("T")


@dataclass(slots=True)
class Part:
    """What one source has, each object with its file."""

    source: str
    signals: list[tuple[RuleGroup, Path]] = field(default_factory=list)
    objectives: list[tuple[RuleGroup, Path]] = field(default_factory=list)
    rules: list[tuple[RuleGroup, Path]] = field(default_factory=list)
    trees: list[tuple[Tree, Path]] = field(default_factory=list)
    questions: list[tuple[Question, Path]] = field(default_factory=list)
    causes: list[tuple[Cause, Path]] = field(default_factory=list)
    pages: list[tuple[Page, Path]] = field(default_factory=list)
    no_tree: list[tuple[tuple[str, str], Path]] = field(default_factory=list)
    policies: list[tuple[tuple[str, PolicyName], Path]] = field(default_factory=list)
    approvals: list[tuple[ApprovalRule, Path]] = field(default_factory=list)
    cases: list[Path] = field(default_factory=list)


def overlay(parts: Sequence[Part], problems: list[ContentProblem]) -> Content:
    """The parts as one, later ones over earlier ones. Two objects of one name in one source are added to `problems`."""
    ledger = _Ledger(problems)
    signals, rules = _rules(parts, ledger)
    causes = _named(parts, "cause", lambda part: part.causes, lambda cause: cause.name, ledger)
    questions = _named(parts, "question", lambda part: part.questions, lambda question: question.id, ledger)
    pages = _named(parts, "page", lambda part: part.pages, lambda page: page.name, ledger)
    policies = _named(parts, "policy", lambda part: part.policies, lambda entry: entry[0], ledger)
    approvals = _named(parts, "approval", lambda part: part.approvals, lambda rule: rule.name, ledger)
    trees, no_tree = _trees(parts, ledger)
    for part in parts:
        for path in part.cases:
            ledger.enter("case", path.stem, part.source, path)
    return Content(
        signals=signals,
        rules=rules,
        trees=trees,
        questions=questions,
        causes=causes,
        pages=pages,
        no_tree=no_tree,
        policies=dict(policies.values()),
        approvals={rule.name: rule for rule in (*DEFAULT_RULES, *approvals.values())},
        rule_files=tuple(
            dict.fromkeys(path for part in parts for _, path in (*part.signals, *part.objectives, *part.rules))
        ),
        cases=tuple(path for part in parts if part.source != BUILT_IN for path in part.cases),
        objects=ledger.objects(),
    )


class _Ledger:
    """Which source an object is from, and whose it replaced."""

    def __init__(self, problems: list[ContentProblem]) -> None:
        self._problems = problems
        self._objects: dict[tuple[Kind, str], ContentObject] = {}

    def enter(self, kind: Kind, name: str, source: str, path: Path) -> None:
        """An object of a source that is at least as late as those before."""
        before = self._objects.get((kind, name))
        file = shown_file(path)
        overrides: tuple[str, ...] = ()
        if before is not None and before.source == source:
            reason = f"defined already in {before.file}"
            self._problems.append(ContentProblem("error", str(path), 0, f"{kind} {name}", reason, "rename one"))
        elif before is not None:
            overrides = (*before.overrides, before.source)
        self._objects[kind, name] = ContentObject(kind, name, source, file, overrides)

    def objects(self) -> tuple[ContentObject, ...]:
        """By kind, then by name."""
        return tuple(sorted(self._objects.values(), key=lambda one: (one.kind, one.name)))


def _named(
    parts: Iterable[Part],
    kind: Kind,
    entries: Callable[[Part], list[tuple[T, Path]]],
    name_of: Callable[[T], str],
    ledger: _Ledger,
) -> dict[str, T]:
    found: dict[str, T] = {}
    for part in parts:
        for entry, path in entries(part):
            ledger.enter(kind, name_of(entry), part.source, path)
            found[name_of(entry)] = entry
    return found


def _trees(parts: Sequence[Part], ledger: _Ledger) -> tuple[dict[str, Tree], dict[str, str]]:
    """Trees by name and reasons by alert: what explains an alert is what the last source says of it."""
    trees = _named(parts, "tree", lambda part: part.trees, lambda tree: tree.name, ledger)
    reasons: dict[str, str] = {}
    owner: dict[str, str | None] = {}  # alert -> its tree; None: a reason in its place
    for part in parts:
        for tree, _ in part.trees:
            if trees[tree.name] is tree:
                owner |= dict.fromkeys(tree.symptoms, tree.name)
        for (alert, reason), path in part.no_tree:
            ledger.enter("no_tree", alert, part.source, path)
            reasons[alert], owner[alert] = reason, None
    kept = {
        name: replace(tree, symptoms=tuple(alert for alert in tree.symptoms if owner[alert] == name))
        for name, tree in trees.items()
    }
    return kept, {alert: reason for alert, reason in reasons.items() if owner[alert] is None}


def _rules(parts: Sequence[Part], ledger: _Ledger) -> tuple[tuple[RuleGroup, ...], tuple[RuleGroup, ...]]:
    """Signals by group, other rules by name: `(signals, objectives and rules)` in the order of evaluation."""
    last_signals: dict[str, str] = {}
    last: dict[tuple[str, ...], str] = {}  # a rule's key -> the last source that has it
    for part in parts:
        for group, path in part.signals:
            ledger.enter("signal", group.name, part.source, path)
            last_signals[group.name] = part.source
        rules_of = [(rule, path) for group, path in (*part.objectives, *part.rules) for rule in group.rules]
        last |= {rule_key(rule): part.source for rule, _ in rules_of}
        # Several rules of one name in one file are one object: an alert of two severities.
        for kind, name, path in dict.fromkeys((*_kind_and_name(rule), path) for rule, path in rules_of):
            ledger.enter(kind, name, part.source, path)
    signals = [group for part in parts for group, _ in part.signals if last_signals[group.name] == part.source]
    builtin, *users = parts
    ordered = [
        *((part.source, group) for part in users for group, _ in part.objectives),
        *((builtin.source, group) for group, _ in (*builtin.objectives, *builtin.rules)),
        *((part.source, group) for part in users for group, _ in part.rules),
    ]
    rules = [
        replace(group, rules=tuple(rule for rule in group.rules if last[rule_key(rule)] == source))
        for source, group in ordered
    ]
    return tuple(signals), tuple(group for group in rules if group.rules)


def rule_key(rule: Rule) -> tuple[str, ...]:
    """Rules with the same key are the same thing to override: an alert by name, a recorded series with its labels."""
    if rule.kind == "alert":
        return ("alert", rule.name)
    return ("record", rule.name, *(f"{name}={value}" for name, value in rule.labels))


def _kind_and_name(rule: Rule) -> tuple[Kind, str]:
    if rule.kind == "alert":
        return "rule", rule.name
    labels = ",".join(f'{name}="{value}"' for name, value in rule.labels)
    shown = f"{rule.name}{{{labels}}}" if labels else rule.name
    return ("objective" if rule.name.startswith(OBJECTIVE_PREFIX) else "rule"), shown
