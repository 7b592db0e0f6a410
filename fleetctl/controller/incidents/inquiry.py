"""A diagnosis that a person asks for, incident or not: what is wrong here, if anything is?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from alerts.evaluation.alert import ActiveAlert
from alerts.promql import evaluate
from alerts.series.store import SeriesStore
from diagnostics.content_file import unknown
from diagnostics.diagnosis import Diagnosis, Evidence, undiagnosed
from diagnostics.evidence.calm import look_around
from diagnostics.evidence.judge import diagnose
from diagnostics.evidence.symptom_onset import AGED_S, has_always_stood, kept_since
from diagnostics.incident import FiredAlert, by_gravity, fired_alert, onset_of
from diagnostics.inquiry import onsets_elsewhere
from diagnostics.scope import PLACES, node_scope, nodes_in_scope, scope_contains, scope_of, shared_places
from diagnostics.severity import severity_rank
from diagnostics.tree import Tree, tree_for_alert
from fleetctl.controller.content.store import ContentStore
from fleetctl.controller.incidents.its_node import those_with_it
from fleetctl.controller.nodes.fleet import Fleet
from fleetctl.kit.clock import Clock
from fleetctl.kit.errors import BadInputError

_STANDS = ("pending", "firing", "unknown")
MAX_PENDING_TREES = 3  # of a verdict's time: each is judged anew
_NODES_WITH_SIGNALS = 'group by (node, pool, model, zone, revision) ({__name__=~"llm:.+",node!=""})'


class Inquiry:
    """Answers `diagnose`: from the alerts that stand there, else by looking around. Nothing is stored."""

    def __init__(
        self,
        content: ContentStore,
        store: SeriesStore,
        fleet: Fleet,
        alerts: Callable[[], Sequence[ActiveAlert | FiredAlert]],
        clock: Clock,
    ) -> None:
        self._content = content
        self._store = store
        self._fleet = fleet
        self._alerts = alerts
        self._clock = clock

    def diagnose(self, tree_name: str | None, scope: Mapping[str, str]) -> Diagnosis:
        """The gravest alert's tree, of equals one that has not always stood; of a named tree, its walk; where no alert
        stands, what looking around shows.

        Raises BadInputError when the fleet has no such node or place, or content no such tree.
        """
        now = self._clock.now()
        where = self._known_scope(scope, now)
        trees = self._content.current.trees
        if tree_name is not None and tree_name not in trees:
            reason, remedy = unknown("tree", tree_name, trees)
            raise BadInputError(reason, remedy=remedy or f"fleetctl diagnose --tree {sorted(trees)[0]}")
        known = self._known_nodes(now)
        standing = by_gravity([one for one in map(partial(_placed, known), self._standing()) if _concerns(one, where)])
        firing = self._in_turn([one for one in standing if one.state == "firing"], now)
        # What has been about to fire for minutes may be of before: a slow ticket must not date what fires now.
        if tree_name is not None:
            first = (firing or standing)[:1]
            onset = _began(first[0], firing or standing) if first else None
            return self._judged([trees[tree_name]], where, now, onset)
        if not firing:
            return self._of_calm(standing, where, now)
        for alert in firing:
            if (tree := tree_for_alert(trees, alert.name)) is not None:
                onset = _began(alert, firing)
                found = self._judged([tree], self._place_of(alert, firing, where, now), now, onset)
                return _beside_older(found, onset, firing)
        content = self._content.current
        around = look_around(content.knowledge, content.trees, where, self._store, now)
        return around if around.cause is not None else self._untold(firing[0], now)

    def _of_calm(self, pending: Sequence[FiredAlert], where: Mapping[str, str], now: float) -> Diagnosis:
        """First what is seen, as what is about to fire is of a part of it or of something older; then, each dated by
        itself, the first of those that has a cause which can be behind it."""
        content = self._content.current
        around = look_around(content.knowledge, content.trees, where, self._store, now)
        if around.cause is not None or not pending:
            return self._at_its_node(around, where, now)
        judged: dict[str, Diagnosis] = {}
        for alert in pending:
            tree = tree_for_alert(content.trees, alert.name)
            if tree is None or tree.name in judged or len(judged) == MAX_PENDING_TREES:
                continue
            found = self._judged([tree], self._place_of(alert, pending, where, now), now, onset_of(alert))
            if tree.name in content.knowledge.explains.get(found.cause or "", ()):
                return found
            judged[tree.name] = found
        by_cause = sorted(judged.values(), key=lambda one: one.cause is None)
        return by_cause[0] if by_cause else self._untold(pending[0], now)

    def _at_its_node(self, found: Diagnosis, where: Mapping[str, str], now: float) -> Diagnosis:
        """What "a node of" the place has, as it is told of that node, which has a name: where one alone has it."""
        if not found.is_of_one:
            return found
        known = self._known_nodes(now)
        its = those_with_it(found, nodes_in_scope(where, known), known, self._content.current, self._store, now)
        return next(iter(its.values())) if its is not None and len(its) == 1 else found

    def _untold(self, alert: FiredAlert, now: float) -> Diagnosis:
        reason = self._content.current.no_tree.get(alert.name)
        return replace(undiagnosed(alert.name, reason, alert.labels), at=now)

    def _place_of(
        self, alert: FiredAlert, standing: Sequence[FiredAlert], where: Mapping[str, str], now: float
    ) -> Mapping[str, str]:
        """What is asked about: the alert's own place, and of nodes that have it together the place that they share."""
        if not scope_contains(where, alert.labels):
            return where
        node = alert.labels.get("node")
        nodes = {one.labels["node"] for one in standing if one.name == alert.name and one.labels.get("node")}
        shared = shared_places(alert.name, nodes, self._known_nodes(now)) if len(nodes) > 1 else []
        around = next((one.scope for one in shared if node in one.nodes), None)
        if around is None:
            return scope_of(alert.labels)
        return around if scope_contains(where, around) else where

    def _judged(self, trees: Sequence[Tree], where: Mapping[str, str], now: float, onset: float | None) -> Diagnosis:
        content = self._content.current
        elsewhere = onsets_elsewhere(content.trees, trees)
        return diagnose(content.knowledge, trees, where, self._store, now, onset, elsewhere=elsewhere)

    def _in_turn(self, firing: Sequence[FiredAlert], now: float) -> list[FiredAlert]:
        """The gravest first; of equals those that have always stood come last: what is asked about began since."""
        since = kept_since(self._store)

        def is_old(alert: FiredAlert) -> bool:
            at = onset_of(alert)
            return at is not None and since is not None and has_always_stood(at, at, since, now)

        return sorted(firing, key=lambda one: (-severity_rank(one.severity), is_old(one)))

    def _standing(self) -> list[FiredAlert]:
        alerts = [one if isinstance(one, FiredAlert) else fired_alert(one) for one in self._alerts()]
        return [one for one in alerts if one.state in _STANDS]

    def _known_scope(self, scope: Mapping[str, str], now: float) -> dict[str, str]:
        """The scope as it is known: a node with its own pool and model; without any word, the only pool."""
        known = self._known_nodes(now)
        if (name := scope.get("node")) is not None:
            if name not in known:
                reason, remedy = unknown("node", name, known)
                raise BadInputError(reason, remedy=remedy or "fleetctl get nodes")
            return node_scope(name, known)
        for place in PLACES:
            values = {value for node in known.values() if (value := node.get(place))}
            if scope.get(place) and scope[place] not in values:
                reason, remedy = unknown(place, scope[place], values)
                raise BadInputError(reason, remedy=remedy or "fleetctl get nodes")
        pools = {node["pool"] for node in known.values() if "pool" in node}
        return dict(scope) if scope or len(pools) != 1 else {"pool": pools.pop()}

    def _known_nodes(self, now: float) -> dict[str, dict[str, str]]:
        """The places of each node: of those that we started, and of those that signals alone tell about."""
        known: dict[str, dict[str, str]] = {}
        for sample in evaluate(_NODES_WITH_SIGNALS, self._store, now):
            labels = sample.labels
            known[labels["node"]] = {place: labels[place] for place in PLACES if labels.get(place)}
        for state in self._fleet.nodes.values():
            if state.row.wanted:
                spec = state.row.spec
                known[state.name] = {place: value for place in PLACES if (value := getattr(spec, place))}
        return known


