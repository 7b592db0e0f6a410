"""Raw points out of an existing Prometheus: of the metrics that rules read, for a backtest or as the live signals."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from alerts.arrays import Floats, Times
from alerts.errors import BadRecordingError
from alerts.evaluation.rules import RuleGroup
from alerts.history.recording import Points, load
from alerts.labels import METRIC_NAME, LabelSet
from alerts.native_name import spellings, with_native_name
from alerts.promql.nodes import Node, Selector, children
from alerts.series.store import SeriesStore

WINDOW_S = 2 * 3600  # of one request: days of a large fleet in one answer would not fit Prometheus' own limits
THREADS = 4
TIMEOUT_S = 30.0


class RangeSeries(NamedTuple):
    """One series' points, rising in time (milliseconds)."""

    labels: LabelSet
    times: Times
    values: Floats


@dataclass(frozen=True, slots=True)
class PrometheusServer:
    """Where a Prometheus is, and what it wants to see. `verify` and `cert`: as in requests, a CA file or False."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    basic: tuple[str, str] | None = field(default=None, repr=False)
    verify: bool | str = True
    cert: tuple[str, str] | str | None = None
    timeout_s: float = TIMEOUT_S


def metric_selectors(groups: Iterable[RuleGroup], *, only: str = "") -> list[str]:
    """`{__name__="name"}` or `{__name__=~"pattern"}` of everything the rules read and do not record themselves.

    `only`: matchers that are added to each, such as `job="vllm"`. Raises BadRecordingError for a rule that selects
    series of any name.
    """
    groups = list(groups)
    recorded = {rule.name for group in groups for rule in group.rules if rule.kind == "record"}
    found: set[str] = set()
    for group in groups:
        for rule in group.rules:
            for selector in _selectors(rule.query.root):
                for alternatives in selector.groups:
                    name = next((matcher for matcher in alternatives if matcher.name == METRIC_NAME), None)
                    if name is None or name.op in ("!=", "!~"):
                        raise BadRecordingError(
                            f"rule {rule.name} selects series without a metric name: too much to fetch"
                        )
                    if name.op == "=" and name.value in (*recorded, "ALERTS", "ALERTS_FOR_STATE"):
                        continue
                    found.add(selector_of(name.value, op=name.op, only=only))
    return sorted(found)


def selector_of(name: str, *, op: str = "=", only: str = "") -> str:
    """A selector of this metric name, with further matchers in `only`.

    A native name (`vllm:x`) is asked for in all its spellings: that Prometheus has what its scraper made of it.
    """
    if op == "=" and (written := spellings(name)) != name:
        name, op = written, "=~"
    return f"{{{METRIC_NAME}{op}{json.dumps(name)}{',' if only else ''}{only}}}"


def fetch(
    server: PrometheusServer,
    selectors: Iterable[str],
    start: float,
    end: float,
    store: SeriesStore,
    *,
    on_progress: Callable[[int, int], None] | None = None,
) -> int:
    """Adds the points in (start, end] to the store; how many.

    Raises BadRecordingError when the server cannot be asked or refuses; nothing is kept then.
    """
    found: dict[LabelSet, Points] = {}
    for row in read_range(server, list(selectors), start, end, on_progress=on_progress):
        points = found.setdefault(row.labels, (array("q"), array("d")))
        points[0].frombytes(row.times.tobytes())
        points[1].frombytes(row.values.tobytes())
    return load(store, found)


def read_range(
    server: PrometheusServer,
    selectors: list[str],
    start: float,
    end: float,
    *,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[RangeSeries]:
    """All points in (start, end] of these selectors, several asked for at once; the windows of one series in order.

    Under native names.

    Raises BadRecordingError when one of them cannot be read.
    """
    rows: list[RangeSeries] = []
    with ThreadPoolExecutor(THREADS) as threads:
        answers = [threads.submit(_read_one, server, selector, start, end) for selector in selectors]
        for count, answer in enumerate(answers, 1):
            try:
                rows += answer.result()
            except BadRecordingError:
                for other in answers:
                    other.cancel()
                raise
            if on_progress is not None:
                on_progress(count, len(selectors))
    return rows


def _read_one(server: PrometheusServer, selector: str, start: float, end: float) -> list[RangeSeries]:
    """One metric, window by window."""
    from prometheus_api_client import PrometheusConnect
    from prometheus_api_client.exceptions import PrometheusApiClientException
    from requests import Session  # noqa: TID251  what the client library is built on
    from requests.exceptions import RequestException  # noqa: TID251

    rows: list[RangeSeries] = []
    with Session() as session:
        session.verify = server.verify
        session.cert = server.cert
        session.trust_env = False  # no proxy or .netrc that happens to be set
        client = PrometheusConnect(
            url=server.url,
            headers=dict(server.headers),
            auth=server.basic,
            session=session,
            timeout=server.timeout_s,
            method="POST",
            retry=0,
        )
        at = start
        while at < end:
            span_s = min(WINDOW_S, end - at)
            at += span_s
            query = f"{selector}[{max(1, round(span_s * 1000))}ms]"
            try:
                answer = client.custom_query(query, params={"time": f"{at:.3f}"})
                rows.extend(_range_series(one) for one in answer)
            except (RequestException, PrometheusApiClientException) as error:
                raise BadRecordingError(f"Prometheus at {server.url}: {_short(error)}") from None
            except (KeyError, TypeError, ValueError) as error:
                raise BadRecordingError(
                    f"Prometheus at {server.url}: an answer that cannot be read: {_short(error)}"
                ) from None
    return _under_native_names(rows)


def _under_native_names(rows: list[RangeSeries]) -> list[RangeSeries]:
    """Of a series that is there in two spellings the first counts."""
    spelled: dict[LabelSet, LabelSet] = {}
    kept = []
    for row in rows:
        labels = with_native_name(row.labels)
        if spelled.setdefault(labels, row.labels) == row.labels:
            kept.append(row._replace(labels=labels))
    return kept


def _range_series(one: dict[str, Any]) -> RangeSeries:
    points = one["values"]
    times = np.array([round(float(at) * 1000) for at, _ in points], dtype=np.int64)
    return RangeSeries(
        LabelSet.of(one["metric"]), times, np.array([float(value) for _, value in points], dtype=np.float64)
    )


def _short(error: Exception) -> str:
    """What is wrong, without the library's own wrapping of it and without the query."""
    from requests.exceptions import ConnectionError as Unreachable  # noqa: TID251  what the client library is built on
    from requests.exceptions import Timeout  # noqa: TID251

    if isinstance(error, Timeout):
        return "timed out"
    text = " ".join(str(error).split())
    if isinstance(error, Unreachable):
        reason = str(getattr(error.args[0] if error.args else None, "reason", error))
        text = "cannot be reached: " + reason.rpartition("]")[2].rpartition(": ")[2].strip(" \"')")
    return text if len(text) <= 300 else text[:300] + "..."


def _selectors(node: Node) -> list[Selector]:
    if isinstance(node, Selector):
        return [node]
    return [selector for child in children(node) for selector in _selectors(child)]
