"""Why an alert stands as it does: each part of its rule's expression with its value where the alert is. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from alerts.errors import AlertsError
from alerts.evaluation.rules import AlertingRule, RuleGroup
from alerts.promql import evaluate
from alerts.review.conditions import conditions_of
from alerts.series.store import SeriesStore
from fleetctl.wire.alert import AlertExplanation, AlertPart


def find_rule(groups: Sequence[RuleGroup], name: str) -> AlertingRule | None:
    """The alerting rule of this name that is in force; the first where there are several."""
    rules = (rule for group in groups for rule in group.rules)
    return next((rule for rule in rules if isinstance(rule, AlertingRule) and rule.name == name), None)


def explain_alert(rule: AlertingRule, labels: Mapping[str, str], store: SeriesStore, now: float) -> AlertExplanation:
    """Each part of the rule, and what it comes to for the alert with these labels."""
    parts = [
        AlertPart(
            joined=one.joined,
            expression=one.left,
            comparison=one.comparison,
            limit=one.right,
            value=_value(one.left, labels, store, now),
            limit_value=_value(one.right, labels, store, now) if one.right else None,
        )
        for one in conditions_of(rule.query.text)
    ]
    return AlertExplanation(name=rule.name, expression=rule.query.text.strip(), for_s=rule.for_s, parts=parts)


def _value(expression: str, labels: Mapping[str, str], store: SeriesStore, now: float) -> float | None:
    """The one value whose labels do not contradict the alert's; None where there is none, or more than one."""
    try:
        samples = evaluate(expression, store, now)
    except AlertsError:
        return None  # a part that only means something inside of the whole
    fitting = [
        sample.value
        for sample in samples
        if all(labels.get(name, value) == value for name, value in sample.labels.items() if name != "__name__")
    ]
    return fitting[0] if len(fitting) == 1 and fitting[0] == fitting[0] else None
