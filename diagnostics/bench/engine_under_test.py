"""The seam between the benchmark and what is judged by it: one class has all that is asked of a diagnosis engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from alerts.series.store import SeriesStore
from diagnostics.calm import look_around
from diagnostics.diagnosis import Diagnosis, undiagnosed
from diagnostics.grouping import Kinds
from diagnostics.incident import FiredAlert, Incident, by_gravity
from diagnostics.query import store_query
from diagnostics.tree import Tree, alert_kinds, tree_for_alert
from diagnostics.tree_file import builtin_tree_files, load_trees
from diagnostics.walker import walk

_RANK = {"unknown": 0, "likely": 1, "confirmed": 2}
_PROBABILITY = {"confirmed": 0.95, "likely": 0.7}  # what the words promise, where no number is given


class Under:
    """The engine under test: decision trees, walked."""

    def __init__(self) -> None:
        self._trees: dict[str, Tree] = load_trees(builtin_tree_files())
        self.kinds: Kinds = alert_kinds(self._trees)

    def diagnose(self, incident: Incident, store: SeriesStore, now: float) -> Diagnosis:
        """What is said of an incident."""
        run_query = store_query(store, now)
        found = [
            walk(tree, incident.scope, run_query, now, incident.onset_at) for tree in self._trees_for(incident.alerts)
        ]
        if not found:
            return undiagnosed(by_gravity(incident.alerts)[0].name, None)
        return max(found, key=lambda one: _RANK[one.confidence])

    def inquire(self, scope: Mapping[str, str], store: SeriesStore, now: float) -> Diagnosis:
        """What is said to a person who asks about a place without an incident."""
        return look_around(scope, store_query(store, now), now)

    def causes(self, diagnosis: Diagnosis) -> list[str]:
        """The causes that a diagnosis names, best first."""
        return [diagnosis.cause] if diagnosis.cause else []

    def runners_up(self, diagnosis: Diagnosis) -> list[str]:
        """What else it may be."""
        del diagnosis
        return []

    def probability(self, diagnosis: Diagnosis) -> float | None:
        """How sure it is of its first cause; None: it names none."""
        return _PROBABILITY.get(diagnosis.confidence) if diagnosis.cause else None

    def is_calm(self, diagnosis: Diagnosis) -> bool:
        """Whether it says that nothing is wrong."""
        return diagnosis.cause is None and diagnosis.confidence == "confirmed"

    def _trees_for(self, alerts: Sequence[FiredAlert]) -> list[Tree]:
        standing = [one for one in alerts if one.state != "resolved"] or list(alerts)
        named = [tree for one in by_gravity(standing) if (tree := tree_for_alert(self._trees, one.name)) is not None]
        return list({tree.name: tree for tree in named}.values())
