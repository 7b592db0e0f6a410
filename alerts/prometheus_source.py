"""Recorded series out of an existing Prometheus: the raw points of the metrics that the rules read."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from alerts.errors import BadRecordingError
from alerts.promql.nodes import Node, Selector, children
from alerts.recording import Points, load
from alerts.rules import RuleGroup
from alerts.sample import NAME, LabelSet
from alerts.store import SeriesStore

WINDOW_S = 2 * 3600  # of one request: days of a large fleet in one answer would not fit Prometheus' own limits
THREADS = 4
TIMEOUT_S = 30.0


def metric_selectors(groups: Iterable[RuleGroup]) -> list[str]:
    """`name` or `{__name__=~"pattern"}` of everything the rules read and do not record themselves."""
    groups = list(groups)
    recorded = {rule.name for group in groups for rule in group.rules if rule.kind == "record"}
    found: set[str] = set()
    for group in groups:
        for rule in group.rules:
            for selector in _selectors(rule.query.root):
                for alternatives in selector.groups:
                    name = next((matcher for matcher in alternatives if matcher.name == NAME), None)
                    if name is None or name.op in ("!=", "!~"):
                        raise BadRecordingError(
                            f"rule {rule.name} selects series without a metric name: too much to fetch"
                        )
                    if name.op == "=" and name.value in recorded:
                        continue
                    found.add(f"{{{NAME}{name.op}{json.dumps(name.value)}}}")
    return sorted(found)


def fetch(
    url: str,
    selectors: Iterable[str],
    start: float,
    end: float,
    store: SeriesStore,
    *,
    headers: dict[str, str] | None = None,
    verify: bool | str = True,
    timeout_s: float = TIMEOUT_S,
    tell: Callable[[int, int], None] | None = None,
) -> int:
    """Adds the points in (start, end] to the store; how many. `verify`: as in requests, a CA file or False.

    Raises BadRecordingError when the server cannot be asked or refuses; nothing is kept then.
    """
    jobs = list(selectors)
    found: dict[LabelSet, Points] = {}
    with ThreadPoolExecutor(THREADS) as threads:
        answers = [
            threads.submit(_fetch_one, url, selector, start, end, headers or {}, verify, timeout_s) for selector in jobs
        ]
        for count, answer in enumerate(answers, 1):
            try:
                for labels, times, values in answer.result():
                    points = found.setdefault(labels, (array("q"), array("d")))
                    points[0].extend(times)
                    points[1].extend(values)
            except BadRecordingError:
                for other in answers:
                    other.cancel()
                raise
            if tell is not None:
                tell(count, len(jobs))
    return load(store, found)


def _fetch_one(
    url: str, selector: str, start: float, end: float, headers: dict[str, str], verify: bool | str, timeout_s: float
) -> list[tuple[LabelSet, list[int], list[float]]]:
    """One metric, window by window."""
    from prometheus_api_client import PrometheusConnect
    from prometheus_api_client.exceptions import PrometheusApiClientException
    from requests import Session  # noqa: TID251  what the client library is built on
    from requests.exceptions import RequestException  # noqa: TID251

    session = Session()
    session.verify = verify
    client = PrometheusConnect(url=url, headers=headers, session=session, timeout=timeout_s, method="POST")
    rows: list[tuple[LabelSet, list[int], list[float]]] = []
    at = start
    while at < end:
        span_s = min(WINDOW_S, end - at)
        at += span_s
        query = f"{selector}[{max(1, round(span_s * 1000))}ms]"
        try:
            answer = client.custom_query(query, params={"time": f"{at:.3f}"})
            rows.extend(_series(one) for one in answer)
        except (RequestException, PrometheusApiClientException) as error:
            raise BadRecordingError(f"Prometheus at {url}: {_short(error)}") from None
        except (KeyError, TypeError, ValueError) as error:
            raise BadRecordingError(f"Prometheus at {url}: an answer that cannot be read: {_short(error)}") from None
    return rows


def _series(one: dict[str, Any]) -> tuple[LabelSet, list[int], list[float]]:
    return (
        LabelSet.of(one["metric"]),
        [round(float(at) * 1000) for at, _ in one["values"]],
        [float(value) for _, value in one["values"]],
    )


def _short(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 300 else text[:300] + "..."


def _selectors(node: Node) -> list[Selector]:
    if isinstance(node, Selector):
        return [node]
    return [selector for child in children(node) for selector in _selectors(child)]
