"""What is told of a node that says nothing any more: when it started, and when it stopped."""

from __future__ import annotations

from alerts.sample import STALE_NAN
from alerts.series.store import SeriesStore
from diagnostics.evidence.judge import judge
from diagnostics.evidence.knowledge import knowledge_of
from diagnostics.evidence.onset import Onset
from diagnostics.evidence.symptom_onset import onset_of_series
from diagnostics.tree_file import builtin_tree_files, load_trees

NOW = 1_700_000_100.0
STOPPED = NOW - 30
STARTED = NOW - 300
NODES = ("node-1", "node-2", "node-3")


def place(node: str) -> dict[str, str]:
    return {"pool": "chat", "model": "m", "engine": "fleetctl", "node": node}


def test_a_node_that_started_with_the_others_and_is_dead_is_told_with_them() -> None:
    store = SeriesStore(retention_s=10_000, max_points=1_000_000)
    for node in NODES:
        for at in range(int(STARTED) + 5, int(NOW) + 1, 5):
            is_dead = node == "node-2" and at > STOPPED
            value = STALE_NAN if is_dead else at - STARTED
            store.append({"__name__": "llm:deploy_age_seconds", **place(node)}, float(at), value)
    onset = Onset(STOPPED, STOPPED - 5, STOPPED, "a test")

    found = judge(knowledge_of({}, {}), ["node"], [], {"node": "node-2", "pool": "chat"}, store, NOW, onset)

    assert found.changes == ("start of node-1, node-2, node-3, 4 min 30 s before it began",)


def test_a_core_that_hangs_began_to_as_its_alert_says_and_not_as_traffic_changed_before() -> None:
    """Its steps were fewer since a replacement, two minutes before: it was told to have begun with that."""
    store = SeriesStore(retention_s=10_000, max_points=1_000_000)
    for at in range(int(NOW) - 900, int(NOW) + 1, 5):
        rate = 0.0 if at > STOPPED else 4.0 if at > STOPPED - 110 else 20.0 + at % 3
        for name, value in (("llm:up", 1.0), ("llm:core_up", 1.0), ("llm:steps:rate", rate)):
            store.append({"__name__": name, **place("node-1")}, float(at), value)

    scope = {"node": "node-1", "pool": "chat"}
    onset = onset_of_series(load_trees(builtin_tree_files())["node"].onset, scope, store, STOPPED, NOW)

    assert onset.early <= STOPPED <= onset.late
    assert onset.at == STOPPED
