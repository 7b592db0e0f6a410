"""An incident's charts in few columns: peaks stay, gaps stay, and what happened is marked."""

from __future__ import annotations

from diagnostics.record import EventRecord, Impact
from fleetctl.controller.incidents.incident_charts import charts_view, highest
from fleetctl.controller.incidents.incident_report import IncidentReport
from tests.fixtures.incident import OPENED, make_record


def series(node: str, slow_s: float) -> tuple[dict[str, str], list[tuple[float, float | None]]]:
    labels = {"__name__": "llm:ttft_seconds:p99", "node": node, "pool": "chat"}
    return labels, [(OPENED + at, slow_s if at > 0 else 0.2) for at in range(-600, 90, 5)]


def test_its_place_comes_before_its_peers_with_onset_runs_and_rollouts_marked() -> None:
    rollout = EventRecord(seq=3, at=OPENED - 40, kind="rollout.started", text="rollout of pool chat to r42")
    record = make_record(around=[rollout.model_dump()])
    shown = (series("node-1", 0.2), series("node-2", 3.0))
    report = IncidentReport(record, Impact(objective_ttft_s=2.5), shown, OPENED - 600, OPENED + 90)

    charts = charts_view(report, 30)

    (chart,) = charts.charts
    assert [(line.name, line.is_own) for line in chart.lines] == [("node-2", True), ("node-1", False)]
    assert (len(chart.lines[0].values), max(one or 0.0 for one in chart.lines[0].values)) == (30, 3.0)
    assert (chart.limit, chart.unit) == (2.5, "seconds")
    assert charts.since < OPENED < charts.until
    kinds = {mark.kind for mark in charts.marks}
    assert {"onset", "deploy", "action"} <= kinds
    assert [mark.at for mark in charts.marks] == sorted(mark.at for mark in charts.marks)


def test_a_column_has_its_highest_value_and_none_where_nothing_was_known() -> None:
    points = [(0.0, 1.0), (1.0, 9.0), (2.0, 2.0), (10.0, None), (39.0, float("nan")), (40.0, 0.0)]

    assert highest(points, 0.0, 40.0, 4) == [9.0, None, None, 0.0]
