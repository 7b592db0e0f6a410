"""What several workers say of themselves, as one gateway's word. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

Json = dict[str, Any]


class WorkersNow(NamedTuple):
    """What a supervisor says of its workers. `deaths`: ends that nobody asked for; `reload_error`: of the last one;
    `supervisor_silent_s`: since it gave a sign of life, None where it gives none."""

    generation: int
    wanted: int
    serving: int
    retiring: int
    deaths: int
    reloads: int
    reload_error: str | None
    supervisor_silent_s: float | None = None


def joined_status(parts: Sequence[Json]) -> Json:
    """The status of all: counts added, and of everything else the worst. The first is the one that was asked."""
    versions, ages = [one["table_version"] for one in parts], [one["table_age_s"] for one in parts]
    retries = [one["retries_left"] for one in parts]
    nodes: dict[str, Json] = {}
    outcomes: Counter[str] = Counter()
    for part in parts:
        outcomes.update(part["outcomes"])  # each tells those alone that it has seen
        for name, node in part["nodes"].items():
            known = nodes.get(name)
            if known is None:
                nodes[name] = dict(node)
            else:
                known["inflight"] += node["inflight"]
                known["out"] = known["out"] or node["out"]
    return {
        **parts[0],
        "table_version": None if None in versions else min(versions),
        "table_age_s": None if None in ages else max(ages),
        "controller": max(one["controller"] for one in parts),  # reachable < unreachable
        "in_flight": sum(one["in_flight"] for one in parts),
        "outcomes": dict(outcomes),
        "failing_open": sorted({model for one in parts for model in one["failing_open"]}),
        "retries_left": None if None in retries else min(retries),  # of one budget, as each has heard of it
        "nodes": nodes,
    }


def joined_tenants(parts: Sequence[Json]) -> Json:
    """Use of all, by tenant; lanes by model."""
    rows: dict[str, Json] = {}
    lanes: dict[str, Json] = {}
    waiting: Counter[str] = Counter()
    for part in parts:
        waiting.update(part["waiting"])
        for row in part["tenants"]:
            known = rows.get(row["tenant"])
            rows[row["tenant"]] = row if known is None else _plus(known, row)
        for lane in part["lanes"]:
            known = lanes.get(lane["model"])
            lanes[lane["model"]] = lane if known is None else _lane_plus(known, lane)
    return {"tenants": list(rows.values()), "waiting": dict(waiting), "lanes": list(lanes.values())}


def joined_decisions(parts: Sequence[Json]) -> Json:
    """The newest choices of all, as many as one worker keeps."""
    kept = parts[0]["kept"]
    newest = sorted((one for part in parts for one in part["decisions"]), key=lambda one: one["at"], reverse=True)[
        :kept
    ]
    return {"kept": kept, "reasons": dict(Counter(one["reason"] for one in newest)), "decisions": newest}


def joined_explanation(parts: Mapping[int, Json]) -> Json:
    """What the worker says that sent the longest part of the prompt to some node, and the choice of each.

    `parts`: by the worker's number, the one that was asked first: it is told where none knows more.
    """
    held = {
        worker: max((score["cached_tokens"] for score in told["candidates"]), default=0)
        for worker, told in parts.items()
    }
    best = max(parts, key=lambda worker: held[worker])
    choices = [
        {"worker": worker, "node": told["node"], "reason": told["reason"], "cached_tokens": held[worker]}
        for worker, told in sorted(parts.items())
    ]
    return {**parts[best], "worker": best, "workers": choices}


def latest_fate(found: Sequence[Json]) -> Json | None:
    """Of one id: the request that is in flight, else the one that began last."""
    return max(found, key=lambda one: (one["fate"] == "in_flight", one["started_at"]), default=None)


def _plus(one: Json, other: Json) -> Json:
    is_joint = one["joint"] and other["joint"]  # both tell what all have left
    return {
        **one,
        "running": one["running"] + other["running"],
        "share": one["share"] if is_joint else round(one["share"] + other["share"], 4),
        "admitted": one["admitted"] + other["admitted"],
        "tokens": {kind: count + other["tokens"][kind] for kind, count in one["tokens"].items()},
        "left": {name: (_least if is_joint else _sum)(left, other["left"][name]) for name, left in one["left"].items()},
        "refused": dict(Counter(one["refused"]) + Counter(other["refused"])),
    }


def _lane_plus(one: Json, other: Json) -> Json:
    summed = {key: _sum(one[key], other[key]) for key in ("waiting", "outstanding", "seats")}
    return {**one, **summed, "oldest_wait_s": max(one["oldest_wait_s"], other["oldest_wait_s"])}


def _least(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else min(one, other)


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other
