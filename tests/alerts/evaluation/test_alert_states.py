from __future__ import annotations

import json
from pathlib import Path

import pytest

from alerts.evaluation.engine import AlertChange, RuleEngine
from alerts.evaluation.rules import RuleGroup, load_rule_files
from alerts.promql import evaluate
from alerts.series.store import SeriesStore

NODE = {"node": "n1", "pool": "chat"}


class World:
    """One node, one rule, and a clock that is moved by hand."""

    def __init__(self, tmp_path: Path, rule: str, *, group: str = "") -> None:
        self.path = tmp_path / "rules.yaml"
        self.path.write_text(f"groups:\n- name: g\n{group}  rules:\n{rule}\n")
        self.groups: list[RuleGroup] = load_rule_files([self.path])
        self.store = SeriesStore()
        self.engine = RuleEngine(self.groups, self.store)
        self.now = 1000.0

    def scrape(self, text: str | None) -> list[AlertChange]:
        """One second passes, the node is scraped, the rules run."""
        self.now += 1.0
        self.store.ingest(NODE, text, self.now)
        return self.engine.tick(self.now)

    def scrapes(self, text: str | None, count: int) -> list[tuple[str, str]]:
        """The changes of that many seconds as (from, to)."""
        changes = [change for _ in range(count) for change in self.scrape(text)]
        return [(change.previous, change.alert.state) for change in changes]

    def restart(self) -> None:
        """A new process: series are gone, alert state comes from JSON."""
        snapshot = json.loads(json.dumps(self.engine.snapshot(), allow_nan=False))
        self.store = SeriesStore()
        self.engine = RuleEngine(self.groups, self.store)
        self.engine.restore(snapshot, self.now)

    @property
    def states(self) -> list[str]:
        return [alert.state for alert in self.engine.alerts()]


HIGH = (
    "  - {alert: High, expr: x > 5, for: 3s, labels: {severity: page}, "
    "annotations: {summary: '{{ $labels.node }} {{ $value }}'}}"
)
NOW = "  - {alert: High, expr: x > 5}"


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, HIGH)


def settled(world: World) -> World:
    """Scraped long enough that silence counts."""
    world.scrapes("x 1", 40)
    return world


def test_fires_when_it_has_held_for_long_enough(world: World) -> None:
    (change,) = world.scrape("x 6")
    assert (change.previous, change.alert.state) == ("inactive", "pending")
    assert world.scrapes("x 7", 2) == []
    (change,) = world.scrape("x 8")
    assert (change.previous, change.alert.state) == ("pending", "firing")
    assert change.alert.active_at == 1001.0
    assert change.alert.fired_at == 1004.0
    assert change.alert.value == 8.0
    assert change.alert.annotations == {"summary": "n1 8"}
    assert change.alert.labels == {"alertname": "High", "node": "n1", "pool": "chat", "severity": "page"}


def test_fires_at_once_without_for(tmp_path: Path) -> None:
    assert World(tmp_path, NOW).scrapes("x 6", 1) == [("inactive", "firing")]


def test_pending_that_clears_vanishes_and_starts_again(world: World) -> None:
    settled(world)
    assert world.scrapes("x 6", 2) == [("inactive", "pending")]
    assert world.scrapes("x 1", 1) == [("pending", "inactive")]
    assert world.engine.alerts() == []
    assert world.scrapes("x 6", 3) == [("inactive", "pending")]
    assert world.scrapes("x 6", 1) == [("pending", "firing")]


def test_firing_that_clears_is_kept_as_resolved_for_15_minutes(world: World) -> None:
    settled(world)
    world.scrapes("x 6", 5)
    assert world.scrapes("x 1", 1) == [("firing", "resolved")]
    assert world.engine.alerts()[0].resolved_at == world.now
    assert world.scrapes("x 1", 900) == []
    assert world.states == ["resolved"]
    assert world.scrapes("x 1", 1) == []
    assert world.states == []


