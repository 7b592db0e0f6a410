"""Types of the controller's HTTP API: the one vocabulary of controller, CLI, cockpit, gateway and scripts.

Times are Unix seconds, ratios 0 to 1. None means "not known", never zero. One file, however long: a vocabulary is
looked up in one place, and its types are made of each other.
"""

from __future__ import annotations

import re
from collections import Counter
from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from fleetctl.traffic_rule import KnownRules


class Wire(BaseModel):
    """Answers ignore unknown keys (an older client meets a newer controller); requests below forbid them."""

    model_config = ConfigDict(extra="ignore", defer_build=True)


class Body(BaseModel):
    """A request; an unknown key is refused."""

    model_config = ConfigDict(extra="forbid", defer_build=True)


NO_CLAIM = "api"
"""What `by` fields hold when the caller says nothing of itself: its token says who it is."""

TOKEN_PREFIX = "flt-"  # noqa: S105 - no secret
"""How the controller's named tokens begin."""


class TokenRole(StrEnum):
    """What a token may do; each role may also do what those before it may."""

    VIEWER = "viewer"  # read
    OPERATOR = "operator"  # ask for changes, and make those that need no other person
    APPROVER = "approver"  # answer what others, or automation, propose
    ADMIN = "admin"  # make and revoke tokens

    def includes(self, other: TokenRole) -> bool:
        """Whether it may do what `other` may."""
        order = list(TokenRole)
        return order.index(self) >= order.index(other)


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


class HeldRequest(Wire):
    """One request in flight at a node, without its prompt or text."""

    model_config = ConfigDict(extra="ignore", defer_build=True)

    request_id: str
    kind: str = ""  # chat, completion
    state: str = ""  # waiting, running, moving, ending
    tokens_in: int | None = None
    tokens_out: int | None = None
    kv_blocks: int | None = None  # None: the core has not said
    age_s: float | None = None
    priority: int | None = None
    deadline_s: float | None = None


class HeldRequests(Wire):
    """What a node holds, oldest first. `unknown`: why it is not known; the list is no empty one then."""

    requests: list[HeldRequest] = Field(default_factory=list)
    num_arriving: int = 0  # read or tokenised, and not taken in yet
    unknown: str = ""


class KvBlocks(Wire):
    """What a node's KV cache is used for, told by the node itself. `unknown`: why it is not known."""

    model_config = ConfigDict(extra="ignore")

    block_size: int = Field(default=0, ge=0)  # tokens
    num_blocks: int = Field(default=0, ge=0)
    num_held: int = Field(default=0, ge=0)  # by requests
    num_shared: int = Field(default=0, ge=0)  # of those: by several
    num_kept: int = Field(default=0, ge=0)  # for prompts that begin the same; evicted where their space is needed
    num_kept_reused: int = Field(default=0, ge=0)  # of those: found again since, and evicted last
    unknown: str = ""

    @property
    def num_blank(self) -> int:
        """Blocks that nobody holds and that nothing is kept in."""
        return max(0, self.num_blocks - self.num_held - self.num_kept)


class NodeAbility(Wire):
    """One thing that may be done to a node."""

    ability: str  # drain, move, limits, sleep, ...
    can: bool  # whether its engine and its owner allow it
    how: str = ""  # how it is done, or why it can't be


class Gpu(Wire):
    """One card, as NVML or DCGM tell it. None: not read, or too long ago."""

    node: str  # the node that it computes for
    gpu: str  # its number on the node
    card: str = ""  # its product name, by the driver
    pool: str = ""  # of that node, as the next ones
    model: str = ""  # that is served
    zone: str = ""  # where it stands
    host: str = ""  # the machine
    sku: str = ""  # kind of machine or card, as it is ordered
    temperature_c: float | None = None  # of the chip, in degrees Celsius
    memory_temperature_c: float | None = None  # of its memory
    sm_clock_hz: float | None = None  # at which it computes
    power_w: float | None = None  # drawn now
    utilization_ratio: float | None = None  # share of the time in which anything ran on it
    memory_ratio: float | None = None  # share of its memory in use
    throttled: list[str] | None = None  # reasons in force: hw_slowdown, sw_thermal, hw_thermal, power_brake
    faults: list[str] | None = None  # lost, row_remap_failed, row_remap_pending
    ecc_uncorrected: float | None = None  # since the driver was loaded
    ecc_uncorrected_5m: float | None = None  # in the last five minutes
    xids: list[int] = Field(default_factory=list)  # numbers that were heard; which of them lately, the next say
    critical_xids_5m: float | None = None  # that ask for a reset or a replacement
    contained_xids_5m: float | None = None  # memory errors that were contained: a reset is due
    application_xids_1h: float | None = None  # faults of programs, not of the card


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


class RolloutSignal(Wire):
    """One signal of a rollout's gate in the present step: bad requests of both revisions, and what it waits for."""

    name: str  # what is judged
    verdict: Literal["pass", "fail", "not_enough"]  # not_enough: more requests are waited for
    words: str = ""  # the figures, in words
    missing: str = ""  # what it waits for; empty: nothing
    new_bad: float = 0.0  # requests, in parts where one is bad in part
    new_total: float = 0.0  # requests of the new revision
    stable_bad: float = 0.0  # the same of the revision before
    stable_total: float = 0.0  # requests of it
    more_requests: int | None = None  # of the new revision, at its present shares; None: not to be said
    fail_e: float = 1.0  # e-values: against "no worse than the margin", and against "at least that much worse"
    pass_e: float = 1.0  # the second of them


