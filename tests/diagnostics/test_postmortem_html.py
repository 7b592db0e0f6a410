"""The post-mortem as one HTML file: the page's statements, charts of its place, and nothing from anywhere else."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from diagnostics.postmortem import PostmortemInput, render
from diagnostics.postmortem_html import render_html
from diagnostics.record import Fate, Impact
from diagnostics.timechart import Chart, Line, draw_chart, thinned
from tests.fixtures.incident import OPENED, make_record

NASTY = '</td><script>alert(1)</script>"><img src=http://evil/x onerror=alert(2)> | [x](javascript:alert(3)) `'


def ttft(node: str, slow: float = 0.2) -> tuple[dict[str, str], list[tuple[float, float | None]]]:
    labels = {"__name__": "llm:ttft_seconds:p99", "node": node, "pool": "chat"}
    return labels, [(OPENED + at, slow if at > -15 else 0.2) for at in range(-300, 100, 5)]


class Tags(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs


def page(impact: Impact | None = None, **changes: object) -> str:
    report = PostmortemInput(make_record(**changes), written_at=OPENED + 95, impact=impact or Impact())
    return render_html(report, [ttft("node-2", 3.0), ttft("node-1")])


def test_it_needs_nothing_from_anywhere_whatever_texts_and_labels_hold() -> None:
    nasty = make_record().model_dump() | {"title": NASTY}
    nasty["alerts"][0] |= {"name": NASTY, "labels": {"node": NASTY, "pool": "chat"}}
    nasty["timeline"] = [{"at": OPENED, "kind": NASTY, "text": NASTY}]
    nasty["runs"][0] |= {"title": NASTY, "error": NASTY, "requested_by": NASTY, "reason": NASTY}
    impact = Impact(fates=[Fate(node=NASTY, outcome="failed", count=1)])
    report = PostmortemInput(make_record(**nasty), written_at=OPENED, impact=impact)
    series = [({"__name__": "llm:waiting", "node": NASTY, "pool": "chat"}, ((OPENED, 1.0), (OPENED + 5, 2.0)))]
    found = Tags(render_html(report, series))
    assert not {"script", "img", "iframe", "link", "object", "a"} & set(found.tags)
    assert not [name for name, _ in found.attributes if name.startswith("on") or name in ("src", "href")]
    assert "default-src 'none'" in dict(found.attributes).get("content", "") or any(
        "default-src 'none'" in (value or "") for _, value in found.attributes
    )


def test_it_states_what_the_markdown_page_states() -> None:
    impact = Impact(requests=90, lost=2, fates=[Fate(node="node-2", outcome="failed", count=2)])
    text = re.sub(r"<[^>]+>", " ", page(impact))
    for word in ("slow_node", "node-2 is slower than its peers", "Ruled out: prefix_cache_broken", "decided by ana"):
        assert word in text
        assert word.replace("_", "") in render(
            PostmortemInput(make_record(), written_at=OPENED, impact=impact)
        ).replace("\\", "").replace("_", "")


def test_a_rollout_before_the_onset_is_marked_in_every_chart() -> None:
    event = {"seq": 4, "at": OPENED - 60, "kind": "rollout.started", "text": "pool chat goes to r42"}
    drawn = page(around=[event])
    assert 'class="mark deploy"' in drawn
    assert "pool chat goes to r42" in drawn


def test_charts_show_the_incidents_place_before_its_peers_with_onset_alerts_and_actions() -> None:
    drawn = page(Impact(objective_ttft_s=2.0))
    assert drawn.count("<svg") == 1
    assert 'class="own"' in drawn
    assert 'class="peer"' in drawn
    for kind in ("onset", "alert", "action", "end"):
        assert f'class="mark {kind}"' in drawn
    assert 'class="limit"' in drawn


def test_no_series_is_said_and_not_drawn() -> None:
    report = PostmortemInput(make_record(), written_at=OPENED)
    assert "No series of its place were kept" in render_html(report, [])


def test_a_gap_is_a_gap_and_a_peak_is_never_thinned_away() -> None:
    points = [(float(at), 1.0) for at in range(5000)]
    points[1234] = (1234.0, 99.0)
    kept = thinned(points, 0, 4999)
    assert len(kept) <= 802
    assert (1234.0, 99.0) in kept
    gap = Chart("t", "count", (Line("a", ((0.0, 1.0), (10.0, None), (20.0, 2.0), (25.0, float("nan")), (30.0, 1.0))),))
    assert draw_chart(gap, (), 0, 40).count("<polyline") == 3
    assert draw_chart(Chart("t", "count", (Line("a", ((0.0, None),)),)), (), 0, 40) == ""