def _placed(known: Mapping[str, Mapping[str, str]], alert: FiredAlert) -> FiredAlert:
    """With the places of its node: an alert of a gateway names the node alone."""
    return replace(alert, labels={**known.get(alert.labels.get("node", ""), {}), **alert.labels})


def _began(alert: FiredAlert, others: Sequence[FiredAlert]) -> float | None:
    """When what the alert tells began: with the first of those that began within `AGED_S` before it."""
    own = onset_of(alert)
    if own is None:
        return None
    return min(at for one in (alert, *others) if (at := onset_of(one)) is not None and at >= own - AGED_S)


def _beside_older(found: Diagnosis, onset: float | None, firing: Sequence[FiredAlert]) -> Diagnosis:
    """With the alerts that stand beside it since before it began: they are another story, and are told."""
    told = [one.name for one in firing if onset is not None and (at := onset_of(one)) is not None and at < onset]
    if not told:
        return found
    names = ", ".join(dict.fromkeys(told))
    older = Evidence(
        "older_alerts", f"Do older alerts stand beside it ({names})?", "yes", value=float(len(told)), unit="count"
    )
    return replace(found, evidence=(*found.evidence, older))


def _concerns(alert: FiredAlert, where: Mapping[str, str]) -> bool:
    """Whether the alert is about something in that place, or about a place around it."""
    about = scope_of(alert.labels)
    return scope_contains(where, alert.labels) or (not about.get("node") and scope_contains(about, where))
