"""The controller's parts put together: what knows what, and in which order they start.

One function, longer than others: the order is the thing, and each part is named where it is made, where it is run in a
loop, and where others find it. How a part is made of its settings: `parts.py`.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import httpx
import structlog

from alerts.series.store import SeriesStore
from diagnostics.value_format import format_seconds
from fleetctl.controller.access.tokens import Tokens
from fleetctl.controller.alertmanager.alert_sender import AlertSender
from fleetctl.controller.alertmanager_link import (
    AlertmanagerInbound,
    alertmanager_loops,
    open_inbound,
    open_sender,
)
from fleetctl.controller.audit import Audit
from fleetctl.controller.autoscaler.autoscaling import AUTOSCALER, Autoscaling
from fleetctl.controller.autoscaler.forecasts import Forecasts
from fleetctl.controller.autoscaler.observation import INTERVAL_S
from fleetctl.controller.autoscaler.simulator import Simulator
from fleetctl.controller.config import ControllerConfig
from fleetctl.controller.content.load import load_content
from fleetctl.controller.content.store import POLL_S, ContentStore
from fleetctl.controller.database import Database
from fleetctl.controller.failures.failures import Failures
from fleetctl.controller.heartbeat import Vitals
from fleetctl.controller.incidents.alerting import TOLD_BLIND_S, Alerting
from fleetctl.controller.incidents.approvals import ApprovalPolicy
from fleetctl.controller.incidents.closing import Closing
from fleetctl.controller.incidents.diagnosing import Diagnosing
from fleetctl.controller.incidents.incident_book import IncidentBook
from fleetctl.controller.incidents.incident_handling import IncidentHandling
from fleetctl.controller.incidents.incident_import import IncidentImport
from fleetctl.controller.incidents.incident_report import IncidentReports
from fleetctl.controller.incidents.inquiry import Inquiry
from fleetctl.controller.incidents.pruning import PRUNE_EVERY_S, Pruning
from fleetctl.controller.incidents.remediation import Remediation
from fleetctl.controller.leadership import Lease
from fleetctl.controller.loops import Loop, Loops
from fleetctl.controller.metrics import ControllerMetrics
from fleetctl.controller.nodes.deep_checks import DeepChecks
from fleetctl.controller.nodes.drain_account import DrainAccount
from fleetctl.controller.nodes.effects import FleetEffects
from fleetctl.controller.nodes.engine_calls import EngineCalls
from fleetctl.controller.nodes.evidence import Evidence
from fleetctl.controller.nodes.fenced_provider import FencedProvider
from fleetctl.controller.nodes.fleet import Fleet
from fleetctl.controller.nodes.fleet_series import FleetSeries
from fleetctl.controller.nodes.found_fleet import FoundFleet
from fleetctl.controller.nodes.freezes import Freezes
from fleetctl.controller.nodes.gateways import Gateways
from fleetctl.controller.nodes.host_nodes import HostNodes
from fleetctl.controller.nodes.lookup import FleetLookup
from fleetctl.controller.nodes.outreach import Outreach
from fleetctl.controller.nodes.pod_nodes import PodNodes
from fleetctl.controller.nodes.pools import Pools
from fleetctl.controller.nodes.routing import Routing
from fleetctl.controller.nodes.traffic_rules import TrafficRules
from fleetctl.controller.notifications.courier import Courier
from fleetctl.controller.notifications.notifications import Notifications
from fleetctl.controller.opened_state import LeadershipView, LedState, open_state, tell_takeover
from fleetctl.controller.parts import (
    heartbeat_loops,
    incident_source,
    make_effects,
    make_rollouts,
    may_speak,
    open_changes,
    open_deep_checks,
    open_executor,
    open_gateways,
    open_hosts,
    open_kubernetes,
    open_node_client,
    open_signals,
    priority_classes,
)
from fleetctl.controller.receipts.receipts import Receipts
from fleetctl.controller.records import Records
from fleetctl.controller.rollouts.pod_rollouts import PodRollouts
from fleetctl.controller.rollouts.rollouts import Rollouts
from fleetctl.controller.signals.node_groups import NodeGroups
from fleetctl.controller.signals.route_signals import route_signals
from fleetctl.controller.signals.rules_in_force import RulesInForce
from fleetctl.controller.signals.scrape import Scraper, Signals
from fleetctl.controller.timeline import Timeline
from fleetctl.discovery.discovery import Discovery
from fleetctl.kit.clock import Clock, SystemClock
from fleetctl.kit.stall import StallMonitor
from fleetctl.kit.tls import client_tls
from fleetctl.providers.cost import NodeCosts
from fleetctl.providers.found import FOUND, FoundNodes
from fleetctl.providers.provider import NodeProvider
from fleetctl.providers.providers import KUBERNETES, LOCAL, Providers
from fleetctl.wire.node import NodePhase
from runbooks.executor import Executor
from runbooks.journal import Journal
from runbooks.run import ACTIVE, Run

log = structlog.get_logger()

AUTOSCALER_TURN_S = 5.0  # between two looks at the load of the pools
DISCOVERY_TURN_S = 1.0  # between two looks at what sources of nodes say
NOTIFICATIONS_TURN_S = 1.0  # between two looks at who is to be told what, and what is to be sent
DEEP_CHECK_TURN_S = 1.0  # between two looks at whose deep check is due
FAILURES_TURN_S = 2.0  # between two looks at what fails
RATIOS_TURN_S = 300.0  # between two counts of thirty days, which take a second for a thousand nodes
FORGET_TURN_S = 60.0  # between two looks for nodes that were stopped long ago
POOLS_TURN_S = 1.0  # between two looks at what each pool needs next
HOSTS_TURN_S = 1.0  # between two looks at which units are nodes: hosts are asked in the background
PODS_TURN_S = 1.0  # between two looks at which pods are nodes: in memory, the API is followed
POOLS = "pools"  # who asks for the runs that follow from it
VERIFY_EVERY_S = 3600.0  # between two looks at the whole audit
TOKENS_TURN_S = 5.0  # between two looks for tokens that another controller made or revoked
RULES_TURN_S = 1.0  # between two looks for traffic rules and freezes that are over


@dataclass(frozen=True, slots=True)
class Controller:
    """Every part of one controller, ready: what the HTTP API and the process work with."""

    config: ControllerConfig
    records: Records
    clock: Clock
    database: Database
    timeline: Timeline
    audit: Audit
    tokens: Tokens
    receipts: Receipts
    metrics: ControllerMetrics
    stalls: StallMonitor
    content: ContentStore
    store: SeriesStore
    provider: NodeProvider
    routing: Routing
    traffic_rules: TrafficRules
    freezes: Freezes
    fleet: Fleet
    found_fleet: FoundFleet
    groups: NodeGroups
    failures: Failures
    pools: Pools
    rollouts: Rollouts
    pod_rollouts: PodRollouts
    autoscaling: Autoscaling
    forecasts: Forecasts
    gateways: Gateways
    deep_checks: DeepChecks
    scraper: Scraper
    signals: Signals
    book: IncidentBook
    journal: Journal
    effects: FleetEffects
    lookup: FleetLookup
    executor: Executor
    alertmanager: AlertmanagerInbound
    alert_sender: AlertSender | None
    """None without an Alertmanager."""
    alerting: Alerting
    diagnosing: Diagnosing
    remediation: Remediation
    handling: IncidentHandling
    reports: IncidentReports
    imports: IncidentImport
    inquiry: Inquiry
    notifications: Notifications
    loops: Loops
    lease: Lease
    leadership: LeadershipView
    started_at: float

    def exposition(self) -> bytes:
        """The controller's metrics, gauges brought up to date."""
        for phase in NodePhase:
            count = sum(state.phase is phase for state in self.fleet.nodes.values())
            self.metrics.nodes.labels(phase=phase.value).set(count)
        states = [str(alert.state) for alert in self.alerting.alerts()]
        for state in ("pending", "firing", "unknown"):
            self.metrics.alerts.labels(state=state).set(states.count(state))
        self.metrics.freezes.set(len(self.freezes.in_force))
        self.metrics.open_incidents.set(len(self.book.open_incidents()))
        if isinstance(self.clock, SystemClock):
            self.metrics.clock_offset.set(self.clock.offset_s())
        self.metrics.stalled_seconds.set(self.stalls.stalled_s)
        self.metrics.silences_known.set(self.alertmanager.silences.state().known)
        return self.metrics.exposition()