def test_resolved_alert_that_comes_back_is_a_new_one(world: World) -> None:
    settled(world)
    world.scrapes("x 6", 5)
    world.scrapes("x 1", 5)
    before = world.now
    assert world.scrapes("x 6", 4) == [("inactive", "pending"), ("pending", "firing")]
    (alert,) = world.engine.alerts()
    assert alert.active_at == before + 1
    assert alert.resolved_at is None


def test_keeps_firing_for_as_long_as_asked(tmp_path: Path) -> None:
    world = settled(World(tmp_path, "  - {alert: High, expr: x > 5, keep_firing_for: 5s}"))
    assert world.scrapes("x 6", 2) == [("inactive", "firing")]
    assert world.scrapes("x 1", 4) == []
    assert world.scrapes("x 6", 1) == []
    assert world.scrapes("x 1", 5) == []
    assert world.scrapes("x 1", 1) == [("firing", "resolved")]


def test_failing_scrape_makes_an_alert_unknown_and_not_resolved(world: World) -> None:
    settled(world)
    world.scrapes("x 6", 5)
    fired_at = world.engine.alerts()[0].fired_at
    assert world.scrapes(None, 1) == [("firing", "unknown")]
    assert world.scrapes(None, 1000) == []
    assert world.states == ["unknown"]
    assert world.scrapes("x 6", 1) == [("unknown", "firing")]
    assert world.engine.alerts()[0].fired_at == fired_at


def test_pending_whose_signal_is_lost_starts_its_time_again(world: World) -> None:
    settled(world)
    world.scrapes("x 6", 2)
    assert world.scrapes(None, 10) == [("pending", "unknown")]
    assert world.scrapes("x 6", 3) == [("unknown", "pending")]
    assert world.scrapes("x 6", 1) == [("pending", "firing")]


def test_unknown_clears_only_after_half_a_minute_of_good_scrapes(world: World) -> None:
    settled(world)
    world.scrapes("x 6", 5)
    world.scrapes(None, 3)
    assert world.scrapes("x 1", 29) == []
    assert world.scrapes("x 1", 5) == [("unknown", "resolved")]


def test_scraper_that_stopped_makes_alerts_unknown(world: World) -> None:
    settled(world)
    world.scrapes("x 6", 5)
    world.store.mark_stale(world.store.select(()).series[0].labels, 0)
    for _ in range(400):
        world.now += 1.0
        for change in world.engine.tick(world.now):
            assert (change.previous, change.alert.state) == ("firing", "unknown")
    assert world.states == ["unknown"]


def test_target_given_up_on_purpose_clears_its_alerts(world: World) -> None:
    settled(world)
    world.scrapes("x 6", 5)
    world.store.forget_target(NODE)
    world.now += 1.0
    (change,) = world.engine.tick(world.now)
    assert (change.previous, change.alert.state) == ("firing", "resolved")


def test_target_given_up_while_unknown_clears(world: World) -> None:
    settled(world)
    world.scrapes("x 6", 5)
    world.scrapes(None, 5)
    world.store.forget_target(NODE)
    world.now += 1.0
    (change,) = world.engine.tick(world.now)
    assert (change.previous, change.alert.state) == ("unknown", "resolved")


def test_pool_alert_is_unknown_only_when_every_node_of_the_pool_is_silent(tmp_path: Path) -> None:
    world = World(tmp_path, "  - {alert: High, expr: sum by (pool) (x) > 5}")
    other = {"node": "n2", "pool": "chat"}
    for _ in range(40):
        world.store.ingest(other, "x 1", world.now + 1)
        world.scrape("x 6")
    assert world.states == ["firing"]
    world.store.ingest(other, None, world.now + 1)
    assert world.scrapes(None, 1) == [("firing", "unknown")]


def test_pool_alert_resolves_while_a_node_still_answers(tmp_path: Path) -> None:
    world = World(tmp_path, "  - {alert: High, expr: sum by (pool) (x) > 5}")
    other = {"node": "n2", "pool": "chat"}
    for _ in range(40):
        world.store.ingest(other, "x 1", world.now + 1)
        world.scrape("x 6")
    world.store.ingest(other, "x 1", world.now + 1)
    assert world.scrapes(None, 1) == [("firing", "resolved")]


