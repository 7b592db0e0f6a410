"""Rules exchanged while the engine runs: what is still there goes on, what is gone ends."""

from __future__ import annotations

from pathlib import Path

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
