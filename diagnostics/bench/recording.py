"""A case as what a fleet's scrapes would have stored: every target's native series over time."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from alerts.arrays import Bools, Floats, Times
from alerts.labels import METRIC_NAME, LabelSet
from alerts.sample import MISSING, STALE_NAN
from alerts.series.store import SeriesStore
from diagnostics.bench.case import BadCaseError, Case, ChangeForm, NodeForm, SeriesForm, places
from diagnostics.bench.engine_names import gateway_levels, gpu_levels, node_levels
from diagnostics.bench.native_series import Level, rows_of
from diagnostics.bench.serving_model import DEFAULTS, Flows, simulate
from diagnostics.bench.shapes import changed, is_on, weight

ONSET = 1_781_100_000.0  # a Wednesday, 14:00 UTC: every case begins then
_SCRAPE = frozenset({"up", "scrape"})
_GATEWAY = "gateway"
_CONTROLLER = "controller"
_SIGNS = {
    "machine_problem": ("fleet_machine_problems", "problem"),
    "provider_reason": ("fleet_provider_reasons", "reason"),
}
_GATEWAY_TARGET = {"job": "llm-gateway", "instance": "127.0.0.1:9000"}


@dataclass(slots=True)
class Recorded:
    """A case's series and what the runner must know besides."""

    store: SeriesStore
    start: float
    end: float
    nodes: dict[str, dict[str, str]]  # the places of each node, as they are at the end
    restarts: list[tuple[str, float, float]] = field(default_factory=list)  # node, from, until: our own doing


@dataclass(slots=True)
class _Target:
    labels: dict[str, str]
    levels: list[Level]
    is_up: Bools
    is_scraped: Bools
    splits: list[tuple[int, dict[str, str]]] = field(default_factory=list)  # from this time on, other labels
    is_stalled: Bools | None = None  # nobody scrapes it any more, and nobody has given it up


def record(case: Case) -> Recorded:
    """The store that a fleet's scrapes would have filled. Raises BadCaseError for a change of what is not there."""
    times = np.arange(ONSET - case.before, ONSET + case.after + 1, case.step_s)
    since = times - ONSET
    rng = np.random.default_rng(case.seed)
    drivers = _drivers(case, since)
    started = _apply_facts_to_drivers(case, since, drivers)
    pools = sorted({node.pool for node in case.nodes})
    pool_of = np.array([pools.index(node.pool) for node in case.nodes], dtype=np.intp)
    flows = simulate(drivers, pool_of, case.step_s, rng)
    by_node = {
        node.name: _quantities(flows, drivers, index, started[node.name]) for index, node in enumerate(case.nodes)
    }
    targets = _targets(case, by_node, since, rng)
    _apply_native_changes(case, targets, since)
    store = SeriesStore(retention_s=7 * 86400.0, max_points=1_000_000, is_recording=True)
    at_ms = np.round(times * 1000).astype(np.int64)
    for target in targets:
        _write(store, target, at_ms, case.step_s, rng)
    restarts = [
        (name, ONSET + fact.at, ONSET + fact.at + fact.restart_s + 60)
        for fact in case.facts
        if fact.restart_s > 0
        for name in places(fact.on, case.nodes)
    ]
    if case.controller:
        _write_facts(store, case, since, at_ms, drivers["up"] > 0)
    nodes = {node.name: _places(node) for node in case.nodes}
    for fact in case.facts:
        if fact.revision:
            for name in places(fact.on, case.nodes):
                nodes[name]["revision"] = fact.revision
    return Recorded(store, float(times[0]), float(times[-1]), nodes, restarts)


def _drivers(case: Case, since: Floats) -> dict[str, Floats]:
    shape = (len(case.nodes), len(since))
    unknown = set(case.load) - set(DEFAULTS)
    if unknown:
        raise BadCaseError(f"{case.name}: load: no quantity {sorted(unknown)[0]!r}; one of {', '.join(DEFAULTS)}")
    base = DEFAULTS | case.load
    drivers = {name: np.full(shape, value) for name, value in base.items()}
    names = [node.name for node in case.nodes]
    for change in case.changes:
        if change.what not in drivers or change.shape in ("freeze", "vanish", "nan", "reset"):
            continue
        share = weight(change, since)
        for name in places(change.on, case.nodes):
            row = drivers[change.what][names.index(name)]
            row[:] = changed(row, change, share)
    return drivers


