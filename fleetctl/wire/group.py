"""Nodes by pool, zone, model or revision, and what their signals come to."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from fleetctl.wire.base import Wire


class GroupSignal(Wire):
    """A value over a group, made of `known` of the `of` nodes that have something to tell."""

    value: float | None = None  # None: no node told it
    known: int = 0  # nodes that told it
    of: int = 0  # nodes that should
    at_least: bool = False  # a quantile above the highest bucket's bound


class GroupGpus(Wire):
    """The cards of a group's nodes."""

    cards: int = 0  # that were told of
    nodes_known: int = 0  # nodes whose cards were told of
    nodes: int = 0  # of the group
    hottest_c: float | None = None  # the highest temperature
    slowest_clock_hz: float | None = None  # the lowest SM clock
    power_w: float | None = None  # the sum
    throttled: dict[str, int] = Field(default_factory=dict)  # reason to cards
    throttle_known: int = 0  # cards whose reasons were read
    ecc_uncorrected: float | None = None  # the sum, since the drivers were loaded
    critical_xids_5m: float | None = None  # the sum: those that ask for a reset
    xids: list[int] = Field(default_factory=list)  # numbers that were heard on any of them


class GroupLoad(Wire):
    """What the signals of a group's nodes come to: sums, weighted means, quantiles of the pooled histogram."""

    running: GroupSignal = Field(default_factory=GroupSignal)  # the sum
    waiting: GroupSignal = Field(default_factory=GroupSignal)  # the sum
    kv_ratio: GroupSignal = Field(default_factory=GroupSignal)  # mean over nodes
    kv_ratio_max: GroupSignal = Field(default_factory=GroupSignal)  # the fullest node
    requests_per_s: GroupSignal = Field(default_factory=GroupSignal)  # the sum
    tokens_per_s: GroupSignal = Field(default_factory=GroupSignal)  # the sum, generated
    prompt_tokens_per_s: GroupSignal = Field(default_factory=GroupSignal)  # the sum, read
    ttft_s: GroupSignal = Field(default_factory=GroupSignal)  # mean over first tokens
    ttft_p95_s: GroupSignal = Field(default_factory=GroupSignal)  # of all first tokens of the group
    itl_s: GroupSignal = Field(default_factory=GroupSignal)  # mean over tokens
    prefix_hit_ratio: GroupSignal = Field(default_factory=GroupSignal)  # of prompt tokens
    preemptions_per_s: GroupSignal = Field(default_factory=GroupSignal)  # the sum
    preemption_ratio: GroupSignal = Field(default_factory=GroupSignal)  # for each request that ended
    cost_per_hour: GroupSignal = Field(default_factory=GroupSignal)  # the sum, by your prices
    cost_per_mtok: GroupSignal = Field(default_factory=GroupSignal)  # of what is generated now, in millions
    gpus: GroupGpus = Field(default_factory=GroupGpus)  # the cards of its nodes


class GroupBy(StrEnum):
    """What nodes are grouped by; the words are labels of every node."""

    POOL = "pool"
    ZONE = "zone"
    MODEL = "model"
    REVISION = "revision"


class NodeGroup(Wire):
    """The wanted nodes of one pool, zone, model or revision, and their load."""

    by: GroupBy  # pool, zone, model or revision
    name: str  # empty: not known of these nodes
    nodes: int  # that are wanted
    ready: int = 0  # of them, those that take requests
    unknown: int = 0  # of them, those that were not looked at lately
    load: GroupLoad = Field(default_factory=GroupLoad)  # what their signals come to
