"""Generated series and generated queries: a real Prometheus and we give the same answers.

Points lie 7 s after a multiple of 15 s and queries 3 s after one, so that no window has a point on its border: there
Prometheus 2 and 3 differ. Counters stay far from zero, where their extrapolation differs.
"""

from __future__ import annotations

import math
import random
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from alerts.history.prometheus_source import PrometheusServer, fetch
from alerts.history.recording import read_recordings, recording_store
from alerts.labels import LabelSet
from alerts.promql import evaluate_range, parse
from alerts.promql.functions import FUNCTIONS
from alerts.promql.grid import evaluate_grid
from alerts.series.store import SeriesStore
from tests.fixtures.alertmanager import HTTP, NEEDS_PROMETHEUS, PROMETHEUS, server

PROMTOOL = shutil.which("promtool") or "/usr/bin/promtool"

pytestmark = [
    pytest.mark.e2e,
    NEEDS_PROMETHEUS,
]

SPACING_S = 15
POINTS = 240
QUERIES = 150
Answer = dict[tuple[tuple[str, str], ...], dict[int, float]]


def generated_text(base: int, dice: random.Random) -> str:
    """OpenMetrics text: gauges, counters with resets, histograms; with gaps, late starts and early ends."""
    lines: list[str] = []

    def write(kind: str, family: str, series: dict[str, list[float | None]]) -> None:
        lines.append(f"# TYPE {family} {kind}")
        for name, values in series.items():
            for index, value in enumerate(values):
                if value is not None:
                    lines.append(f"{name} {value!r} {base + 7 + index * SPACING_S}")

    def with_gaps(values: list[float]) -> list[float | None]:
        kept: list[float | None] = list(values)
        for _ in range(dice.randrange(3)):
            at, length = dice.randrange(POINTS), dice.choice([1, 2, 30])
            kept[at : at + length] = [None] * len(kept[at : at + length])
        return kept[: dice.choice([POINTS, POINTS, POINTS // 2])]

    nodes = [(f"n{i}", f"p{i % 2}") for i in range(5)]
    write(
        "gauge",
        "load",
        {
            f'load{{node="{n}",pool="{p}"}}': with_gaps([round(dice.uniform(-5, 50), 3) for _ in range(POINTS)])
            for n, p in nodes
        },
    )
    write(
        "gauge",
        "limit",
        {
            f'limit{{node="{n}",pool="{p}",kind="max"}}': with_gaps([float(dice.randrange(1, 9))] * POINTS)
            for n, p in nodes[:4]
        },
    )
    counters: dict[str, list[float | None]] = {}
    for n, p in nodes:
        for code in ("200", "500"):
            value, values = 1e6, []
            for _ in range(POINTS):
                value = 5e5 if dice.random() < 0.02 else value + dice.randrange(0, 40)
                values.append(value)
            counters[f'reqs_total{{node="{n}",pool="{p}",code="{code}"}}'] = with_gaps(values)
    write("counter", "reqs", counters)
    buckets: dict[str, list[float | None]] = {}
    for n, p in nodes[:3]:
        counts = dict.fromkeys((0.1, 0.5, 1.0, math.inf), 1e6)
        columns: dict[float, list[float | None]] = {bound: [] for bound in counts}
        for _ in range(POINTS):
            added = 0
            for bound in counts:
                added += dice.randrange(0, 9)
                counts[bound] += added
                columns[bound].append(counts[bound])
        for bound, values in columns.items():
            le = "+Inf" if bound == math.inf else str(bound)
            buckets[f'lat_bucket{{node="{n}",pool="{p}",le="{le}"}}'] = values
        buckets[f'lat_count{{node="{n}",pool="{p}"}}'] = columns[math.inf]
        buckets[f'lat_sum{{node="{n}",pool="{p}"}}'] = columns[1.0]
    write("histogram", "lat", buckets)
    return "\n".join([*lines, "# EOF", ""])


class Generator:
    def __init__(self, dice: random.Random) -> None:
        self.dice = dice

    def pick(self, *choices: str) -> str:
        return self.dice.choice(choices)

    def selector(self, name: str) -> str:
        matchers = self.pick("", "", '{node="n1"}', '{pool=~"p.*"}', '{node!~"n[12]"}', '{pool!="p0"}')
        return name + matchers

    def window(self) -> str:
        return f"[{self.pick('1m', '90s', '5m', '11m')}]"

    def offset(self) -> str:
        return self.pick("", "", "", " offset 2m", " offset -1m")

    def vector(self, depth: int) -> str:
        if depth <= 0:
            return self.leaf()
        kind = self.dice.randrange(8)
        inner = lambda: self.vector(depth - 1)  # noqa: E731
        if kind == 0:
            op = self.pick("sum", "avg", "min", "max", "count", "stddev", "group")
            return f"{op} {self.pick('by (pool)', 'by (node, pool)', 'without (node)', '')} ({inner()})"
        if kind == 1:
            return f"quantile by (pool) ({self.pick('0.5', '0.9', '0')}, {inner()})"
        if kind == 2:
            side = f"sum by (node, pool) ({inner()})"
            other = f"sum by (node, pool) ({inner()})"
            return f"{side} {self.pick('+', '-', '*', '/', '>', '<=', '== bool')} {other}"
        if kind == 3:
            return f"({inner()}) {self.pick('and', 'or', 'unless')} on (node) ({inner()})"
        if kind == 4:
            low = f"sum by (pool) ({inner()})"
            return f"sum by (node, pool) ({inner()}) {self.pick('/', '>', '-')} on (pool) group_left () {low}"
        if kind == 5:
            return f"({inner()}) {self.pick('> 3', '* 2', '- 7', '< bool 10', '% 4', '!= 0')}"
        if kind == 6:
            function = self.pick("abs", "floor", "ceil", "sqrt", "sgn", "exp", "ln")
            return f"{function}(sum by (node, pool) ({inner()}))"
        return (
            f"{self.pick('avg', 'max', 'min', 'sum', 'count', 'last')}_over_time((sum by (pool) ({inner()}))[6m:50s])"
        )

    def leaf(self) -> str:
        kind = self.dice.randrange(6)
        if kind == 0:
            return self.selector(self.pick("load", "limit")) + self.offset()
        if kind == 1:
            function = self.pick("rate", "increase", "irate", "resets", "changes")
            return f"{function}({self.selector('reqs_total')}{self.window()}{self.offset()})"
        if kind == 2:
            function = self.pick("avg", "min", "max", "sum", "count", "last", "stddev", "stdvar", "present")
            return f"{function}_over_time({self.selector('load')}{self.window()}{self.offset()})"
        if kind == 3:
            q = self.pick("0.5", "0.9", "0.99")
            return (
                f"histogram_quantile({q}, sum by (le, node, pool) (rate({self.selector('lat_bucket')}{self.window()})))"
            )
        if kind == 4:
            function = self.pick("delta", "deriv", "idelta", "quantile_over_time", "predict_linear")
            window = f"{self.selector('load')}{self.window()}"
            if function == "quantile_over_time":
                return f"quantile_over_time(0.7, {window})"
            return f"{function}({window}{', 60' if function == 'predict_linear' else ''})"
        return f'label_replace({self.selector("load")}, "kind", "$1-x", "node", "n(.)")'


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, SeriesStore, int, Path]]:
    """A Prometheus over generated series, its URL; the same series in a store; when they start."""
    folder = tmp_path_factory.mktemp("prometheus")
    base = (int(time.time()) // 7200 - 2) * 7200
    text = folder / "series.om"
    text.write_text(generated_text(base, random.Random(20)))
    subprocess.run(
        [PROMTOOL, "tsdb", "create-blocks-from", "openmetrics", str(text), str(folder / "data")],
        check=True,
        capture_output=True,
        timeout=60,
    )
    (folder / "prometheus.yml").write_text("{}")
    places = (f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}")
    with server(PROMETHEUS, folder, *places, "--storage.tsdb.retention.time=10y") as url:
        store = recording_store()
        read_recordings([text], store, lambda name: True)
        yield url, store, base, text


def asked(url: str, query: str, start: int, end: int, step: int) -> Answer | None:
    """None: Prometheus refuses the query over this data."""
    asking = {"query": query, "start": start, "end": end, "step": step}
    answer = HTTP.post(f"{url}/api/v1/query_range", data=asking, timeout=20).json()
    if answer["status"] != "success":
        return None
    return {
        tuple(sorted(one["metric"].items())): {int(at): float(value) for at, value in one["values"]}
        for one in answer["data"]["result"]
    }


def ours_by_step(query: str, store: SeriesStore, start: int, end: int, step: int) -> Answer:
    return {
        tuple(sorted(labels.items())): {round(at): value for at, value in points}
        for labels, points in evaluate_range(query, store, start, end, step)
    }


def ours_at_once(query: str, store: SeriesStore, start: int, end: int, step: int) -> Answer:
    steps = np.arange(start * 1000, end * 1000 + 1, step * 1000, dtype=np.int64)
    grid = evaluate_grid(parse(query).root, store, steps, step * 1000)
    found: Answer = {}
    for labels, values, present in zip(grid.labels, grid.values, grid.present, strict=True):
        points = {int(steps[i]) // 1000: float(values[i]) for i in np.flatnonzero(present)}
        if points:
            found[labels.pairs] = points
    return found


def appended(recording: SeriesStore) -> SeriesStore:
    """The same points as a live store has them: one after the other, the older ones packed."""
    live = SeriesStore(retention_s=1e9)
    points = [(at, labels, value) for labels, own in recording.dump(0, 1e12) for at, value in own]
    for at, labels, value in sorted(points, key=lambda point: point[0]):
        live.append(labels, at, value)
    return live


def differs(wanted: Answer, got: Answer) -> str | None:
    for key in wanted.keys() | got.keys():
        a, b = wanted.get(key, {}), got.get(key, {})
        for at in sorted(a.keys() | b.keys()):
            x, y = a.get(at), b.get(at)
            if x is None or y is None:
                return f"{key} at {at}: Prometheus {x}, we {y}"
            close = x == y or (math.isnan(x) and math.isnan(y)) or math.isclose(x, y, rel_tol=1e-7, abs_tol=1e-7)
            if not close:
                return f"{key} at {at}: Prometheus {x}, we {y}"
    return None


def test_generated_queries_have_prometheus_answers(recorded: tuple[str, SeriesStore, int, Path]) -> None:
    url, store, base, _ = recorded
    dice = random.Random(7)
    generator = Generator(dice)
    start, end, step = base + 303, base + 303 + 45 * 60, 45
    failures: list[str] = []
    live = appended(store)
    compared = with_values = 0
    while compared < QUERIES:
        query = generator.vector(dice.randrange(4))
        wanted = asked(url, query, start, end, step)
        if wanted is None:
            continue
        compared += 1
        with_values += bool(wanted)
        for way in (ours_by_step, ours_at_once):
            problem = differs(wanted, way(query, store, start, end, step))
            if problem is not None:
                failures.append(f"{way.__name__}: {query}: {problem}")
        if compared % 5 == 0:
            problem = differs(wanted, ours_by_step(query, live, start, end, step))
            if problem is not None:
                failures.append(f"live store: {query}: {problem}")
    assert not failures, "\n".join(failures[:20])
    assert with_values > QUERIES * 0.8


# Each function that Prometheus 2.42 has, with what calls it. `load` has gaps, negative values and late starts.
CALLS: dict[str, tuple[str, ...]] = {
    **{
        name: (f"{name}(load)", f"-{name}(limit * 0.1)")
        for name in (
            "abs",
            "ceil",
            "floor",
            "exp",
            "ln",
            "log2",
            "log10",
            "sqrt",
            "sgn",
            "sin",
            "cos",
            "tan",
            "asin",
            "acos",
            "atan",
            "sinh",
            "cosh",
            "tanh",
            "asinh",
            "acosh",
            "atanh",
            "deg",
            "rad",
        )
    },
    **{
        name: (f"{name}()", f"{name}(load * 86400 * 30 + 1708000000)")
        for name in (
            "day_of_month",
            "day_of_week",
            "day_of_year",
            "days_in_month",
            "hour",
            "minute",
            "month",
            "year",
        )
    },
    **{
        f"{name}_over_time": (
            f"{name}_over_time(load[4m])",
            f"{name}_over_time(rate(reqs_total[2m])[7m:40s] offset 1m)",
        )
        for name in ("avg", "count", "last", "max", "min", "present", "stddev", "stdvar", "sum")
    },
    **{
        name: (f"{name}(reqs_total[3m])", f"sum by (node) ({name}(reqs_total[5m] offset 3m))")
        for name in ("rate", "increase", "irate", "delta", "idelta", "deriv", "changes", "resets")
    },
    "absent": ('absent(load{node="none",pool=~"x.*"})', "absent(load)", "absent(sum(load > 49))"),
    "absent_over_time": ('absent_over_time(load{node="n1"}[1m])', 'absent_over_time(none{a="b"}[5m])'),
    "clamp": ("clamp(load, 3, 20)", "clamp(load, 20, 3)"),
    "clamp_max": ('clamp_max(load, scalar(limit{node="n1"}))',),
    "clamp_min": ("clamp_min(load, 10)",),
    "histogram_quantile": (
        "histogram_quantile(0.3, lat_bucket)",
        "histogram_quantile(1.5, rate(lat_bucket[5m]))",
        'histogram_quantile(scalar(limit{node="n1"}) / 10, sum by (le) (lat_bucket))',
    ),
    "label_join": ('label_join(load, "both", "-", "node", "pool", "none")',),
    "label_replace": (
        'label_replace(load, "pool", "$2$1", "node", "(n)(.)")',
        'label_replace(load, "x", "$1", "none", "(.*)")',
        'label_replace(load, "node", "", "node", "n1")',
    ),
    "predict_linear": ("predict_linear(load[6m], 120)",),
    "quantile_over_time": ("quantile_over_time(0.25, load[4m])", "quantile_over_time(1.2, load[4m])"),
    "round": ("round(load)", "round(load, 7)", "round(load, 0.3)"),
    "scalar": ("vector(scalar(load))", 'load * scalar(limit{node="n1"})'),
    "sort": ("sort(load)",),
    "sort_desc": ("sort_desc(load)",),
    "time": ("time()", "load * 0 + time()"),
    "timestamp": ("timestamp(load)", "timestamp(load offset 2m)", "timestamp(load @ end())", "timestamp(load * 1)"),
    "vector": ("vector(3) > 2", "vector(time())"),
    "pi": ("pi() * load",),
}
# Prometheus 2.42 does not have these; its own newer tests are run in test_promqltest.py.
NEWER = frozenset(
    {
        "double_exponential_smoothing",
        "first_over_time",
        "histogram_fraction",
        "mad_over_time",
        "sort_by_label",
        "sort_by_label_desc",
        "ts_of_first_over_time",
        "ts_of_last_over_time",
        "ts_of_max_over_time",
        "ts_of_min_over_time",
        "start",
        "end",
        "step",
        "range",
        "min_of",
        "max_of",
    }
)
SHAPES = (
    *(f"{op} by (pool) (load)" for op in ("sum", "avg", "min", "max", "count", "stddev", "stdvar", "group")),
    *(f"{op} without (pool, code) (rate(reqs_total[5m]))" for op in ("sum", "avg", "count", "stdvar")),
    "topk(2, load)",
    "bottomk by (pool) (1, load)",
    "topk(0, load)",
    "topk(scalar(count(limit)), load)",
    'count_values("v", limit)',
    'count_values by (pool) ("pool", limit)',
    "quantile(-1, load)",
    "quantile(2, load)",
    "load + on (node) group_left (kind) limit",
    "limit * on (node) group_right (kind) load",
    "load / ignoring (kind) limit",
    "load > bool ignoring (kind) limit",
    "load ^ 2 ^ 0.5",
    "-load ^ 2",
    "2 - -load",
    "load % -3",
    "load / 0",
    "0 / (load * 0)",
    "sum by (node) (load) atan2 sum by (node) (limit)",
    "load and ignoring (kind) limit",
    "load or on (pool) limit",
    "load unless on (node) (limit > 3)",
    "load == load",
    "load != bool 3",
    "1 + 2 * 3",
    "load == on (node) group_left () limit",
    "load @ end()",
    "load @ start() offset 1m",
    "rate(reqs_total[5m] @ end())",
    "sum_over_time(load[3m:30s] @ start())",
    "avg_over_time(load[10m:1m] offset -2m)",
    "max_over_time(sum by (pool) (rate(reqs_total[2m]))[10m:])",
    "sum(load offset 7m) by (pool)",
    "min_over_time(max_over_time(load[2m])[6m:1m])",
    '{__name__=~"lo.*|limit"}',
    '{node="n1",__name__!="lat_bucket"}',
    'load{node=~"n1|n2",pool!~""}',
    "load > 10 < 30",
    "1 > bool 2",
    "(load > 10) + (load < 30)",
    "Inf",
    "-NaN * load",
    "0x1f + load",
    "1e-3 * load",
    "load + 1 > 5 and load < 40 or limit",
)


def test_every_function_operator_and_modifier_has_prometheus_answers(
    recorded: tuple[str, SeriesStore, int, Path],
) -> None:
    url, store, base, _ = recorded
    assert set(CALLS) | NEWER == set(FUNCTIONS)
    start, end, step = base + 303, base + 303 + 50 * 60, 75
    failures: list[str] = []
    empty: list[str] = []
    for query in (*(query for queries in CALLS.values() for query in queries), *SHAPES):
        wanted = asked(url, query, start, end, step)
        assert wanted is not None, query
        empty += [] if wanted else [query]
        for way in (ours_by_step, ours_at_once):
            problem = differs(wanted, way(query, store, start, end, step))
            if problem is not None:
                failures.append(f"{way.__name__}: {query}: {problem}")
    assert not failures, f"{len(failures)}:\n" + "\n".join(failures[:40])
    assert empty == ["absent(load)", "clamp(load, 20, 3)", "topk(0, load)", "load == on (node) group_left () limit"]


def test_series_fetched_from_prometheus_are_those_of_the_file(recorded: tuple[str, SeriesStore, int, Path]) -> None:
    url, store, base, _ = recorded
    fetched = recording_store()
    end = float(base + POINTS * SPACING_S + 60)
    fetch(PrometheusServer(url), ['{__name__="load"}', '{__name__=~"reqs_.*"}'], float(base), end, fetched)

    def dumped(source: SeriesStore) -> dict[LabelSet, list[tuple[float, float]]]:
        every = {LabelSet.of(labels): points for labels, points in source.dump(0.0, end)}
        return {labels: points for labels, points in every.items() if labels.name in ("load", "reqs_total")}

    assert dumped(fetched) == dumped(store)
    assert len(dumped(fetched)) == 15