def _apply_facts_to_drivers(case: Case, since: Floats, drivers: dict[str, Floats]) -> dict[str, Floats]:
    """A process that ended or restarts does not answer. Returns each node's process start time over time."""
    names = [node.name for node in case.nodes]
    started = {name: np.full(len(since), ONSET - 86400.0 * 3 - 977 * i) for i, name in enumerate(names)}
    for fact in case.facts:
        if fact.kind == "process_ended":
            gone = (since >= fact.at) & (since < (np.inf if fact.until is None else fact.until))
            back = None if fact.until is None else fact.until
        elif fact.kind == "node_added":
            gone, back = since < fact.at, fact.at
        else:
            gone = (since >= fact.at) & (since < fact.at + fact.restart_s)
            back = fact.at + fact.restart_s if fact.restart_s > 0 else None
        for name in places(fact.on, case.nodes):
            drivers["up"][names.index(name)][gone] = 0.0
            if back is not None:
                started[name][since >= back] = ONSET + back
    return started


def _quantities(flows: Flows, drivers: dict[str, Floats], index: int, started_at: Floats) -> dict[str, Floats]:
    """One node's flows and drivers by name."""
    found = {name: values[index] for name, values in drivers.items()}
    plain = found["prompt_tokens"].copy()
    giant = found["giant_tokens"] / (found["prefill_tps"] / found["slow"])
    found |= {name: getattr(flows, name)[index] for name in Flows.__slots__}
    found |= {"started_at": started_at, "plain_prompt_tokens": plain, "giant_ttft": giant}
    cap = np.clip(0.05 + 0.4 * (found["output_tokens"] / max(found["output_tokens"][0], 1) - 1), 0.05, 0.9)
    return found | {"length_share": cap}


def _places(node: NodeForm) -> dict[str, str]:
    return {"pool": node.pool, "model": node.model, "zone": node.zone, "revision": node.revision}


def _labels(node: NodeForm, revision: str) -> dict[str, str]:
    return {"node": node.name, **_places(node), "revision": revision}


def _targets(
    case: Case, by_node: dict[str, dict[str, Floats]], since: Floats, rng: np.random.Generator
) -> list[_Target]:
    targets: list[_Target] = []
    always = np.ones(len(since), dtype=np.bool_)
    for node in case.nodes:
        q = by_node[node.name]
        labels = _labels(node, node.revision) | {
            "engine": node.engine,
            "job": "engine",
            "instance": f"{node.name}:8000",
        }
        levels = node_levels(node.engine, node.model, q) if case.is_modelled else []
        cards = gpu_levels(q, rng) if case.gpu and case.is_modelled else []
        levels += [_stated(entry, since, rng) for entry in case.series if node.name in places(entry.on, case.nodes)]
        scraped = always.copy()
        splits = []
        for fact in case.facts:
            if node.name not in places(fact.on, case.nodes):
                continue
            back = int(np.searchsorted(since, fact.at + fact.restart_s))
            if fact.restart_s > 0 and back < len(since):
                for level in levels:
                    if level.kind != "gauge":
                        level.restarts.append(back)
            if fact.revision:
                splits.append((back, labels | {"revision": fact.revision}))
            if fact.kind == "node_added":
                scraped &= since >= fact.at - 30
        targets.append(_Target(labels, levels, q["up"] > 0, scraped, splits))
        if node.engine == "fleetctl":
            levels += cards
        elif cards:
            own = labels | {"engine": "dcgm", "job": "dcgm", "instance": f"{node.name}:9400"}
            moved = [(at, own | {"revision": to["revision"]}) for at, to in splits]
            targets.append(_Target(own, cards, always.copy(), scraped.copy(), moved))
    if case.gateway:
        levels = gateway_levels([node.name for node in case.nodes], by_node)
        levels += [_stated(entry, since, rng) for entry in case.series if _GATEWAY in entry.on]
        targets.append(_Target(dict(_GATEWAY_TARGET), levels, always.copy(), always.copy()))
    if case.controller:
        levels = _controller_levels(case, len(since))
        levels += [_stated(entry, since, rng) for entry in case.series if _CONTROLLER in entry.on]
        targets.append(_Target({}, levels, always.copy(), always.copy()))
    return targets


def _controller_levels(case: Case, times: int) -> list[Level]:
    """What a controller tells of itself and of its gateway while all is well."""
    ones, zeros = np.ones(times), np.zeros(times)
    gateway = tuple(_GATEWAY_TARGET.items())
    levels = [Level("controller_storage_ok", "gauge", ones.copy()), Level("controller_leader", "gauge", ones.copy())]
    if case.gateway:
        levels.append(Level("fleet_gateway_process_up", "gauge", ones.copy(), gateway))
        levels.append(Level("fleet_gateway_deaths_total", "counter", zeros.copy(), gateway))
    for pool in sorted({node.pool for node in case.nodes}):
        own = (("pool", pool),)
        levels.append(Level("controller_autoscaler_reversals", "gauge", zeros.copy(), own))
        levels.append(Level("controller_pool_start_failures", "gauge", zeros.copy(), own))
    return levels


