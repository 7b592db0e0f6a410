"""What a rule says, for a person: its expression, the reason its author wrote above it, and what it measures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import promql_parser as grammar
import yaml

from alerts.evaluation.rules import AlertingRule, load_rule_file
from alerts.evaluation.yaml_file import read_yaml, shown_path
from alerts.review.conditions import COMPARISONS


@dataclass(frozen=True, slots=True)
class RuleView:
    """`subject` is the expression whose value is compared: what to look at while the alert does not fire."""

    file: str
    group: str
    name: str
    kind: str
    severity: str
    expr: str
    subject: str
    for_s: float
    keep_firing_for_s: float
    reason: str
    summary: str
    runbook_url: str


def rule_views(paths: Sequence[Path]) -> list[RuleView]:
    """Every rule of the files, in order. Raises BadRuleError."""
    views = []
    for path in paths:
        groups = load_rule_file(path)
        reasons = iter(_reasons(path))
        for group in groups:
            for rule in group.rules:
                texts = {name: template.text for name, template in getattr(rule, "annotations", ())}
                views.append(
                    RuleView(
                        file=shown_path(path),
                        group=group.name,
                        name=rule.name,
                        kind=rule.kind,
                        severity=_label(rule, "severity") if isinstance(rule, AlertingRule) else "",
                        expr=rule.query.text.strip(),
                        subject=subject_of(rule.query.text),
                        for_s=rule.for_s if isinstance(rule, AlertingRule) else 0.0,
                        keep_firing_for_s=rule.keep_firing_for_s if isinstance(rule, AlertingRule) else 0.0,
                        reason=next(reasons),
                        summary=texts.get("summary", ""),
                        runbook_url=texts.get("runbook_url", ""),
                    )
                )
    return views


def _label(rule: AlertingRule, wanted: str) -> str:
    return next((template.text for name, template in rule.labels if name == wanted), "")


def subject_of(expression: str) -> str:
    """The leftmost side of comparisons and of and/or/unless (`x` of `x > 5 and y`), else the expression itself."""
    node = grammar.parse(expression)
    while True:
        if isinstance(node, grammar.ParenExpr):
            node = node.expr
        elif isinstance(node, grammar.BinaryExpr) and str(node.op) in COMPARISONS | {"and", "or", "unless"}:
            node = node.lhs
        else:
            return str(node.prettify())


def _reasons(path: Path) -> list[str]:
    """The comment right above each rule, paragraphs kept; "" without one."""
    lines = path.read_bytes().decode("utf-8", "replace").splitlines()
    root = read_yaml(path).root
    reasons = []
    for group in _sequence(root, "groups"):
        for rule in _sequence(group, "rules"):
            above: list[str] = []
            at = rule.start_mark.line - 1
            while at >= 0 and lines[at].lstrip().startswith("#"):
                above.insert(0, lines[at].strip().removeprefix("#").removeprefix(" "))
                at -= 1
            reasons.append("\n".join(above))
    return reasons


def _sequence(node: yaml.Node | None, key: str) -> list[yaml.Node]:
    if not isinstance(node, yaml.MappingNode):
        return []
    found = next((value for name, value in node.value if getattr(name, "value", None) == key), None)
    return list(found.value) if isinstance(found, yaml.SequenceNode) else []
