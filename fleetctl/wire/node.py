"""One node with its newest signals, and what changes of it."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

from pydantic import Field

from fleetctl.wire.base import Wire
from fleetctl.wire.gpu import Gpu


class NodePhase(StrEnum):
    """What a node is doing, as seen by the controller."""

    STARTING = "starting"  # wanted, process started or about to be, not ready yet
    READY = "ready"  # answers ready and takes requests
    CORDONED = "cordoned"  # takes no new requests by our will
    DRAINING = "draining"  # cordoned, and in-flight requests are finishing or being moved
    DRAINED = "drained"  # cordoned and idle
    NOT_READY = "not_ready"  # answers, and says it is not ready
    UNREACHABLE = "unreachable"  # does not answer: its state is unknown
    STOPPED = "stopped"  # not wanted and not running


class Signal(Wire):
    """A value with its age: older than `stale_after_s` is not evidence."""

    value: float | None = None  # None: not known
    age_s: float | None = None  # since the engine told it


class DeepCheck(Wire):
    """Whether a node's answer to a known prompt was right, and how long ago; unknown: nobody could look lately."""

    result: Literal["passed", "failed", "unknown"] = "unknown"  # of the last one that is not too old
    age_s: float | None = None  # since it was made
    detail: str = ""  # why it failed, or why it is not known


class NodeAbility(Wire):
    """One thing that may be done to a node."""

    ability: str  # drain, move, limits, sleep, ...
    can: bool  # whether its engine and its owner allow it
    how: str = ""  # how it is done, or why it can't be


class Node(Wire):
    """One node with its newest signals."""

    name: str  # unique in the fleet
    url: str  # where it answers
    phase: NodePhase  # what it is doing, as the controller sees it
    reason: str = ""  # why it is in that phase
    pool: str = "default"  # the pool that it is in
    model: str = ""  # the name that clients ask for
    engine: str = "fleetctl"  # fleetctl (ours), vllm, sglang, trtllm, triton, tgi, llamacpp
    zone: str = ""  # where it stands
    revision: str = ""  # id of what it serves, and with which settings
    provider: str = "local"  # who runs it: local, found, ...
    facts: dict[str, str] = Field(default_factory=dict)  # host, gpu, sku, version, source: as far as they are known
    abilities: list[NodeAbility] = Field(default_factory=list)  # of a node that was asked for by its name
    machine_problems: list[str] | None = None  # of the machine under it, by its platform; None: nobody tells
    reasons: list[str] | None = None  # what who runs it says is wrong with it; None: nobody tells
    since: float | None = None  # when the phase began
    instance: str | None = None  # opaque: another one after each restart
    running: Signal = Field(default_factory=Signal)  # requests that it computes now
    seats: Signal = Field(default_factory=Signal)  # requests that it may compute at once; not every engine tells
    waiting: Signal = Field(default_factory=Signal)  # requests that it holds and has not begun
    kv_ratio: Signal = Field(default_factory=Signal)  # share of its KV cache in use
    ttft_s: Signal = Field(default_factory=Signal)  # mean time to first token, lately
    step_s: Signal = Field(default_factory=Signal)  # mean duration of a step that decodes
    requests_per_s: Signal = Field(default_factory=Signal)  # requests that ended
    ttft_p99_s: Signal = Field(default_factory=Signal)  # 99th percentile of the time to first token
    itl_s: Signal = Field(default_factory=Signal)  # mean time between two tokens of an answer
    first_tokens_per_s: Signal = Field(default_factory=Signal)  # answers that began
    tokens_per_s: Signal = Field(default_factory=Signal)  # generated
    prompt_tokens_per_s: Signal = Field(default_factory=Signal)  # read
    prefix_hit_ratio: Signal = Field(default_factory=Signal)  # of prompt tokens
    preemptions_per_s: Signal = Field(default_factory=Signal)  # requests put back for want of KV blocks
    preemption_ratio: Signal = Field(default_factory=Signal)  # preemptions for each request that ended
    gpus: list[Gpu] = Field(default_factory=list)  # those that were told of lately
    cost_per_hour: float | None = None  # by your price of its SKU
    more: int | None = None  # nodes like it that can be started now; of a node that was asked for by its name
    more_why: str = ""  # why `more` is not known, or none
    signal_age_s: float | None = None  # since the last successful scrape
    signal_problem: str = ""  # why its last scrape failed
    probe_age_s: float | None = None  # since the look at it that found its phase began; None: not looked at yet
    deep_check: DeepCheck = Field(default_factory=DeepCheck)  # whether its answer to a known prompt was right
    alerts: list[str] = Field(default_factory=list)  # names of those that fire on it


class NodeChanges(Wire):
    """What an event of the stream of nodes says, as of `now`; `fleetctl.told_node` says what a row is made of."""

    now: float
    whole: bool = False  # what was told before is void: every node comes anew, in this event and those behind it
    new: dict[str, dict[str, Any]] = Field(default_factory=dict)  # by name: in place of what was told of it
    changed: dict[str, dict[str, Any]] = Field(default_factory=dict)  # what is not as it was told; null: not known now
    gone: list[str] = Field(default_factory=list)
