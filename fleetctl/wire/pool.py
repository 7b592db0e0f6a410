"""Interchangeable nodes, how many are wanted, and what a new one serves."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import Field

from fleetctl.wire.base import Wire
from fleetctl.wire.group import GroupLoad


class PoolState(StrEnum):
    """How a pool stands to what is wanted of it."""

    CONVERGED = "converged"  # as many nodes as wanted; whether each is ready, their phases say
    CONVERGING = "converging"  # nodes are being started, drained or stopped
    BACKING_OFF = "backing_off"  # a start failed, and is tried again later
    HELD = "held"  # a run acts on it, a guard said no, or a node's state is not known: nothing is done


class Pool(Wire):
    """Interchangeable nodes: how many are wanted, and how far that is."""

    name: str  # unique in the fleet
    model: str = ""  # what its nodes serve
    wanted: int  # nodes it should have
    nodes: int = 0  # nodes that are wanted now; more or fewer while the size changes
    ready: int = 0  # of them, those that take requests
    unknown: int = 0  # of them, those that were not looked at lately
    revision: str = ""  # what a new node gets
    revisions: dict[str, int] = Field(default_factory=dict)  # of its wanted nodes, with their number
    owner: Literal["person", "autoscaler"] = "person"  # who may set its size
    held_by: str | None = None  # id of the run that acts on it now
    state: PoolState = PoolState.CONVERGED  # how it stands to what is wanted
    reason: str = ""  # what is done next, or why nothing is
    autoscaler: str = ""  # what the autoscaler would do, or does; empty: it leaves the size as it is
    start_failures: int = 0  # starts of its nodes that failed in a row
    next_start_at: float | None = None  # when a failed start is tried again
    start_error: str = ""  # the last lines of the node that failed
    updated_at: float | None = None  # when what is wanted of it last changed
    updated_by: str = ""  # who changed it
    more: int | None = None  # nodes that can be started for it now; None: not known
    more_why: str = ""  # why `more` is not known, or none
    load: GroupLoad = Field(default_factory=GroupLoad)  # what its nodes' signals come to


class Revision(Wire):
    """What nodes serve and with which settings; never changed. Its id is the hash of the rest."""

    id: str  # rev- and the hash of the rest
    model: str  # the name that clients ask for
    engine: str = ""  # which engine serves it
    model_dir: str = ""  # where its weights are read from
    arguments: dict[str, str | bool | list[str]] = Field(default_factory=dict)  # of the engine, as on its command line
    adapters: list[str] = Field(default_factory=list)  # LoRA adapters that are loaded at the start
    prompt_template: str = ""  # empty: the one in the model's directory
    created_at: float | None = None  # None: not known
    nodes: list[str] = Field(default_factory=list)  # wanted nodes of it
    pools: list[str] = Field(default_factory=list)  # pools whose new nodes get it
    load: GroupLoad = Field(default_factory=GroupLoad)  # of the nodes that run it
