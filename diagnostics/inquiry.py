"""What is said of a place: of the alerts that stand there, else of what its series show by themselves. Pure.

The controller's `diagnose`, the same over a Prometheus, and the benchmark ask here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from alerts.series.store import SeriesStore
from diagnostics.calm import look_around
from diagnostics.diagnosis import Diagnosis, undiagnosed
from diagnostics.evidence.judge import CONFIRMED_FROM, RANK, Knowledge, diagnose, judge, onset_of_series
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
    """Where no alert stands: a cause only if the evidence confirms it, else whether anything is a symptom."""
    run_query = store_query(store, now)
    calm = look_around(scope, run_query, now)
    judged = [tree for tree in trees.values() if tree.is_judged]
    if not judged:
        return calm
    onset = onset_of_series([one for tree in judged for one in tree.onset], scope, store, now, now)
    found = judge(knowledge, [], scope, run_query, now, onset)
    is_sure = found.cause is not None and RANK[found.confidence] > 1 and (found.probability or 0) >= CONFIRMED_FROM
    return found if is_sure else calm
