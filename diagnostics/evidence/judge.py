"""The diagnosis of a scope: what was read, scored, and told so that a reader sees in ten seconds why. Pure.

The tree of the alerts is the order in which the evidence is shown; it decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from alerts.promql import evaluate
from alerts.sample import Sample
from alerts.series.store import SeriesStore
from diagnostics.diagnosis import Diagnosis, Evidence, Speaks
from diagnostics.evidence.changes import CHANGES_QUERY, STARTS_QUERY, recent_changes, seen_untold, starts_untold
from diagnostics.evidence.knowledge import Knowledge
from diagnostics.evidence.naming import Look, verdict
from diagnostics.evidence.onset import Onset, alert_onset
from diagnostics.evidence.reading import Readings, can_be_told, read_all
from diagnostics.evidence.score import rank_causes
from diagnostics.evidence.seen_changes import seen_changes
from diagnostics.evidence.symptom_onset import asked_at, onset_of_alerts
from diagnostics.evidence.verdict_title import answer_in_words
from diagnostics.expectation import Expectation, Place
from diagnostics.query import PLACEHOLDER, scope_matcher, store_query
from diagnostics.scope import scope_text
from diagnostics.tree import Tree
from diagnostics.walker import walk

# What users send and get: a fault that no series of the trees shows is in one of them.
TRAFFIC = (
    "sum(llm:arrivals:rate{{{scope}}})",
    "sum(llm:generation_tokens:rate{{{scope}}})",
    "sum(llm:aborted:rate{{{scope}}}) / (sum(llm:requests:rate{{{scope}}}) > 0)",
    "max(llm:arrivals_share{{{scope}}})",
    "avg(llm:e2e_seconds:mean{{{scope}}} > 0)",
)
RANK = {"unknown": 0, "likely": 1, "confirmed": 2}
STARTED_LATELY_S = 600.0  # as the question `started_lately`
ORDINARY_FROM = 0.2  # a yes that is so common speaks against nothing


def diagnose(
    knowledge: Knowledge,
    trees: Sequence[Tree],
    scope: Mapping[str, str],
    store: SeriesStore,
    now: float,
    active_at: float | None,
    told: frozenset[str] = frozenset(),
    elsewhere: Sequence[str] = (),
) -> Diagnosis:
    """What the trees of the alerts that stand, the gravest first, say of `scope`.

    `active_at`: when the first of the alerts began, None: now. `told`: causes that other incidents were given.
    `elsewhere`: symptom series of other trees, for alerts so old that what is asked about began later. Causes
    are scored for the trees that say what to ask; a tree with branches of its own is walked, and counts where it is
    surer.
    """
    active_at = now if active_at is None else active_at
    judged = [tree for tree in trees if tree.is_judged]
    found: list[Diagnosis] = []
    if judged:
        scope = with_pool(scope, store, now)
        own = [one for tree in judged for one in tree.onset]
        onset = onset_of_alerts(own, [*elsewhere, *TRAFFIC], scope, store, active_at, now)
        ask = [name for tree in judged for name in tree.ask]
        found.append(judge(knowledge, [tree.name for tree in judged], ask, scope, store, now, onset, told=told))
    found += [walk(tree, scope, store_query(store, now), now, active_at) for tree in trees if not tree.is_judged]
    return max(found, key=lambda one: RANK[one.confidence])  # the first of equals


def judge(
    knowledge: Knowledge,
    trees: Sequence[str],
    ask: Sequence[str],
    scope: Mapping[str, str],
    store: SeriesStore,
    now: float,
    onset: Onset | None = None,
    known: Readings | None = None,
    told: frozenset[str] = frozenset(),
) -> Diagnosis:
    """The causes of what the alerts of these trees, the gravest first, say of `scope` at Unix time `now`.

    `ask`: the questions that are shown in any case, in their order; no tree: of symptoms without an alert.
    `onset` None: what is asked about begins now. `known`: what was read already, of the same scope, time and onset.
    """
    onset = onset or alert_onset(now)
    known = known or {}
    left = [one for one in knowledge.questions.values() if one.id not in known]
    read = read_all(left, scope, store_query(store, now), asked_at(onset, store, now))
    readings = {name: known.get(name) or read[name] for name in knowledge.questions}
    ranking = rank_causes(knowledge.expectations, knowledge.questions, readings, trees, kind_of(scope))
    found = verdict(ranking, Look(knowledge, scope, trees, readings, told, now - onset.at))
    order = _order(ask, found, knowledge, readings)
    if (expects := _passes_unhurt(found, knowledge, readings)) is not None:
        order += [name for name in expects.hurts if name not in order]
        found = _nothing_wrong(expects, scope, starting_nodes(scope, store, now))
    said = {found.cause, found.also, found.runner_up}
    return replace(
        found,
        tree=trees[0] if trees else "",
        evidence=tuple(_told(readings[name], found, knowledge) for name in order),
        ruled_out=tuple(one.cause for one in ranking.excluded if one.cause not in said),
        why_not={
            one.cause: answer_in_words(readings[one.question]) for one in ranking.excluded if one.question in readings
        },
        not_known=_gaps(order, knowledge, readings),
        changes=_changes(scope, store, now, onset),
        at=now,
        onset=onset.at,
        onset_early=onset.early,
        onset_late=onset.late,
    )


def with_pool(scope: Mapping[str, str], store: SeriesStore, now: float) -> Mapping[str, str]:
    """The scope with the pool that its nodes have in common: a zone's questions about its pool are known too."""
    if not scope or scope.get("node") or scope.get("pool"):
        return scope
    pools = {sample.labels.get("pool", "") for sample in evaluate(f"llm:up{{{scope_matcher(scope)}}}", store, now)}
    return {**scope, "pool": pools.pop()} if len(pools) == 1 and all(pools) else scope


