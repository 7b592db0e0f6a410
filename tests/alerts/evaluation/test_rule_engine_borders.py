"""The rule engine at its borders: slots, offsets, limits, names of rules, what is kept over a restart."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from structlog.testing import CapturingLogger

from alerts.evaluation.engine import RuleEngine
from alerts.evaluation.rules import load_rule_files
from alerts.promql import Query, evaluate, evaluate_vector
from alerts.promql.shared_results import SharedResults
from alerts.promql.values import Vector
from alerts.sample import is_stale_nan
from alerts.series.store import SeriesStore

NODE = {"node": "n1"}


def engine_of(tmp_path: Path, rules: str, store: SeriesStore, *, group: str = "", **options: float) -> RuleEngine:
    path = tmp_path / "rules.yaml"
    path.write_text(f"groups:\n- name: g\n{group}  rules:\n{rules}\n")
    return RuleEngine(load_rule_files([path]), store, **options)


def times_of(store: SeriesStore, name: str) -> list[float]:
    return [at for _, points in store.dump(0.0, 1e9, names=[name]) for at, value in points if not is_stale_nan(value)]


@pytest.mark.parametrize(
    ("ticks", "evaluated"),
    [
        ([100.0, 109.999], [100.0]),
        ([100.0, 110.0], [100.0, 110.0]),
        ([109.999, 110.0], [109.999, 110.0]),
        ([100.0, 99.0, 110.0], [100.0, 110.0]),  # one slot back is jitter
        ([100.0, 90.0, 110.0], [100.0, 110.0]),
        ([100.0, 150.0, 155.0], [100.0, 150.0]),
    ],
)
def test_group_is_evaluated_once_a_slot(tmp_path: Path, ticks: Sequence[float], evaluated: Sequence[float]) -> None:
    store = SeriesStore()
    engine = engine_of(tmp_path, "  - {record: r, expr: vector(1)}", store, group="  interval: 10s\n")
    for now in ticks:
        engine.tick(now)
    assert times_of(store, "r") == list(evaluated)


def test_clock_that_is_set_back_by_two_slots_is_followed(tmp_path: Path) -> None:
    store = SeriesStore()
    store.append({"__name__": "x"}, 18.0, 1.0)
    store.append({"__name__": "x"}, 38.0, 6.0)
    engine = engine_of(tmp_path, "  - {alert: A, expr: x > 5}", store, group="  interval: 10s\n")
    assert [change.alert.state for change in engine.tick(40.0)] == ["firing"]
    assert [change.alert.state for change in engine.tick(20.0)] == ["resolved"]
    assert engine.tick(29.0) == []
    assert [change.alert.active_at for change in engine.tick(50.0)] == [50.0]


def test_slot_of_a_tenth_of_a_second_is_met_in_spite_of_rounding(tmp_path: Path) -> None:
    store = SeriesStore()
    engine = engine_of(tmp_path, "  - {record: r, expr: vector(1)}", store, group="  interval: 100ms\n")
    for tenth in range(1, 30):
        engine.tick(tenth / 10)
    assert len(times_of(store, "r")) == 29


def test_group_without_an_interval_has_the_engines_own(tmp_path: Path) -> None:
    store = SeriesStore()
    engine = engine_of(tmp_path, "  - {record: r, expr: vector(1)}", store, default_interval_s=5.0)
    for now in range(10, 21):
        engine.tick(float(now))
    assert times_of(store, "r") == [10.0, 15.0, 20.0]


def test_group_with_an_offset_looks_back_and_records_there(tmp_path: Path) -> None:
    store = SeriesStore()
    for at in range(1, 31):
        store.append({"__name__": "x"}, float(at), float(at))
    rules = "  - {record: r, expr: x}\n  - {alert: A, expr: x > 17}"
    engine = engine_of(tmp_path, rules, store, group="  query_offset: 10s\n")
    (change,) = engine.tick(28.0)
    assert (change.alert.value, change.alert.active_at, change.alert.fired_at) == (18.0, 28.0, 28.0)
    assert times_of(store, "r") == [18.0]
    assert times_of(store, "ALERTS") == [18.0]
    (sample,) = evaluate("r", store, 18.0)
    assert sample.value == 18.0


@pytest.mark.parametrize("rule", ["{alert: A, expr: x}", "{record: A, expr: x}"])
@pytest.mark.parametrize(("limit", "fails"), [(2, True), (3, False), (0, False)])
def test_as_many_results_as_the_limit_are_fine_and_one_more_fails(
    tmp_path: Path, rule: str, limit: int, fails: bool
) -> None:
    store = SeriesStore()
    for name in "abc":
        store.append({"__name__": "x", "a": name}, 1.0, 1.0)
    engine = engine_of(tmp_path, f"  - {rule}", store, group=f"  limit: {limit}\n")
    engine.tick(1.0)
    assert engine.failures() == ({"g/A": f"exceeded limit of {limit} with 3 results"} if fails else {})


def test_more_alerts_than_the_limit_drops_those_that_were_there(tmp_path: Path) -> None:
    store = SeriesStore()
    store.append({"__name__": "x", "a": "1"}, 1.0, 1.0)
    engine = engine_of(tmp_path, "  - {alert: A, expr: x}", store, group="  limit: 1\n")
    engine.tick(1.0)
    assert [alert.state for alert in engine.alerts()] == ["firing"]
    store.append({"__name__": "x", "a": "2"}, 2.0, 1.0)
    engine.tick(2.0)
    assert engine.alerts() == []


def test_two_rules_of_one_name_are_told_apart(tmp_path: Path) -> None:
    store = SeriesStore()
    rules = "\n".join(
        f"  - {{alert: A, expr: 'x * on(a) y > {limit}', labels: {{limit: '{limit}'}}}}" for limit in (1, 2, 3)
    )
    engine = engine_of(tmp_path, rules, store)
    for series in ({"__name__": "x", "a": "1"}, {"__name__": "y", "a": "1"}, {"__name__": "y", "a": "1", "b": "2"}):
        store.append(series, 1.0, 1.0)
    engine.tick(1.0)
    assert sorted(engine.failures()) == ["g/A", "g/A#2", "g/A#3"]


def test_rule_on_a_metric_that_comes_later_gives_its_sample_then(tmp_path: Path) -> None:
    store = SeriesStore()
    rules = "  - {record: r, expr: x + 1}\n  - {record: n, expr: absent(x)}\n  - {record: s, expr: 'x or vector(0)'}"
    engine = engine_of(tmp_path, rules, store)
    engine.tick(1.0)
    store.append({"__name__": "x"}, 2.0, 1.0)
    engine.tick(2.0)
    assert (times_of(store, "r"), times_of(store, "n"), times_of(store, "s")) == ([2.0], [1.0], [1.0, 2.0])


def test_scalar_is_recorded_as_one_series_without_labels(tmp_path: Path) -> None:
    store = SeriesStore()
    engine_of(tmp_path, "  - {record: r, expr: 1 + 2, labels: {a: b}}", store).tick(1.0)
    (sample,) = evaluate("r", store, 1.0)
    assert (sample.labels, sample.value) == ({"__name__": "r", "a": "b"}, 3.0)


def test_recording_rule_whose_series_become_one_fails(tmp_path: Path) -> None:
    store = SeriesStore()
    for name in "ab":
        store.append({"__name__": "x", "a": name}, 1.0, 1.0)
    engine = engine_of(tmp_path, "  - {record: r, expr: x, labels: {a: same}}", store)
    engine.tick(1.0)
    assert "same labelset" in engine.failures()["g/r"]
    assert times_of(store, "r") == []


def test_rule_sees_within_a_tick_what_another_one_has_just_written(tmp_path: Path) -> None:
    """`sum(r)` occurs twice: its value of before the second rule must not be given to the last."""
    store = SeriesStore()
    rules = "  - {record: a, expr: sum(r)}\n  - {record: r, expr: x}\n  - {record: b, expr: sum(r)}"
    engine = engine_of(tmp_path, rules, store)
    for at in (1.0, 2.0, 3.0):
        store.append({"__name__": "x"}, at, at)
        engine.tick(at)
    assert [p for _, p in store.dump(0.0, 9.0, names=["a"])] == [[(2.0, 1.0), (3.0, 2.0)]]
    assert [p for _, p in store.dump(0.0, 9.0, names=["b"])] == [[(1.0, 1.0), (2.0, 2.0), (3.0, 3.0)]]


def test_unknown_alert_is_a_series_too_and_a_resolved_one_is_stale(tmp_path: Path) -> None:
    store = SeriesStore()
    engine = engine_of(tmp_path, "  - {alert: A, expr: x > 5}", store)
    for at in range(1, 41):
        store.ingest(NODE, "x 6\n", float(at))
        engine.tick(float(at))
    store.ingest(NODE, None, 41.0)
    engine.tick(41.0)
    assert [(s.labels["alertstate"], s.value) for s in evaluate("ALERTS", store, 41.0)] == [("unknown", 1.0)]
    assert [s.value for s in evaluate("ALERTS_FOR_STATE", store, 41.0)] == [1.0]
    store.forget_target(NODE)
    engine.tick(42.0)
    assert [alert.state for alert in engine.alerts()] == ["resolved"]
    assert evaluate("ALERTS", store, 42.0) == []
    assert evaluate("ALERTS_FOR_STATE", store, 42.0) == []


@pytest.mark.parametrize(("clear_after_s", "cleared_at"), [(30.0, 70.0), (5.0, 45.0), (0.0, 41.0)])
def test_silence_counts_after_the_time_that_is_asked_for(
    tmp_path: Path, clear_after_s: float, cleared_at: float
) -> None:
    store = SeriesStore()
    engine = engine_of(tmp_path, "  - {alert: A, expr: x > 5}", store, clear_after_s=clear_after_s)
    changes = []
    for at in range(1, 100):
        store.ingest(NODE, None if at == 40 else "x 6\n" if at < 40 else "x 1\n", float(at))
        changes += [(change.alert.state, float(at)) for change in engine.tick(float(at))]
    assert changes == [("firing", 1.0), ("unknown", 40.0), ("resolved", cleared_at)]


def test_without_signals_pending_and_firing_are_unknown_since_then_and_others_stay(tmp_path: Path) -> None:
    store = SeriesStore()
    rules = "  - {alert: P, expr: x > 5, for: 1h}\n  - {alert: F, expr: x > 5}\n  - {alert: R, expr: y > 5}"
    engine = engine_of(tmp_path, rules, store)
    for name in "xy":
        store.append({"__name__": name}, 1.0, 6.0)
    engine.tick(1.0)
    store.append({"__name__": "y"}, 2.0, 1.0)
    engine.tick(2.0)
    changes = engine.mark_all_unknown(50.0)
    assert [(c.alert.name, c.previous, c.alert.state, c.alert.unknown_since) for c in changes] == [
        ("P", "pending", "unknown", 50.0),
        ("F", "firing", "unknown", 50.0),
    ]
    assert [(alert.name, alert.state) for alert in engine.alerts()] == [
        ("P", "unknown"),
        ("F", "unknown"),
        ("R", "resolved"),
    ]


def test_snapshot_holds_when_it_was_taken_and_numbers_that_json_cannot_write(tmp_path: Path) -> None:
    store = SeriesStore()
    engine = engine_of(tmp_path, "  - {alert: A, expr: x > 5, for: 1m}", store, group="  interval: 10s\n")
    assert engine.snapshot() == {"version": 1, "alerts": [], "taken_at": None}
    store.append({"__name__": "x"}, 100.0, float("inf"))
    engine.tick(104.0)
    snapshot = json.loads(json.dumps(engine.snapshot(), allow_nan=False))
    assert snapshot["taken_at"] == 100.0
    assert snapshot["alerts"][0]["value"] == "inf"
    other = engine_of(tmp_path, "  - {alert: A, expr: x > 5, for: 1m}", store)
    other.restore(snapshot, 130.0)
    (alert,) = other.alerts()
    assert (alert.state, alert.active_at, alert.value) == ("pending", 134.0, float("inf"))


def test_alert_of_a_rule_that_records_now_is_not_restored(tmp_path: Path) -> None:
    store = SeriesStore()
    store.append({"__name__": "x"}, 1.0, 6.0)
    engine = engine_of(tmp_path, "  - {alert: A, expr: x > 5}", store)
    engine.tick(1.0)
    snapshot = engine.snapshot()
    other = engine_of(tmp_path, "  - {record: A, expr: x > 5}", store)
    other.restore(snapshot, 2.0)
    assert other.alerts() == []


@pytest.mark.parametrize(("blind_s", "state"), [(3600.0, "firing"), (3600.5, "unknown")])
def test_firing_alert_is_unknown_after_more_than_an_hour_of_blindness(
    tmp_path: Path, blind_s: float, state: str
) -> None:
    store = SeriesStore()
    store.append({"__name__": "x"}, 1.0, 6.0)
    engine = engine_of(tmp_path, "  - {alert: A, expr: x > 5}", store)
    engine.tick(1.0)
    other = engine_of(tmp_path, "  - {alert: A, expr: x > 5}", store)
    other.restore(engine.snapshot(), 1.0 + blind_s)
    (alert,) = other.alerts()
    assert (alert.state, alert.unknown_since) == (state, 3601.5 if state == "unknown" else None)


def test_labels_and_texts_of_an_alert_are_templates_of_its_sample(tmp_path: Path) -> None:
    store = SeriesStore()
    store.append({"__name__": "x", "a": "b"}, 1.0, 6.0)
    rules = (
        "  - alert: A\n    expr: x > 5\n"
        "    labels: {size: '{{ $value }}', of: '{{ $labels.a }}', a: 'c', plain: text, none: ''}\n"
        "    annotations: {s: '{{ $labels.a }} {{ $value }}', q: '{{ query \"x\" | first | value }}', f: plain,"
        " e: '{{ query \"x offset\" }}', t: '{{ now }}'}\n"
    )
    (change,) = engine_of(tmp_path, rules, store).tick(1.0)
    assert change.alert.labels == {"alertname": "A", "a": "c", "size": "6", "of": "b", "plain": "text"}
    texts = change.alert.annotations
    assert (texts["s"], texts["q"], texts["f"]) == ("b 6", "6", "plain")
    assert texts["t"] == "1"
    assert texts["e"].startswith("<error expanding template: ")


def test_failure_is_told_until_the_rule_works_again(tmp_path: Path) -> None:
    store = SeriesStore()
    engine = engine_of(tmp_path, "  - {record: r, expr: x / on() y}\n  - {record: ok, expr: vector(1)}", store)
    for at in (1.0, 2.0, 3.0):
        text = 'x 6\ny{a="1"} 2\n' + ('y{a="2"} 2\n' if at < 3.0 else "")
        store.ingest({}, text, at)
        engine.tick(at)
        assert list(engine.failures()) == (["g/r"] if at < 3.0 else [])
    assert times_of(store, "ok") == [1.0, 2.0, 3.0]
    assert times_of(store, "r") == [3.0]


def test_tick_of_one_slot_back_judges_nothing(tmp_path: Path) -> None:
    store = SeriesStore()
    store.append({"__name__": "x"}, 28.0, 1.0)
    store.append({"__name__": "x"}, 38.0, 6.0)
    engine = engine_of(tmp_path, "  - {alert: A, expr: x > 5}", store, group="  interval: 10s\n")
    assert [change.alert.state for change in engine.tick(40.0)] == ["firing"]
    assert engine.tick(33.0) == []
    assert [alert.state for alert in engine.alerts()] == ["firing"]


def test_alerts_after_one_whose_rule_is_gone_are_restored(tmp_path: Path) -> None:
    store = SeriesStore()
    store.append({"__name__": "x"}, 1.0, 6.0)
    engine = engine_of(tmp_path, "  - {alert: A, expr: x > 5}\n  - {alert: B, expr: x > 4}", store)
    engine.tick(1.0)
    snapshot = engine.snapshot()
    assert snapshot["taken_at"] == 1.0
    other = engine_of(tmp_path, "  - {alert: B, expr: x > 4}", store)
    other.restore(snapshot, 2.0)
    assert [(alert.name, alert.state, alert.active_at) for alert in other.alerts()] == [("B", "firing", 1.0)]
    assert other.tick(3.0) == []


def test_snapshot_was_taken_at_the_newest_slot_of_any_group(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    rules = "rules: [{record: r, expr: vector(1)}]"
    path.write_text(f"groups: [{{name: a, interval: 10s, {rules}}}, {{name: b, {rules}}}, {{name: c, {rules}}}]")
    engine = RuleEngine(load_rule_files([path]), SeriesStore(), default_interval_s=4.0)
    engine.tick(107.0)
    assert engine.snapshot()["taken_at"] == 104.0


def test_failure_is_logged_once_for_each_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logged = CapturingLogger()
    monkeypatch.setattr("alerts.evaluation.engine.log", logged)
    store = SeriesStore()
    engine = engine_of(tmp_path, "  - {record: r, expr: x / on(a) y}", store, group="  limit: 1\n")
    twice = 'x{a="1"} 1\ny{a="1",b="1"} 2\ny{a="1",b="2"} 2\n'
    too_many = 'x{a="1"} 1\nx{a="2"} 1\ny{a="1"} 2\ny{a="2"} 2\n'
    for at, text in enumerate([twice, twice, twice, too_many, too_many], 1):
        store.ingest({}, text, float(at))
        assert engine.tick(float(at)) == []
    assert [(call.args, call.kwargs["rule"]) for call in logged.calls] == [(("rule.failed",), "g/r")] * 2
    assert "limit" in logged.calls[1].kwargs["reason"]


def test_rule_on_metrics_by_pattern_is_evaluated_whatever_there_is(tmp_path: Path) -> None:
    store = SeriesStore()
    store.append({"__name__": "x"}, 1.0, 4.0)
    engine = engine_of(tmp_path, "  - {record: r, expr: 'sum({__name__=~\"x|y\"})'}", store)
    engine.tick(1.0)
    assert [sample.value for sample in evaluate("r", store, 1.0)] == [4.0]


def test_rule_of_which_one_metric_is_there_is_evaluated(tmp_path: Path) -> None:
    store = SeriesStore()
    store.append({"__name__": "x"}, 1.0, 4.0)
    engine = engine_of(tmp_path, "  - {record: r, expr: x or y}\n  - {record: s, expr: y unless x}", store)
    engine.tick(1.0)
    assert (times_of(store, "r"), times_of(store, "s")) == ([1.0], [])


def test_rule_whose_metrics_do_not_exist_is_not_evaluated_until_one_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluated: list[float] = []

    def counted(query: Query, store: SeriesStore, at: float, *, shared: SharedResults | None) -> Vector | float:
        evaluated.append(at)
        return evaluate_vector(query, store, at, shared=shared)

    monkeypatch.setattr("alerts.evaluation.engine.evaluate_vector", counted)
    store = SeriesStore()
    engine = engine_of(tmp_path, "  - {record: r, expr: x + y}", store)
    for at in (1.0, 2.0):
        engine.tick(at)
    store.append({"__name__": "z"}, 3.0, 1.0)
    engine.tick(3.0)
    assert evaluated == []
    store.append({"__name__": "y"}, 4.0, 1.0)
    engine.tick(4.0)
    store.append({"__name__": "x"}, 5.0, 1.0)
    engine.tick(5.0)
    assert evaluated == [4.0, 5.0]
    assert times_of(store, "r") == [5.0]


def test_alert_on_scrapes_alone_clears_at_the_first_good_one(tmp_path: Path) -> None:
    store, told = SeriesStore(), []
    rules = "  - {alert: Down, expr: 'up + on (node) llm:up == 0'}\n  - {record: 'llm:up', expr: up}"
    engine = engine_of(tmp_path, rules, store)
    for at in range(1, 45):
        if at == 42:
            store.ingest(NODE, None, 41.5)
        store.ingest(NODE, None if at in (40, 41) else "x 1\n", float(at))
        told += [(change.alert.state, at) for change in engine.tick(float(at))]
    assert told == [("firing", 41), ("resolved", 42)]


def test_alert_rule_that_reads_alerts_sees_those_of_rules_before_it(tmp_path: Path) -> None:
    """`count(ALERTS)` occurs twice: its value of before the second rule must not be given to the last."""
    store = SeriesStore()
    rules = (
        "  - {record: before, expr: 'count(ALERTS) or vector(0)'}\n  - {alert: A, expr: x > 5}\n"
        "  - {record: after, expr: 'count(ALERTS) or vector(0)'}\n  - {record: since, expr: max(ALERTS_FOR_STATE)}"
    )
    engine = engine_of(tmp_path, rules, store)
    for at in (1.0, 2.0):
        store.append({"__name__": "x"}, at, 6.0)
        engine.tick(at)
    recorded = {labels["__name__"]: [value for _, value in found] for labels, found in store.dump(0.0, 9.0)}
    assert (recorded["before"], recorded["after"], recorded["since"]) == ([0.0, 1.0], [1.0, 1.0], [1.0, 1.0])


def test_group_after_one_that_has_had_its_slot_is_evaluated(tmp_path: Path) -> None:
    path, store = tmp_path / "rules.yaml", SeriesStore()
    path.write_text(
        "groups: [{name: a, interval: 10s, rules: [{record: r, expr: vector(1)}]},"
        " {name: b, rules: [{record: s, expr: vector(1)}]}]"
    )
    engine = RuleEngine(load_rule_files([path]), store)
    for at in (10.0, 11.0, 12.0):
        engine.tick(at)
    assert (times_of(store, "r"), times_of(store, "s")) == ([10.0], [10.0, 11.0, 12.0])


def test_label_of_the_name_alertname_gives_way_to_the_rules_name(tmp_path: Path) -> None:
    store = SeriesStore()
    store.append({"__name__": "x"}, 1.0, 6.0)
    rules = (
        "  - {alert: A, expr: x, labels: {alertname: 'n{{ $value }}'}}\n  - {alert: B, expr: x, labels: {alertname: n}}"
    )
    engine_of(tmp_path, rules, store).tick(1.0)
    assert sorted(sample.labels["alertname"] for sample in evaluate("ALERTS", store, 1.0)) == ["A", "B"]
