"""What rules would have said: the same as the live rule engine said, tick by tick, and what follows from it."""

from __future__ import annotations

import gzip
import random
from array import array
from pathlib import Path

import pytest

from alerts.errors import BadRecordingError, QueryError
from alerts.evaluation.builtin import builtin_rule_files, builtin_signal_files
from alerts.evaluation.engine import RuleEngine
from alerts.evaluation.rules import RuleGroup, load_rule_file, load_rule_files
from alerts.history.backtest import Firing, in_order, needs_order, run_backtest, widened
from alerts.history.recording import read_recordings, recording_store, wanted_names
from alerts.labels import METRIC_NAME, LabelSet
from alerts.series.store import SeriesStore

BASE = 1_700_000_100.0
STEP_S = 15.0


def rules(tmp_path: Path, text: str) -> list[RuleGroup]:
    path = tmp_path / "rules.yml"
    path.write_text(text)
    return load_rule_file(path)


def alert(expr: str, **keys: str) -> str:
    extra = "".join(f", {name}: {value}" for name, value in keys.items())
    return (
        "groups: [{name: g, rules: [{alert: A, expr: '" + expr + "', labels: {severity: page}, "
        "annotations: {summary: '{{ $labels.node }} has {{ $value }}'}" + extra + "}]}]"
    )


def store_of(**series: list[float | None]) -> SeriesStore:
    """x{node=<name>} with one value a step; None is a gap."""
    store = recording_store()
    for node, values in series.items():
        points = [(round((BASE + i * STEP_S) * 1000), value) for i, value in enumerate(values) if value is not None]
        times, numbers = array("q", (at for at, _ in points)), array("d", (value for _, value in points))
        store.append_points(LabelSet.of({METRIC_NAME: "x", "node": node}), times, numbers)
    return store


def backtest(groups: list[RuleGroup], store: SeriesStore, steps: int, **more: object) -> tuple[Firing, ...]:
    end = BASE + (steps - 1) * STEP_S
    return run_backtest(groups, store, BASE, end, step_s=STEP_S, **more).firings  # type: ignore[arg-type]


def test_fires_once_the_condition_has_held_and_resolves_when_it_ends(tmp_path: Path) -> None:
    store = store_of(a=[0, 9, 9, 9, 9, 0, 0], b=[9, 0, 9, 0, 9, 0, 0])
    (firing,) = backtest(rules(tmp_path, alert("x > 5", **{"for": "30s"})), store, 7)
    assert (firing.active_at, firing.fired_at, firing.resolved_at) == (BASE + 15, BASE + 45, BASE + 75)
    assert firing.summary == "a has 9"
    assert firing.labels == {"node": "a", "severity": "page"}


def test_alert_that_still_fires_has_no_end(tmp_path: Path) -> None:
    (firing,) = backtest(rules(tmp_path, alert("x > 5")), store_of(a=[0, 9, 9]), 3)
    assert firing.resolved_at is None


def test_short_pauses_are_one_firing_when_it_is_kept(tmp_path: Path) -> None:
    store = store_of(a=[9, 0, 9, 0, 0, 0, 0, 9])
    assert len(backtest(rules(tmp_path, alert("x > 5")), store, 8)) == 3
    kept = backtest(rules(tmp_path, alert("x > 5", keep_firing_for="30s")), store_of(a=[9, 0, 9, 0, 0, 0, 0, 9]), 8)
    assert [(f.fired_at - BASE, f.resolved_at and f.resolved_at - BASE) for f in kept] == [(0, 75), (105, None)]


def test_pages_a_week_and_lead_time_are_counted(tmp_path: Path) -> None:
    values: list[float | None] = [0.0] * 100 + [9.0] * 10 + [0.0] * 100
    end = BASE + 209 * STEP_S
    incident = (BASE + 105 * STEP_S, BASE + 120 * STEP_S)
    result = run_backtest(
        rules(tmp_path, alert("x > 5")), store_of(a=values), BASE, end, step_s=STEP_S, incident=incident
    )
    (report,) = result.alerts
    assert report.num_firings == 1
    assert report.pages_per_week == pytest.approx(7 * 86400 / (209 * STEP_S))
    assert report.lead_s == 5 * STEP_S
    late = run_backtest(
        rules(tmp_path, alert("x > 5")),
        store_of(a=values),
        BASE,
        end,
        step_s=STEP_S,
        incident=(BASE + 90 * STEP_S, end),
    )
    assert late.alerts[0].lead_s == -10 * STEP_S
    silent = run_backtest(
        rules(tmp_path, alert("x > 50")), store_of(a=values), BASE, end, step_s=STEP_S, incident=incident
    )
    assert silent.alerts[0].lead_s is None


