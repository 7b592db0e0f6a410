"""Metrics of several workers as one gateway's: counters that never go back, whoever answers and whoever died.

A worker writes its samples into the workers' folder before anybody gets them. So what a scrape has seen of a worker is
there after any end of it, SIGKILL too. The supervisor folds the counters of ended workers into one file, and adds the
requests that ended with them.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from fleetctl.gateway.siblings.joined_views import WorkersNow
from fleetctl.gateway.siblings.open_requests import OpenRequest, read_open_requests, remove_open_requests
from fleetctl.kit.whole_file import write_whole

Families = list[list[Any]]
"""[name, type, help, [[sample name, labels, value], ...]] each."""

ENDED_FILE = "metrics-ended.json"
WORKER_DIED = "worker_died"
"""Why a request is lost that its worker carried when it ended."""
MAX_REMEMBERED = 1000  # requests that ended with their worker
PROCESS_START = "process_start_time_seconds"
ACCUMULATING = ("counter", "histogram", "summary")
# Gauges that count what a process has. Of all others the largest is told: one worker that sees trouble is enough.
SUMMED = frozenset(
    {
        "gateway_inflight_requests",
        "gateway_tenant_running_requests",
        "gateway_queue_requests",
        "gateway_prefix_parts",
        "gateway_receiving_body_bytes",
        "gateway_response_cache_bytes",
        "process_resident_memory_bytes",
        "process_virtual_memory_bytes",
        "process_open_fds",
    }
)
SMALLEST = frozenset({"gateway_table_version", "gateway_overflow_budget_left_ratio", PROCESS_START, "process_max_fds"})


def families_of(registry: CollectorRegistry) -> Families:
    """What the registry has now."""
    return [
        [one.name, one.type, one.documentation, [[s.name, s.labels, s.value] for s in one.samples]]
        for one in registry.collect()
    ]


def keep_families(folder: Path, worker: int, families: Families) -> None:
    """Write down what is about to be told of the worker. Raises OSError."""
    write_whole(_file_of(folder, worker), json.dumps(families))


def joined_exposition(folder: Path, live: Mapping[int, Families], more: Iterable[Metric]) -> bytes:
    """The Prometheus text of all workers: `live` by number, the counters of others from the folder, and `more`."""
    kept = {number: _read(path) for number, path in _files(folder).items() if number not in live}
    ended = _read_ended(folder)  # last: whose file was gone by now is in it
    parts = [families for number, families in live.items() if number not in ended["workers"]]
    parts += [_accumulating(families) for number, families in kept.items() if number not in ended["workers"]]
    joined = join_families([*parts, ended["families"]])
    _tell_counters_start(joined, folder)
    return generate_latest(_Told([*map(_metric, joined), *more]))


def forget_worker(folder: Path, worker: int) -> list[OpenRequest]:
    """The worker has ended: what it counted is added to that of those before it, and what it carried is lost.

    Returns what is lost. Raises OSError.
    """
    (folder / f"{worker}.sock").unlink(missing_ok=True)
    ended, path = _read_ended(folder), _file_of(folder, worker)
    lost = read_open_requests(folder, worker) if worker not in ended["workers"] else []
    if worker not in ended["workers"]:
        families = join_families([ended["families"], _accumulating(_read(path)), _count_lost(len(lost))])
        told = {
            "workers": [*ended["workers"], worker],
            "families": families,
            "lost": [*ended["lost"], *lost][-MAX_REMEMBERED:],
        }
        write_whole(folder / ENDED_FILE, json.dumps(told))
    path.unlink(missing_ok=True)
    remove_open_requests(folder, worker)
    return lost


def unfolded_workers(folder: Path) -> set[int]:
    """Numbers of the workers that were not forgotten yet."""
    sockets = {int(path.stem) for path in folder.glob("*.sock")}
    opened = {int(path.name.rpartition("-")[2]) for path in folder.glob("open-of-*")}
    return sockets | opened | set(_files(folder))


def known_workers(folder: Path) -> set[int]:
    """Numbers that were given to workers of this folder."""
    return unfolded_workers(folder) | set(_read_ended(folder)["workers"])


def outcomes_of_ended(folder: Path) -> Counter[str]:
    """How the requests of ended workers ended, and those that ended with them."""
    outcomes: Counter[str] = Counter()
    for name, _, _, samples in _read_ended(folder)["families"]:
        for sample, labels, value in samples if name == "gateway_requests" else ():
            if sample == "gateway_requests_total":
                outcomes[labels["outcome"]] += int(value)
    return outcomes


def find_lost(folder: Path, request_id: str) -> OpenRequest | None:
    """The request, if it ended with its worker lately."""
    lost = _read_ended(folder)["lost"]
    return next((OpenRequest(*one) for one in reversed(lost) if one[0] == request_id), None)


def join_families(parts: Sequence[Families]) -> Families:
    """One sample for each name and label set."""
    joined: dict[str, list[Any]] = {}
    values: dict[str, dict[tuple[Any, ...], list[Any]]] = {}
    for families in parts:
        for name, kind, told, samples in families:
            family = joined.setdefault(name, [name, kind, told, []])
            family[2] = family[2] or told
            of_name = values.setdefault(name, {})
            for sample, labels, value in samples:
                key = (sample, *sorted(labels.items()))
                known = of_name.get(key)
                if known is None:
                    of_name[key] = [sample, labels, value]
                else:
                    known[2] = _join(name, kind, sample, known[2], value)
    for name, family in joined.items():
        family[3] = list(values[name].values())
    return list(joined.values())


def _join(name: str, kind: str, sample: str, one: float, other: float) -> float:
    if sample.endswith("_created") or name in SMALLEST:
        return math.nan if math.isnan(one + other) else min(one, other)
    if kind in ACCUMULATING or name in SUMMED:
        return one + other
    return math.nan if math.isnan(one + other) else max(one, other)


def _accumulating(families: Families) -> Families:
    return [family for family in families if family[1] in ACCUMULATING]


def _count_lost(num_lost: int) -> Families:
    """As the worker would have counted them; which nodes had them went with it."""
    if not num_lost:
        return []
    ended = ["gateway_requests_total", {"outcome": "failed", "node": ""}, num_lost]
    lost = ["gateway_lost_requests_total", {"reason": WORKER_DIED}, num_lost]
    return [["gateway_requests", "counter", "", [ended]], ["gateway_lost_requests", "counter", "", [lost]]]


def _tell_counters_start(joined: Families, folder: Path) -> None:
    """A start that changes says that counters began anew; they did with the folder, whose name is its time."""
    if folder.name.isdigit():
        for family in joined:
            if family[0] == PROCESS_START:
                family[3] = [[PROCESS_START, {}, int(folder.name) / 1e9]]


def _metric(family: list[Any]) -> Metric:
    name, kind, told, samples = family
    metric = Metric(name, told, kind)
    for sample, labels, value in samples:
        metric.add_sample(sample, labels, value)
    return metric


def worker_families(workers: WorkersNow) -> list[Metric]:
    """What the supervisor knows."""
    phases = GaugeMetricFamily("gateway_workers", "Worker processes of this gateway, by phase.", labels=["phase"])
    phases.add_metric(["serving"], workers.serving)
    phases.add_metric(["retiring"], workers.retiring)
    phases.add_metric(["missing"], max(0, workers.wanted - workers.serving))
    told = "Ends of workers that nobody asked for, since the gateway's start."
    failed = "1 while the last reload changed nothing because the new workers did not come to serve."
    families = [
        phases,
        CounterMetricFamily("gateway_worker_deaths", told, workers.deaths),
        GaugeMetricFamily("gateway_reload_failed", failed, workers.reload_error is not None),
    ]
    if workers.supervisor_silent_s is not None:
        silent = "Since the gateway's own process, which starts its workers, gave a sign of life."
        families.append(GaugeMetricFamily("gateway_supervisor_silent_seconds", silent, workers.supervisor_silent_s))
    return families


class _Told(CollectorRegistry):
    """A registry of what is known already."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        super().__init__()
        self._told = metrics

    def collect(self) -> Iterator[Metric]:
        yield from self._told


def _file_of(folder: Path, worker: int) -> Path:
    return folder / f"metrics-of-{worker}.json"


def _files(folder: Path) -> dict[int, Path]:
    return {int(path.stem.rpartition("-")[2]): path for path in folder.glob("metrics-of-*.json")}


def _read(path: Path) -> Families:
    with suppress(OSError, ValueError):
        found: Families = json.loads(path.read_text())
        return found
    return []


def _read_ended(folder: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        found: dict[str, Any] = json.loads((folder / ENDED_FILE).read_text())
        return {"lost": [], **found}
    return {"workers": [], "families": [], "lost": []}
