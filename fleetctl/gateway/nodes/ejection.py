"""Which nodes fail more than their peers: they are ejected for a while, and come back through a trial share.

A node that answers errors at once looks idle and attracts traffic. What counts is what the node itself did wrong:
errors of the server, connections that end, answers of a wrong shape, first tokens that come far later than its peers'.
A client's own errors count for nothing, and a request that fails at a second node too is taken for the cause itself.
Never more than a share of a model's nodes is ejected. Knows no request and no clock: `now` is monotonic seconds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import structlog

from fleetctl.gateway.nodes.table import Endpoint
from fleetctl.settings.gateway_health import EjectionSettings
from fleetctl.wire.node import NodePhase

log = structlog.get_logger()

HALF_LIFE_S = 10.0
SLOW_AFTER_S = 1.0  # a first token must also be later than its peers' by so much
MIN_LATENCIES = 10.0
TRIAL_STEPS = ((1, 3), (4, 12))  # (requests in flight at most, answers in a row until the next step)
GONE = frozenset({NodePhase.UNREACHABLE, NodePhase.NOT_READY})
FORGIVEN_AFTER_S = 600.0  # well for so long after an ejection: the next one is short again


class Ejection(StrEnum):
    """Why a node is ejected. Closed set: a metric label."""

    SERVER_ERROR = "server_error"  # 5xx of its own, or an error within its stream
    RESET = "reset"  # connections that ended with a request in hand
    BAD_ANSWER = "bad_answer"  # 200 with something that is no answer
    SLOW = "slow"  # first tokens far later than its peers'


@dataclass(slots=True)
class NodeRecord:
    """One node's answers and failures in a window that decays, and where it stands."""

    model: str
    at: float = 0.0
    answered: float = 0.0
    failed: float = 0.0
    latencies: float = 0.0  # how many first tokens
    latency_sum_s: float = 0.0
    why: Ejection | None = None  # of the last failure
    ejected_until: float | None = None
    trial_step: int | None = None  # index into TRIAL_STEPS
    trial_answers: int = 0
    held_before: int = 0  # of its requests in flight, those from before the trial
    ejections: int = 0  # in a row: each is twice as long
    well_since: float = 0.0
    was_gone: bool = False  # the controller saw it unreachable or not ready

    def decay(self, now: float) -> None:
        """Bring the window to `now`."""
        if now <= self.at:
            return
        factor: float = 0.5 ** ((now - self.at) / HALF_LIFE_S)
        self.answered *= factor
        self.failed *= factor
        self.latencies *= factor
        self.latency_sum_s *= factor
        self.at = now

    @property
    def samples(self) -> float:
        """Answers and failures in the window."""
        return self.answered + self.failed

    @property
    def is_normal(self) -> bool:
        """Neither ejected nor on trial."""
        return self.ejected_until is None and self.trial_step is None