class RolloutChange(Wire):
    """One transition of a rollout."""

    at: float  # when
    state: str  # into which
    share: float  # that the new revision got
    by: str = ""  # who
    why: str = ""  # in words


class Rollout(Wire):
    """How a pool gets from one revision to another."""

    id: str  # unique
    pool: str  # which pool
    state: Literal["canary", "promoting", "paused", "rolling_back", "done", "rolled_back", "failed"]  # where it stands
    from_revision: str  # that was served before
    to_revision: str  # that is rolled out
    back_to: str = ""  # the revision that it goes, or went, back to
    steps: list[float] = Field(default_factory=list)  # shares of the sessions
    step: int = 0  # index of the present one
    share: float = 0.0  # that the present step gives the new revision
    gated: bool = True  # each step is judged before the next
    by_hand: bool = False  # a person promotes each step
    new_nodes: int | None = None  # wanted nodes of the new revision; None: it has ended
    new_ready: int | None = None  # of them, those that take requests
    other_nodes: int | None = None  # wanted nodes of other revisions
    waits_for: str = ""  # what comes next, or what it waits for; empty: it has ended
    needs_person: bool = False  # nothing happens until somebody says so
    why: str = ""  # of the last transition
    signals: list[RolloutSignal] = Field(default_factory=list)  # of its gate
    override: str = ""  # why it was begun although something was frozen
    started_at: float  # when it began
    started_by: str = ""  # who
    reason: str = ""  # why
    updated_at: float = 0.0  # when it last changed
    updated_by: str = ""  # who changed it
    history: list[RolloutChange] = Field(default_factory=list)  # each change of state

    @property
    def is_ended(self) -> bool:
        """Whether nothing comes after its state."""
        return self.state in ("done", "rolled_back", "failed")


class AutoscalerPool(Wire):
    """What the autoscaler may do with a pool, and its last word on it. None: not known, or not judged yet."""

    pool: str
    mode: Literal["advise", "act"] = "advise"
    owner: Literal["person", "autoscaler"] = "person"
    acts: bool = False  # its mode is act, and it owns the pool
    min: int
    max: int
    wanted: int  # nodes that the pool should have now
    size: int | None = None  # nodes that it should have by the autoscaler's word
    direction: Literal["out", "in", "hold"] | None = None
    why: str = ""
    check: str = ""  # of a scale-in: what the simulation said
    judged_at: float | None = None
    kv_ratio: float | None = None
    seat_ratio: float | None = None
    waiting: float | None = None
    start_s: float | None = None  # a node's, from wanted to ready
    last_out_at: float | None = None
    last_in_at: float | None = None
    reversals: int = 0  # changes of direction within the last hour


class GatewayPhase(StrEnum):
    """What a gateway is doing, as seen by the controller."""

    STARTING = "starting"  # not looked at yet
    READY = "ready"  # answers and has a routing table
    NOT_READY = "not_ready"  # answers, and has no routing table
    UNREACHABLE = "unreachable"  # does not answer: its state is unknown
    DOWN = "down"  # its process ended


SUPERVISOR_SILENT_S = 30.0
"""For so long a gateway's own process gives no sign, and is told; six of its signs are missing then."""


class GatewayWorkers(Wire):
    """The worker processes of one gateway, as its supervisor counts them."""

    model_config = ConfigDict(extra="ignore", defer_build=True)

    generation: int  # one more with each reload
    wanted: int  # processes by the settings
    serving: int  # of them, those that take requests
    retiring: int = 0  # a reload replaced them; they end what they have
    deaths: int = 0  # ends that nobody asked for, since the gateway's start
    reloads: int = 0  # since the gateway's start
    reload_error: str | None = None  # why the last reload changed nothing
    supervisor_silent_s: float | None = None  # since the gateway's own process gave a sign of life; None: it gives none

    @property
    def problem(self) -> str:
        """What is not as it should be, though the gateway serves; empty: nothing."""
        silent_s = self.supervisor_silent_s or 0.0
        still = (
            f"its own process has given no sign for {silent_s:.0f} s: workers that end are not started again"
            if silent_s > SUPERVISOR_SILENT_S
            else ""
        )
        few = f"{self.serving} of {self.wanted} workers serve" if self.serving < self.wanted else ""
        failed = f"the last reload changed nothing: {self.reload_error}" if self.reload_error is not None else ""
        return "; ".join(filter(None, (still, few, failed)))


class Gateway(Wire):
    """One gateway. What it says of itself is None while it does not answer."""

    name: str  # as fleetctl knows it
    url: str  # where it answers
    phase: GatewayPhase  # what it is doing, as the controller sees it
    reason: str = ""  # why it is in that phase
    since: float | None = None  # when the phase began
    probe_age_s: float | None = None  # since it was last looked at
    is_local: bool = False  # started on the controller's machine: it is started again when it ends
    instance: str | None = None  # another one after each start
    deaths: int = 0  # ends that nobody asked for, since the controller started
    next_start_at: float | None = None  # of one that ended
    table_version: int | None = None  # of the routing table that it goes by
    table_age_s: float | None = None  # since it was told that one
    in_flight: int | None = None  # requests that it carries now
    lost: int | None = None  # requests that failed or were given up since its start
    out: dict[str, str] = Field(default_factory=dict)  # node to why it gets nothing, or little, from this gateway
    failing_open: list[str] = Field(default_factory=list)  # models
    workers: GatewayWorkers | None = None  # its processes


