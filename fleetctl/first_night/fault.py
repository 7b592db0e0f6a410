"""What a fault is: what is done to the fleet, and what a person on call may expect of it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

from fleetctl.first_night.target_fleet import TargetFleet

PAST_S = 120.0  # of normal traffic: half a minute until signals are known, a minute to compare with, and caches fill
HELD_S = 125.0  # until two minutes after it began somebody is asked what it is
AGES_S = (30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0, 3600.0)  # at which a person asks, while it lasts
NAMED_FROM_S = 60.0  # of what is held: at the first minute the cause is known
GRADUAL_S = 75.0  # a queue that grows slowly is seen late
LAST_ASKED_S = 5.0  # a hold of 15 minutes is asked at 15 minutes too
OVER_WITHIN_S = 600.0  # after the end of what was held: windows of the slow alerts look back so far
QUEUE_ALERTS = (
    "LLMOverload",
    "LLMQueueGrowing",
    "LLMSeatsFull",
    "LLMTTFTRegression",
    "LLMTTFTHurts",
    "LLMPoolTTFTRegression",
    "LLMRoutingSkew",
)
HITS_ALERTS = ("LLMPrefixHitDrop", "LLMPrefixHitLow", "LLMPoolPrefixHitDrop", "LLMPrefixLossHurts")
FaultAction = Callable[[TargetFleet], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class Expectation:
    """What is right. Empty `alerts`: nobody is to be woken."""

    alerts: tuple[str, ...] = ()  # one of them fires first
    is_quiet_unless_felt: bool = False  # no alert is right too, when nobody waited 30 s for a first token
    causes: tuple[str, ...] = ()  # one of them is named; empty: none is asked for
    named_from_s: float | None = None  # from this age on whoever asks is told one of them; None: an incident alone
    pages: tuple[str, ...] = ()  # one of them is proposed, and its run succeeds; empty: a person decides
    optional_pages: tuple[str, ...] = ()  # may be proposed as well, or instead of nothing
    onset_within_s: float = 30.0  # of the post-mortem's: rates look back over 20 s
    loss: str = ""  # why requests may be lost; "": another node could take every one of them
    late: str = ""  # why users may wait more than 30 s for a first token


@dataclass(frozen=True, slots=True)
class Fault:
    """One row of the night."""

    name: str
    title: str
    inject: FaultAction
    expects: Expectation
    clear: FaultAction | None = None  # ends what no page mends, as a person would; None: it ends by itself
    prepare: FaultAction | None = None  # before the injection
    place: Literal["node", "pool"] = "node"  # whom a person asks about while it lasts
    baseline_s: float = 30.0  # normal traffic before it
    page_within_s: float = 150.0  # after that the fault is ended without a page
    hold_s: float | None = None  # a person ends it at this age, whatever was proposed
    watch_s: float = 400.0  # at most
    rate_per_s: float | None = None  # of its users, where the night's own would not feel it
    traffic: Mapping[str, Any] = field(default_factory=dict)  # of its users from the start, beside the night's own
    node_options: Mapping[str, Any] = field(default_factory=dict)  # of its nodes, beside the night's own
    node_faults: Mapping[str, Any] = field(default_factory=dict)  # of healthy nodes: what their model costs
    nodes: int = 3  # of its fleet
    has_tenants: bool = False  # its gateway wants keys
    has_gpus: bool = False  # its nodes see a driver that answers as we say
    remark: str = ""  # what a reader of its row must know


def held(fault: Fault, hold_s: float) -> Fault:
    """The same fault, which nobody ends for so long; whoever asks is told its cause from the first minute on."""
    named_from_s = fault.expects.named_from_s or NAMED_FROM_S
    return replace(
        fault,
        hold_s=hold_s + LAST_ASKED_S,
        watch_s=hold_s + max(fault.watch_s, OVER_WITHIN_S),
        page_within_s=hold_s + LAST_ASKED_S,
        expects=replace(fault.expects, named_from_s=named_from_s),
    )


pool_fault = partial(Fault, place="pool", baseline_s=PAST_S, hold_s=HELD_S)
"""A fault of the whole pool that shows against its past, and that a person ends."""

# Three nodes of two seats each do about five of these requests a second: what fills them fits on a laptop. One a second
# leaves seats free, so that nothing waits before the fault.
few_seats = partial(
    pool_fault,
    node_options={"max_num_seqs": 2},
    rate_per_s=1.0,
    traffic={"output_sigma": 0.9, "max_output_tokens": 200},
)