def _stated(entry: SeriesForm, since: Floats, rng: np.random.Generator) -> Level:
    """A series whose healthy level the case states itself."""
    labels = tuple(sorted(entry.labels.items()))
    ones = np.ones(len(since))
    if entry.gauge is not None:
        noise = 1 + entry.noise * rng.standard_normal(len(since))
        return Level(entry.name, "gauge", ones * entry.gauge * noise, labels)
    if entry.rate is not None:
        return Level(entry.name, "counter", ones * entry.rate, labels, start=100.0)
    told = entry.histogram or {}
    bounds = entry.bounds or tuple(float(f"{told.get('mean', 1.0) * 2.0**power:.6g}") for power in range(-6, 8))
    rate, mean = told.get("rate", 1.0), told.get("mean", 1.0)
    return Level(entry.name, "histogram", ones * mean, labels, ones * rate, told.get("sigma", 0.5), bounds)


def _apply_native_changes(case: Case, targets: list[_Target], since: Floats) -> None:
    for change in case.changes:
        if change.what in DEFAULTS and change.what != "up":
            continue
        found = False
        wanted = set(places(change.on, case.nodes))
        for target in targets:
            node = target.labels.get("node") or (_GATEWAY if target.labels else _CONTROLLER)
            if node not in wanted and node not in change.on:
                continue
            if change.what in _SCRAPE:
                if change.what == "up" and (node == _GATEWAY or change.shape == "vanish"):
                    target.is_up = target.is_up & ~(weight(change, since) > 0)
                elif change.what == "scrape" and change.shape == "freeze":
                    target.is_stalled = is_on(change, since)
                elif change.what == "scrape":
                    target.is_scraped = target.is_scraped & ~is_on(change, since)
                found = True
                continue
            for level in target.levels:
                if _is_meant(level, change):
                    _change(level, change, since)
                    found = True
        if not found:
            raise BadCaseError(f"{case.name}: changes: no target in {list(change.on)} has a series {change.what!r}")


def _is_meant(level: Level, change: ChangeForm) -> bool:
    is_named = level.name.startswith(change.what[:-1]) if change.what.endswith("*") else level.name == change.what
    return is_named and set(change.labels.items()) <= set(level.labels)


def _change(level: Level, change: ChangeForm, since: Floats) -> None:
    if change.shape in ("freeze", "vanish", "nan"):
        on = is_on(change, since)
        name = {"freeze": "frozen", "vanish": "missing", "nan": "not_a_number"}[change.shape]
        before = getattr(level, name)
        setattr(level, name, on if before is None else before | on)
    elif change.shape == "reset":
        if (at := int(np.searchsorted(since, change.at))) < len(since):
            level.restarts.append(at)
    elif change.part == "rate" and level.kind == "histogram":
        assert level.rate is not None
        level.rate = changed(level.rate, change, weight(change, since))
    elif change.part == "sigma":
        sigma = np.broadcast_to(np.asarray(level.sigma, dtype=np.float64), since.shape)
        level.sigma = changed(sigma, change, weight(change, since))
    else:
        level.value = changed(level.value, change, weight(change, since))


def _write(store: SeriesStore, target: _Target, at_ms: Times, dt: float, rng: np.random.Generator) -> None:
    rows = [
        (name, labels, np.where(level.missing, MISSING, values) if level.missing is not None else values)
        for level in target.levels
        for name, labels, values in rows_of(level, dt, rng)
    ]
    borders = [0, *(at for at, _ in target.splits), len(at_ms)]
    for number, (begin, end) in enumerate(itertools.pairwise(borders)):
        labels = target.labels if number == 0 else target.splits[number - 1][1]
        if end <= begin:
            continue
        part = slice(begin, min(end + 1, len(at_ms)))  # where other labels follow, one more to say that these ended
        is_own = np.arange(len(at_ms))[part] < end
        there = target.is_up[part] & target.is_scraped[part] & is_own
        own = {name: value for name, value in labels.items() if value}
        up = np.where(target.is_scraped[part] & is_own, target.is_up[part] * 1.0, MISSING)
        entries = [LabelSet.of({METRIC_NAME: "up", **own})] if own else []
        values = [_ended(up)] if own else []
        for name, added, given in rows:
            entries.append(LabelSet.of({METRIC_NAME: name, **_attached(added, own)}))
            values.append(_ended(np.where(there, given[part], MISSING)))
        matrix, times = np.array(values), at_ms[part]
        if target.is_stalled is not None:  # who has stopped to scrape writes no staleness marker either
            matrix, times = matrix[:, ~target.is_stalled[part]], times[~target.is_stalled[part]]
        store.append_matrix(entries, times, matrix)


def _attached(added: Iterable[tuple[str, str]], own: dict[str, str]) -> dict[str, str]:
    """Scraped labels that clash with the target's are kept as exported_<name>, as by a scrape."""
    return {(f"exported_{name}" if name in own else name): value for name, value in added} | own


