"""What the alerts of an incident say, by their trees. Pure.

The controller, a replay, the look back over a Prometheus and the benchmark ask here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from alerts.series.store import SeriesStore
from diagnostics.diagnosis import Diagnosis, undiagnosed
from diagnostics.evidence.calm import look_around
from diagnostics.evidence.judge import diagnose
from diagnostics.evidence.knowledge import Knowledge
from diagnostics.incident import FiredAlert, Incident, by_gravity, onset_of, told_elsewhere, with_diagnosis
from diagnostics.tree import Tree, tree_for_alert

DEFAULT_TREE = "latency"
LATER_S = 30.0  # beyond what two onsets are apart by how they are read
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
    told: frozenset[str] = frozenset(),
) -> Diagnosis:
    """What the trees of these alerts say, the gravest first; of alerts without a tree, what is seen where they are,
    or what to do instead.

    `told`: causes that other incidents were given (`told_elsewhere`).

    Where all of them rest, it is asked as of the last moment at which one fired: what comes and goes (a KV cache that
    is short at each burst) takes its evidence along, and is still what it was.
    """
    found = trees_for_alerts(trees, alerts)
    scope = with_alerts_pool(scope, alerts)
    now = last_fired(alerts, now)
    if not found:
        return _without_tree(knowledge, trees, no_tree, alerts, scope, store, now, told)
    return diagnose(knowledge, found, scope, store, now, onset, told, onsets_elsewhere(trees, found))


def _without_tree(
    knowledge: Knowledge,
    trees: Mapping[str, Tree],
    no_tree: Mapping[str, str],
    alerts: Sequence[FiredAlert],
    scope: Mapping[str, str],
    store: SeriesStore,
    now: float,
    told: frozenset[str],
) -> Diagnosis:
    """An alert that says nothing of what is wrong does not hide it: the cause of the symptoms there, unless another
    incident was given it, or it began after the alert. Of the fleet as a whole nobody looks around for it: such alerts
    are of what watches.
    """
    first = by_gravity(alerts)[0]
    word = replace(undiagnosed(first.name, no_tree.get(first.name), first.labels), at=now)
    seen = look_around(knowledge, trees, scope, store, now) if scope else word
    began = onset_of(first)
    is_later = began is not None and seen.onset is not None and seen.onset - began > LATER_S
    if seen.cause is None or seen.cause in told or is_later:
        return word
    return replace(seen, not_known=(*seen.not_known, word.title))


def diagnose_incidents(
    knowledge: Knowledge,
    trees: Mapping[str, Tree],
    no_tree: Mapping[str, str],
    incidents: Sequence[Incident],
    store: SeriesStore,
    now: float,
) -> list[Incident]:
    """These open incidents with what is said of each now, asked as they opened, in the order in which they were given.

    What the older one was given is told to the next, as where a controller takes them up one by one. An incident that
    comes with a diagnosis keeps since when the same was said of it.
    """
    current = {one.id: one for one in incidents}
    in_turn = sorted(current, key=lambda key: (current[key].opened_at, key))
    for is_again in (False, True):
        for key in in_turn:
            one = current[key]
            told = told_elsewhere(one, current.values())
            if is_again and (one.diagnosis is None or one.diagnosis.also not in told):
                continue  # what younger ones were given since is told to those whom it concerns
            found = diagnose_alerts(knowledge, trees, no_tree, one.alerts, one.scope, store, now, one.onset_at, told)
            before = one.diagnosis
            if before is not None and (before.cause, before.confidence) == (found.cause, found.confidence):
                found = replace(found, since=before.said_since)
            current[key] = with_diagnosis(one, found)
    return [current[one.id] for one in incidents]


def with_alerts_pool(scope: Mapping[str, str], alerts: Sequence[FiredAlert]) -> Mapping[str, str]:
    """The scope with the pool of all alerts that stand: an incident that once was about a model in two pools is asked
    about the one that is left, else no question about a pool has an answer."""
    if not scope or scope.get("node") or scope.get("pool"):
        return scope
    pools = {one.labels.get("pool", "") for one in alerts if one.state != "resolved"}
    return {**scope, "pool": pools.pop()} if len(pools) == 1 and all(pools) else scope


def last_fired(alerts: Sequence[FiredAlert], now: float) -> float:
    """The last moment at which one of them fired: now, where one still does."""
    ended = [(one.resolved_at, one) for one in alerts if one.state == "resolved" and one.resolved_at is not None]
    if len(ended) < len(alerts) or not ended:
        return now
    ended_at, last = max(ended, key=lambda pair: pair[0])
    return min(now, max(last.fired_at or 0.0, ended_at - LAST_LOOK_S))


def onsets_elsewhere(trees: Mapping[str, Tree], found: Sequence[Tree]) -> list[str]:
    """The symptom series of the trees that none of the alerts leads to."""
    asked = {tree.name for tree in found}
    return [template for tree in trees.values() if tree.name not in asked for template in tree.onset]


def trees_for_alerts(trees: Mapping[str, Tree], alerts: Sequence[FiredAlert]) -> list[Tree]:
    """The trees of the alerts that stand, else of all: of the gravest alert first, of equals of the first that fired.

    The names of alerts from outside are not ours to know: where none has a tree, the one that most pages lead to.
    """
    standing = [one for one in alerts if one.state != "resolved"] or list(alerts)
    named = [tree for one in by_gravity(standing) if (tree := tree_for_alert(trees, one.name)) is not None]
    if not named and DEFAULT_TREE in trees and any(one.source != "rules" for one in standing):
        return [trees[DEFAULT_TREE]]
    return list({tree.name: tree for tree in named}.values())
