"""What somebody is told who asks: what fires now is of now, whatever has been about to fire for long."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from alerts.series.store import SeriesStore
from diagnostics.evidence.judge import builtin_knowledge
from diagnostics.incident import FiredAlert
from diagnostics.tree_file import builtin_tree_files, load_trees
from fleetctl.controller.incidents.inquiry import Inquiry
from tests.fixtures.driven import DrivenClock

NOW = 1_800_000_000.0
PLACE = {"node": "node-1", "pool": "default", "model": "m"}


def ask(*alerts: FiredAlert) -> float | None:
    store = SeriesStore()
    for age in range(600, -1, -5):
        store.append({"__name__": "llm:up", **PLACE, "engine": "fleetctl"}, NOW - age, 1.0)
    content = SimpleNamespace(
        current=SimpleNamespace(knowledge=builtin_knowledge(), trees=load_trees(builtin_tree_files()), no_tree={}),
    )
    fleet = SimpleNamespace(nodes={})
    inquiry = Inquiry(content, store, fleet, lambda: alerts, DrivenClock(NOW))  # type: ignore[arg-type]
    return inquiry.diagnose(None, {"pool": "default"}).onset


def alert(name: str, state: str, began_s_ago: float) -> FiredAlert:
    return FiredAlert(name, name, "ticket", state, PLACE, active_at=NOW - began_s_ago, fired_at=NOW)


@pytest.mark.parametrize("state", ["pending", "firing"])
def test_what_fires_is_dated_by_itself_and_not_by_what_waits_to_fire(state: str) -> None:
    onset = ask(alert("LLMQueueWait", state, 500.0), alert("LLMTTFTRegression", "firing", 20.0))
    assert onset is not None
    assert (NOW - onset < 60.0) == (state == "pending")