class AlertState(StrEnum):
    """Where an alert stands; unknown is neither firing nor clear."""

    INACTIVE = "inactive"
    PENDING = "pending"
    FIRING = "firing"
    UNKNOWN = "unknown"  # its signal is missing or stale: neither firing nor clear
    RESOLVED = "resolved"


class Alert(Wire):
    """One alert of our rules or of Alertmanager."""

    fingerprint: str  # of name and labels: one alert, one of these
    name: str  # of its rule
    severity: str  # ticket, warning, page or critical
    state: AlertState  # where it stands
    labels: dict[str, str]  # what it is about
    summary: str = ""  # what is wrong, in a line
    description: str = ""  # what that means
    value: float | None = None  # of its expression now
    active_at: float | None = None  # when its condition began to hold
    fired_at: float | None = None  # when that had held long enough
    resolved_at: float | None = None  # when it ended
    said_at: float | None = None  # when its summary was so; None: as it fired, or now
    source: str = "rules"  # who judged it: our own rules, or alertmanager (its webhook)
    source_url: str = ""  # where Alertmanager says more
    silenced: Literal["no", "yes", "unknown"] = "no"  # unknown: Alertmanager's silences could not be read
    silenced_by: list[str] = Field(default_factory=list)  # ids of silences

    @property
    def told_value(self) -> str:
        """The number in its summary, with its unit ("501", "60.3ms", "38%"), else the expression's. "": it has none, or
        that of a state (0, 1, -1, or an increase of one as Prometheus extrapolates it), which says nothing to a reader.
        """
        names = sorted((value for value in self.labels.values() if value), key=len, reverse=True)
        said = (
            re.sub(rf"(?<!\w)(?:{'|'.join(map(re.escape, names))})(?!\w)", " ", self.summary) if names else self.summary
        )
        if (found := _NUMBER_TOLD.search(said)) is not None:
            return found[0]
        return "" if self.value is None or round(self.value, 2) in _STATES else f"{self.value:.4g}"


_STATES = (-1, 0, 1)
_NUMBER_TOLD = re.compile(r"(?<![\w.-])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?[\w%×]*(?: \d+[smh]\b)*")


class AlertPart(Wire):
    """One part of a rule's expression, for one alert. None: no value, or several; not known."""

    joined: str = ""  # how it is joined to the parts before it: and, or, unless; empty: the first
    expression: str
    comparison: str = ""  # empty: it holds where it has a value
    limit: str = ""  # the other side, as it is written
    value: float | None = None
    limit_value: float | None = None


class AlertExplanation(Wire):
    """Why an alert stands as it does: its rule, part by part."""

    name: str
    expression: str
    for_s: float = 0.0  # for how long the condition holds before it fires
    parts: list[AlertPart] = Field(default_factory=list)


NONE_ON_RECORD_S = 1e8
"""Of the unit `before_onset`: who tells of changes knows of none."""


class Evidence(Wire):
    """One answered question of a tree."""

    question: str  # its name in the tree
    title: str  # the question in words
    answer: Literal["yes", "no", "unknown"]  # unknown: nobody could tell
    query: str = ""  # what was read, in PromQL
    value: float | None = None  # what was found
    threshold: str = ""  # what it was held against
    unit: str = ""  # of `value`: ratio, points, seconds, tokens, times, per_second, count, before_onset (s)
    age_s: float | None = None  # of the value
    why_unknown: str = ""  # of an answer that is not known
    usual: str = ""  # of a yes that compares with the past: the same against this hour of other days
    speaks: Literal["", "for", "against"] = ""  # of the cause that was named


class Diagnosis(Wire):
    """What was found: cause, evidence, and what is ruled out or not known."""

    tree: str  # that was walked
    cause: str | None  # None: none was named
    title: str = ""  # the verdict in words
    confidence: Literal["confirmed", "likely", "unknown"] = "unknown"  # how sure it is
    evidence: list[Evidence] = Field(default_factory=list)  # in the order in which it was asked
    ruled_out: list[str] = Field(default_factory=list)  # causes that it is not
    not_known: list[str] = Field(default_factory=list)  # causes that nobody could rule out
    at: float = 0.0  # when it was found
    probability: float | None = None  # of the cause; None: nothing was scored
    also: str | None = None  # a second cause that is at work beside it
    runner_up: str | None = None  # the next best cause
    runner_up_probability: float | None = None  # of that cause
    tells_apart: str = ""  # what would tell the two apart
    why_not: dict[str, str] = Field(default_factory=dict)  # cause to what ruled it out
    onset: float | None = None  # when it began
    onset_early: float | None = None  # not before, not after
    onset_late: float | None = None  # and not after
    changes: list[str] = Field(default_factory=list)  # what changed just before, nearest first
    since: float | None = None  # since when the same is said, where the evidence was read again; else since `at`
    looked_at: float | None = None  # when it was asked last, where it was asked again
    then_found: str = ""  # what was found then, where that is not what stands
    awaits: str = ""  # why nothing is to be done about the cause yet
    is_of_one: bool = False  # one node of a wider scope has it, and the walk does not say which
    its_node: str = ""  # that node, where it was told apart since; the title names it then


