"""Columns of nodes, pools, revisions, gateways, and of what decides about their traffic."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping
from dataclasses import replace

from fleetctl.cli.moment import clock, since_column, whole_seconds
from fleetctl.cli.output import Column, count, number, ratio, seconds
from fleetctl.cli.signal_columns import HIT, NODE_GPU, PREEMPT, load_columns, money, rate, signal_column
from fleetctl.providers.spec import words_from_options
from fleetctl.wire.freeze import Freeze
from fleetctl.wire.gateway import Gateway
from fleetctl.wire.group import NodeGroup
from fleetctl.wire.pool import Pool


def _of_limit(title: str, kind: str, *, wide: bool = False) -> Column:
    """What may come at once of a limit; "-" without that limit."""
    return Column(
        title,
        lambda t: "-" if t.left.get(kind) is None else str(t.left[kind]),
        right=True,
        sort_key=lambda t: t.left.get(kind),
        wide=wide,
        is_volatile=True,
    )


ABILITY_COLUMNS: list[Column] = [
    Column("what", lambda a: a.ability),
    Column("can", lambda a: "yes" if a.can else "no"),
    Column("how, or why not", lambda a: a.how),
]


NODE_COLUMNS = [
    Column("name", lambda n: n.name),
    Column("phase", lambda n: n.phase.value),
    Column("pool", lambda n: n.pool),
    signal_column("run", lambda n: n.running, number),
    signal_column("seats", lambda n: n.seats, number, wide=True),
    signal_column("wait", lambda n: n.waiting, number),
    signal_column("KV", lambda n: n.kv_ratio, ratio),
    signal_column("TTFT", lambda n: n.ttft_s, seconds),
    signal_column("step", lambda n: n.step_s, seconds),
    Column(
        "age", lambda n: whole_seconds(n.signal_age_s), right=True, sort_key=lambda n: n.signal_age_s, is_volatile=True
    ),
    Column(
        "probed",
        lambda n: whole_seconds(n.probe_age_s),
        wide=True,
        right=True,
        sort_key=lambda n: n.probe_age_s,
        is_volatile=True,
    ),
    signal_column("ITL", lambda n: n.itl_s, seconds, wide=True),
    signal_column("tok/s", lambda n: n.tokens_per_s, rate, wide=True),
    replace(HIT, wide=True),
    replace(PREEMPT, wide=True),
    replace(NODE_GPU, wide=True),
    Column("cost/h", lambda n: "-" if n.cost_per_hour is None else money(n.cost_per_hour), right=True, wide=True),
    Column("model", lambda n: n.model or "-", wide=True),
    Column("engine", lambda n: n.engine or "-", wide=True),
    Column("zone", lambda n: n.zone or "-", wide=True),
    Column("revision", lambda n: n.revision or "-", wide=True),
    Column("url", lambda n: n.url, wide=True),
    Column("reason", lambda n: n.reason, wide=True),
    Column("alerts", lambda n: ",".join(n.alerts)),
]


POOL_COLUMNS = [
    Column("name", lambda p: p.name),
    Column("wanted", lambda p: str(p.wanted), right=True, sort_key=lambda p: p.wanted),
    Column("nodes", lambda p: str(p.nodes), right=True, sort_key=lambda p: p.nodes),
    Column("ready", lambda p: _of_known(p.ready, p.unknown), right=True, sort_key=lambda p: p.ready),
    Column("revision", lambda p: p.revision),
    Column("owner", lambda p: p.owner),
    Column("state", lambda p: p.state.value),
    Column("can add", lambda p: count(p.more), right=True, wide=True),
    Column("held by", lambda p: p.held_by or "-", wide=True),
    Column("model", lambda p: p.model, wide=True),
    *load_columns(wide=True),
    Column("revisions", lambda p: revision_counts(p), wide=True),
    Column("changed", lambda p: clock(p.updated_at), wide=True),
    Column("by", lambda p: p.updated_by, wide=True),
    Column("reason", lambda p: p.reason, wide=True),
]


REVISION_COLUMNS = [
    Column("id", lambda r: r.id),
    Column("model", lambda r: r.model),
    Column("nodes", lambda r: str(len(r.nodes)), right=True, sort_key=lambda r: len(r.nodes)),
    Column("pools", lambda r: ",".join(r.pools) or "-"),
    Column("made", lambda r: clock(r.created_at), sort_key=lambda r: r.created_at, wide=True),
    Column("engine", lambda r: r.engine, wide=True),
    Column("adapters", lambda r: ",".join(r.adapters) or "-", wide=True),
    Column("template", lambda r: r.prompt_template or "-", wide=True),
    *load_columns(wide=True),
    Column("model dir", lambda r: r.model_dir),
    Column("arguments", lambda r: arguments_text(r.arguments), wide=True),
]


GROUP_COLUMNS = [
    Column("name", lambda g: g.name or "-"),
    Column("ready", lambda g: _ready(g), right=True, sort_key=lambda g: g.ready),
    *load_columns(),
]


def _ready(group: NodeGroup) -> str:
    """Nodes that take requests, of those that are wanted, with how many nobody could look at."""
    return f"{group.ready}/{group.nodes}" + (f" (+{group.unknown}?)" if group.unknown else "")


def _workers(gateway: Gateway) -> str:
    """Those that serve, of those wanted, and those that a reload replaced."""
    workers = gateway.workers
    if workers is None:
        return "-"
    return f"{workers.serving}/{workers.wanted}" + (f"+{workers.retiring}" if workers.retiring else "")


GATEWAY_COLUMNS = [
    Column("name", lambda g: g.name),
    Column("phase", lambda g: g.phase.value),
    Column("held", lambda g: count(g.in_flight), right=True, sort_key=lambda g: g.in_flight, is_volatile=True),
    Column("lost", lambda g: count(g.lost), right=True, sort_key=lambda g: g.lost, is_volatile=True),
    Column("workers", _workers, right=True),
    Column("deaths", lambda g: str(g.deaths), right=True, sort_key=lambda g: g.deaths),
    Column("table", lambda g: count(g.table_version), right=True, sort_key=lambda g: g.table_version),
    Column("left out", lambda g: str(len(g.out)), right=True, sort_key=lambda g: len(g.out)),
    Column("url", lambda g: g.url, wide=True),
    Column("reason", lambda g: g.reason, wide=True),
    Column("why left out", lambda g: "; ".join(f"{n}: {why}" for n, why in sorted(g.out.items())), wide=True),
]


ROUTE_COLUMNS = [
    Column("node", lambda r: r.node),
    Column("route", lambda r: r.state.value),
    Column("seen", lambda r: r.phase.value if r.phase is not None else "-"),
    Column("pool", lambda r: r.pool),
    Column("model", lambda r: r.model),
    Column("revision", lambda r: r.revision or "-"),
    Column("engine", lambda r: r.engine, wide=True),
    Column("url", lambda r: r.url, wide=True),
]


TRAFFIC_RULE_COLUMNS = [
    Column("id", lambda r: r.id),
    Column("kind", lambda r: r.kind),
    Column("ends in", lambda r: _ends_in(r.expires_at), right=True, sort_key=lambda r: r.expires_at, is_volatile=True),
    Column("by", lambda r: r.made_by),
    Column("made", lambda r: clock(r.made_at), wide=True),
    Column("reason", lambda r: r.reason, wide=True),
    Column("orders", lambda r: r.spec.words),
]


TENANT_COLUMNS = [
    Column("tenant", lambda t: t.tenant),
    Column("class", lambda t: t.priority),
    Column("run", lambda t: str(t.running), right=True, sort_key=lambda t: t.running, is_volatile=True),
    _of_limit("tok in left", "input"),
    _of_limit("tok out left", "output"),
    Column("admitted", lambda t: str(t.admitted), right=True, sort_key=lambda t: t.admitted, is_volatile=True),
    Column(
        "refused",
        lambda t: str(sum(t.refused.values())),
        right=True,
        sort_key=lambda t: sum(t.refused.values()),
        is_volatile=True,
    ),
    _of_limit("req left", "requests", wide=True),
    Column(
        "refused by",
        lambda t: ", ".join(f"{why} {count}" for why, count in sorted(t.refused.items())) or "-",
        wide=True,
        is_volatile=True,
    ),
    Column("tokens in", lambda t: str(t.tokens.get("input", 0)), right=True, wide=True, is_volatile=True),
    Column("tokens out", lambda t: str(t.tokens.get("output", 0)), right=True, wide=True, is_volatile=True),
    Column("gateways", lambda t: str(t.gateways), right=True, wide=True),
]


def _of_known(number: int, unknown: int) -> str:
    """A count with how many could not be looked at."""
    return f"{number} (+{unknown}?)" if unknown else str(number)


def revision_counts(pool: Pool) -> str:
    """The revisions of a pool's nodes, the most frequent first: "rev-1 2, rev-2 1"."""
    ordered = sorted(pool.revisions.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{revision} {count}" for revision, count in ordered) or "-"


def arguments_text(arguments: Mapping[str, str | bool | list[str]]) -> str:
    """Arguments of an engine as on its command line."""
    return shlex.join(words_from_options(arguments))


FREEZE_COLUMNS = [
    Column("id", lambda f: f.id),
    Column("pool", lambda f: f.pool or "(the fleet)"),
    Column("ends in", lambda f: _ends_in(f.expires_at), right=True, sort_key=lambda f: f.expires_at, is_volatile=True),
    Column("by", lambda f: f.made_by),
    Column("made", lambda f: clock(f.made_at), wide=True),
    Column("reason", lambda f: f.reason),
]


RECEIPT_COLUMNS = [
    Column("id", lambda r: r.id),
    Column("node", lambda r: r.node),
    since_column("age", lambda r: r.ended_at),
    Column("state", lambda r: r.state),
    Column("requests", lambda r: count(sum(r.sums.values())), right=True),
    Column("lost", lambda r: count(r.sums.get("lost")), right=True),
    Column("unknown", lambda r: count(r.sums.get("unknown")), right=True),
    Column("signed", lambda r: "yes" if r.signature else "no", wide=True),
    Column("what became of them", lambda r: r.summary, wide=True),
]


RECEIPT_LINE_COLUMNS = [
    Column("request", lambda line: line.request_id),
    Column("outcome", lambda line: line.outcome),
    Column("to", lambda line: line.moved_to or "-"),
    Column("in", lambda line: count(line.tokens_in), right=True),
    Column("before", lambda line: count(line.tokens_before), right=True),
    Column("after", lambda line: count(line.tokens_after), right=True),
    Column("why", lambda line: line.why),
]


def freeze_words(freeze: Freeze) -> str:
    """What is frozen, until when, by whom and why."""
    where = "the fleet" if freeze.pool is None else f"pool {freeze.pool}"
    until = "until it is ended" if freeze.expires_at is None else f"until {clock(freeze.expires_at)}"
    return f"{where} frozen {until} by {freeze.made_by}: {freeze.reason}"


def _ends_in(at: float | None) -> str:
    return "-" if at is None else seconds(max(0.0, at - time.time()))
