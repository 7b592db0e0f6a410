"""Random scrapes, appends, rules' records and restarts: the store reads back what a plain list of points would.

The model knows nothing of head, chunks and groups: one list of (time, value) a series, and Prometheus' staleness.
"""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from alerts.labels import METRIC_NAME, LabelSet
from alerts.matcher import Matcher
from alerts.promql import evaluate, parse
from alerts.promql.evaluator import InstantEvaluator
from alerts.promql.grid import evaluate_grid
from alerts.promql.nodes import is_empty_without_series
from alerts.promql.values import Vector
from alerts.sample import STALE_NAN, is_stale_nan
from alerts.series.label_column import LabelColumn
from alerts.series.store import SeriesStore

NAMES = "abcdef"
STEP_MS = 5000


class Model:
    def __init__(self) -> None:
        self.points: dict[LabelSet, list[tuple[int, float]]] = {}

    def put(self, labels: LabelSet, at_ms: int, value: float) -> None:
        own = self.points.setdefault(labels, [])
        if not own or at_ms > own[-1][0]:
            own.append((at_ms, value))

    def end(self, labels: LabelSet, at_ms: int) -> None:
        own = self.points.get(labels)
        if own and not is_stale_nan(own[-1][1]):
            self.put(labels, at_ms, STALE_NAN)

    def window(self, name: str, after_ms: int, until_ms: int) -> dict[LabelSet, list[tuple[int, float]]]:
        found = {
            labels: [(at, value) for at, value in own if after_ms < at <= until_ms and not is_stale_nan(value)]
            for labels, own in self.points.items()
            if labels.name == name
        }
        return {labels: own for labels, own in found.items() if own}

    def newest(self, name: str, at_ms: int) -> dict[LabelSet, tuple[int, float]]:
        found = {}
        for labels, own in self.points.items():
            seen = [point for point in own if at_ms - 300_000 < point[0] <= at_ms]
            if labels.name == name and seen and not is_stale_nan(seen[-1][1]):
                found[labels] = seen[-1]
        return found


class Writing:
    """The same operations on a store and on the model."""

    def __init__(self, seed: int, **limits: object) -> None:
        self.dice = random.Random(seed)
        self.store = SeriesStore(retention_s=1e7, **limits)  # type: ignore[arg-type]
        self.model = Model()
        self.now_ms = 1_700_000_000_000
        self.before: dict[str, set[LabelSet]] = {}
        self.values: dict[str, float] = {}
        self.appender = self.store.appender()
        self.recorded: set[LabelSet] = set()

    def step(self) -> None:
        self.now_ms += STEP_MS + self.dice.randrange(3)
        for number in range(3):
            node = f"n{number}"
            match self.dice.randrange(12):
                case 0:
                    self.scrape(node, None)
                case 1:
                    self.forget(node)
                case 2:
                    pass
                case _:
                    self.scrape(node, [name for name in NAMES if self.dice.random() < 0.9])
        self.record()
        if self.dice.randrange(4) == 0:
            labels = LabelSet.of({METRIC_NAME: "alone"})
            self.store.append_at(labels, self.now_ms, float(self.dice.randrange(9)))
            self.model.put(
                labels,
                self.now_ms,
                self.store.select((Matcher(METRIC_NAME, "=", "alone"),)).newest(self.now_ms, self.now_ms - 1)[1][0],
            )
        if self.dice.randrange(9) == 0:  # somebody else writes one of the scraped series
            labels = LabelSet.of({METRIC_NAME: "a", "node": "n1"})
            self.store.append_at(labels, self.now_ms + 1, 5.0)
            self.model.put(labels, self.now_ms + 1, 5.0)

    def up(self, node: str) -> LabelSet:
        return LabelSet.of({METRIC_NAME: "up", "node": node})

    def scrape(self, node: str, names: list[str] | None) -> None:
        text = None
        current: dict[LabelSet, float] = {self.up(node): 0.0 if names is None else 1.0}
        if names is not None:
            lines = []
            for name in names:
                value = self.values[name] = self.number(name)
                lines.append(f"{name} {value!r}")
                current[LabelSet.of({METRIC_NAME: name, "node": node})] = value
            text = "\n".join(lines) + "\n"
        self.store.ingest({"node": node}, text, self.now_ms / 1000)
        for labels in self.before.get(node, set()) - current.keys():
            self.model.end(labels, self.now_ms)
        for labels, value in current.items():
            self.model.put(labels, self.now_ms, value)
        self.before[node] = set(current)

    def number(self, name: str) -> float:
        if name in "ab":  # counters, with resets
            return (
                0.0
                if self.dice.random() < 0.02
                else self.values.get(name, 0.0) + self.dice.randrange(60 if name == "a" else 9000)
            )
        return self.dice.choice([0.0, -0.0, 1.5, math.nan, math.inf, 1e300, 0.1, float(self.dice.randrange(10**6))])

    def forget(self, node: str) -> None:
        if node not in self.before:
            return
        self.store.forget_target({"node": node})
        scraped_ms = self.model.points[self.up(node)][-1][0]
        for labels in self.before.pop(node):
            self.model.end(labels, max(scraped_ms, self.model.points[labels][-1][0]) + 1)

    def record(self) -> None:
        sources = {"node": "n0"}, {"node": "n1"}, {"node": "n2", "x": "y"}
        labels = [LabelSet.of({METRIC_NAME: "r", **one}) for one in sources if self.dice.random() < 0.8]
        column = LabelColumn(labels)
        self.appender.set_series(column, lambda: column)
        values = np.array([float(self.dice.randrange(50)) for _ in labels])
        self.store.append_column(self.appender, self.now_ms, values)
        for gone in self.recorded - set(labels):
            self.model.end(gone, self.now_ms)
        for entry, value in zip(labels, values.tolist(), strict=True):
            self.model.put(entry, self.now_ms, value)
        self.recorded = set(labels)