def _changes(scope: Mapping[str, str], store: SeriesStore, now: float, onset: Onset) -> tuple[str, ...]:
    told = evaluate(CHANGES_QUERY, store, now)
    seen = seen_untold(seen_changes(scope, store, now, onset), told)
    parts_of = [*told, *(one for one in seen if one.labels["kind"] in ("revision", "scale"))]
    return recent_changes([*told, *seen, *starts_untold(_starts(store, now, onset), parts_of)], scope, onset)


def _starts(store: SeriesStore, now: float, onset: Onset) -> list[Sample]:
    """When each process started, as it says now; of a node that says nothing any more, as it said before it began."""
    found = evaluate(STARTS_QUERY, store, now)
    known = {one.labels.get("node") for one in found}
    return found + [one for one in evaluate(STARTS_QUERY, store, onset.early) if one.labels.get("node") not in known]


def kind_of(scope: Mapping[str, str]) -> Place:
    """A node, a place of several, or the fleet."""
    return "node" if scope.get("node") else "pool" if scope else "fleet"


def _passes_unhurt(found: Diagnosis, knowledge: Knowledge, readings: Readings) -> Expectation | None:
    """What is at work, where it passes by itself and hurts nobody; None: it does, or nobody knows."""
    expects = knowledge.expectations.get(found.cause or "")
    if expects is None or not expects.hurts or found.also is not None:
        return None
    # Of an engine that has no time to the first token, or a node that nobody asks, the next that is told decides.
    hurts = [readings[name].answer for name in expects.hurts if name in readings and can_be_told(readings[name])]
    return None if "yes" in hurts or hurts[:1] != ["no"] else expects


def _nothing_wrong(expects: Expectation, scope: Mapping[str, str], starting: Sequence[str]) -> Diagnosis:
    where = {"where": scope_text(scope), "nodes": ", ".join(starting) or scope_text(scope)}
    what = PLACEHOLDER.sub(lambda match: where.get(match.group(1), match.group(0)), expects.unhurt)
    return Diagnosis("", None, f"Nothing is wrong: {what}, and users are served as promised", "confirmed")


def starting_nodes(scope: Mapping[str, str], store: SeriesStore, now: float) -> list[str]:
    """The nodes of the scope that load or warm up, by their own word or the controller's; else those just started."""
    where = scope_matcher(scope)
    told = f'fleet_node_phase{{phase="starting",{where}}} == 1'
    own = f'llm:node_state{{state=~"loading|warming_up",{where}}} == 1'
    for query in (f"{told} or {own}", f"llm:deploy_age_seconds{{{where}}} < {STARTED_LATELY_S:.0f}"):
        if found := {one.labels["node"] for one in evaluate(query, store, now) if one.labels.get("node")}:
            return sorted(found)
    return []


def _order(ask: Sequence[str], found: Diagnosis, knowledge: Knowledge, readings: Readings) -> list[str]:
    """What is shown: the trees' questions, those that decided, and whatever else is unusual."""
    shown = list(ask)
    for cause in (found.cause, found.also, found.runner_up):
        expects = knowledge.expectations.get(cause or "")
        if expects is not None:
            shown += [name for group in expects.must for name in group]
            shown += [name for name in expects.often if readings.get(name) and readings[name].answer != "unknown"]
    shown += [name for name, one in readings.items() if one.answer == "yes"]
    return [name for name in dict.fromkeys(shown) if name in readings]


def _told(one: Evidence, found: Diagnosis, knowledge: Knowledge) -> Evidence:
    if found.cause is None or one.answer == "unknown":
        return one
    base = knowledge.questions[one.question].base
    rates: dict[str, float] = {}
    for cause in (found.also, found.cause):
        if cause is not None:
            rates |= knowledge.expectations[cause].yes_rates
    rate = rates.get(one.question)
    if rate is None:
        return replace(one, speaks="against") if one.answer == "yes" and base <= ORDINARY_FROM else one
    is_for = (rate > base) == (one.answer == "yes")
    speaks: Speaks = "for" if is_for else "against"
    if rate < 0.5 and rate > base and one.answer == "no":
        speaks = ""  # it may be seen; that it is not says little
    return replace(one, speaks=speaks)


def _gaps(order: Sequence[str], knowledge: Knowledge, readings: Readings) -> tuple[str, ...]:
    return tuple(
        f"{readings[name].title} ({readings[name].why_unknown})"
        for name in order
        if readings[name].answer == "unknown" and not knowledge.questions[name].optional
    )
