"""What is said of a place: of the alerts that stand there, else of what its series show by themselves. Pure.

The controller's `diagnose`, the same over a Prometheus, and the benchmark ask here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from alerts.series.store import SeriesStore
from diagnostics import calm
from diagnostics.diagnosis import Diagnosis, undiagnosed
from diagnostics.evidence.calm import look_around
from diagnostics.evidence.judge import Knowledge, diagnose
from diagnostics.incident import FiredAlert, by_gravity
from diagnostics.query import store_query
from diagnostics.tree import Tree, tree_for_alert


def diagnose_alerts(
    knowledge: Knowledge,
    trees: Mapping[str, Tree],
    no_tree: Mapping[str, str],
    alerts: Sequence[FiredAlert],
    scope: Mapping[str, str],
    store: SeriesStore,
    now: float,
    onset: float | None,
) -> Diagnosis:
    """What the trees of these alerts say, the gravest first; of alerts without a tree, what to do instead."""
    standing = [one for one in alerts if one.state != "resolved"] or list(alerts)
    named = [tree for one in by_gravity(standing) if (tree := tree_for_alert(trees, one.name)) is not None]
    found = list({tree.name: tree for tree in named}.values())
    if not found:
        name = by_gravity(standing)[0].name
        return replace(undiagnosed(name, no_tree.get(name)), at=now)
    return diagnose(knowledge, found, scope, store, now, onset)


def diagnose_calm(
    knowledge: Knowledge, trees: Mapping[str, Tree], scope: Mapping[str, str], store: SeriesStore, now: float
) -> Diagnosis:
    """Where no alert stands: what symptoms without one are of, else that nothing is wrong."""
    if any(one.symptom for one in knowledge.questions.values()):
        return look_around(knowledge, trees, scope, store, now)
    return calm.look_around(scope, store_query(store, now), now)