def test_state_goes_on_from_one_stretch_to_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values: list[float | None] = [0.0] * 3 + [9.0] * 9 + [0.0] * 3
    text = "groups: [{name: r, rules: [{record: 'y:z', expr: x * 2}]}, " + alert("y:z > 10", **{"for": "60s"})[9:]
    whole = backtest(rules(tmp_path, text), store_of(a=values), 15)
    monkeypatch.setattr("alerts.history.backtest.STEPS_AT_ONCE", 4)
    parts = backtest(rules(tmp_path, text), store_of(a=values), 15)
    assert whole == parts
    assert [f.fired_at - BASE for f in whole] == [105]


def test_rule_that_fails_at_some_moments_counts_at_the_others(tmp_path: Path) -> None:
    store = store_of(a=[9, 9, 9, 9])
    for pool, values in {"p": [1.0, 1.0, 1.0, 1.0], "q": [None, None, 1.0, 1.0]}.items():
        points = [(round((BASE + i * STEP_S) * 1000), v) for i, v in enumerate(values) if v is not None]
        store.append_points(
            LabelSet.of({METRIC_NAME: "y", "node": "a", "pool": pool}),
            array("q", (a for a, _ in points)),
            array("d", (v for _, v in points)),
        )
    result = run_backtest(rules(tmp_path, alert("x * on (node) y > 5")), store, BASE, BASE + 3 * STEP_S, step_s=STEP_S)
    assert "many-to-many" in result.errors["A"]
    assert [f.fired_at for f in result.firings] == [BASE]


def test_too_many_steps_are_refused(tmp_path: Path) -> None:
    with pytest.raises(QueryError, match="longer --step"):
        run_backtest(rules(tmp_path, alert("x > 5")), store_of(a=[1]), BASE, BASE + 1e9, step_s=1)


