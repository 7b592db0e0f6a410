"""What the traffic rules in force mean for one request: where it goes, where it stays away from, and why. Pure.

A rule never leaves a request without a node: where its nodes are gone, the request goes where all go, and that is told.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from fleetctl.gateway.routing.pick import affinity, node_hash, prefix_hash
from fleetctl.traffic_rule import CanarySpec, RerouteSpec, TrafficRule


class PlacedNode(Protocol):
    """What rules know of a node."""

    @property
    def node(self) -> str:
        """Its name."""
        ...

    @property
    def pool(self) -> str:
        """Its pool."""
        ...

    @property
    def revision(self) -> str:
        """What is deployed there; empty: not known."""
        ...


class Size(NamedTuple):
    """A request's size. `prefill_s` and `kv_share` are predictions; None: nothing to predict by."""

    input_tokens: int
    prefill_s: float | None = None
    kv_share: float | None = None


class Order(NamedTuple):
    """Where a request may go. `nodes` None: anywhere. `cap`: of long requests at each of them, for a long one."""

    nodes: frozenset[str] | None = None
    rules: tuple[str, ...] = ()  # ids of those that decided it
    note: str = ""  # what could not be followed
    is_long: bool = False
    cap: int | None = None


ANYWHERE = Order()


def order_of(
    rules: Iterable[TrafficRule], nodes: Sequence[PlacedNode], size: Size, model: str | None, key: str
) -> Order:
    """What the rules order for a request of this size. `key`: what is always in the same share of a canary."""
    reroutes: list[tuple[str, RerouteSpec]] = []
    allowed: frozenset[str] | None = None
    used: list[str] = []
    notes: list[str] = []
    for rule in rules:
        spec = rule.spec
        if isinstance(spec, RerouteSpec):
            reroutes.append((rule.id, spec))
        elif isinstance(spec, CanarySpec) and spec.model in (None, model):
            found = canary_nodes(rule.id, spec, nodes, key)
            if found:
                allowed = found if allowed is None else (allowed & found or allowed)
                used.append(rule.id)
            else:
                notes.append(f"{rule.id}: no such node")
    if not reroutes:
        return Order(allowed, tuple(used), "; ".join(notes)) if used or notes else ANYWHERE
    everybody = frozenset(one.node for one in nodes)
    mine = next(((rule_id, spec) for rule_id, spec in reversed(reroutes) if is_long(spec, size)), None)
    within = everybody if allowed is None else allowed
    if mine is not None:
        rule_id, spec = mine
        used.append(rule_id)
        wanted = reroute_nodes(rule_id, spec, nodes) & within
        if not wanted:
            notes.append(f"{rule_id}: no node of its own, sent where all go")
        return Order(wanted or allowed, tuple(used), "; ".join(notes), True, spec.cap if wanted else None)
    reserved = frozenset().union(*(reroute_nodes(rule_id, spec, nodes) for rule_id, spec in reroutes))
    if kept := within - reserved:
        if len(kept) < len(within):
            used += [rule_id for rule_id, _ in reroutes]
        return Order(kept, tuple(used), "; ".join(notes))
    notes.append("only nodes for long prompts are left")
    return Order(allowed, tuple(used), "; ".join(notes))


def is_long(spec: RerouteSpec, size: Size) -> bool:
    """Whether the request exceeds the rule's threshold. What can't be predicted exceeds nothing."""
    if spec.over_tokens is not None:
        return size.input_tokens > spec.over_tokens
    if spec.over_prefill_s is not None:
        return size.prefill_s is not None and size.prefill_s > spec.over_prefill_s
    return spec.over_kv_share is not None and size.kv_share is not None and size.kv_share > spec.over_kv_share


def reroute_nodes(rule_id: str, spec: RerouteSpec, nodes: Sequence[PlacedNode]) -> frozenset[str]:
    """The nodes that long requests go to: a pool's, or a share that stays the same while nodes come and go."""
    if spec.pool is not None:
        return frozenset(one.node for one in nodes if one.pool == spec.pool)
    assert spec.share is not None
    if len(nodes) < 2:
        return frozenset()
    key = prefix_hash(rule_id)
    ranked = sorted((one.node for one in nodes), key=lambda node: affinity(node_hash(node), key), reverse=True)
    return frozenset(ranked[: max(1, min(len(ranked) - 1, math.ceil(spec.share * len(ranked))))])


def canary_nodes(rule_id: str, spec: CanarySpec, nodes: Sequence[PlacedNode], key: str) -> frozenset[str]:
    """The nodes of the share that `key` falls into; of the rest, those that no share names."""
    shares = spec.revisions or spec.pools
    is_revision = bool(spec.revisions)
    position, at = share_position(rule_id, key), 0.0
    for name, share in shares.items():
        at += share
        if position < at:
            return frozenset(one.node for one in nodes if (one.revision if is_revision else one.pool) == name)
    return frozenset(one.node for one in nodes if (one.revision if is_revision else one.pool) not in shares)


def share_position(rule_id: str, key: str) -> float:
    """Where a key stands between 0 and 1: the same from every gateway, another for each rule."""
    return affinity(prefix_hash(key), prefix_hash(rule_id)) / 2**64
