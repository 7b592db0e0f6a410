"""What the alerts of an incident say, by their trees. Pure.

The controller, a replay, the look back over a Prometheus and the benchmark ask here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from alerts.series.store import SeriesStore
from diagnostics.diagnosis import Diagnosis, undiagnosed
from diagnostics.evidence.judge import Knowledge, diagnose
from diagnostics.incident import FiredAlert, by_gravity
from diagnostics.tree import Tree, tree_for_alert

DEFAULT_TREE = "latency"
LAST_LOOK_S = 15.0  # a rule is evaluated so often: before its alert ended


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
    """What the trees of these alerts say, the gravest first; of alerts without a tree, what to do instead.

    Where all of them rest, it is asked as of the last moment at which one fired: what comes and goes (a KV cache that
    is short at each burst) takes its evidence along, and is still what it was.
    """
    found = trees_for_alerts(trees, alerts)
    now = last_fired(alerts, now)
    if not found:
        name = by_gravity(alerts)[0].name
        return replace(undiagnosed(name, no_tree.get(name)), at=now)
    return diagnose(knowledge, found, scope, store, now, onset)


def last_fired(alerts: Sequence[FiredAlert], now: float) -> float:
    """The last moment at which one of them fired: now, where one still does."""
    ended = [(one.resolved_at, one) for one in alerts if one.state == "resolved" and one.resolved_at is not None]
    if len(ended) < len(alerts) or not ended:
        return now
    ended_at, last = max(ended, key=lambda pair: pair[0])
    return min(now, max(last.fired_at or 0.0, ended_at - LAST_LOOK_S))


def trees_for_alerts(trees: Mapping[str, Tree], alerts: Sequence[FiredAlert]) -> list[Tree]:
    """The trees of the alerts that stand, else of all: of the gravest alert first, of equals of the first that fired.

    The names of alerts from outside are not ours to know: where none has a tree, the one that most pages lead to.
    """
    standing = [one for one in alerts if one.state != "resolved"] or list(alerts)
    named = [tree for one in by_gravity(standing) if (tree := tree_for_alert(trees, one.name)) is not None]
    if not named and DEFAULT_TREE in trees and any(one.source != "rules" for one in standing):
        return [trees[DEFAULT_TREE]]
    return list({tree.name: tree for tree in named}.values())