class RunStatus(StrEnum):
    """How far a run is; `runbooks.run.RunStatus` has the same members."""

    PROPOSED = "proposed"  # waits for an approval
    APPROVED = "approved"  # will start
    RUNNING = "running"
    VERIFYING = "verifying"  # steps done; waiting for the declared expectation
    UNDOING = "undoing"
    SUCCEEDED = "succeeded"  # terminal: done and verified
    UNDONE = "undone"  # terminal: did not help or failed, and was undone
    FAILED = "failed"  # terminal: failed and could not be undone
    DENIED = "denied"  # terminal: a person said no
    REFUSED = "refused"  # terminal: a guard said no
    EXPIRED = "expired"  # terminal: nobody answered in time
    CANCELLED = "cancelled"  # terminal: stopped between steps by a person

    @property
    def is_terminal(self) -> bool:
        """At its one end."""
        return self in TERMINAL_RUN_STATUSES


TERMINAL_RUN_STATUSES = frozenset(
    {
        RunStatus.SUCCEEDED,
        RunStatus.UNDONE,
        RunStatus.FAILED,
        RunStatus.DENIED,
        RunStatus.REFUSED,
        RunStatus.EXPIRED,
        RunStatus.CANCELLED,
    }
)


class StepRecord(Wire):
    """One command of a run. Before it began, `receipt` holds the prediction and the guard's ruling."""

    index: int  # from 0
    phase: Literal["do", "undo"]  # undo: of what takes it back
    title: str  # what it does, in words
    command: str  # as it is typed after `fleetctl`
    target: str = ""  # in its written form: node-2, pool/decode; empty for prose
    status: Literal["pending", "running", "done", "failed", "skipped"]  # where it stands
    attempts: int = 0  # begun ones
    started_at: float | None = None  # when the first began
    ended_at: float | None = None  # when the last ended
    receipt: dict[str, Any] = Field(default_factory=dict)  # what it said when it ended
    error: str = ""  # why it failed


class Approval(Wire):
    """One person's yes to a proposal."""

    by: str  # who
    at: float  # when
    comment: str = ""  # what they said


class Run(Wire):
    """One execution of a runbook or of a single command."""

    id: str  # unique
    runbook: str  # its page; `action`: a single command
    title: str  # what it does, in words
    status: RunStatus  # where it stands
    inputs: dict[str, str]  # of the page
    incident_id: str | None = None  # that it is for
    reason: str = ""  # why it was asked for
    created_at: float  # when it was asked for
    updated_at: float  # when it last changed
    dry_run: bool = False  # nothing is done
    requested_by: str = ""  # who, or controller
    decided_by: str | None = None  # who said yes or no
    decided_at: float | None = None  # when
    expires_at: float | None = None  # when the proposal is void
    steps: list[StepRecord] = Field(default_factory=list)  # in their order
    targets: list[str] = Field(default_factory=list)  # what it changes: node-2, pool/decode, fleet
    unasked: bool = False  # automation lets it start, without a person
    approval: str = ""  # "1 of 2: ann; needs one more approver"; empty where one answer settles it
    approvals: list[Approval] = Field(default_factory=list)  # those it has
    held: str = ""  # of one that is proposed: what keeps it from acting now, unless a person overrides it
    prediction: str = ""  # TTFT, queue and KV once it is done, simulated; or why they are not predicted
    override: str = ""  # why a person let it act all the same
    verification: str = ""  # what was waited for to see that it helped
    error: str = ""  # why it did not succeed
    paused_by: str = ""  # who keeps it from beginning its next step
    cancelled_by: str = ""  # who asked that it stops before its next step
    question: str = ""  # what a person is asked now; an approval answers it


class IncidentStatus(StrEnum):
    """Where an incident stands."""

    OPEN = "open"  # alerts fire
    MITIGATING = "mitigating"  # a run is acting on it
    RESOLVED = "resolved"  # terminal: alerts clear, and any run ended


class TimelineEntry(Wire):
    """One event, as people read it; `seq` grows by time."""

    seq: int  # one more with each
    at: float  # when
    kind: str  # noun.past_or_state, as in the logs
    text: str  # what happened
    incident_id: str | None = None  # that it belongs to
    run_id: str | None = None  # of the run that it tells of
    node: str | None = None  # that it is about
    data: dict[str, Any] = Field(default_factory=dict)  # the same for programs


class Correction(Wire):
    """A person's word that the verdict was wrong."""

    cause: str | None  # None: none of the known ones
    by: str  # who said so
    at: float  # when
    comment: str = ""  # why
    was: str | None = None  # what the verdict said


class Handling(Wire):
    """What people said about an incident."""

    acknowledged_by: str = ""  # who said that they have seen it
    acknowledged_at: float | None = None  # when
    assignee: str = ""  # who has it
    severity_by: str = ""  # who set the severity; empty: its alerts did
    silence_id: str = ""  # of its silence
    silenced_until: float | None = None  # when that ends
    correction: Correction | None = None  # that its verdict was wrong
    words: str = ""  # who has it, in a few words; empty while nobody does


class NotificationState(StrEnum):
    """Where a notification stands. The last four are ends."""

    WAITING = "waiting"  # is to be sent, or sent again
    HELD = "held"  # quiet hours, or too many at once: it comes in a digest
    DELIVERED = "delivered"  # the receiver took it
    FAILED = "failed"  # the receiver refused it, or did not take it for too long
    MERGED = "merged"  # what it says is in `merged_into`
    DROPPED = "dropped"  # it is not to be sent any more