def test_node_that_is_back_ends_its_down_alert_at_once(tmp_path: Path) -> None:
    world = settled(World(tmp_path, "  - {alert: Down, expr: up == 0}"))
    assert world.scrapes(None, 3) == [("inactive", "firing")]
    assert world.scrapes("x 1", 1) == [("firing", "resolved")]


def test_alert_without_any_scrape_in_the_store_behaves_as_in_prometheus(tmp_path: Path) -> None:
    world = World(tmp_path, "  - {alert: High, expr: x > 5}")
    world.store.append({"__name__": "x", "job": "a"}, 1.0, 6.0)
    assert [c.alert.state for c in world.engine.tick(1.0)] == ["firing"]
    world.store.append({"__name__": "x", "job": "a"}, 2.0, 1.0)
    assert [c.alert.state for c in world.engine.tick(2.0)] == ["resolved"]


def test_restart_keeps_firing_alerts_and_does_not_clear_them_before_it_has_looked(world: World) -> None:
    settled(world)
    world.scrapes("x 6", 5)
    fired_at = world.engine.alerts()[0].fired_at
    world.restart()
    (alert,) = world.engine.alerts()
    assert (alert.state, alert.fired_at) == ("firing", fired_at)
    assert world.scrapes("x 1", 20) == [("firing", "unknown")]
    assert world.scrapes("x 6", 1) == [("unknown", "firing")]
    assert world.engine.alerts()[0].fired_at == fired_at


def test_restart_gives_the_same_fingerprint(world: World) -> None:
    world.scrapes("x 6", 5)
    before = world.engine.alerts()[0].fingerprint
    world.restart()
    world.scrapes("x 6", 1)
    assert [alert.fingerprint for alert in world.engine.alerts()] == [before]


def test_time_nobody_watched_does_not_count(world: World) -> None:
    world.scrapes("x 6", 2)
    world.now += 600.0
    world.restart()
    assert world.states == ["pending"]
    assert world.scrapes("x 6", 1) == []
    assert world.scrapes("x 6", 2) == [("pending", "firing")]


def test_time_in_which_the_judge_stood_still_does_not_count(world: World) -> None:
    world.scrapes("x 6", 2)
    world.now += 60.0
    world.engine.discount_stall(60.0, world.now)
    assert world.scrapes("x 6", 1) == []
    assert world.scrapes("x 6", 2) == [("pending", "firing")]


def test_pending_is_forgotten_after_an_hour_of_blindness(world: World) -> None:
    world.scrapes("x 6", 2)
    world.now += 4000.0
    world.restart()
    assert world.states == []


def test_alert_of_a_target_that_never_comes_back_after_a_restart_clears_after_five_minutes(world: World) -> None:
    settled(world)
    world.scrapes("x 6", 5)
    world.restart()
    states = []
    for _ in range(310):
        world.now += 1.0
        states += [change.alert.state for change in world.engine.tick(world.now)]
    assert states == ["unknown", "resolved"]


def test_snapshot_of_another_version_is_refused(world: World) -> None:
    with pytest.raises(ValueError, match="version 99"):
        world.engine.restore({"version": 99, "alerts": []}, 0.0)


def test_rule_that_is_gone_is_dropped_from_the_snapshot(world: World, tmp_path: Path) -> None:
    world.scrapes("x 6", 5)
    snapshot = world.engine.snapshot()
    other = World(tmp_path, "  - {alert: Other, expr: x > 5}")
    other.engine.restore(snapshot, world.now)
    assert other.engine.alerts() == []


def test_failing_rule_leaves_its_alerts_as_they_are(tmp_path: Path) -> None:
    world = World(tmp_path, "  - {alert: High, expr: 'x * on(node) y > 5'}")
    assert world.scrapes("x 6\ny 1", 1) == [("inactive", "firing")]
    assert world.scrapes('x 1\ny{a="1"} 1\ny{a="2"} 1', 5) == []
    assert world.states == ["firing"]
    assert "found duplicate series" in world.engine.failures()["g/High"]
    world.scrapes("x 6\ny 1", 1)
    assert world.engine.failures() == {}