def same(a: float, b: float) -> bool:
    return (a != a and b != b) or (a == b and math.copysign(1, a) == math.copysign(1, b))


@pytest.mark.parametrize("seed", range(6))
def test_store_reads_back_what_was_written(seed: int) -> None:
    world = Writing(seed)
    for number in range(400):
        world.step()
        if number % 40:
            continue
        world.store.check_integrity()
        for _ in range(12):
            at_ms = world.now_ms - world.dice.choice([0, 0, 1, 4999, 60_000, 1_000_000])
            after_ms = at_ms - world.dice.choice([20_000, 100_000, 900_000, 10_000_000])
            for name in (*NAMES, "r", "up"):
                selection = world.store.select((Matcher(METRIC_NAME, "=", name),))
                present, values, times = selection.newest(at_ms, at_ms - 300_000)
                wanted = world.model.newest(name, at_ms)
                assert {selection.labels[i] for i in np.flatnonzero(present)} == set(wanted)
                for i in np.flatnonzero(present).tolist():
                    assert int(times[i]) == wanted[selection.labels[i]][0]
                    assert same(float(values[i]), wanted[selection.labels[i]][1])
                labels, times, values, starts = selection.windows(after_ms, at_ms)
                windows = world.model.window(name, after_ms, at_ms)
                assert set(labels) == set(windows)
                for i, entry in enumerate(labels):
                    part = slice(starts[i], starts[i + 1])
                    assert times[part].tolist() == [at for at, _ in windows[entry]]
                    assert all(map(same, values[part].tolist(), [value for _, value in windows[entry]]))


EXPRESSIONS = """
a
-a
rate(a[1m])
increase(b[5m] offset 30s)
sum by (node) (rate(a[1m]))
c and on (node) rate(a[20s]) > 5
a / on (node) group_left () sum by (node) (b)
max_over_time(d[2m])
quantile_over_time(0.5, r[5m] offset 1m)
avg_over_time(r[10m])
sum_over_time(a[3m])
a or b
a unless on (node) r
count(up == 1)
quantile by (x) (0.9, r)
topk(2, a)
sum without (node) (a) > bool 3
label_replace(r, "z", "$1", "node", "n(.)")
absent(a)
changes(r[1m])
resets(a[20m])
stddev by (x) (r)
max_over_time(rate(a[1m])[5m:30s])
r > 20
histogram_quantile(0.9, label_replace(a + 0, "le", "1", "", "") or label_replace(b + 0, "le", "+Inf", "", ""))
""".strip().splitlines()