class Notification(Wire):
    """One message to one receiver."""

    id: str  # the same for the same news to the same receiver
    receiver: str  # its name in the settings
    kind: str  # opened, update, acknowledged, resolved, escalated, digest, test
    state: NotificationState  # where it stands
    incident_id: str | None = None  # that it tells of
    subject: str  # its first line
    text: str  # all that is said
    thread: str  # what messages that belong together have in common
    created_at: float  # when it was written
    next_at: float | None = None  # the next attempt, or the end of being held
    ended_at: float | None = None  # when it came to its end
    attempts: int = 0  # begun ones
    held_by: str = ""  # quiet_hours, too_many
    why: str = ""  # what the receiver said, or why it was not told
    merged_into: str = ""  # id of the message that says it
    escalation: int = 0  # the how-manieth message because nobody acknowledged; 0: none


class Receiver(Wire):
    """Somebody who can be told, and how that goes."""

    name: str
    kind: str
    waiting: int  # messages that are to be sent
    held: int
    quiet_until: float | None = None  # it is left alone until then; None: it is not
    delivered_at: float | None = None  # when it last took one; None: not lately
    last_error: str = ""  # of the last attempt; empty: it was taken
    routes: list[str] = Field(default_factory=list)  # which incidents it is told of, in words


class ReceiverTest(Body):
    """Tell a receiver that this is a test."""

    by: str = Field(default=NO_CLAIM, min_length=1, max_length=200)


class Incident(Wire):
    """One thing that is wrong, with all that belongs to it."""

    id: str  # unique
    title: str  # the headline
    status: IncidentStatus  # where it stands
    severity: str  # the gravest of its alerts, or what a person said
    sev: str = ""  # SEV-1 to SEV-4, by severity
    due_at: float | None = None  # when it is to be mitigated by its level's clock
    scope: dict[str, str]  # e.g. {"node": "node-2", "pool": "default"}
    opened_at: float  # when it was opened
    onset_at: float | None = None  # when it began by its alerts' own word
    resolved_at: float | None = None  # when its alerts were clear
    handling: Handling = Handling()  # who has it, and what people said
    impact: str = ""  # what users felt so far, in words; empty: not of a list, and of one that is over its post-mortem
    offence: str = ""  # its node's host fails more than its share, by the record of failures; empty: not known
    no_remedy: str = ""  # why nothing is proposed for it, and what to do by hand
    imported_from: str = ""  # of one that was read from a file: which fleetctl wrote it
    alerts: list[Alert] = Field(default_factory=list)  # that belong to it
    diagnosis: Diagnosis | None = None  # why it is
    runs: list[Run] = Field(default_factory=list)  # that act for it, or are proposed
    timeline: list[TimelineEntry] = Field(default_factory=list)  # the oldest first
    notifications: list[Notification] = Field(default_factory=list)  # who was told, and when
    dashboard: str = ""  # a link to our dashboards of its place and time
    widened_at: float | None = None  # when the scope last became wider
    widened_why: str = ""  # what made it wider
    part_of: str | None = None  # id of the wider incident that explains this one
    postmortem: str | None = None  # path of the Markdown file, once written
    blackbox: str | None = None  # path of the incident file, once written

    @property
    def came_back(self) -> tuple[float, ...]:
        """When it was opened again after it was over; by its timeline, which a list has not."""
        return tuple(entry.at for entry in self.timeline if entry.kind == "incident.reopened")


class ChartLine(Wire):
    """One series of a chart: the highest value of each of its columns, oldest first; None where nothing was known."""

    name: str
    is_own: bool = True  # of the incident's place; others are its peers
    values: list[float | None]


class ChartMark(Wire):
    """A moment to be seen in every chart."""

    at: float
    text: str
    kind: str  # onset, alert, verdict, action, deploy, end


class IncidentChart(Wire):
    """One metric of an incident's place."""

    title: str
    unit: str  # seconds, ratio, count, per_second
    limit: float | None = None  # what is promised
    lines: list[ChartLine]


class IncidentCharts(Wire):
    """What was measured in an incident's place, and what happened there, over one window of time."""

    since: float
    until: float
    charts: list[IncidentChart] = Field(default_factory=list)  # none: no series of its place were kept
    marks: list[ChartMark] = Field(default_factory=list)  # by time


class RunbookInfo(Wire):
    """A page of the library."""

    name: str  # of its file
    title: str  # what it does, in words
    risk: str  # low, medium or high
    causes: list[str]  # that it is for
    inputs: dict[str, str]  # name to description
    page: str = ""  # the Markdown itself

    @property
    def body(self) -> str:
        """The page without its front matter, which the other fields tell."""
        lines = self.page.splitlines(keepends=True)
        if not lines or lines[0].rstrip() != "---":
            return self.page
        end = next((number for number, line in enumerate(lines[1:], 1) if line.rstrip() == "---"), None)
        return self.page if end is None else "".join(lines[end + 1 :]).lstrip("\n")


class VerbOption(Wire):
    """One option of a verb. `default` is in seconds for durations, and None where there is none."""

    name: str  # with its dashes
    kind: str  # duration, node, nodes, count, size, flag
    default: float | bool | None = None
    required: bool = False
    help: str = ""


class VerbInfo(Wire):
    """A command that changes something: what `POST /v1/actions`, pages and the command line take."""

    name: str
    targets: list[str]  # kinds: node, pool, model, revision, tenant, route, fleet
    usage: str
    help: str
    example: str
    capacity: str  # what it does to the nodes that take requests
    idempotency: str  # how a second call finds the work of the first
    has_undo: bool = False  # a run of this one command is undone when it fails
    options: list[VerbOption] = Field(default_factory=list)


