"""Charts of blocks: marks stand over their moment, lines compare, and what was not known is a gap."""

from __future__ import annotations

from fleetctl.tui.cell import Tone
from fleetctl.tui.chart_view import COLUMNS, blocks, chart_section, marks_line
from fleetctl.wire.chart import ChartLine, ChartMark, IncidentChart, IncidentCharts


def charts(*lines: ChartLine, limit: float | None = None) -> IncidentCharts:
    chart = IncidentChart(title="p99 time to first token", unit="seconds", limit=limit, lines=list(lines))
    return IncidentCharts(since=0.0, until=400.0, charts=[chart])


def test_a_mark_stands_over_its_moment_and_the_onset_before_an_alert_of_the_same_column() -> None:
    marks = [
        ChartMark(at=100.0, text="it began", kind="onset"),
        ChartMark(at=102.0, text="LLMNodeSlow fired", kind="alert"),
        ChartMark(at=400.0, text="resolved", kind="end"),
    ]

    line = marks_line(marks, 0.0, 400.0)

    assert line == " " * 12 + "o" + " " * 34 + "e"
    assert len(line) == COLUMNS


def test_lines_of_a_chart_share_a_scale_and_leave_a_gap_where_nothing_was_known() -> None:
    assert blocks(ChartLine(name="a", values=[0.0, None, 2.0, 4.0]), 4.0) == "▁ ▅█"
    assert blocks(ChartLine(name="b", values=[0.0, 0.0]), 0.0) == "▁▁"


def test_the_last_value_is_told_and_is_bad_above_what_is_promised() -> None:
    own = ChartLine(name="node-2", values=[0.2, 4.0])
    peer = ChartLine(name="node-1", is_own=False, values=[0.2, None])

    (_, title, first, second) = chart_section(charts(own, peer, limit=2.5)).rows

    assert title[1].text == "p99 time to first token, up to 4.0s, promised 2.5s"
    assert [cell.text for cell in first] == ["node-2", "▁█", "4.0s"]
    assert first[2].tone is Tone.BAD
    assert second[2].text == "-"


def test_charts_that_are_gone_say_why() -> None:
    assert chart_section(None, "its black box is not there").heading.text == (
        "Charts: not known: its black box is not there"
    )
    assert "no series" in chart_section(IncidentCharts(since=0.0, until=1.0)).heading.text
