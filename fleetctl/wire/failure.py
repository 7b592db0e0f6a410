"""Failures of nodes, one by one and counted."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import Field

from fleetctl.wire.base import Wire


class FailureKind(StrEnum):
    """How a node fails."""

    CRASH = "crash"  # its process, or its core, ended by itself
    OOM = "oom"  # out of memory, the host's or the device's
    HUNG = "hung"  # its core makes no progress
    WRONG_OUTPUT = "wrong_output"  # it computes wrong numbers
    XID = "xid"  # an XID that asks for a reset or a replacement, or a card that is lost
    ECC = "ecc"  # uncorrected memory errors
    THERMAL = "thermal"  # the hardware slowed a card down for its heat
    NEVER_READY = "never_ready"  # it ended, or took too long, before it was ever ready
    UNREACHABLE = "unreachable"  # it was ready and gives no answer


class Failure(Wire):
    """One failure of one node, as the controller saw it."""

    id: str  # unique
    episode: str  # failures of one cause on one node have the same, and count once
    kind: FailureKind  # how it failed
    at: float  # when it was seen
    ended_at: float | None = None  # None: it stands
    node: str  # which node
    host: str = ""  # its machine, as the next ones
    sku: str = ""  # kind of machine or card
    zone: str = ""  # where it stands
    pool: str = ""  # that it was in
    model: str = ""  # that it served
    revision: str = ""  # that it ran
    reason: str = ""  # what was seen, in words
    instance: str = ""  # of the node, which a restart changes
    incident_id: str | None = None  # that it belongs to


class FailuresBy(StrEnum):
    """What failures are counted by."""

    SKU = "sku"
    ZONE = "zone"
    HOST = "host"
    WORKLOAD = "workload"  # model/pool/revision
    NODE = "node"


class FailureGroup(Wire):
    """How often the nodes of one SKU, zone, host, workload or name failed, and how that compares with the fleet."""

    by: FailuresBy
    name: str  # empty: not known
    nodes: int = 0
    node_hours: float = 0.0  # for which they were watched
    failures: int = 0  # episodes
    kinds: dict[FailureKind, int] = Field(default_factory=dict)
    per_1000_node_hours: float | None = None
    ratio: float | None = None  # of its rate to the fleet's: the mean of what it may be
    ratio_low: float | None = None  # it lies between these with 90 %
    ratio_high: float | None = None
    standing: Literal["lemon", "ordinary", "not known"] = "not known"
    why: str = ""  # it is not known