class RouteState(StrEnum):
    """Whether a node gets new requests."""

    ACTIVE = "active"
    CORDONED = "cordoned"
    LEAVING = "leaving"  # cordoned, and what it holds is to go on elsewhere


class Route(Wire):
    """One node of the routing table. `state` is what is wanted, `phase` what was seen (None: not looked at yet)."""

    node: str  # that requests may go to
    url: str  # where it answers
    state: RouteState  # what is wanted
    pool: str = "default"  # that it is in
    model: str = ""  # that it serves
    phase: NodePhase | None = None  # what was seen; None: not looked at yet
    engine: str = ""  # which it runs
    revision: str = ""  # that it runs
    api_key: str = ""  # name of the key that it wants, of the gateway's own `fleet.api_keys`; never the key


class RouteSignals(Wire):
    """What was last scraped of a node that routing asks for. None: not known, or its engine does not say.

    `age_s`: of the oldest of them. `adapters`: those that are loaded.
    """

    node: str
    age_s: float | None = None
    kv_ratio: float | None = None
    cache_tokens: int | None = None
    max_model_len: int | None = None
    adapters: list[str] | None = None


class TenantUse(Wire):
    """One tenant of the gateways: what it uses and may use, summed over those that answered."""

    tenant: str  # its name in the tenants file
    priority: str = Field(default="", alias="class")  # critical, standard or batch
    running: int = 0  # requests admitted and not ended
    tokens: dict[str, int] = Field(default_factory=dict)  # input and output, really used, since the gateways' starts
    left: dict[str, int | None] = Field(
        default_factory=dict
    )  # input, output, requests: may come at once; None: no limit
    limits: dict[str, Any] = Field(default_factory=dict)  # by the tenants file
    admitted: int = 0  # requests, since the gateways' starts
    refused: dict[str, int] = Field(default_factory=dict)  # by the limit that refused
    gateways: int = 1  # that know it

    model_config = ConfigDict(extra="ignore", populate_by_name=True, defer_build=True)

    def plus(self, other: TenantUse) -> TenantUse:
        """Both gateways' use of the same tenant."""
        left = {
            name: None if amount is None or other.left.get(name) is None else amount + (other.left[name] or 0)
            for name, amount in self.left.items()
        }
        return self.model_copy(
            update={
                "running": self.running + other.running,
                "tokens": {kind: count + other.tokens.get(kind, 0) for kind, count in self.tokens.items()},
                "left": left,
                "admitted": self.admitted + other.admitted,
                "refused": dict(Counter(self.refused) + Counter(other.refused)),
                "gateways": self.gateways + other.gateways,
            }
        )


class RoutingTable(Wire):
    """What the gateway routes by. It keeps the last good one when the controller is away.

    `rules`: traffic rules in force; those of kinds that this version does not know are left out.
    """

    version: int
    epoch: int = 0  # of the controller that tells it: of two tables of one state, the one with the lower is out of date
    state_id: str = ""
    routes: list[Route]
    rules: KnownRules = Field(default_factory=list)
    num_gateways: int = Field(default=1, ge=1)  # that share the tenants' limits


class AlertmanagerState(Wire):
    """What became of our alerts at one Alertmanager, since the controller started. Counts are alerts, resends too."""

    url: str
    sent: int = 0
    failed: int = 0  # in requests that failed; most are tried again
    dropped: int = 0  # never sent: the queue was full, or they waited for too long
    queued: int = 0
    last_success_at: float | None = None
    last_error: str = ""  # empty since the last success


class SilencesState(Wire):
    """How much is known of Alertmanager's silences. Without an Alertmanager there are none."""

    known: bool = True
    active: int = 0
    read_at: float | None = None
    last_error: str = ""


class WebhookState(Wire):
    """Alertmanager's notifications to us since the controller started."""

    accepted: int = 0
    refused: int = 0  # answered with 4xx: lost
    deferred: int = 0  # answered with 503: sent again
    last_at: float | None = None  # the last accepted one
    last_error: str = ""


class ContentState(Wire):
    """The content in force, and whether the last attempt to load another failed."""

    folders: list[str] = Field(default_factory=list)  # of users, in the order in which they are laid over ours
    loaded_at: float | None = None
    own_objects: int = 0  # from those folders
    overrides: int = 0  # of them, those that replace others of their name
    failed_at: float | None = None  # None: the last load went well
    error: str = ""


class ContentObject(Wire):
    """One rule, tree, cause, page or other thing by name."""

    kind: str
    name: str
    source: str  # "built-in", or the folder
    file: str
    overrides: list[str] = Field(default_factory=list)  # sources of those that it replaces


class ContentProblem(Wire):
    """One fault in a content file; `line` 0 where it is not known."""

    severity: Literal["error", "warning"]
    file: str
    line: int = 0
    place: str = ""
    reason: str
    remedy: str = ""


class ContentListing(Wire):
    """Everything that is loaded. `problems`: of the last load that failed, else the warnings of what is in force."""

    state: ContentState
    objects: list[ContentObject] = Field(default_factory=list)
    problems: list[ContentProblem] = Field(default_factory=list)


class Freeze(Wire):
    """A time in which no automation acts, and a person only with an override that is recorded."""

    id: str  # to end it by
    reason: str  # why
    made_by: str  # who
    made_at: float  # when
    pool: str | None = None  # None: the whole fleet
    expires_at: float | None = None  # None: until a person ends it


