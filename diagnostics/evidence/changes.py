"""What changed just before it began: what a controller did and saw, and what the series show, by time and place. Pure.

A change is no cause by itself: it is where a person looks first, and what causes of changes ask for.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from alerts.sample import Sample
from diagnostics.evidence.onset import Onset
from diagnostics.value_format import format_before

CHANGES_QUERY = "fleet_change_timestamp_seconds"
STARTS_QUERY = "timestamp(llm:deploy_age_seconds) - llm:deploy_age_seconds"
"""When each process started, by its own word: all that is known of changes where no controller tells of them."""
START_S = 600.0  # so long after a change that was told a start of the same place is a part of it
LOOK_BACK_S = 1800.0
SLACK_S = 60.0  # a change is in the signals before it is told: the series of a node are told with its next scrape
FADES_S = 600.0  # a change so long before counts a third
LATE_FADES_S = 20.0  # and one so long after the latest moment at which it may have begun
MAX_TOLD = 5
ONE_AFTER_THE_OTHER_S = 30.0  # apart, and both times are told
MAX_NODES = 3  # of one line
_TOLD_AS = {"limits": ("limits",), "scale": ("scale", "deploy", "rollout", "rollback")}
_WORDS = {"scale": "a node more or less in"}  # a replacement is that for a moment, and nobody scaled the pool


@dataclass(frozen=True, slots=True)
class _Change:
    kind: str
    pool: str
    node: str
    at: float
    what: str = ""  # in words, in which {where} stands for the place


def starts_untold(starts: Iterable[Sample], told: Iterable[Sample]) -> list[Sample]:
    """Starts of processes, as changes, of which no change that was told is the reason."""
    known: dict[tuple[str, str], list[float]] = defaultdict(list)  # by node, or by pool where it is of no node
    for one in told:
        node = one.labels.get("node", "")
        known["node" if node else "pool", node or one.labels.get("pool", "")].append(one.value)
    found = []
    for start in starts:
        node, pool = start.labels.get("node", ""), start.labels.get("pool", "")
        at = [*known.get(("node", node), ()), *known.get(("pool", pool), ()), *known.get(("pool", ""), ())]
        if node and not any(abs(start.value - one) <= START_S for one in at):
            found.append(Sample({"kind": "start", "pool": pool, "node": node}, start.value, start.at))
    return found


def seen_untold(seen: Iterable[Sample], told: Iterable[Sample]) -> list[Sample]:
    """What series show, of which nobody told. A rollout that is told names no revisions: those are said beside it."""
    known: dict[str, list[Sample]] = defaultdict(list)
    for one in told:
        known[one.labels.get("kind", "")].append(one)
    return [
        one
        for one in seen
        if one.labels["kind"] not in _TOLD_AS
        or not any(_is_same(one, other) for kind in _TOLD_AS[one.labels["kind"]] for other in known[kind])
    ]


def _is_same(seen: Sample, told: Sample) -> bool:
    """Whether what was told is of the same place and time; of a node or of its whole pool."""
    node, pool = (told.labels.get(name, "") for name in ("node", "pool"))
    is_there = node == seen.labels["node"] if node else pool in ("", seen.labels["pool"])
    return is_there and abs(seen.value - told.value) <= START_S


def recent_changes(samples: Iterable[Sample], scope: Mapping[str, str], onset: Onset) -> tuple[str, ...]:
    """Lines for a reader, the likeliest first: "rollout of pool chat, 3 min 10 s before it began"."""
    told: dict[tuple[str, str, str, int], list[_Change]] = defaultdict(list)
    weights: dict[tuple[str, str, str, int], float] = {}
    for sample in samples:
        one = _Change(
            sample.labels.get("kind", "change"),
            sample.labels.get("pool", ""),
            sample.labels.get("node", ""),
            sample.value,
            sample.labels.get("what", ""),
        )
        weight = _nearness(one, scope) * _recency(one.at, onset)
        if weight <= 0:
            continue
        # Of several nodes at once one line; a rollout, node by node, is one too where it is known what came.
        key = (one.kind, one.pool, one.what, int(one.at // SLACK_S) if one.node and not one.what else 0)
        told[key].append(one)
        weights[key] = max(weights.get(key, 0.0), weight)
    best = sorted(told, key=lambda key: (-weights[key], key))[:MAX_TOLD]
    return tuple(_line(told[key], onset) for key in best)


def _nearness(change: _Change, scope: Mapping[str, str]) -> float:
    node, pool = scope.get("node"), scope.get("pool")
    if node and change.node:
        return 1.0 if change.node == node else 0.2 if pool and change.pool == pool else 0.0
    if pool and change.pool:
        return 1.0 if change.pool == pool else 0.0
    return 0.8  # one of the two is the whole fleet


def _recency(at: float, onset: Onset) -> float:
    if not math.isfinite(at) or not onset.early - LOOK_BACK_S <= at <= onset.late + SLACK_S:
        return 0.0
    if at > onset.late:  # told late, or what it brought about: behind whatever was there before
        return 0.3 * math.exp(-(at - onset.late) / LATE_FADES_S)
    return math.exp(-max(0.0, onset.at - at) / FADES_S)


def _line(changes: list[_Change], onset: Onset) -> str:
    nodes = sorted(one.node for one in changes if one.node)
    shown = ", ".join(nodes[:MAX_NODES]) + (f" and {len(nodes) - MAX_NODES} more" if len(nodes) > MAX_NODES else "")
    # No node and no pool: only a gateway is restarted so, and "restart of the fleet" is not what happened.
    everywhere = "the gateway" if changes[0].kind == "restart" else "the fleet"
    where = shown or (f"pool {changes[0].pool}" if changes[0].pool else everywhere)
    times = [_before_s(one.at, onset) for one in changes]
    first_s, last_s = max(times), min(times)
    when = format_before(last_s)
    if first_s - last_s > ONE_AFTER_THE_OTHER_S:
        when = f"the first {format_before(first_s)}, the last {when}"
    when += ", by what the signals show" if last_s <= -1 else ""
    if what := changes[0].what:
        return f"{what.replace('{where}', where)}, {when}"
    return f"{_WORDS.get(changes[0].kind, f'{changes[0].kind} of')} {where}, {when}"


def _before_s(at: float, onset: Onset) -> float:
    """How long before the onset it was, less than 0: after it. It may have begun as late as `late`."""
    return 0.0 if onset.at < at <= onset.late else onset.at - at