def test_groups_come_after_those_that_record_what_they_read(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(
        "groups: [{name: c, rules: [{alert: A, expr: 'b:b > 1'}]}, {name: b, rules: [{record: 'b:b', expr: 'a:a'}]},"
        " {name: a, rules: [{record: 'a:a', expr: x}]}, {name: d, rules: [{record: 'd:d', expr: y}]}]"
    )
    groups = in_order(load_rule_files([path]))
    assert [group.name for group in groups] == ["a", "b", "c", "d"]
    assert needs_order(groups) == []
    built_in = in_order(load_rule_files([*builtin_signal_files(), *builtin_rule_files()]))
    assert needs_order(built_in) == []


@pytest.mark.parametrize(
    ("text", "late"),
    [
        ("groups: [{name: g, rules: [{record: 'a:b', expr: x}, {alert: A, expr: 'a:b > 1'}]}]", []),
        ("groups: [{name: g, rules: [{alert: A, expr: 'a:b > 1'}, {record: 'a:b', expr: x}]}]", ["A"]),
        ("groups: [{name: g, rules: [{record: 'a:b', expr: 'a:b or x'}]}]", ["a:b"]),
        ("groups: [{name: g, rules: [{alert: A, expr: 'ALERTS > 0'}]}]", ["A"]),
    ],
)
def test_rules_that_need_their_own_past_are_named(tmp_path: Path, text: str, late: list[str]) -> None:
    assert needs_order(rules(tmp_path, text)) == late


def test_windows_of_signals_are_widened_to_the_recording_and_those_of_alerts_are_not(tmp_path: Path) -> None:
    text = (
        "groups: [{name: g, rules: [{record: 'a:b', expr: 'sum(rate(x[20s]))'}, {record: 'a:c', expr: 'rate(x[5m])'},"
        "{alert: A, expr: 'rate(x[20s]) > 1'}]}]"
    )
    windows = [
        str(rule.query.root).split("range_ms=")[1].split(")")[0]
        for g in widened(rules(tmp_path, text), 60)
        for rule in g.rules
    ]
    assert windows == ["60000", "300000", "20000"]


# -- against the live engine --------------------------------------------------------------------------------------


def recorded_fleet(seed: int, steps: int) -> SeriesStore:
    """Nodes with counters and gauges of our engine; some restart, fall silent, get slow or full."""
    dice = random.Random(seed)
    store = recording_store()
    for index in range(5):
        own = {"node": f"n{index}", "pool": "p", "model": "m", "engine": "fleetctl", "zone": "z", "revision": "r"}
        slow_from, full_from, silent = dice.randrange(steps), dice.randrange(steps), dice.randrange(steps)
        totals: dict[str, float] = {}
        for step in range(steps):
            at = BASE + step * STEP_S
            is_down = silent <= step < silent + 8
            store.append({METRIC_NAME: "up", **own}, at, 0.0 if is_down else 1.0)
            if is_down:
                totals.clear()
                continue
            step_s = 0.2 if index == 1 and step >= slow_from else 0.02 * dice.uniform(0.8, 1.3)
            added = {
                "engine_step_seconds_count;kind=decode": 200.0,
                "engine_step_seconds_sum;kind=decode": 200.0 * step_s,
                "vllm:time_to_first_token_seconds_count": 30.0,
                "vllm:time_to_first_token_seconds_sum": 30.0 * step_s * 5,
                "vllm:request_success_total;finished_reason=stop": 30.0,
                "vllm:iteration_tokens_total_count": 210.0,
                "vllm:generation_tokens_total": 800.0,
                "vllm:num_preemptions_total": 5.0 if index == 2 and step >= full_from else 0.0,
                "vllm:prefix_cache_queries_total": 900.0,
                "vllm:prefix_cache_hits_total": 50.0 if index == 3 and step > full_from else 600.0,
            }
            for text, value in added.items():
                totals[text] = totals.get(text, 0.0) + value
                name, _, label = text.partition(";")
                extra = dict([label.split("=")]) if label else {}
                store.append({METRIC_NAME: name, **own, **extra}, at, totals[text])
            for name, gauge in {
                "vllm:num_requests_running": 4.0,
                "vllm:num_requests_waiting": 90.0 if index == 2 and step >= full_from else 0.0,
                "vllm:kv_cache_usage_perc": 0.97 if index == 2 and step >= full_from else 0.4,
            }.items():
                store.append({METRIC_NAME: name, **own}, at, gauge)
    return store


@pytest.mark.parametrize("seed", [1, 2])
def test_backtest_fires_as_the_live_engine_does(seed: int) -> None:
    steps = 160
    groups = widened(load_rule_files([*builtin_signal_files(), *builtin_rule_files()]), 60)
    live_store = recorded_fleet(seed, steps)
    engine = RuleEngine(groups, live_store, default_interval_s=STEP_S)
    live: list[tuple[str, str, float]] = []
    for step in range(steps):
        now = BASE + step * STEP_S
        changed = [change for change in engine.tick(now) if change.alert.state == "firing"]
        live.extend((change.alert.name, change.alert.labels.get("node", ""), now) for change in changed)
    assert engine.failures() == {}
    result = run_backtest(groups, recorded_fleet(seed, steps), BASE, BASE + (steps - 1) * STEP_S, step_s=STEP_S)
    first_live = {(name, node): at for name, node, at in reversed(live)}
    first_past = {(f.alert, f.labels.get("node", "")): f.fired_at for f in reversed(result.firings)}
    assert first_past == first_live
    assert len(first_past) >= 3
    assert result.errors == {}


# -- recordings ---------------------------------------------------------------------------------------------------


def test_openmetrics_counts_in_seconds_and_the_older_text_in_milliseconds(tmp_path: Path) -> None:
    new, old = tmp_path / "new.om", tmp_path / "old.prom"
    old.write_text('y{a="b"} 5 1700000000500\n')
    store = recording_store()
    new.write_text('x{a="1 2"} 6 1700000015.5\nx{a="1 2"} 5 1700000000.5\n# EOF\n')
    assert read_recordings([new, old], store, lambda name: True) == 3
    assert (
        dict(next((labels, points) for labels, points in store.dump(0, 2e9) if labels[METRIC_NAME] == "x")[0])["a"]
        == "1 2"
    )
    assert store.bounds() == (1700000000.5, 1700000015.5)


def test_several_files_and_gzip_are_one_recording(tmp_path: Path) -> None:
    first, second = tmp_path / "a.om", tmp_path / "b.om.gz"
    first.write_text("x 1 100\nx 2 115\n# EOF\n")
    second.write_bytes(gzip.compress(b"x 9 115\nx 3 130\nother 1 100\n# EOF\n"))
    store = recording_store()
    assert read_recordings([first, second], store, lambda name: name == "x") == 3
    assert [points for _, points in store.dump(0, 1e9)] == [[(100.0, 1.0), (115.0, 2.0), (130.0, 3.0)]]
    assert store.typical_spacing_s() == 15.0


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x 1\n# EOF\n", r"a\.om:1: "),
        ("x 1 5\nx abc 6\n# EOF\n", r"a\.om:2: 'abc' is not a number"),
        ("x 1 5\nx 2 6\nx 3 1e300\n# EOF\n", r"a\.om:3: timestamp '1e300' is out of range"),
        ("y 1\nx 1 5\nx 2\ny 1 2 3\n# EOF\n", r"a\.om:1: a sample without a time"),
        ("x 1 5\nx 5\nx 1 2 3\n# EOF\n", r"a\.om:2: a sample without a time"),
        ('{a="b"} 1 5\n# EOF\n', r"a\.om:1: has labels but no metric name"),
        ("x{ 1 5\n# EOF\n", r"a\.om:1: expected a label name"),
    ],
)
def test_broken_recording_is_refused_with_its_line(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "a.om").write_text(text)
    with pytest.raises(BadRecordingError, match=reason):
        read_recordings([tmp_path / "a.om"], recording_store(), lambda name: True)