class AuditRow(Wire):
    """One change: who made it by which credentials, when, what, why, and with which outcome."""

    seq: int
    at: float
    who: str
    via: str
    what: str
    target: str
    why: str
    outcome: str
    run_id: str
    hash: str  # holds this row and, by the hash before it, all earlier ones


class AuditCheck(Wire):
    """Whether the audit's rows are those that were written."""

    intact: bool
    rows: int
    first_seq: int
    head_seq: int
    head_hash: str
    broken_seq: int | None = None  # the first row that is not what was written, or is missing
    why: str = ""
    at: float = 0.0


class LeadershipState(Wire):
    """Who leads, of the controllers on one database. A SQLite file has one, and `shared` is false."""

    shared: bool = False
    url: str = ""  # of the one that answers: a standby answers nothing of its own
    is_certain: bool = True  # False: it does not know whether it still leads, and acts on nothing
    since: float | None = None
    takeover: str = ""  # how it came to lead
    standbys: list[str] = Field(default_factory=list)  # addresses of those that are there
    missing: list[str] = Field(default_factory=list)  # addresses that the settings name, and that are not there


class ListedUnit(Wire):
    """A node of providers.hosts, as its host tells of it now."""

    name: str
    runs: Literal["yes", "no", "unknown"]
    host: str
    unit: str
    pool: str = ""
    model: str = ""
    zone: str = ""
    sku: str = ""
    url: str = ""
    instance: str | None = None
    why: str = ""  # it does not run, or is not known


class HostCommand(Wire):
    """What would be run for a node of providers.hosts."""

    name: str
    what: str
    words: list[str]


class ListedNode(Wire):
    """A node that a source lists, and what it says it is. Empty: not known."""

    name: str
    url: str
    answers: bool
    engine: str = ""
    version: str = ""
    pool: str = ""
    model: str = ""
    zone: str = ""
    revision: str = ""
    facts: dict[str, str] = Field(default_factory=dict)
    source: str = ""


class DiscoveryState(Wire):
    """What the sources of `fleet.targets` list."""

    looked: bool = False  # every source was read, or tried, since the start
    found: int = 0
    dropped: int = 0  # by relabelling
    problems: dict[str, str] = Field(default_factory=dict)  # place to what is wrong there; the first hundred
    unread: list[str] = Field(default_factory=list)  # sources that were never read


class Status(Wire):
    """The controller's own state. `loops`: name to seconds since the last completed turn."""

    version: str
    started_at: float
    epoch: int
    policy: str
    now: float
    nodes_ready: int
    nodes_total: int
    firing: int
    open_incidents: int
    gateways_ready: int = 0
    gateways_total: int = 0
    gateways_down: list[str] = Field(default_factory=list)  # name and why, of those that do not serve
    gateways_impaired: list[str] = Field(
        default_factory=list
    )  # name and what is wrong, of those that serve all the same
    loops: dict[str, float]  # loop name to seconds since its last completed turn
    late_loops: list[str] = Field(default_factory=list)  # names of those that should have ended another turn since
    storage_error: str = ""  # why nothing can be stored at present: a full disk, or a database that is away
    leadership: LeadershipState = Field(default_factory=LeadershipState)
    alertmanagers: list[AlertmanagerState] = Field(default_factory=list)
    silences: SilencesState = Field(default_factory=SilencesState)
    webhook: WebhookState = Field(default_factory=WebhookState)
    content: ContentState = Field(default_factory=ContentState)
    traffic_rules: KnownRules = Field(default_factory=list)  # in force, the oldest first
    freezes: list[Freeze] = Field(default_factory=list)  # in force, the oldest first
    breaker: str = ""  # why automation starts nothing at present, or one run only: its last ones did not help
    audit_error: str = ""  # why the audit is not as it was written, by the last look
    discovery: DiscoveryState | None = None  # None: no source is named


class DrainedRequest(Wire):
    """One line of a receipt. Tokens are output tokens but for `tokens_in`; None: not known."""

    request_id: str  # as its client knows it
    outcome: str  # finished, moved, refused, aborted, lost or unknown
    moved_to: str = ""  # the node where it went on
    tokens_in: int | None = None  # of its prompt
    tokens_before: int | None = None  # when the drain began
    tokens_after: int | None = None  # when it ended on this node
    why: str = ""  # of the outcome
    said_by: str = ""  # node or gateway


class DrainReceipt(Wire):
    """What became of each request that a node held when its drain began, or was sent since."""

    id: str  # unique
    version: int = 1  # of its form
    node: str  # that was drained
    instance: str = ""  # of it, which a restart changes
    state: str  # drained; gone or unreachable: it did not say
    begun_at: float  # when the drain began
    ended_at: float  # when it ended
    sums: dict[str, int]  # outcome to how many
    moved_to: dict[str, int] = Field(default_factory=dict)  # node to how many
    summary: str  # in a line
    is_complete: bool  # nothing in it is unknown
    notes: list[str] = Field(default_factory=list)  # what is to be known beside it
    lines: list[DrainedRequest] = Field(default_factory=list)  # one for each request
    key_id: str = ""  # of the key that signed it
    signature: str = ""  # empty: unsigned


class TokenInfo(Wire):
    """A named token of the controller, without the token itself."""

    name: str  # of a person or a program
    role: TokenRole  # what it may do
    id: str  # the first digits of its hash
    is_valid: bool  # it opens something now
    created_at: float  # when it was made
    created_by: str  # by whom
    expires_at: float | None = None  # None: never
    revoked_at: float | None = None  # None: it was not
    revoked_by: str = ""  # by whom
    last_used_at: float | None = None  # None: never, as far as is known


