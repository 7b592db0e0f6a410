"""What the series of the last minutes tell of a group of nodes: steps, limits, what came and how long it was."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from alerts.promql import evaluate, parse
from alerts.promql.grid import evaluate_grid
from alerts.series.store import SeriesStore
from fleetctl.controller.autoscaler.bucket_means import fit_bucket_means
from fleetctl.controller.autoscaler.lengths import LengthHistogram, Traffic
from fleetctl.controller.autoscaler.step_cost import FittedCosts, StepCount, fit_costs
from fleetctl.controller.autoscaler.unknown import Unknown
from fleetctl.controller.nodes.node_values import node_matcher
from fleetctl.controller.signals.route_signals import route_signals

WINDOW_S = 300.0
INTERVAL_S = 5.0
MIN_WINDOW_S = 20.0
MIN_REQUESTS = 20  # in the window: fewer give no p95

Series = dict[str, dict[float, float]]
"""Node to time to value."""


@dataclass(frozen=True, slots=True)
class SimLimits:
    """A node's limits, as the simulator takes them."""

    num_kv_blocks: int
    block_size: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    prefill_chunk_tokens: int

    def to_json(self) -> dict[str, int]:
        """For the simulator."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Observation:
    """All that a prediction is made of. `ttft`: measured in the window."""

    at: float
    limits: Mapping[str, SimLimits]
    costs: FittedCosts
    traffic: Traffic
    ttft: LengthHistogram


def observe(
    store: SeriesStore,
    nodes: Collection[str],
    now: float,
    *,
    window_s: float = WINDOW_S,
    interval_s: float = INTERVAL_S,
) -> Observation | Unknown:
    """What is known of these nodes, or the first thing that is not. `interval_s`: of two scrapes, or more."""
    if not nodes:
        return Unknown("no node takes requests")
    limits = _limits(store, nodes, now)
    if isinstance(limits, Unknown):
        return limits
    meant = node_matcher(nodes)
    past = _Past(store, meant, now, window_s, interval_s)
    counted = past.growth("engine_requests_admitted_total")
    if not counted:
        return Unknown("no node tells how many requests it admits")
    times = sorted({at for points in counted.values() for at in points})
    arrivals = tuple(sum(points.get(at, 0.0) for points in counted.values()) for at in times)
    watched_s = interval_s * len(times)
    if watched_s < MIN_WINDOW_S:
        return Unknown(f"watched for {watched_s:.0f} s, {MIN_WINDOW_S:.0f} s are needed")
    if sum(arrivals) < MIN_REQUESTS:
        return Unknown(f"{sum(arrivals):.0f} requests in {watched_s:.0f} s, {MIN_REQUESTS} are needed")
    costs = fit_costs(_step_counts(past, limits))
    if isinstance(costs, Unknown):
        return costs
    prompt = past.lengths("vllm:request_prompt_tokens")
    output = past.lengths("vllm:request_generation_tokens")
    if not prompt.count or not output.count:
        return Unknown("no request ended in the window: their lengths are not known")
    traffic = Traffic(interval_s, arrivals, prompt, output, _hit_ratio(store, meant, now, window_s))
    return Observation(
        now, limits, costs, traffic, read_histogram(store, "vllm:time_to_first_token_seconds", meant, now, window_s)
    )


def read_histogram(store: SeriesStore, name: str, meant: str, now: float, window_s: float) -> LengthHistogram:
    """A histogram's growth within the window, all nodes together."""
    window = f"[{window_s:g}s]"
    found: dict[float, float] = {}
    for sample in evaluate(f"sum by (le) (increase({name}_bucket{{{meant}}}{window}))", store, now):
        if math.isfinite(sample.value):
            found[float(sample.labels["le"])] = sample.value
    sums = evaluate(f"sum(increase({name}_sum{{{meant}}}{window}))", store, now)
    bounds = tuple(sorted(found))
    cumulated = [found[bound] for bound in bounds]
    counts = tuple(max(0.0, high - low) for low, high in zip([0.0, *cumulated], cumulated, strict=False))
    total = sums[0].value if sums and math.isfinite(sums[0].value) else 0.0
    return LengthHistogram(bounds, counts, total)


def _limits(store: SeriesStore, nodes: Collection[str], now: float) -> dict[str, SimLimits] | Unknown:
    told: dict[str, dict[str, int]] = defaultdict(dict)
    for sample in evaluate("engine_limit", store, now):
        if math.isfinite(sample.value):
            told[sample.labels.get("node", "")][sample.labels.get("limit", "")] = int(sample.value)
    blocks = {
        sample.labels.get("node", ""): sample.labels.get("block_size", "")
        for sample in evaluate("vllm:cache_config_info", store, now)
    }
    found = {}
    for signals in route_signals(store, sorted(nodes), now):
        own, size = told.get(signals.node, {}), blocks.get(signals.node, "")
        if not size.isdecimal() or not signals.cache_tokens or "max_num_seqs" not in own:
            return Unknown(f"{signals.node} does not tell its KV cache and its limits (engine_limit)")
        found[signals.node] = SimLimits(
            num_kv_blocks=signals.cache_tokens // int(size),
            block_size=int(size),
            max_model_len=signals.max_model_len or signals.cache_tokens,
            max_num_seqs=own["max_num_seqs"],
            max_num_batched_tokens=own.get("max_num_batched_tokens", 2048),
            prefill_chunk_tokens=own.get("prefill_chunk_tokens", 512),
        )
    return found


