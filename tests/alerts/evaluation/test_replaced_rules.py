"""Rules exchanged while the engine runs: what is still there goes on, what is gone ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from alerts.evaluation.engine import RuleEngine
from alerts.evaluation.rules import RuleGroup, load_rule_file
from alerts.promql import evaluate
from alerts.series.store import SeriesStore

START = 1_700_000_000.0
RULES = """
groups:
  - name: mine
    rules:
      - record: load:half
        expr: load / 2
      - alert: Busy
        expr: load > 5
        for: 30s
      - alert: Full
        expr: load > 8
"""


def groups_of(tmp_path: Path, text: str) -> list[RuleGroup]:
    path = tmp_path / "rules.yaml"
    path.write_text(text)
    return load_rule_file(path)


class Rig:
    def __init__(self, groups: list[RuleGroup]) -> None:
        self.store = SeriesStore()
        self.engine = RuleEngine(groups, self.store)
        self.now = START

    def run(self, seconds: int, load: float) -> list[tuple[str, str, str]]:
        """Ticks once a second; `(alert, previous, state)` of every change."""
        told = []
        for _ in range(seconds):
            self.now += 1
            self.store.append({"__name__": "load", "pool": "chat"}, self.now, load)
            told += [(one.alert.name, one.previous, one.alert.state) for one in self.engine.tick(self.now)]
        return told

    def states(self) -> dict[str, str]:
        return {alert.name: alert.state for alert in self.engine.alerts()}

    def values(self, name: str) -> list[float]:
        return [sample.value for sample in evaluate(name, self.store, self.now)]


def test_pending_and_firing_alerts_survive_an_exchange_of_other_rules(tmp_path: Path) -> None:
    rig = Rig(groups_of(tmp_path, RULES))
    rig.run(20, load=9)
    assert rig.states() == {"Busy": "pending", "Full": "firing"}
    before = {alert.name: alert.active_at for alert in rig.engine.alerts()}

    rig.engine.replace_groups(groups_of(tmp_path, RULES + "      - {alert: New, expr: load > 1}\n"), rig.now)
    told = rig.run(12, load=9)

    assert told == [("New", "inactive", "firing"), ("Busy", "pending", "firing")]
    assert {name: at for name, at in ((a.name, a.active_at) for a in rig.engine.alerts()) if name in before} == before


def test_an_alert_follows_its_rule_into_another_group_and_is_judged_by_the_new_condition(tmp_path: Path) -> None:
    rig = Rig(groups_of(tmp_path, RULES))
    rig.run(40, load=6)
    assert rig.states() == {"Busy": "firing"}

    moved = "groups: [{name: other, rules: [{alert: Busy, expr: load > 5.5, for: 30s}]}]"
    rig.engine.replace_groups(groups_of(tmp_path, moved), rig.now)
    assert rig.run(1, load=6) == []
    assert rig.states() == {"Busy": "firing"}

    higher = "groups: [{name: other, rules: [{alert: Busy, expr: load > 7, for: 30s}]}]"
    rig.engine.replace_groups(groups_of(tmp_path, higher), rig.now)
    assert rig.run(1, load=6) == [("Busy", "firing", "resolved")]


def test_the_series_of_a_rule_that_is_gone_end_and_its_alert_is_told_as_resolved(tmp_path: Path) -> None:
    rig = Rig(groups_of(tmp_path, RULES))
    rig.run(5, load=9)
    assert rig.values("load:half") == [4.5]
    assert rig.values('ALERTS{alertname="Full"}') == [1.0]

    rig.engine.replace_groups(
        groups_of(tmp_path, "groups: [{name: mine, rules: [{alert: Busy, expr: load > 5}]}]"), rig.now
    )
    told = rig.run(1, load=9)

    assert ("Full", "firing", "resolved") in told
    assert rig.values("load:half") == []
    assert rig.values('ALERTS{alertname="Full"}') == []
    assert rig.states() == {"Busy": "firing"}
    assert rig.run(1, load=9) == []
    rig.store.check_integrity()


def test_what_a_new_rule_looks_back_at_is_kept_from_then_on(tmp_path: Path) -> None:
    rig = Rig(groups_of(tmp_path, RULES))
    rig.run(3, load=1)

    reaching = RULES + "      - {record: load:day, expr: 'avg_over_time(load:half[1d])'}\n"
    rig.engine.replace_groups(groups_of(tmp_path, reaching), rig.now)
    rig.store.keep_at_least(7200)
    for _ in range(200):
        rig.now += 60
        rig.store.append({"__name__": "load", "pool": "chat"}, rig.now, 1.0)
        rig.engine.tick(rig.now)

    kept = [points for labels, points in rig.store.dump(START, rig.now) if labels["__name__"] == "load:half"]
    raw = [points for labels, points in rig.store.dump(START, rig.now) if labels["__name__"] == "load"]
    assert len(kept[0]) == 203
    assert rig.now - raw[0][0][0] >= 7200


def test_alert_of_a_rule_that_is_gone_is_resolved_at_the_exchange_and_a_resolved_one_is_not_told_again(
    tmp_path: Path,
) -> None:
    rig = Rig(groups_of(tmp_path, RULES))
    rig.run(40, load=9)
    rig.run(1, load=6)  # Full is resolved by itself, Busy goes on
    assert rig.states() == {"Busy": "firing", "Full": "resolved"}
    rig.engine.replace_groups([], rig.now + 0.5)
    (change,) = rig.engine.tick(rig.now + 1)
    assert (change.alert.name, change.previous, change.alert.state) == ("Busy", "firing", "resolved")
    assert (change.alert.resolved_at, change.alert.active_at) == (rig.now + 0.5, START + 1)
    assert rig.engine.tick(rig.now + 2) == []
    assert rig.engine.alerts() == []


def test_of_two_rules_of_one_name_the_first_goes_on_where_one_is_left(tmp_path: Path) -> None:
    two = "groups: [{name: a, rules: [{alert: A, expr: load > 1}]}, {name: b, rules: [{alert: A, expr: load > 2}]}]"
    rig = Rig(groups_of(tmp_path, two))
    assert rig.run(1, load=1.5) == [("A", "inactive", "firing")]
    rig.engine.replace_groups(groups_of(tmp_path, "groups: [{name: c, rules: [{alert: A, expr: load > 1}]}]"), rig.now)
    assert rig.run(1, load=1.5) == []
    assert rig.states() == {"A": "firing"}
    rig.engine.replace_groups(groups_of(tmp_path, two), rig.now)
    assert rig.run(1, load=9) == [("A", "inactive", "firing")]
    assert len(rig.engine.alerts()) == 2


def test_record_goes_on_in_its_group_and_begins_anew_in_another(tmp_path: Path) -> None:
    rig = Rig(groups_of(tmp_path, "groups: [{name: a, rules: [{record: r, expr: load, labels: {by: a}}]}]"))
    rig.run(3, load=1)
    rig.engine.replace_groups(
        groups_of(tmp_path, "groups: [{name: b, rules: [{record: r, expr: load, labels: {by: b}}]}]"), rig.now
    )
    assert rig.values("r") == [1.0]  # what was written at this very second; it ends right after
    rig.now += 0.9
    assert rig.values("r") == []
    rig.run(1, load=2)
    assert rig.values("r{by='b'}") == [2.0]
    assert rig.values("r{by='a'}") == []


def test_failure_is_told_across_an_exchange_until_the_rule_works(tmp_path: Path) -> None:
    failing = "groups: [{name: g, rules: [{record: r, expr: load / on () other}]}]"
    rig = Rig(groups_of(tmp_path, failing))
    for number in "12":
        rig.store.append({"__name__": "other", "n": number}, START, 1.0)
    rig.run(1, load=1)
    assert list(rig.engine.failures()) == ["g/r"]
    rig.engine.replace_groups(groups_of(tmp_path, "groups: [{name: g, rules: [{record: r, expr: load}]}]"), rig.now)
    assert list(rig.engine.failures()) == ["g/r"]
    rig.run(1, load=1)
    assert rig.engine.failures() == {}


def test_group_that_stays_is_not_evaluated_twice_in_its_slot_and_a_new_one_at_once(tmp_path: Path) -> None:
    slow = "{name: slow, interval: 10s, rules: [{record: s, expr: load}]}"
    rig = Rig(groups_of(tmp_path, f"groups: [{slow}]"))
    rig.run(1, load=1)
    new = "{name: new, interval: 10s, rules: [{record: n, expr: load}]}"
    rig.engine.replace_groups(groups_of(tmp_path, f"groups: [{new}, {slow}]"), rig.now)
    rig.run(3, load=2)
    assert (rig.values("s"), rig.values("n")) == ([1.0], [2.0])
    rig.run(7, load=3)
    assert (rig.values("s"), rig.values("n")) == ([3.0], [3.0])


def test_silence_counts_after_the_time_that_the_engine_was_given_also_for_new_rules(tmp_path: Path) -> None:
    store, node, told = SeriesStore(), {"node": "n1"}, []
    engine = RuleEngine([], store, clear_after_s=5.0)
    engine.replace_groups(groups_of(tmp_path, "groups: [{name: g, rules: [{alert: A, expr: x > 5}]}]"), START)
    for second in range(1, 60):
        text = None if second == 40 else "x 6\n" if second < 40 else "x 1\n"
        store.ingest(node, text, START + second)
        told += [(one.alert.state, second) for one in engine.tick(START + second)]
    assert told == [("firing", 1), ("unknown", 40), ("resolved", 45)]


def test_rules_of_an_exchange_share_parts_that_see_what_a_rule_of_it_has_just_written(tmp_path: Path) -> None:
    rig = Rig(groups_of(tmp_path, RULES))
    rig.run(1, load=1)
    text = "groups: [{name: g, rules: [{record: a, expr: sum(r)}, {record: r, expr: load}, {record: b, expr: sum(r)}]}]"
    rig.engine.replace_groups(groups_of(tmp_path, text), rig.now)
    rig.run(1, load=2)
    rig.run(1, load=3)
    assert (rig.values("a"), rig.values("b")) == ([2.0], [3.0])


@pytest.mark.parametrize("is_exchanged", [False, True])
def test_what_a_rule_reads_of_another_is_kept_for_its_window_and_five_minutes_more(
    tmp_path: Path, is_exchanged: bool
) -> None:
    record = "{record: r, expr: x}"
    reaching = f"groups: [{{name: g, rules: [{record}, {{record: s, expr: 'sum_over_time(r[20m])'}}]}}]"
    store = SeriesStore(retention_s=60.0)
    alone = f"groups: [{{name: g, rules: [{record}]}}]"
    engine = RuleEngine(groups_of(tmp_path, alone if is_exchanged else reaching), store)
    for minute in range(60):
        now = START + 60.0 * minute
        store.append({"__name__": "x"}, now, 1.0)
        engine.tick(now)
        if minute == 2 and is_exchanged:
            engine.replace_groups(groups_of(tmp_path, reaching), now)
    ((_, recorded),) = store.dump(START, now, names=["r"])
    ((_, last),) = store.dump(START, now, names=["s"])
    oldest_minute = (recorded[0][0] - START) / 60
    assert 59 - 25 - 10 < oldest_minute <= 59 - 24  # chunk by chunk, so that some more may be left
    assert last[-1][1] == 20.0


@pytest.mark.parametrize("is_exchanged", [False, True])
def test_what_no_rule_reads_is_kept_for_five_minutes_to_the_second(tmp_path: Path, is_exchanged: bool) -> None:
    groups = groups_of(tmp_path, "groups: [{name: g, rules: [{record: r, expr: x}]}]")
    store = SeriesStore(retention_s=1.0)
    engine = RuleEngine(groups, store)
    for minute in range(10):
        store.append({"__name__": "x"}, START + 60.0 * minute, 1.0)
        engine.tick(START + 60.0 * minute)
        if is_exchanged:
            engine.replace_groups(groups, START + 60.0 * minute)
    ((_, recorded),) = store.dump(START, START + 600.0, names=["r"])
    assert [at - START for at, _ in recorded] == [60.0 * minute for minute in range(5, 10)]