@pytest.mark.parametrize("seed", range(3))
def test_both_evaluators_agree_over_scraped_and_recorded_series(seed: int) -> None:
    world = Writing(seed)
    for _ in range(150):
        world.step()
    steps = np.arange(world.now_ms - 600_000, world.now_ms, 17_000, dtype=np.int64)
    compared = 0
    for expression in EXPRESSIONS:
        root = parse(expression).root
        grid = evaluate_grid(root, world.store, steps, 17_000)
        for index, at_ms in enumerate(steps.tolist()):
            instant = InstantEvaluator(world.store, at_ms, int(steps[0]), int(steps[-1]), 17_000).evaluate(root)
            assert isinstance(instant, Vector)
            wanted = dict(zip(instant.labels, instant.values.tolist(), strict=True))
            column = grid.at(index, at_ms)
            got = dict(zip(column.labels, column.values.tolist(), strict=True))
            assert got.keys() == wanted.keys(), (expression, at_ms)
            for labels, value in wanted.items():
                assert (
                    (value != value and got[labels] != got[labels])
                    or value == got[labels]
                    or math.isclose(value, got[labels], rel_tol=1e-9)
                ), (expression, at_ms, labels)
                compared += 1
    assert compared > 1000


def test_history_shrinks_before_memory_grows() -> None:
    store = SeriesStore(max_bytes=20_000)
    dice = random.Random(1)
    for at in range(3000):
        store.ingest({"node": "a"}, "".join(f"x{i} {dice.random()!r}\n" for i in range(20)), float(at))
    assert store.num_bytes - store._head.num_bytes < 20_000 + 60 * 20 * 8 + 4096
    (newest,) = evaluate("x0", store, 3000.0)
    assert newest.at == 2999.0
    store.check_integrity()


def test_a_rules_series_is_kept_as_long_as_other_rules_read_it() -> None:
    store = SeriesStore(retention_s=300.0)
    long, short = store.appender(keep_s=3600.0), store.appender()
    columns = [LabelColumn([LabelSet.of({METRIC_NAME: name})]) for name in ("long", "short")]
    for at in range(0, 3000, 10):
        for appender, column in zip((long, short), columns, strict=True):
            appender.set_series(column, lambda column=column: column)  # type: ignore[misc]
            store.append_column(appender, at * 1000, np.array([1.0]))
    assert evaluate("count_over_time(long[1h])", store, 3000.0)[0].value == 300
    assert evaluate("count_over_time(short[1h])", store, 3000.0)[0].value < 60


NOTHING_READ = [
    *EXPRESSIONS,
    "absent(a) or a",
    "vector(1)",
    "a or vector(1)",
    "vector(1) and a",
    "a unless vector(1)",
    "vector(1) unless a",
    "scalar(a)",
    "time() - a",
    "time()",
    "hour()",
    "hour(a)",
    "absent_over_time(a[1m])",
    "count(a)",
    "topk(scalar(a), b)",
    "histogram_quantile(0.5, a)",
    "1 > bool 0",
    "sum(vector(1))",
    "label_replace(vector(1), 'a', 'b', 'c', 'd')",
    "max_over_time(vector(1)[5m:1m])",
    "-vector(1)",
    "clamp(a, 1, 2)",
    "sort(a)",
    "quantile(scalar(a), b)",
]


@pytest.mark.parametrize("expression", NOTHING_READ)
def test_rules_are_passed_over_only_when_they_could_give_nothing(expression: str) -> None:
    if is_empty_without_series(parse(expression).root):
        assert evaluate(expression, SeriesStore(), 1.0) == []


def test_most_rules_on_missing_metrics_are_passed_over() -> None:
    assert [e for e in EXPRESSIONS if not is_empty_without_series(parse(e).root)] == ["absent(a)"]