def points_of(text: str, tmp_path: Path) -> dict[str, list[tuple[float, float]]]:
    """By name and value of label a, as read from a file."""
    path = tmp_path / "x.om"
    path.write_bytes(text.encode())
    store = recording_store()
    read_recordings([path], store, lambda name: not name.startswith("other"))
    return {
        dict(labels)[METRIC_NAME] + dict(labels).get("a", ""): [(at, value) for at, value in points]
        for labels, points in store.dump(0, 2e9)
    }


@pytest.mark.parametrize("order", ["series", "time", "random"])
def test_order_of_lines_does_not_matter(tmp_path: Path, order: str) -> None:
    lines = [(a, at) for a in ("1", "2 3", "4") for at in range(100, 1600, 15)]
    if order == "time":
        lines.sort(key=lambda line: line[1])
    if order == "random":
        random.Random(5).shuffle(lines)
    text = "".join(f'x{{a="{a}"}} {at * 2} {at}\nother{{a="{a}"}} 7 {at}\n# a comment\n\n' for a, at in lines)
    wanted = [(float(at), at * 2.0) for at in range(100, 1600, 15)]
    assert points_of(text + "# EOF\n", tmp_path) == {"x1": wanted, "x2 3": wanted, "x4": wanted}


@pytest.mark.parametrize(
    "text",
    [
        'x{a="b"} 5 100\nx{a="b"} 6 115\n# EOF\n',
        'x{a="b"} 5 100\r\nx{a="b"} 6 115\r\n# EOF\r\n',
        'x{a="b"}\t5\t100\nx{a="b"}\t6\t115\n# EOF\n',
        'x{a="b"}   5   100\n  x { a = "b" }   6 115\n# EOF\n',
        'x{a="b"} 5 100 # {id="7 8"} 0.5 99.5\nx{a="b"} 6 115 # {id="9"} 0.5\n# EOF\n',
        '{"x",a="b"} 0x5 100\n{"x",a="b"} 6 115.0\n# EOF\n',
        'x{a="b"} 5 100\nx{a="b"} 6 115',  # cut short: no milliseconds, they would be of 1970
        'x{a="b"} 5 100\nx{a="b"} 5 100\nx{a="b"} 6 115\n# EOF\n',
    ],
    ids=["plain", "crlf", "tabs", "spaces", "exemplars", "quoted", "no-eof", "twice"],
)
def test_reads_all_that_the_format_allows(tmp_path: Path, text: str) -> None:
    assert points_of(text, tmp_path) == {"xb": [(100.0, 5.0), (115.0, 6.0)]}


def test_only_what_the_rules_read_is_kept(tmp_path: Path) -> None:
    wanted = wanted_names(rules(tmp_path, alert('rate(x[1m]) > 1 and {__name__=~"a|b"}')))
    assert [name for name in ("x", "y", "a", "b", "c") if wanted(name)] == ["x", "a", "b"]
    assert wanted_names(rules(tmp_path, alert('{job="z"} > 1')))("anything")