@asynccontextmanager
async def open_controller(
    config: ControllerConfig, provider: NodeProvider, clock: Clock | None = None, led: LedState | None = None
) -> AsyncIterator[Controller]:
    """A controller with its state open and its past taken up; nothing runs yet.

    Each part is built from parts that are ready, in the order of an incident's way: state, content, nodes, signals,
    actions, alerts, incidents. `led`: the state of a shared database, claimed already; the caller closes it.

    Raises BadInputError when the state can't be used, or a rule, tree or page is wrong.
    """
    settings = config.settings
    content_now = load_content(settings.content)  # before the state: what is wrong there must change nothing
    clock = clock or SystemClock()
    rules = RulesInForce(content_now, settings.signals, clock) if led is None else led.rules
    if led is not None:
        rules.exchange(content_now)  # it may have changed since this controller began to wait
    async with AsyncExitStack() as stack:
        records, journal = await open_state(config, clock, stack, led)
        tokens = await Tokens.opened(records, config.token)
        kubernetes = open_kubernetes(settings.providers.kubernetes, stack)
        list_own = provider.list_instances
        hosts = open_hosts(settings.providers.hosts)
        providers = Providers({LOCAL: provider, FOUND: FoundNodes(), **kubernetes, **hosts})
        provider = FencedProvider(providers, records.lease.require)
        client = await open_node_client(config, records, stack)
        content = ContentStore(settings.content, content_now, records.timeline, records.metrics, records.clock)
        routing = await Routing.opened(records)
        traffic_rules = TrafficRules(records, routing)
        book = await IncidentBook.opened(records)
        fleet = Fleet(
            records,
            provider,
            client,
            routing,
            book.of_node,
            interval_s=settings.controller.probe_interval_s,
            min_round_s=config.min_round_s,
            forget_after_s=settings.actions.forget_stopped_after_s,
            why_out=lambda name: deep_checks.why_out(name),
        )
        stack.push_async_callback(fleet.stop)
        stale_after_s = settings.stale_after_s
        deep_checks = await open_deep_checks(config, fleet, client, rules.store, records, stack)
        gateways = open_gateways(config, client, records)
        found_fleet = FoundFleet(
            records,
            Discovery(settings.fleet.targets),
            fleet,
            routing,
            provider,
            client,
            lambda name: scraper.forget(name),
        )
        stack.push_async_callback(found_fleet.stop)
        pod_nodes = [
            PodNodes(records, fleet, routing, providers, client.probe, lambda name: scraper.forget(name), one)
            for one in kubernetes.values()
        ]
        for one in pod_nodes:
            stack.push_async_callback(one.stop)
        host_nodes = [
            HostNodes(records, routing, providers, lambda name: scraper.forget(name), one) for one in hosts.values()
        ]
        changes = await open_changes(records)
        fleet_series = FleetSeries(
            fleet,
            gateways,
            deep_checks,
            rules.store,
            clock,
            stale_after_s=stale_after_s,
            own=records.metrics.asked_by_rules,
            changes=changes,
        )
        records.metrics.registry.register(fleet_series)
        records.metrics.storage_ok.set_function(lambda: float(not records.database.storage_error))
        costs = NodeCosts(settings.providers.cost_per_node_hour)
        groups = NodeGroups(fleet, rules.store, clock, costs, stale_after_s=stale_after_s)
        failures = await Failures.opened(
            records,
            fleet,
            groups,
            deep_checks,
            rules.store,
            this_host=socket.gethostname(),
            stale_after_s=stale_after_s,
        )
        fleet_series.more = failures.ratio_series
        scraper, signals = open_signals(config, rules, fleet, records, stack)
        content.when_loaded(rules.exchange)
        content.when_loaded(lambda _: signals.read_for(rules.groups))
        inbound = await open_inbound(config, rules.engine, fleet, records, stack)
        engine = EngineCalls(records.database, provider, client)
        http = await stack.enter_async_context(httpx.AsyncClient(trust_env=False, verify=client_tls()))
        courier = Courier(http, clock)
        freezes = await Freezes.opened(records)
        rollouts = make_rollouts(config, records, fleet, routing, freezes, gateways, rules.store, providers)
        pod_rollouts = PodRollouts(kubernetes.get(KUBERNETES), rollouts.facts, rollouts.order, records.lease.require)
        receipts = Receipts(records, settings.receipt_key_file, settings.incidents.keep_for_s)
        account = DrainAccount(receipts, client, gateways, clock)
        effects = make_effects(
            config,
            provider,
            client,
            fleet,
            gateways,
            routing,
            traffic_rules,
            scraper,
            pod_rollouts,
            account,
            records,
            rules.store,
            engine=engine,
            outreach=Outreach(settings.actions, settings.notifications, courier, inbound.silences),
            evidence=Evidence(settings.incidents_dir, providers, engine, clock),
        )
        lookup = FleetLookup(
            records.database,
            fleet,
            provider,
            rules.store,
            clock,
            stale_after_s=stale_after_s,
            freezes=freezes,
            revisions=pod_rollouts.facts,
            priority_classes=priority_classes(settings),
            ways_out=gateways.ways_out,
            cleared_at=book.cleared_at,
            route_signals=lambda nodes, now: route_signals(rules.store, nodes, now),
        )
        approvals = ApprovalPolicy(content, tokens, fleet, book)
        executor = open_executor(config, content, journal, effects, lookup, approvals, records, stack)

        async def active_runs() -> tuple[Run, ...]:
            return await records.database.call(lambda: journal.list(ACTIVE))

        async def act(command: str, reason: str, override: str) -> Run:
            return await executor.act(command, reason=reason, requested_by=POOLS, unasked=True, override=override)

        pools = Pools(
            records,
            fleet,
            routing,
            provider,
            active_runs,
            act,
            lookup.held_requests,
            freezes,
            settings.actions,
            stale_after_s=stale_after_s,
        )

        async def scale(command: str, reason: str) -> Run:
            return await executor.act(command, reason=reason, requested_by=AUTOSCALER, unasked=True)

        async def to_follow(run_ids: Collection[str]) -> tuple[Run, ...]:
            return await records.database.call(lambda: journal.list_unended(run_ids))

        simulator = Simulator()
        interval_s = max(INTERVAL_S, 2 * settings.controller.scrape_interval_s)
        forecasts = await Forecasts.opened(records, fleet, rules.store, simulator, to_follow, interval_s=interval_s)
        autoscaling = await Autoscaling.opened(
            records,
            fleet,
            pools.views,
            rules.store,
            scale,
            simulator,
            settings.autoscaler,
            stale_after_s=stale_after_s,
        )
        alerting = Alerting(rules.engine, signals, fleet, book, inbound.external, inbound.automation, content, records)
        unwatched_s = await alerting.restore()
        vitals = Vitals(records)
        sender = open_sender(config, inbound, alerting, vitals, records, stack)
        diagnosing = Diagnosing(
            content,
            rules.store,
            book,
            inbound.automation,
            alerting.known_nodes,
            records,
            settings.incidents,
        )
        remediation = Remediation(
            content,
            executor,
            journal,
            lookup,
            book,
            inbound.automation,
            records,
            settings.controller,
            rollouts.history,
            traffic_rules.current,
        )
        reports = IncidentReports(journal, rules.store, content, records, settings.incidents, settings.incidents_dir)
        closing = Closing(executor, journal, book, reports, records, settings.incidents)
        every_s = settings.controller.evaluation_interval_s
        notifications = await Notifications.opened(
            records,
            settings.notifications,
            settings.links,
            settings.controller.base_url,
            courier,
            incident_source(records, book, journal, fleet, content, rules.store),
        )
        stack.push_async_callback(notifications.stop)

        async def observe_gateways() -> None:
            await gateways.observe_gateways()
            await routing.publish_num_gateways(gateways.num_sharing(clock.now()))

        loops = Loops(
            clock,
            Loop("content", POLL_S, content.reload_changed),
            Loop("discovery", DISCOVERY_TURN_S, found_fleet.look),
            Loop("fleet", settings.controller.probe_interval_s, fleet.observe_nodes),
            *(Loop("pods", PODS_TURN_S, one.take_up) for one in pod_nodes),
            *(Loop("hosts", HOSTS_TURN_S, one.take_up) for one in host_nodes),
            *(Loop("pod-cordons", PODS_TURN_S, one.tell_cordons) for one in pod_nodes),
            Loop("rollouts", POOLS_TURN_S, rollouts.advance_rollouts),
            Loop("pools", POOLS_TURN_S, pools.converge_pools),
            Loop("forecasts", AUTOSCALER_TURN_S, forecasts.follow_runs),
            Loop("autoscaler", AUTOSCALER_TURN_S, autoscaling.judge_pools),
            Loop("gateways", settings.controller.probe_interval_s, observe_gateways),
            Loop("fleet-series", settings.controller.probe_interval_s, fleet_series.record),
            Loop("deep-checks", DEEP_CHECK_TURN_S, deep_checks.ask_due_nodes),
            Loop("failures", FAILURES_TURN_S, failures.look),
            Loop("failure-ratios", RATIOS_TURN_S, failures.count),
            Loop("forget-nodes", FORGET_TURN_S, fleet.forget_old),
            Loop("traffic-rules", RULES_TURN_S, traffic_rules.expire_rules),
            Loop("freezes", RULES_TURN_S, freezes.expire_freezes),
            Loop("tokens", TOKENS_TURN_S, tokens.refresh),
            Loop("scrape", settings.controller.scrape_interval_s, signals.collect),
            Loop("alerts", every_s, alerting.evaluate_rules),
            Loop("diagnosis", every_s, diagnosing.diagnose_incidents),
            Loop("remediation", every_s, remediation.propose_runbooks),
            Loop("closing", every_s, closing.close_incidents),
            Loop("notifications", NOTIFICATIONS_TURN_S, notifications.plan),
            Loop("notifying", NOTIFICATIONS_TURN_S, notifications.send),
            Loop("audit", VERIFY_EVERY_S, records.audit.verify_in_turn),
            Loop("pruning", PRUNE_EVERY_S, Pruning(journal, records, settings).prune),
            *alertmanager_loops(config, inbound, sender, may_speak(records)),
            *heartbeat_loops(settings.controller, http, vitals, records),
            turn_ended=records.metrics.observe_turn,
        )
        vitals.late_loops = loops.late
        records.metrics.watch_loops(loops, records.clock)
        await fleet.take_charge(config.node_specs, start_nodes=config.start_nodes, list_own=list_own)
        started = f"controller started, epoch {records.database.epoch}"
        if unwatched_s is not None and unwatched_s >= TOLD_BLIND_S:
            started += f"; nobody had looked or judged for about {format_seconds(unwatched_s)}"
        await records.timeline.append("controller.started", started)
        view = LeadershipView(config, led, clock.now())
        if led is not None:
            await tell_takeover(led, records)
        yield Controller(
            config=config,
            records=records,
            clock=clock,
            database=records.database,
            timeline=records.timeline,
            audit=records.audit,
            tokens=tokens,
            receipts=receipts,
            metrics=records.metrics,
            stalls=records.stalls,
            content=content,
            store=rules.store,
            provider=provider,
            routing=routing,
            traffic_rules=traffic_rules,
            freezes=freezes,
            fleet=fleet,
            found_fleet=found_fleet,
            groups=groups,
            failures=failures,
            pools=pools,
            rollouts=rollouts,
            pod_rollouts=pod_rollouts,
            autoscaling=autoscaling,
            forecasts=forecasts,
            gateways=gateways,
            deep_checks=deep_checks,
            scraper=scraper,
            signals=signals,
            book=book,
            journal=journal,
            effects=effects,
            lookup=lookup,
            executor=executor,
            alertmanager=inbound,
            alert_sender=sender,
            alerting=alerting,
            diagnosing=diagnosing,
            remediation=remediation,
            reports=reports,
            imports=IncidentImport(reports, book, records),
            handling=IncidentHandling(book, content, inbound.silences, records),
            inquiry=Inquiry(content, rules.store, fleet, alerting.alerts, clock),
            notifications=notifications,
            loops=loops,
            lease=records.lease,
            leadership=view,
            started_at=clock.now(),
        )
