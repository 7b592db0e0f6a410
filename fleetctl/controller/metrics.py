"""The controller's own metrics, on a registry of its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import product

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fleetctl.controller.loops import Loops
from fleetctl.kit.clock import Clock
from fleetctl.wire.failure import FailureKind
from runbooks.run import Run

_TURN_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0, 7.5, 10.0, 15.0, 30.0, 60.0)


class ControllerMetrics:
    """Counters that the parts raise, and gauges that are read when somebody scrapes."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.scrapes = Counter(
            "controller_scrapes", "Scrapes of nodes, by result (ok, failed).", ["result"], registry=self.registry
        )
        self.deep_checks = Counter(
            "controller_deep_checks",
            "Nodes asked for their deep health, by result (passed, failed, unknown: could not look).",
            ["result"],
            registry=self.registry,
        )
        for result in ("passed", "failed", "unknown"):
            self.deep_checks.labels(result=result)
        self.discovered_targets = Gauge(
            "controller_discovered_targets",
            "Targets that the sources of fleet.targets list: found, or dropped by relabelling.",
            ["state"],
            registry=self.registry,
        )
        self.discovery_problems = Gauge(
            "controller_discovery_problems",
            "Sources that can't be read and targets that can't be nodes; what was known of them stays.",
            registry=self.registry,
        )
        self.discovery_unread = Gauge(
            "controller_discovery_unread_sources",
            "Sources of nodes that were never read since the start.",
            registry=self.registry,
        )
        self.gateway_deaths = Counter(
            "controller_gateway_deaths",
            "Ends of this machine's gateway that nobody asked for; it is started again.",
            registry=self.registry,
        )
        self.runs = Counter("controller_runs", "Runs that ended, by status.", ["status"], registry=self.registry)
        self.incidents = Counter(
            "controller_incidents", "Incidents opened, by severity.", ["severity"], registry=self.registry
        )
        self.alertmanager_sent = Counter(
            "controller_alertmanager_alerts_sent",
            "Alerts that an Alertmanager took, resends too.",
            ["alertmanager"],
            registry=self.registry,
        )
        self.alertmanager_failed = Counter(
            "controller_alertmanager_alerts_failed",
            "Alerts in requests to an Alertmanager that failed.",
            ["alertmanager"],
            registry=self.registry,
        )
        self.alertmanager_dropped = Counter(
            "controller_alertmanager_alerts_dropped",
            "Alerts given up: the queue was full, or they waited too long.",
            ["alertmanager"],
            registry=self.registry,
        )
        self.alertmanager_last_success = Gauge(
            "controller_alertmanager_last_success_timestamp_seconds",
            "When an Alertmanager last took alerts.",
            ["alertmanager"],
            registry=self.registry,
        )
        self.webhook_notifications = Counter(
            "controller_webhook_notifications",
            "Alertmanager's notifications (accepted, refused, deferred).",
            ["result"],
            registry=self.registry,
        )
        self.webhook_alerts = Counter(
            "controller_webhook_alerts",
            "Alerts in accepted notifications (new, repeated, rejected).",
            ["result"],
            registry=self.registry,
        )
        self.webhook_truncated = Counter(
            "controller_webhook_truncated_alerts",
            "Alerts that Alertmanager left out of its notifications.",
            registry=self.registry,
        )
        self.silences_known = Gauge(
            "controller_silences_known",
            "1 while Alertmanager's silences are known, or there is none.",
            registry=self.registry,
        )
        self.content_load_failed = Gauge(
            "fleetctl_content_load_failed",
            "1 while the newest content can't be loaded and older content is in force.",
            registry=self.registry,
        )
        self.content_loaded_at = Gauge(
            "fleetctl_content_loaded_timestamp_seconds",
            "When the content in force was loaded.",
            registry=self.registry,
        )
        self.http_refused = Counter(
            "controller_http_connections_refused",
            "Connections ended before a request was read (full, head_timeout, head_too_large).",
            ["reason"],
            registry=self.registry,
        )
        self.node_failures = Counter(
            "controller_node_failures",
            "Failures of nodes that began, by kind: what `fleetctl get failures` lists.",
            ["kind"],
            registry=self.registry,
        )
        for kind in FailureKind:
            self.node_failures.labels(kind=kind.value)
        self.drained_requests = Counter(
            "controller_drained_requests",
            "Requests of drained nodes by what became of them: finished, moved, refused, aborted, lost, unknown.",
            ["outcome"],
            registry=self.registry,
        )
        for outcome in ("finished", "moved", "refused", "aborted", "lost", "unknown"):
            self.drained_requests.labels(outcome=outcome)
        self.tokens = Gauge(
            "controller_tokens", "Named tokens that open something, by role.", ["role"], registry=self.registry
        )
        self.bad_tokens = Counter(
            "controller_bad_tokens", "Requests refused for a wrong, revoked or expired token.", registry=self.registry
        )
        self.rate_limited = Counter(
            "controller_http_rate_limited",
            "Requests refused because their caller asks too often, by kind (reads, changes) and by what it is known"
            " (token, address).",
            ["kind", "by"],
            registry=self.registry,
        )
        for asked, by in product(("reads", "changes"), ("token", "address")):
            self.rate_limited.labels(kind=asked, by=by)
        self.loop_turns = Histogram(
            "controller_loop_turn_seconds",
            "Duration of a loop's turn; of fleet and scrape most of it is spreading the peers over the interval.",
            ["loop"],
            buckets=_TURN_BUCKETS_S,
            registry=self.registry,
        )
        self.clock_offset = Gauge(
            "controller_clock_offset_seconds",
            "How far the controller's time is ahead of the wall clock: after that was set back.",
            registry=self.registry,
        )
        self.stalled_seconds = Gauge(
            "controller_stalled_seconds",
            "Seconds since the start in which the controller stood still: stopped, starved of CPU or busy.",
            registry=self.registry,
        )
        self.storage_ok = Gauge(
            "controller_storage_ok", "0 while nothing can be stored: a full disk.", registry=self.registry
        )
        self.leader = Gauge(
            "controller_leader",
            "1 while this controller leads; 0 on a standby, and while it does not know whether it still leads.",
            registry=self.registry,
        )
        self.epoch = Gauge("controller_epoch", "Epoch under which this controller writes.", registry=self.registry)
        self.takeovers = Counter(
            "controller_takeovers",
            "Times that this process took over from a leader that fell silent.",
            registry=self.registry,
        )
        self.last_takeover = Gauge(
            "controller_last_takeover_timestamp_seconds",
            "When this process last took over from a leader that fell silent.",
            registry=self.registry,
        )
        self.standbys = Gauge("controller_standbys", "Other controllers on this database.", registry=self.registry)
        self.peers_wanted = Gauge(
            "controller_peers_wanted",
            "Other controllers that the settings name (controller.peers).",
            registry=self.registry,
        )
        for unknown in (self.leader, self.last_takeover, self.standbys, self.peers_wanted):
            unknown.set(math.nan)  # until there is something to say
        self.nodes = Gauge("controller_nodes", "Nodes by phase.", ["phase"], registry=self.registry)
        self.pool_nodes = Gauge(
            "controller_pool_nodes",
            "Nodes of a pool: wanted (its size), current (wanted one by one), ready (of those).",
            ["pool", "state"],
            registry=self.registry,
        )
        self.pool_start_failures = Gauge(
            "controller_pool_start_failures",
            "Starts of a pool's nodes that failed in a row; the next one waits longer each time.",
            ["pool"],
            registry=self.registry,
        )
        self.rollouts = Counter(
            "controller_rollouts", "Rollouts that ended, by result.", ["result"], registry=self.registry
        )
        self.rollout_state = Gauge(
            "controller_rollout_state",
            "1: the pool's rollout is in this state.",
            ["pool", "state"],
            registry=self.registry,
        )
        self.rollout_share = Gauge(
            "controller_rollout_share_ratio",
            "Share of a pool's sessions that the present step gives the new revision.",
            ["pool"],
            registry=self.registry,
        )
        self.rollout_waits = Gauge(
            "controller_rollout_waits_for_person",
            "1: the pool's rollout could not be judged and waits for a person; 0: it goes on by itself.",
            ["pool"],
            registry=self.registry,
        )
        self.rollout_age = Gauge(
            "controller_rollout_transition_age_seconds",
            "Seconds since the last transition of a pool's rollout that is under way.",
            ["pool"],
            registry=self.registry,
        )
        self.autoscaler_runs = Counter(
            "controller_autoscaler_runs",
            "Scalings that the autoscaler asked for and guards let pass, by direction (out, in).",
            ["pool", "direction"],
            registry=self.registry,
        )
        self.autoscaler_size = Gauge(
            "controller_autoscaler_size",
            "Nodes that the autoscaler holds for right, whether it may set them or not.",
            ["pool"],
            registry=self.registry,
        )
        self.autoscaler_reversals = Gauge(
            "controller_autoscaler_reversals",
            "Times that the autoscaler turned round within the last hour: out after in, or in after out.",
            ["pool"],
            registry=self.registry,
        )
        self.alerts = Gauge("controller_alerts", "Alerts by state.", ["state"], registry=self.registry)
        self.audit_intact = Gauge(
            "controller_audit_intact", "0 when the audit is not as it was written.", registry=self.registry
        )
        self.audit_intact.set(math.nan)  # until somebody looks
        self.breaker_open = Gauge(
            "controller_breaker_open",
            "1 while automation starts nothing because its last runs did not help; 0.5 while one more decides.",
            registry=self.registry,
        )
        self.heartbeats = Counter(
            "controller_heartbeats",
            "Words to the heartbeat URL, by result (ok, failed).",
            ["result"],
            registry=self.registry,
        )
        self.heartbeat_age = Gauge(
            "controller_heartbeat_age_seconds",
            "Since the heartbeat URL last took a word, or since the start; 0 where none is set.",
            registry=self.registry,
        )
        self.notifications = Counter(
            "fleetctl_notifications",
            "Notifications that came to their end, by receiver and outcome: delivered, failed, merged, dropped.",
            ["receiver", "outcome"],
            registry=self.registry,
        )
        self.receiver_failing = Gauge(
            "fleetctl_receiver_failing",
            "1 while a receiver did not take the last message; 0 once it took one.",
            ["receiver"],
            registry=self.registry,
        )
        self.freezes = Gauge("controller_freezes", "Freezes in force.", registry=self.registry)
        self.proposals = Gauge(
            "controller_proposals",
            "Runs that wait for a person: for the first answer, or for the approval of one more.",
            ["needs"],
            registry=self.registry,
        )
        self.oldest_proposal = Gauge(
            "controller_oldest_proposal_seconds",
            "Age of the oldest run that waits so; 0 without one.",
            ["needs"],
            registry=self.registry,
        )
        self.open_incidents = Gauge("controller_open_incidents", "Incidents not resolved.", registry=self.registry)

    @property
    def asked_by_rules(self) -> tuple[Gauge, ...]:
        """What built-in rules ask of the controller itself."""
        return (
            self.storage_ok,
            self.audit_intact,
            self.breaker_open,
            self.pool_start_failures,
            self.rollout_state,
            self.rollout_waits,
            self.rollout_age,
            self.autoscaler_reversals,
            self.leader,
            self.last_takeover,
            self.standbys,
            self.peers_wanted,
            self.heartbeat_age,
            self.receiver_failing,
        )

    def watch_loops(self, loops: Loops, clock: Clock) -> None:
        """Tell the loops' ages and failures at each scrape."""
        self.registry.register(_LoopCollector(loops, clock.now))

    def observe_turn(self, loop: str, seconds: float) -> None:
        """One turn of a loop has ended."""
        self.loop_turns.labels(loop=loop).observe(seconds)

    def tell_pools(self, nodes: Mapping[str, Mapping[str, int]], failures: Mapping[str, int]) -> None:
        """How the pools stand: pool to state to nodes, and pool to starts that failed in a row. Others are gone."""
        self.pool_nodes.clear()
        self.pool_start_failures.clear()
        for pool, by_state in nodes.items():
            for state, num in by_state.items():
                self.pool_nodes.labels(pool=pool, state=state).set(num)
        for pool, num in failures.items():
            self.pool_start_failures.labels(pool=pool).set(num)

    def tell_discovery(self, targets: Mapping[str, int], problems: int, unread: int) -> None:
        """What discovery found and dropped, how much of it is wrong, and how many sources were never read."""
        for state, num in targets.items():
            self.discovered_targets.labels(state=state).set(num)
        self.discovery_problems.set(problems)
        self.discovery_unread.set(unread)

    def tell_rollouts(self, under_way: Mapping[str, tuple[str, float, bool, float]]) -> None:
        """How rollouts stand: pool to state, share, whether it waits for a person, age (seconds). Others are gone."""
        for gauge in (self.rollout_state, self.rollout_share, self.rollout_waits, self.rollout_age):
            gauge.clear()
        for pool, (state, share, waits, age_s) in under_way.items():
            self.rollout_state.labels(pool=pool, state=state).set(1)
            self.rollout_share.labels(pool=pool).set(share)
            self.rollout_waits.labels(pool=pool).set(float(waits))
            self.rollout_age.labels(pool=pool).set(age_s)

    def tell_autoscaler(self, sizes: Mapping[str, int], reversals: Mapping[str, int]) -> None:
        """The last word on each pool, and how often it turned round lately. Other pools are gone."""
        self.autoscaler_size.clear()
        self.autoscaler_reversals.clear()
        for pool, size in sizes.items():
            self.autoscaler_size.labels(pool=pool).set(size)
            self.autoscaler_reversals.labels(pool=pool).set(reversals[pool])

    def tell_proposals(self, waiting: Iterable[Run], now: float) -> None:
        """Proposed runs: how many there are, and since when the oldest waits."""
        ages: dict[str, list[float]] = {"answer": [], "another_person": []}
        for run in waiting:
            needs = "another_person" if run.approvals.given and run.approvals.missing else "answer"
            ages[needs].append(max(0.0, now - run.created_at))
        for needs, found in ages.items():
            self.proposals.labels(needs=needs).set(len(found))
            self.oldest_proposal.labels(needs=needs).set(max(found, default=0.0))

    def exposition(self) -> bytes:
        """Prometheus text format 0.0.4."""
        return generate_latest(self.registry)


class _LoopCollector(Collector):
    def __init__(self, loops: Loops, now: Callable[[], float]) -> None:
        self._loops = loops
        self._now = now

    def collect(self) -> Iterator[Metric]:
        ages = GaugeMetricFamily(
            "controller_loop_age_seconds", "Seconds since a loop's last completed turn.", labels=["loop"]
        )
        for name, age_s in self._loops.ages(self._now()).items():
            ages.add_metric([name], age_s)
        yield ages
        failures = CounterMetricFamily("controller_loop_failures", "Turns that failed, by loop.", labels=["loop"])
        for name, count in self._loops.failures().items():
            failures.add_metric([name], count)
        yield failures
