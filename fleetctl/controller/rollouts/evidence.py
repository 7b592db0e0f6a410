"""What the gate judges by: counters of both revisions' nodes out of the series store, since the step began.

Raw counters of each node are kept with the rollout, so that a controller that was killed counts on from them. A counter
that is smaller than before was reset with its process. What is stale or not there is unknown, and is never counted as
zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from alerts.errors import AlertsError
from alerts.promql import evaluate
from alerts.series.store import SeriesStore
from fleetctl.controller.nodes.node_values import fresh_values
from fleetctl.controller.rollouts.gate import SignalEvidence, SignalLimits, Tally
from fleetctl.controller.rollouts.rollout import Rollout
from fleetctl.settings.rollouts import RolloutSettings

SLOW_SHARE = 0.1  # of the stable revision's requests that are slow by definition, as near as buckets allow
USUAL_OVER = "10m"  # before a step: what says what is usual
TTFT, TPOT = "vllm:time_to_first_token_seconds", "vllm:request_time_per_output_token_seconds"
AGREEMENT = "agreement"
INVALID = (
    'engine_requests_total{pool="POOL",state="invalid"}'
    ' or http_requests_total{pool="POOL",engine="vllm",handler=~"/v1/.*",status="4xx"}'
)
"""Refused as too long or malformed: a revision that has no room for any prompt refuses all, and fails none."""

Counters = list[float]
"""A node's raw counters of one signal."""


@dataclass(frozen=True, slots=True)
class Signal:
    """One signal of nodes. `queries` give its raw counters by node, `tally` what their growth says.

    `warm_up`: the first requests of a new node are not counted: graphs are captured and caches are empty. None of that
    makes one fail.
    """

    name: str
    queries: Sequence[str]  # with POOL and LE to be filled in; the last one counts requests
    tally: Callable[[Counters], Tally]
    histogram: str = ""
    warm_up: float = 10.0


def _slow(grown: Counters) -> Tally:
    quick, total = grown
    return Tally(max(0.0, total - quick), total)


def _failed(grown: Counters) -> Tally:
    errors, total = grown
    return Tally(min(errors, total), total)


def _missed(grown: Counters) -> Tally:
    """Each request counts as the part of its prompt that was not cached, on average."""
    hits, queries, requests = grown
    if queries <= 0:
        return Tally()
    return Tally(requests * min(1.0, max(0.0, 1 - hits / queries)), requests)


def _histogram(name: str, metric: str) -> Signal:
    by_node = f'sum by (node) ({metric}_bucket{{pool="POOL",le="LE"}})'
    return Signal(name, (by_node, f'sum by (node) ({metric}_count{{pool="POOL"}})'), _slow, histogram=metric)


SIGNALS = (
    _histogram("TTFT", TTFT),
    _histogram("ITL", TPOT),
    Signal(
        "errors",
        (
            f'sum by (node) (vllm:request_success_total{{pool="POOL",finished_reason="error"}} or {INVALID})'
            ' or 0 * sum by (node) (vllm:request_success_total{pool="POOL"})',
            f'sum by (node) (vllm:request_success_total{{pool="POOL",finished_reason!="abort"}} or {INVALID})',
        ),
        _failed,
        warm_up=0.0,  # a canary that refused all had turned 20 of 428 away uncounted, ten of each of its nodes
    ),
    Signal(
        "prefix misses",
        (
            'sum by (node) (vllm:prefix_cache_hits_total{pool="POOL"})',
            'sum by (node) (vllm:prefix_cache_queries_total{pool="POOL"})',
            'sum by (node) (vllm:request_prompt_tokens_count{pool="POOL"})',
        ),
        _missed,
        warm_up=50.0,
    ),
)


@dataclass(frozen=True, slots=True)
class EvidenceLook:
    """One look: the evidence with it, as it is stored, what it says, and what could not be read."""

    stored: Mapping[str, Any]
    evidence: Mapping[str, SignalEvidence]
    asked: Sequence[SignalLimits]
    unknown: Mapping[str, str]