def test_two_samples_that_give_the_same_alert_fail_the_rule(tmp_path: Path) -> None:
    world = World(tmp_path, "  - {alert: High, expr: x > 5, labels: {a: same}}")
    assert world.scrapes('x{a="1"} 6\nx{a="2"} 6', 1) == []
    assert "same labelset after applying alert labels" in world.engine.failures()["g/High"]


def test_more_alerts_than_the_limit_is_a_failure(tmp_path: Path) -> None:
    world = World(tmp_path, "  - {alert: High, expr: x > 5}", group="  limit: 1\n")
    assert world.scrapes('x{a="1"} 6\nx{a="2"} 6', 1) == []
    assert world.engine.failures() == {"g/High": "exceeded limit of 1 with 2 results"}


def test_recorded_series_ends_when_the_expression_gives_nothing(tmp_path: Path) -> None:
    world = World(tmp_path, "  - {record: 'a:b', expr: x > 5, labels: {from: rule}}")
    world.scrape("x 6")
    (sample,) = evaluate("a:b", world.store, world.now)
    assert sample.labels == {"__name__": "a:b", "node": "n1", "pool": "chat", "from": "rule"}
    world.scrape("x 1")
    assert evaluate("a:b", world.store, world.now) == []


def test_later_rule_sees_what_an_earlier_one_recorded_in_the_same_tick(tmp_path: Path) -> None:
    world = World(tmp_path, "  - {record: 'a:b', expr: x * 2}\n  - {alert: High, expr: 'a:b > 5'}")
    assert world.scrapes("x 3", 1) == [("inactive", "firing")]


def test_alerts_are_series_too(world: World) -> None:
    world.scrapes("x 6", 2)
    assert [s.labels["alertstate"] for s in evaluate("ALERTS", world.store, world.now)] == ["pending"]
    world.scrapes("x 6", 3)
    assert [s.labels["alertstate"] for s in evaluate("ALERTS", world.store, world.now)] == ["firing"]
    assert [s.value for s in evaluate("ALERTS_FOR_STATE", world.store, world.now)] == [1001.0]


def test_group_runs_once_in_each_of_its_slots(tmp_path: Path) -> None:
    world = World(tmp_path, "  - {record: 'a:b', expr: x}", group="  interval: 5s\n")
    world.scrapes("x 1", 20)
    (sample,) = evaluate("count_over_time(a:b[1m])", world.store, world.now)
    assert sample.value == 5.0  # the first tick, and the slots at 1005, 1010, 1015 and 1020


def test_clock_set_back_does_not_stop_the_rules(world: World) -> None:
    world.scrapes("x 1", 5)
    world.engine.tick(world.now - 500.0)
    store_before = len(list(world.store.dump(0.0, 1e12)))
    world.scrapes("x 6", 5)
    assert "firing" in world.states
    assert len(list(world.store.dump(0.0, 1e12))) > store_before


@pytest.mark.parametrize(("gap_s", "stalled_s"), [(50.0, 0.0), (17.0, 16.0)], ids=["long", "of a stall"])
def test_a_gap_in_the_scrapes_is_no_reason_to_clear(world: World, gap_s: float, stalled_s: float) -> None:
    """A controller that stood still for 17 s told a page as resolved while its node was as slow as before. That long a
    gap by itself may be how a recording is thinned."""
    settled(world)
    world.scrapes("x 6", 5)
    assert world.states == ["firing"]
    world.now += gap_s  # nobody looked for a while, and then x is gone
    world.engine.discount_stall(stalled_s, world.now)
    world.scrapes("y 1", 2)
    assert world.states == ["unknown"]
    world.scrapes("y 1", 40)
    assert world.states == ["resolved"]


def test_without_any_signals_alerts_are_unknown_and_go_on_when_they_come_back(world: World) -> None:
    settled(world)
    world.scrapes("x 6", 5)
    world.now += 60.0
    (change,) = world.engine.mark_all_unknown(world.now)
    assert (change.previous, change.alert.state) == ("firing", "unknown")
    assert world.engine.mark_all_unknown(world.now + 1) == []
    assert [(one.previous, one.alert.state) for one in world.scrape("x 6")] == [("unknown", "firing")]