class MadeToken(TokenInfo):
    """A new token, told this once."""

    token: str = Field(repr=False)


class TokenRequest(Body):
    """Make a named token."""

    name: str = Field(min_length=1, max_length=63)
    role: TokenRole
    expires_in_s: float | None = Field(default=None, gt=0, le=10 * 366 * 86400)  # None: never


class CallerInfo(Wire):
    """Whom the controller takes the caller for."""

    name: str
    role: TokenRole
    via: str  # its credentials


class SilenceMatcher(Wire):
    """`name op value`; a label that an alert lacks counts as empty."""

    name: str = Field(min_length=1, max_length=500)  # of a label
    op: Literal["=", "!=", "=~", "!~"]  # =~ and !~ take a pattern
    value: str = Field(max_length=4096)  # to hold it against


class Silence(Wire):
    """One silence of Alertmanager."""

    id: str  # to expire it by
    state: Literal["pending", "active", "expired"]  # pending: it has not begun
    matchers: list[SilenceMatcher]  # all of which must fit
    starts_at: float  # when it begins
    ends_at: float  # when it ends
    created_by: str  # who
    comment: str  # why


class SilenceRequest(Body):
    """Make a silence from now on: in Alertmanager, or here where there is none."""

    matchers: list[SilenceMatcher] = Field(min_length=1, max_length=100)
    duration_s: float = Field(gt=0, le=366 * 86400)
    comment: str = Field(min_length=1, max_length=2000)
    created_by: str = Field(min_length=1, max_length=200)
    local: bool = (
        False  # kept here although there is an Alertmanager: fleetctl does nothing, Alertmanager goes on paging
    )


class IncidentNote(Body):
    """Something said about an incident: seen, or a comment."""

    comment: str = Field(default="", max_length=2000)
    by: str = Field(default=NO_CLAIM, max_length=200)


class AssignRequest(IncidentNote):
    """Whose an incident is."""

    to: str = Field(max_length=200)  # empty: nobody's


class SeverityRequest(IncidentNote):
    """How grave an incident is: critical, page, warning or ticket, or its SEV level."""

    severity: str = Field(min_length=1, max_length=40)


class IncidentSilenceRequest(IncidentNote):
    """Silence the alerts of an incident where they are."""

    for_s: float = Field(gt=0, le=366 * 86400)
    local: bool = False  # as of SilenceRequest


class VerdictRequest(IncidentNote):
    """The verdict was wrong."""

    cause: str = Field(min_length=1, max_length=64)  # the right one; "none": it has no name here


class FreezeRequest(Body):
    """Freeze the fleet, or one pool, from now on."""

    reason: str = Field(min_length=1, max_length=2000)
    made_by: str = Field(default=NO_CLAIM, max_length=200)
    pool: str | None = Field(default=None, min_length=1, max_length=200)
    for_s: float | None = Field(default=None, gt=0, le=366 * 86400)  # None: until it is ended


class AutoscalerRequest(Body):
    """Bounds and mode of a pool's autoscaling; what is left out stays."""

    min: int | None = Field(default=None, ge=1, le=4096)
    max: int | None = Field(default=None, ge=1, le=4096)
    mode: Literal["advise", "act"] | None = None
    by: str = Field(default=NO_CLAIM, max_length=200)


class RunRequest(Body):
    """Start a runbook."""

    runbook: str = Field(max_length=100)
    inputs: dict[str, str] = Field(default_factory=dict, max_length=50)
    incident_id: str | None = Field(default=None, max_length=100)
    reason: str = Field(default="", max_length=2000)
    requested_by: str = Field(default=NO_CLAIM, max_length=200)
    dry_run: bool = False
    approve: bool = False  # the requester approves it too (`--yes`)
    override: str = Field(default="", max_length=2000)  # why to act against a freeze; recorded
    idempotency_key: str | None = Field(default=None, max_length=200)


class ActionRequest(Body):
    """Carry out one fleetctl command as a run of one step: the same journal and guards as a runbook's."""

    command: str = Field(max_length=2000)  # "drain node-2 --deadline 30s"
    reason: str = Field(default="", max_length=2000)
    requested_by: str = Field(default=NO_CLAIM, max_length=200)
    dry_run: bool = False
    override: str = Field(default="", max_length=2000)  # as of RunRequest
    idempotency_key: str | None = Field(default=None, max_length=200)


class ApprovalRequest(Body):
    """A person's answer to a proposed run. The first one wins, unless it needs several approvals."""

    decision: Literal["approve", "deny"]
    by: str = Field(default=NO_CLAIM, max_length=200)
    comment: str = Field(default="", max_length=2000)
    override: str = Field(default="", max_length=2000)  # as of RunRequest


class CancelRequest(Body):
    """Who stops a run."""

    by: str = NO_CLAIM


class RunOrder(Body):
    """What a person tells a run that goes on."""

    by: str = Field(default=NO_CLAIM, max_length=200)
    comment: str = Field(default="", max_length=2000)


class DiagnoseRequest(Body):
    """Walk a tree now; without one, the tree that fits the scope's alerts."""

    tree: str | None = Field(default=None, max_length=100)
    scope: dict[str, str] = Field(default_factory=dict, max_length=20)


class Problem(Wire):
    """Every error answer of the controller."""

    error: str
    remedy: str | None = None
    exit_code: int = 1
