"""The seam between the benchmark and what is judged by it: one class has all that is asked of a diagnosis engine."""

from __future__ import annotations

from collections.abc import Mapping

from alerts.series.store import SeriesStore
from diagnostics.cause import Cause, builtin_causes
from diagnostics.diagnosis import Diagnosis
from diagnostics.evidence.calm import look_around
from diagnostics.evidence.knowledge import builtin_knowledge
from diagnostics.grouping import Kinds
from diagnostics.incident import Incident
from diagnostics.inquiry import diagnose_alerts
from diagnostics.tree import Tree, alert_kinds
from diagnostics.tree_file import builtin_tree_files, load_trees

_PROBABILITY = {"confirmed": 0.95, "likely": 0.7}  # what the words promise, where no number is given


class Under:
    """The engine under test: the content that comes with this package, asked as the controller asks it."""

    def __init__(self) -> None:
        self.trees: dict[str, Tree] = load_trees(builtin_tree_files())
        self.all_causes: Mapping[str, Cause] = builtin_causes()
        self.kinds: Kinds = alert_kinds(self.trees)
        self.knowledge = builtin_knowledge()

    def diagnose(self, incident: Incident, store: SeriesStore, now: float) -> Diagnosis:
        """What is said of an incident."""
        return diagnose_alerts(
            self.knowledge, self.trees, {}, incident.alerts, incident.scope, store, now, incident.onset_at
        )

    def inquire(self, scope: Mapping[str, str], store: SeriesStore, now: float) -> Diagnosis:
        """What is said to a person who asks about a place without an incident."""
        return look_around(self.knowledge, self.trees, scope, store, now)

    def causes(self, diagnosis: Diagnosis) -> list[str]:
        """The causes that a diagnosis names, best first."""
        return [cause for cause in (diagnosis.cause, diagnosis.also if diagnosis.cause else None) if cause]

    def runners_up(self, diagnosis: Diagnosis) -> list[str]:
        """What else it may be."""
        return [diagnosis.runner_up] if diagnosis.runner_up else []

    def probability(self, diagnosis: Diagnosis) -> float | None:
        """How sure it is of its first cause; None: it names none."""
        if diagnosis.cause is None:
            return None
        return diagnosis.probability if diagnosis.probability is not None else _PROBABILITY.get(diagnosis.confidence)

    def remedy_words(self, cause: str) -> frozenset[str]:
        """The words of the page that treats a cause: replace-gpu-node is replace, gpu and node."""
        known = self.all_causes.get(cause)
        return frozenset(known.page.split("-")) if known is not None and known.page else frozenset()

    def is_calm(self, diagnosis: Diagnosis) -> bool:
        """Whether it says that nothing is wrong."""
        return diagnosis.cause is None and diagnosis.confidence == "confirmed"