class EvidenceReader:
    """Looks at the store; keeps nothing itself."""

    def __init__(self, store: SeriesStore, settings: RolloutSettings, stale_after_s: float) -> None:
        self._store = store
        self._settings = settings
        self._stale_after_s = stale_after_s

    def look(
        self,
        rollout: Rollout,
        new_nodes: Sequence[str],
        stable_nodes: Sequence[str],
        shadow: Tally | None,
        now: float,
    ) -> EvidenceLook:
        """Count what came since the last look. `new_nodes` are ready; `shadow`: differing answers of those compared."""
        before = rollout.evidence
        limits_of: dict[str, Any] = dict(before.get("limits", {}))
        counters: dict[str, dict[str, Counters]] = {k: dict(v) for k, v in before.get("counters", {}).items()}
        evidence = {name: SignalEvidence.from_json(one) for name, one in before.get("signals", {}).items()}
        unknown: dict[str, str] = {}
        asked = []
        for signal in SIGNALS:
            limits, prior = self._limits(signal, rollout, limits_of, now)
            asked.append(limits)
            if signal.histogram and signal.name not in limits_of:
                unknown[signal.name] = (
                    f"fewer than 50 requests of the stable revision within {USUAL_OVER}: what is usual is not known"
                )
                continue
            raw = self._raw(signal, rollout.pool, limits_of.get(signal.name, {}).get("le", ""), now)
            if missing := [node for node in new_nodes if node not in raw]:
                unknown[signal.name] = f"no fresh signal of {', '.join(sorted(missing)[:3])}"
            known = counters.setdefault(signal.name, {})
            new = self._grown(signal, known, raw, new_nodes, is_new=True)
            stable = self._grown(signal, known, raw, stable_nodes, is_new=False)
            found = evidence.get(signal.name) or SignalEvidence(prior=prior)
            evidence[signal.name] = found.plus(new, stable, limits)
        if rollout.shadow_share:
            limits = SignalLimits(
                AGREEMENT, "of the words differ", 1 - self._settings.min_agreement_ratio, fixed_stable=0.0
            )
            asked.append(limits)
            if shadow is None:
                unknown[AGREEMENT] = "no gateway tells what its shadow compared"
            else:
                known = counters.setdefault(AGREEMENT, {})
                last = known.get("", [0.0, 0.0])
                known[""] = [shadow.bad, shadow.total]
                if shadow.total < last[1]:
                    last = [0.0, 0.0]
                grown = Tally(max(0.0, shadow.bad - last[0]), shadow.total - last[1])
                evidence[AGREEMENT] = (evidence.get(AGREEMENT) or SignalEvidence()).plus(grown, Tally(), limits)
        stored = {
            "limits": limits_of,
            "counters": counters,
            "signals": {name: one.to_json() for name, one in evidence.items()},
            "at": now,
        }
        return EvidenceLook(stored, evidence, asked, unknown)

    def _limits(
        self, signal: Signal, rollout: Rollout, limits_of: dict[str, Any], now: float
    ) -> tuple[SignalLimits, Tally]:
        """What is bad, and how much of it was usual before the step: said before anything of the step is counted."""
        settings = self._settings
        margin = {"errors": settings.error_margin_ratio, "prefix misses": settings.prefix_margin_ratio}.get(
            signal.name, settings.slow_margin_ratio
        )
        if not signal.histogram:
            what = (
                "failed or refused as invalid" if signal.name == "errors" else "of the prompts not in the prefix cache"
            )
            return SignalLimits(signal.name, what, margin), Tally()
        if signal.name not in limits_of and (usual := self._usual(signal.histogram, rollout, now)) is not None:
            limits_of[signal.name] = usual
        usual = limits_of.get(signal.name, {"le": "?", "prior": [0.0, 0.0]})
        return SignalLimits(signal.name, f"above {usual['le']} s", margin), Tally(*usual["prior"])

    def _usual(self, metric: str, rollout: Rollout, now: float) -> dict[str, Any] | None:
        """The bucket's bound that one in ten of the stable revision's requests was above; None: too few of them."""
        where = f'pool="{rollout.pool}",revision="{rollout.from_revision}"'
        found = [
            (float(one.labels["le"]), one.labels["le"], one.value)
            for one in self._samples(f"sum by (le) (increase({metric}_bucket{{{where}}}[{USUAL_OVER}]))", now)
            if math.isfinite(one.value)
        ]
        total = max((value for _, _, value in found), default=0.0)
        if total < 50:
            return None
        bounds = sorted(one for one in found if math.isfinite(one[0]))
        _, le, within = next((one for one in bounds if one[2] >= (1 - SLOW_SHARE) * total), bounds[-1])
        return {"le": le, "prior": [max(0.0, total - within), total]}

    def _raw(self, signal: Signal, pool: str, le: str, now: float) -> dict[str, Counters]:
        """Node to its counters, of those whose samples are all fresh."""
        columns = [
            fresh_values(self._samples(query.replace("POOL", pool).replace("LE", le), now), now, self._stale_after_s)
            for query in signal.queries
        ]
        nodes = set(columns[0]).intersection(*columns[1:])
        return {node: [column[node] for column in columns] for node in nodes}

    @staticmethod
    def _grown(
        signal: Signal, known: dict[str, Counters], raw: Mapping[str, Counters], nodes: Sequence[str], *, is_new: bool
    ) -> Tally:
        """What the nodes' counters grew by since the last look, which is then this one."""
        found = Tally()
        for node in nodes:
            if (now := raw.get(node)) is None:
                continue
            last = known.get(node)
            if last is not None and now[-1] < last[-1]:
                last = [0.0] * len(now)  # its process is another one
            if last is None:
                if not is_new or now[-1] >= signal.warm_up:
                    known[node] = now
                continue
            known[node] = now
            found = found.plus(signal.tally([max(0.0, a - b) for a, b in zip(now, last, strict=True)]))
        return found

    def _samples(self, query: str, now: float) -> list[Any]:
        try:
            return list(evaluate(query, self._store, now))
        except AlertsError:
            return []