@dataclass(frozen=True, slots=True)
class _Past:
    """The window, interval by interval."""

    store: SeriesStore
    meant: str
    now: float
    window_s: float
    interval_s: float

    def growth(self, counter: str, labels: str = "") -> Series:
        """How much a counter grew in each interval: half of its growth in two, as one may hold a single scrape."""
        span = f"[{2 * self.interval_s:g}s]"
        return self.values(f"sum by (node) (increase({counter}{{{self.meant}{labels}}}{span})) / 2")

    def lengths(self, name: str) -> LengthHistogram:
        """A histogram's growth within the window, with where in its buckets the observations lie."""
        whole = read_histogram(self.store, name, self.meant, self.now, self.window_s)
        if not whole.count:
            return whole
        sums = {one.get("node", ""): row for one, row in self._rows(f"sum by (node) ({name}_sum{{{self.meant}}})")}
        cumulated: dict[str, dict[float, np.ndarray]] = defaultdict(dict)
        for labels, row in self._rows(f"sum by (node, le) ({name}_bucket{{{self.meant}}})"):
            cumulated[labels.get("node", "")][float(labels["le"])] = row
        counts, totals = [], []
        for node, rows in cumulated.items():
            if tuple(sorted(rows)) != whole.bounds or node not in sums:
                continue
            grown = np.diff(np.array([rows[bound] for bound in whole.bounds]), axis=1)
            total = np.diff(sums[node])
            # NaN: not scraped; falling: the node began anew.
            usable = np.isfinite(grown).all(axis=0) & (grown >= 0).all(axis=0) & np.isfinite(total) & (total >= 0)
            counts.append(np.maximum(0.0, np.diff(grown[:, usable], axis=0, prepend=0.0)).T)
            totals.append(total[usable])
        if not counts:
            return whole
        return replace(whole, within=fit_bucket_means(whole.bounds, np.concatenate(counts), np.concatenate(totals)))

    def values(self, expression: str) -> Series:
        """An expression's value at the end of each interval."""
        at_ms = self._at_ms
        return {
            labels.get("node", ""): {float(at_ms[i]): float(row[i]) for i in np.flatnonzero(np.isfinite(row))}
            for labels, row in self._rows(expression)
        }

    @property
    def _at_ms(self) -> np.ndarray:
        steps = np.arange(self.now - self.window_s + self.interval_s, self.now + 0.001, self.interval_s)
        return np.round(steps * 1000).astype(np.int64)

    def _rows(self, expression: str) -> list[tuple[Mapping[str, str], np.ndarray]]:
        """Each series' values at the ends of the intervals; NaN where it has none."""
        grid = evaluate_grid(parse(expression).root, self.store, self._at_ms, round(self.interval_s * 1000))
        values = np.where(grid.present & np.isfinite(grid.values), grid.values, np.nan)
        return [(labels.as_dict(), row) for labels, row in zip(grid.labels, values, strict=True)]


def _step_counts(past: _Past, limits: Mapping[str, SimLimits]) -> Sequence[StepCount]:
    """For each node and interval its decode steps, and its other ones.

    Decoding sequences are split over both by the number of steps, as nodes tell of their tokens in all steps together.
    """
    kinds = {
        kind: (
            past.growth("engine_step_seconds_count", f',kind="{kind}"'),
            past.growth("engine_step_seconds_sum", f',kind="{kind}"'),
        )
        for kind in ("decode", "mixed", "prefill")
    }
    tokens, generated = past.growth("vllm:iteration_tokens_total_sum"), past.growth("vllm:generation_tokens_total")
    first = past.growth("vllm:time_to_first_token_seconds_count")
    kv = past.values(f"max by (node) (vllm:kv_cache_usage_perc{{{past.meant}}})")
    counts = []
    for node, points in tokens.items():
        for at, num_tokens in points.items():

            def value(series: Series, node: str = node, at: float = at) -> float:
                return series.get(node, {}).get(at, 0.0)

            steps = {kind: value(count) for kind, (count, _) in kinds.items()}
            with_decodes = steps["decode"] + steps["mixed"]
            decodes = max(0.0, value(generated) - value(first))
            held = value(kv) * limits[node].num_kv_blocks * limits[node].block_size
            of_decode = decodes * steps["decode"] / with_decodes if with_decodes else 0.0
            counts.append(
                StepCount(node, steps["decode"], value(kinds["decode"][1]), 0.0, of_decode, held * steps["decode"])
            )
            others = steps["mixed"] + steps["prefill"]
            seconds = value(kinds["mixed"][1]) + value(kinds["prefill"][1])
            prompt = max(0.0, num_tokens - decodes)
            counts.append(StepCount(node, others, seconds, prompt, decodes - of_decode, held * others))
    return counts


def _hit_ratio(store: SeriesStore, meant: str, now: float, window_s: float) -> float:
    window = f"[{window_s:g}s]"
    found = evaluate(
        f"sum(increase(vllm:prefix_cache_hits_total{{{meant}}}{window}))"
        f" / (sum(increase(vllm:prefix_cache_queries_total{{{meant}}}{window})) > 0)",
        store,
        now,
    )
    return min(1.0, max(0.0, found[0].value)) if found and math.isfinite(found[0].value) else 0.0