class Ejections:
    """Owner of what is known of nodes' failures. Threading: event loop only."""

    def __init__(self, limits: EjectionSettings, *, on_eject: Callable[[Ejection], None] = lambda why: None) -> None:
        self._limits = limits
        self._on_eject = on_eject
        self._records: dict[str, NodeRecord] = {}
        self._odd: dict[str, NodeRecord] = {}  # those that are ejected or on trial

    # What requests tell

    def note_answered(self, node: str, now: float) -> None:
        """The node answered a request without an error."""
        record = self._records.get(node)
        if record is None:
            return
        record.decay(now)
        record.answered += 1
        if record.trial_step is not None:
            self._advance_trial(node, record, now)

    def note_failed(self, node: str, why: Ejection, now: float, *, had_answered: bool = False) -> None:
        """The node failed a request; `had_answered`: after an answer had begun, which counts no more."""
        record = self._records.get(node)
        if record is None:
            return
        record.decay(now)
        record.failed += 1
        if had_answered:
            record.answered = max(0.0, record.answered - 1)
        record.why = why
        is_judged = record.ejected_until is None
        if is_judged and (record.trial_step is not None or self._fails_more_than_peers(node, record, now)):
            self._eject(node, record, why, now)

    def forgive(self, node: str, now: float) -> None:
        """Take the last failure back: the same request failed elsewhere too, so it was the request's."""
        record = self._records.get(node)
        if record is not None:
            record.decay(now)
            record.failed = max(0.0, record.failed - 1)

    def note_first_token(self, node: str, ttft_s: float, now: float) -> None:
        """The first token of a streamed request came `ttft_s` after its arrival."""
        record = self._records.get(node)
        if record is None:
            return
        record.decay(now)
        record.latencies += 1
        record.latency_sum_s += ttft_s
        if record.is_normal and self._is_slower_than_peers(node, record, now):
            self._eject(node, record, Ejection.SLOW, now)

    # What the choice asks

    def why_left_out(self, node: str, in_flight: int, now: float) -> str | None:
        """`ejected`, or `trial` when all its trial seats are taken; None: it may get a request."""
        record = self._odd.get(node)
        if record is None:
            return None
        if record.ejected_until is not None:
            if now < record.ejected_until:
                return "ejected"
            self.begin_trial(node, now)
        assert record.trial_step is not None
        record.held_before = min(record.held_before, in_flight)
        return None if in_flight - record.held_before < TRIAL_STEPS[record.trial_step][0] else "trial"

    @property
    def has_any(self) -> bool:
        """Whether any node is ejected or on trial."""
        return bool(self._odd)

    def ejected(self, now: float) -> dict[str, Ejection]:
        """Nodes that are ejected now, and why."""
        return {
            node: record.why
            for node, record in self._odd.items()
            if record.ejected_until is not None and now < record.ejected_until and record.why is not None
        }

    def on_trial(self, now: float) -> list[str]:
        """Nodes that get a trial share only."""
        return [node for node, r in self._odd.items() if r.ejected_until is None or now >= r.ejected_until]

    # What others decide

    def begin_trial(self, node: str, now: float) -> None:
        """The node comes back from an ejection or an outage: few requests first."""
        record = self._records.get(node)
        if record is None:
            return
        record.decay(now)
        record.ejected_until = None
        record.trial_step, record.trial_answers, record.held_before = 0, 0, sys.maxsize
        record.answered = record.failed = record.latencies = record.latency_sum_s = 0.0
        self._odd[node] = record
        log.info("node.on_trial", node=node)

    def note_table(self, endpoints: Sequence[Endpoint], now: float) -> None:
        """The nodes of a new table; others are forgotten. One that was gone for the controller comes back on trial."""
        kept: dict[str, NodeRecord] = {}
        for endpoint in endpoints:
            record = kept[endpoint.node] = self._records.get(endpoint.node) or NodeRecord(endpoint.model)
            record.model = endpoint.model
        self._records = kept
        self._odd = {node: record for node, record in self._odd.items() if node in kept}
        for endpoint in endpoints:
            record = kept[endpoint.node]
            if record.was_gone and endpoint.is_well:
                self.begin_trial(endpoint.node, now)
            record.was_gone = endpoint.phase in GONE

    def _advance_trial(self, node: str, record: NodeRecord, now: float) -> None:
        assert record.trial_step is not None
        record.trial_answers += 1
        if record.trial_answers < TRIAL_STEPS[record.trial_step][1]:
            return
        record.trial_answers = 0
        record.trial_step += 1
        if record.trial_step == len(TRIAL_STEPS):
            record.trial_step = None
            record.well_since = now
            record.why = None
            del self._odd[node]
            log.info("node.trial_passed", node=node)

    def _eject(self, node: str, record: NodeRecord, why: Ejection, now: float) -> None:
        limits = self._limits
        was_on_trial = record.trial_step is not None
        if not was_on_trial and not self._may_eject_one_more(record, now):
            return
        if not was_on_trial and record.ejections and now - record.well_since > FORGIVEN_AFTER_S:
            record.ejections = 0
        record.ejections += 1
        for_s = min(limits.longest_s, limits.first_s * 2 ** min(record.ejections - 1, 16))
        record.ejected_until, record.why = now + for_s, why
        record.trial_step = None
        self._odd[node] = record
        self._on_eject(why)
        log.error(
            "node.ejected",
            node=node,
            reason=why.value,
            for_s=for_s,
            failed=round(record.failed, 1),
            answered=round(record.answered, 1),
        )

    def _may_eject_one_more(self, record: NodeRecord, now: float) -> bool:
        pool = [other for other in self._records.values() if other.model == record.model]
        out = sum(r.ejected_until is not None and now < r.ejected_until for r in pool)
        return len(pool) > 1 and out < max(1, int(len(pool) * self._limits.max_ejected_ratio))

    def _peers(self, node: str, record: NodeRecord, now: float) -> list[NodeRecord]:
        peers = [r for name, r in self._records.items() if name != node and r.model == record.model and r.is_normal]
        for peer in peers:
            peer.decay(now)
        return peers

    def _fails_more_than_peers(self, node: str, record: NodeRecord, now: float) -> bool:
        limits = self._limits
        ratio = record.failed / record.samples
        if not limits.enabled or record.samples < limits.min_samples or ratio < limits.failure_ratio:
            return False
        peers = [peer for peer in self._peers(node, record, now) if peer.samples >= 1]
        samples = sum(peer.samples for peer in peers)
        return samples >= limits.min_samples and sum(p.failed for p in peers) / samples < ratio / 2

    def _is_slower_than_peers(self, node: str, record: NodeRecord, now: float) -> bool:
        limits = self._limits
        if not limits.enabled or limits.slow_ratio is None or record.latencies < MIN_LATENCIES:
            return False
        means = sorted(
            peer.latency_sum_s / peer.latencies
            for peer in self._peers(node, record, now)
            if peer.latencies >= MIN_LATENCIES
        )
        if not means:
            return False
        mean, typical = record.latency_sum_s / record.latencies, means[len(means) // 2]
        return mean > typical * limits.slow_ratio and mean > typical + SLOW_AFTER_S