def _ended(values: Floats) -> Floats:
    """With a staleness marker at the first time that has no sample."""
    found = values.astype(np.float64)
    bits = found.view(np.int64)
    is_missing = bits == np.array([MISSING]).view(np.int64)[0]
    first = is_missing & ~np.concatenate(([True], is_missing[:-1]))
    found[first] = STALE_NAN
    return found


def _write_facts(store: SeriesStore, case: Case, since: Floats, at_ms: Times, answers: Bools) -> None:
    """What a controller knows of its nodes, as series (fleetctl/controller/nodes/fleet_series.py). `answers`: to its
    probe; shape (nodes, times)."""
    rows: dict[LabelSet, Floats] = {}

    def row(name: str, **labels: str) -> Floats:
        key = LabelSet.of({METRIC_NAME: name, **{k: v for k, v in labels.items() if v}})
        return rows.setdefault(key, np.full(len(since), MISSING))

    # Where a case has a word of a platform, the platform speaks of all nodes: what it has nothing against is 0.
    spoken = {fact.kind for fact in case.facts} & _SIGNS.keys()
    for number, node in enumerate(case.nodes):
        own = [fact for fact in case.facts if node.name in places(fact.on, case.nodes)]
        labels = _labels(node, node.revision) | {"engine": node.engine}
        phase = np.where(answers[number], "ready/", "unreachable/no_answer").astype(object)
        row("fleet_node_process_up", **labels)[:] = 1.0
        if len(case.nodes) > 1 or node.engine == "fleetctl":  # of an engine of others the votes of its pool tell
            row("fleet_node_output_ok", **labels)[:] = 1.0
        for kind in spoken:
            row(_SIGNS[kind][0], **labels)[:] = 0.0
        for fact in own:
            ends = np.inf if fact.until is None else fact.until
            if fact.kind in _SIGNS:
                sign, label = _SIGNS[fact.kind]
                word, _, of = fact.says.partition("/")
                on = (since >= fact.at) & (since < ends)
                row(sign, **labels)[on] = MISSING
                row(sign, **labels, **{label: word, "kind": of})[on] = 1.0
                continue
            if fact.kind == "process_ended":
                gone = (since >= fact.at) & (since < ends)
                row("fleet_node_process_up", **labels)[gone] = 0.0
                row("fleet_node_exit_status", **labels)[gone] = float(fact.exit_status)
                row("fleet_node_comes_back", **labels)[gone] = float(ends < case.after)
                phase[gone] = "stopped/process_ended"
            elif fact.kind == "node_added":
                row("fleet_node_process_up", **labels)[since < fact.at - 30] = MISSING
                phase[since < fact.at - 30] = ""
                phase[(since >= fact.at - 30) & (since < fact.at)] = "starting/loading"
            elif fact.kind == "drain":
                phase[since >= fact.at] = "draining/draining"
            if fact.restart_s > 0:
                phase[(since >= fact.at) & (since < fact.at + fact.restart_s)] = "starting/loading"
            if fact.kind in ("scale", "config"):
                place = {"pool": node.pool} if fact.kind == "scale" else {}
                row("fleet_change_timestamp_seconds", kind=fact.kind, **place)[since >= fact.at] = ONSET + fact.at
            elif fact.kind not in ("process_ended", "node_added"):
                known = labels | ({"revision": fact.revision} if fact.revision else {})
                row("fleet_change_timestamp_seconds", kind=fact.kind, **known)[since >= fact.at] = ONSET + fact.at
            if fact.kind == "deploy":
                row("fleet_change_timestamp_seconds", kind="restart", **labels)[since >= fact.at] = ONSET + fact.at
        for word in sorted({str(one) for one in phase if one}):
            name, _, reason = word.partition("/")
            row("fleet_node_phase", **labels, phase=name, reason=reason)[phase == word] = 1.0
    for node in case.nodes:
        revisions = [fact for fact in case.facts if fact.revision and node.name in places(fact.on, case.nodes)]
        for fact in sorted(revisions, key=lambda one: one.at):
            _relabel(rows, node.name, fact.revision, since >= fact.at)
    for key, values in rows.items():
        store.append_matrix([key], at_ms, _ended(values)[np.newaxis, :])


def _relabel(rows: dict[LabelSet, Floats], node: str, revision: str, later: Bools) -> None:
    """From then on what is known of the node is known of the revision that it has by then."""
    for key, values in list(rows.items()):
        labels = dict(key.pairs)
        if labels.get("node") != node or labels.get("revision") == revision or np.isnan(values[later]).all():
            continue
        moved = rows.setdefault(LabelSet.of({**labels, "revision": revision}), np.full(len(later), MISSING))
        told = later & ~np.isnan(values)
        moved[told] = values[told]
        values[later] = MISSING
