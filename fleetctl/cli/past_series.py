"""Series of the past for offline commands: from OpenMetrics files, black boxes, or a Prometheus."""

from __future__ import annotations

import datetime as dt
import time
from array import array
from pathlib import Path
from typing import TYPE_CHECKING

from fleetctl.cli.file_input import read_or_refuse
from fleetctl.kit.errors import BadInputError, UnreachableError
from fleetctl.kit.http_url import is_http_url

if TYPE_CHECKING:
    from alerts.evaluation.rules import RuleGroup
    from alerts.history.prometheus_source import PrometheusServer, RangeSeries
    from alerts.series.store import SeriesStore

MAX_SINCE_S = 10 * 366 * 86400.0


def recorded_store(paths: list[Path], groups: list[RuleGroup]) -> tuple[SeriesStore, float, float]:
    """What these rules read of recordings, with the times of the first and the last point."""
    from alerts.history.recording import read_recordings, recording_store, wanted_names
    from diagnostics.blackbox import is_black_box

    store = recording_store()
    wanted = wanted_names(groups)
    boxes = [path for path in paths if is_black_box(path)]
    texts = [path for path in paths if path not in boxes]
    kept = read_or_refuse(lambda: read_recordings(texts, store, wanted))
    kept += sum(_black_box(path, store) for path in boxes)
    bounds = store.bounds()
    if not kept or bounds is None:
        raise UnreachableError(
            "the recording has no series that these rules read", remedy="fleetctl alerts check names dead rules"
        )
    return store, *bounds


def prometheus_store(
    server: PrometheusServer, groups: list[RuleGroup], since_s: float
) -> tuple[SeriesStore, float, float]:
    """What these rules read of a Prometheus' last `since_s` seconds."""
    from alerts.errors import AlertsError
    from alerts.history.prometheus_source import fetch, metric_selectors
    from alerts.history.recording import recording_store

    store = recording_store()
    end = time.time()
    if since_s > MAX_SINCE_S:
        raise BadInputError(f"--since: more than {MAX_SINCE_S / 86400:.0f} days back", remedy="e.g. --since 7d")
    selectors = read_or_refuse(lambda: metric_selectors(groups))
    try:
        kept = fetch(server, selectors, end - since_s, end, store)
    except AlertsError as error:
        raise UnreachableError(str(error), remedy="check the URL, --token-file and --timeout") from error
    bounds = store.bounds()
    if not kept or bounds is None:
        raise UnreachableError("Prometheus has no series that these rules read", remedy="is it the right Prometheus?")
    return store, *bounds


def prometheus_rows(
    server: PrometheusServer, groups: list[RuleGroup], start: float, end: float, only: str = ""
) -> list[RangeSeries]:
    """What these rules read of a Prometheus in that time, as it has it. `only`: matchers that are added to each."""
    from alerts.errors import AlertsError
    from alerts.history.prometheus_source import metric_selectors, read_range

    selectors = read_or_refuse(lambda: metric_selectors(groups, only=only))
    try:
        return read_range(server, selectors, start, end)
    except AlertsError as error:
        raise UnreachableError(str(error), remedy="check the URL, --token-file and --timeout") from error


def server_of(url: str, token_file: Path | None, ca_file: Path | None, timeout_s: float) -> PrometheusServer:
    """Where a Prometheus is. Raises BadInputError for what cannot be used."""
    from alerts.history.prometheus_source import PrometheusServer

    token = secret(token_file) if token_file else None
    if ca_file and not ca_file.is_file():
        raise BadInputError(f"--ca-file: {ca_file}: no such file")
    if not is_http_url(url):
        raise BadInputError(f"--prometheus: {url!r} is no HTTP URL", remedy="e.g. http://prometheus:9090")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return PrometheusServer(url, headers, verify=str(ca_file) if ca_file else True, timeout_s=timeout_s)


def secret(path: Path) -> str:
    """The text of a token file."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInputError(f"--token-file: {path}: {getattr(error, 'strerror', None) or 'not a text'}") from error


def duration_s(text: str, option: str) -> float:
    """Seconds of a duration that was typed for this option; more than none."""
    from alerts.duration import parse_duration_s
    from alerts.errors import AlertsError

    try:
        seconds = parse_duration_s(text, typed=True)
    except AlertsError as error:
        raise BadInputError(f"{option}: {error}") from error
    if seconds <= 0:
        raise BadInputError(f"{option}: {text!r} is not above zero")
    return seconds


def moment(text: str) -> float:
    """Unix seconds of RFC 3339 or a number. Raises ValueError."""
    try:
        return float(text)
    except ValueError:
        found = dt.datetime.fromisoformat(text)
        return (found if found.tzinfo else found.replace(tzinfo=dt.UTC)).timestamp()


def _black_box(path: Path, store: SeriesStore) -> int:
    from alerts.labels import METRIC_NAME, LabelSet
    from alerts.sample import STALE_NAN
    from diagnostics import blackbox

    try:
        recorded = blackbox.read(path)
    except blackbox.BadBlackBoxError as error:
        raise BadInputError(str(error)) from error
    kept = 0
    for series in recorded.series:
        name = series.labels.get(METRIC_NAME, "")
        if name.startswith(("llm:", "ALERTS")):
            continue  # what rules made of the signals then; it is made anew here
        times = array("q", (round(at * 1000) for at, _ in series.points))
        values = array("d", (STALE_NAN if value is None else value for _, value in series.points))
        store.append_points(LabelSet.of(series.labels), times, values)
        kept += len(times)
    return kept
