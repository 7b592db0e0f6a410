"""The controller's parts put together: what knows what, and in which order they start."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx
import structlog

from alerts.series.store import SeriesStore
from diagnostics.incident import Incident
from diagnostics.postmortem import began_at
from fleetctl.controller.access.tokens import Tokens
from fleetctl.controller.alertmanager.alert_sender import AlertSender
from fleetctl.controller.alertmanager.external_scope import places_of
from fleetctl.controller.alertmanager_link import (
    AlertmanagerInbound,
    alertmanager_loops,
    open_inbound,
    open_sender,
)
from fleetctl.controller.audit import Audit, append_run
from fleetctl.controller.autoscaler.autoscaling import AUTOSCALER, Autoscaling
from fleetctl.controller.autoscaler.forecasts import Forecasts
from fleetctl.controller.autoscaler.observation import INTERVAL_S
from fleetctl.controller.autoscaler.simulator import Simulator
from fleetctl.controller.config import ControllerConfig
from fleetctl.controller.content.load import load_content
from fleetctl.controller.content.store import POLL_S, ContentStore
from fleetctl.controller.database import Database
from fleetctl.controller.failures.failures import Failures
from fleetctl.controller.heartbeat import Heartbeat, Vitals
from fleetctl.controller.incidents.alerting import Alerting
from fleetctl.controller.incidents.approvals import ApprovalPolicy
from fleetctl.controller.incidents.closing import Closing
from fleetctl.controller.incidents.diagnosing import Diagnosing
from fleetctl.controller.incidents.impact import impact_in_parts
from fleetctl.controller.incidents.incident_book import IncidentBook
from fleetctl.controller.incidents.incident_handling import IncidentHandling
from fleetctl.controller.incidents.incident_import import IncidentImport
from fleetctl.controller.incidents.incident_report import IncidentReports
from fleetctl.controller.incidents.incident_store import get_incident
from fleetctl.controller.incidents.inquiry import Inquiry
from fleetctl.controller.incidents.pruning import PRUNE_EVERY_S, Pruning
from fleetctl.controller.incidents.remediation import Remediation
from fleetctl.controller.incidents.views import no_remedy, record_of
from fleetctl.controller.leadership import Leadership, Lease, Takeover
from fleetctl.controller.loops import Loop, Loops
from fleetctl.controller.metrics import ControllerMetrics
from fleetctl.controller.nodes.changes import Changes
from fleetctl.controller.nodes.deep_checks import DeepChecks
from fleetctl.controller.nodes.drain_account import DrainAccount
from fleetctl.controller.nodes.effects import FleetEffects
from fleetctl.controller.nodes.engine_calls import EngineCalls
from fleetctl.controller.nodes.evidence import Evidence
from fleetctl.controller.nodes.fenced_provider import FencedProvider
from fleetctl.controller.nodes.fleet import Fleet
from fleetctl.controller.nodes.fleet_series import FleetSeries
from fleetctl.controller.nodes.foreign_check import ForeignCheck
from fleetctl.controller.nodes.found_fleet import FoundFleet
from fleetctl.controller.nodes.freezes import Freezes
from fleetctl.controller.nodes.gateways import Gateways
from fleetctl.controller.nodes.gauge_drain import GaugeDrain
from fleetctl.controller.nodes.host_nodes import HostNodes
from fleetctl.controller.nodes.lookup import FleetLookup, held_since, progress_of
from fleetctl.controller.nodes.node_client import MAX_ANSWER_BYTES, PROBE_TIMEOUT_S, NodeClient
from fleetctl.controller.nodes.outreach import Outreach
from fleetctl.controller.nodes.pod_nodes import PodNodes
from fleetctl.controller.nodes.pools import Pools
from fleetctl.controller.nodes.routing import GatewayWatch, Routing
from fleetctl.controller.nodes.traffic_rules import TrafficRules
from fleetctl.controller.notifications.courier import Courier
from fleetctl.controller.notifications.incident_notice import impact_words
from fleetctl.controller.notifications.notifications import IncidentSource, Notifications
from fleetctl.controller.receipts.receipts import Receipts
from fleetctl.controller.records import Records
from fleetctl.controller.rollouts.evidence import EvidenceReader
from fleetctl.controller.rollouts.pod_rollouts import PodRollouts
from fleetctl.controller.rollouts.rollouts import PoolLimits, Rollouts
from fleetctl.controller.signals.node_groups import NodeGroups
from fleetctl.controller.signals.prometheus_signals import PrometheusSignals
from fleetctl.controller.signals.route_signals import route_signals
from fleetctl.controller.signals.rules_in_force import RulesInForce
from fleetctl.controller.signals.scrape import Scraper, Signals
from fleetctl.controller.state_lock import hold_state_lock
from fleetctl.controller.timeline import Timeline
from fleetctl.discovery.discovery import Discovery
from fleetctl.kit.clock import Clock, SystemClock
from fleetctl.kit.errors import BadInputError
from fleetctl.kit.fetch import Fetcher
from fleetctl.kit.stall import StallMonitor
from fleetctl.kit.tls import client_tls
from fleetctl.priority_class import PriorityClass
from fleetctl.providers.cost import NodeCosts
from fleetctl.providers.found import FOUND, FoundNodes
from fleetctl.providers.hosts.options import hosts_options
from fleetctl.providers.hosts.provider import HOSTS, HostsProvider
from fleetctl.providers.kubernetes.options import KubernetesOptions
from fleetctl.providers.local_gateway import LocalGateway
from fleetctl.providers.provider import NodeProvider
from fleetctl.providers.providers import KUBERNETES, LOCAL, Providers
from fleetctl.settings.controller import ControllerSettings
from fleetctl.settings.hosts import HostsSettings
from fleetctl.settings.kubernetes import KubernetesSettings
from fleetctl.settings.tree import Settings
from fleetctl.wire import LeadershipState, NodePhase
from runbooks.breaker import BreakerLimits
from runbooks.budget import ActionBudget
from runbooks.errors import RunbookError
from runbooks.executor import Executor
from runbooks.journal import Journal
from runbooks.run import ACTIVE, Run

log = structlog.get_logger()

IMPACT_LEAD_S = 300.0  # of the series, before an incident began: what was usual
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

if TYPE_CHECKING:
    from fleetctl.providers.kubernetes.provider import KubernetesProvider


@dataclass(frozen=True, slots=True)
class LedState:
    """What a controller on a shared database leads with: the state, claimed for it, and series that it kept warm."""

    database: Database
    journal: Journal
    leadership: Leadership
    takeover: Takeover
    rules: RulesInForce


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
        records, journal = await _open_state(config, clock, stack, led)
        tokens = await Tokens.opened(records, config.token)
        kubernetes = _open_kubernetes(settings.providers.kubernetes, stack)
        list_own = provider.list_instances
        hosts = _open_hosts(settings.providers.hosts)
        providers = Providers({LOCAL: provider, FOUND: FoundNodes(), **kubernetes, **hosts})
        provider = FencedProvider(providers, records.lease.require)
        client = await _open_node_client(config, records, stack)
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
            forget_after_s=settings.actions.forget_stopped_after_s,
            why_out=lambda name: deep_checks.why_out(name),
        )
        stack.push_async_callback(fleet.stop)
        stale_after_s = settings.stale_after_s
        deep_checks = await _open_deep_checks(config, fleet, client, rules.store, records, stack)
        gateways = _open_gateways(config, client, records)
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
        changes = await _open_changes(records)
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
        scraper, signals = _open_signals(config, rules, fleet, records, stack)
        content.when_loaded(rules.exchange)
        content.when_loaded(lambda _: signals.read_for(rules.groups))
        inbound = await open_inbound(config, rules.engine, fleet, records, stack)
        engine = EngineCalls(records.database, provider, client)
        http = await stack.enter_async_context(httpx.AsyncClient(trust_env=False, verify=client_tls()))
        courier = Courier(http, clock)
        freezes = await Freezes.opened(records)
        rollouts = _rollouts(config, records, fleet, routing, freezes, gateways, rules.store, providers)
        pod_rollouts = PodRollouts(kubernetes.get(KUBERNETES), rollouts.facts, rollouts.order, records.lease.require)
        receipts = Receipts(records, settings.receipt_key_file, settings.incidents.keep_for_s)
        account = DrainAccount(receipts, client, gateways, clock)
        effects = _effects(
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
            priority_classes=_priority_classes(settings),
            ways_out=gateways.ways_out,
            cleared_at=book.cleared_at,
            route_signals=lambda nodes, now: route_signals(rules.store, nodes, now),
        )
        approvals = ApprovalPolicy(content, tokens, fleet, book)
        executor = _open_executor(config, content, journal, effects, lookup, approvals, records, stack)

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
        await alerting.restore()
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
            _incident_source(records, book, journal, fleet, content, rules.store),
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
            *alertmanager_loops(config, inbound, sender, _may_speak(records)),
            *_heartbeat_loops(settings.controller, http, vitals, records),
            turn_ended=records.metrics.observe_turn,
        )
        vitals.late_loops = loops.late
        records.metrics.watch_loops(loops, records.clock)
        await fleet.take_charge(config.node_specs, start_nodes=config.start_nodes, list_own=list_own)
        started = f"controller started, epoch {records.database.epoch}"
        await records.timeline.append("controller.started", started)
        view = LeadershipView(config, led, clock.now())
        if led is not None:
            await _tell_takeover(led, records)
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


class LeadershipView:
    """Who leads, as the leader tells it."""

    def __init__(self, config: ControllerConfig, led: LedState | None, since: float) -> None:
        self._led = led
        self._since = since
        self._wanted = config.settings.controller.other_controllers

    def state(self) -> LeadershipState:
        """As the API tells it."""
        if self._led is None:
            return LeadershipState()
        there = {peer.url.rstrip("/") for peer in self._led.leadership.peers}
        return LeadershipState(
            shared=True,
            url=self._led.leadership.me.url,
            is_certain=self._led.leadership.lease.is_valid,
            since=self._since,
            takeover=self._led.takeover.words,
            standbys=sorted(there),
            missing=[url for url in self._wanted if url not in there],
        )


async def _tell_takeover(led: LedState, records: Records) -> None:
    takeover, url = led.takeover, led.leadership.me.url
    if takeover.silent_s is not None:
        records.metrics.takeovers.inc()
        records.metrics.last_takeover.set(records.clock.now())
    log.info("controller.leads", url=url, epoch=takeover.epoch, because=takeover.words)
    text = f"{url} leads with epoch {takeover.epoch}: {takeover.words}"
    kind = "controller.took_over" if takeover.silent_s is not None else "controller.leads"
    await records.timeline.append(kind, text, data={"url": url, "epoch": takeover.epoch, "former": takeover.former_url})


async def _open_changes(records: Records) -> Changes:
    """What changed lately: as the timeline has it, and from now on."""
    changes = Changes()
    for entry in await records.timeline.read_newest():
        changes.hear(entry.kind, entry.at, entry.node, entry.data)
    records.timeline.listen(changes.hear)
    return changes


def _may_speak(records: Records) -> Callable[[], bool]:
    """Whether alerts may be sent: not by one that was stopped and is about to learn that another one leads."""
    return lambda: records.lease.is_valid or bool(records.database.storage_error)


def _incident_source(
    records: Records,
    book: IncidentBook,
    journal: Journal,
    fleet: Fleet,
    content: ContentStore,
    store: SeriesStore,
) -> IncidentSource:
    """What notifications ask of incidents."""

    async def stored(incident_id: str) -> Incident | None:
        found = await records.database.read(lambda c: get_incident(c, incident_id))
        return None if found is None else found.incident

    async def runs_of(incident_id: str) -> tuple[Run, ...]:
        return await records.database.call(lambda: journal.list(incident_id=incident_id))

    async def impact(incident: Incident, runs: tuple[Run, ...]) -> str:
        until = incident.resolved_at or records.clock.now()
        record = record_of(incident, runs, ())
        since = min(began_at(record), incident.opened_at) - IMPACT_LEAD_S
        return impact_words(await impact_in_parts(record, store, since, until))

    return IncidentSource(
        recent=book.recent,
        stored=stored,
        runs_of=runs_of,
        places_of=lambda node: places_of(fleet.nodes[node]) if node in fleet.nodes else {},
        impact=impact,
        by_hand=lambda incident, runs: no_remedy(incident, content.current, runs),
    )


def open_journal(database: Database) -> Journal:
    """The journal in the controller's database. Raises BadInputError when a newer fleetctl wrote it."""
    try:
        return Journal(database.engine, on_audit=append_run)
    except RunbookError as error:
        raise BadInputError(error.message, remedy=error.remedy) from error


async def _open_state(
    config: ControllerConfig, clock: Clock, stack: AsyncExitStack, led: LedState | None
) -> tuple[Records, Journal]:
    """The database, claimed for this controller, and what is kept in it."""
    if led is not None:
        database, journal, lease = led.database, led.journal, led.leadership.lease
    else:
        stack.enter_context(hold_state_lock(config.settings.state_dir))
        database = Database(config.settings.database_url)
        stack.callback(database.close)
        journal, lease = open_journal(database), Lease()
        database.lead(journal.claim_epoch())
    # Its own clock, where that is the machine's: a wall clock that jumps ahead is time in which nobody looked, too.
    stalls = StallMonitor(clock.now) if isinstance(clock, SystemClock) else StallMonitor()
    stalls.start()
    stack.callback(stalls.stop)
    timeline, metrics = await Timeline.opened(database, clock), ControllerMetrics()
    audit = Audit(database, timeline, metrics, clock, config.settings.audit, config.settings.audit_dir)
    metrics.leader.set_function(lambda: float(lease.is_valid))
    metrics.epoch.set(database.epoch)
    if led is not None:
        metrics.standbys.set_function(lambda: float(len(led.leadership.peers)))
        metrics.peers_wanted.set(len(config.settings.controller.other_controllers))
    return Records(clock, database, timeline, metrics, stalls, audit, lease), journal


async def _open_node_client(config: ControllerConfig, records: Records, stack: AsyncExitStack) -> NodeClient:
    probes = Fetcher(timeout_s=PROBE_TIMEOUT_S, max_bytes=MAX_ANSWER_BYTES, stalls=records.stalls)
    stack.push_async_callback(probes.close)
    http = await stack.enter_async_context(httpx.AsyncClient(trust_env=False, verify=client_tls()))
    return NodeClient(http, probes, config.node_token, records.lease.require, config.settings.fleet.key_ring())


def _heartbeat_loops(
    settings: ControllerSettings, http: httpx.AsyncClient, vitals: Vitals, records: Records
) -> Iterator[Loop]:
    """None where nobody is to be told."""
    if settings.heartbeat_url is not None:
        heartbeat = Heartbeat(settings.heartbeat_url, http, vitals, records)
        yield Loop("heartbeat", settings.heartbeat_interval_s, heartbeat.send)


def _open_gateways(config: ControllerConfig, client: NodeClient, records: Records) -> Gateways:
    """The local one is looked after where it was started by `fleetctl up`, as the nodes are."""
    settings = config.settings
    is_ours = config.gateway_url is not None and settings.controller.restart_gateway
    process = LocalGateway(settings.run_dir, records.lease.require) if is_ours else None
    return Gateways(records, client, config.gateway_urls, process)


def _priority_classes(settings: Settings) -> frozenset[str] | None:
    """Without a tenants file everybody is standard; what gateways of other machines were given is not known here."""
    if settings.gateway.tenants_file is not None or settings.controller.gateways:
        return None
    return frozenset({PriorityClass.STANDARD.value})


def _open_signals(
    config: ControllerConfig, rules: RulesInForce, fleet: Fleet, records: Records, stack: AsyncExitStack
) -> tuple[Scraper, Signals]:
    """Who scrapes what is ours, and who fills the store: the same, unless there is a Prometheus."""
    prometheus = config.settings.signals.prometheus
    scraper = Scraper(fleet, rules.store, records, config.settings, config.gateway_urls)
    stack.push_async_callback(scraper.stop)
    if prometheus is None:
        return scraper, scraper
    signals = PrometheusSignals(
        prometheus, rules.groups, rules.store, records.clock, records.metrics, scraper, records.stalls
    )
    stack.push_async_callback(signals.stop)
    return scraper, signals


def _open_hosts(settings: HostsSettings | None) -> dict[str, HostsProvider]:
    """By its name; empty without the setting."""
    if settings is None:
        return {}
    return {HOSTS: HostsProvider(hosts_options(settings.model_dump()))}


def _open_kubernetes(settings: KubernetesSettings | None, stack: AsyncExitStack) -> dict[str, KubernetesProvider]:
    """By its name; empty without the setting. Its client library is an extra, and slow to import."""
    if settings is None:
        return {}
    try:
        from fleetctl.providers.kubernetes.provider import KubernetesProvider
    except ImportError as error:
        remedy = "pip install 'llm-fleetctl[kubernetes]'"
        raise BadInputError("providers.kubernetes: its client library is not installed", remedy=remedy) from error
    made = KubernetesProvider(KubernetesOptions(**settings.model_dump()))
    stack.push_async_callback(asyncio.to_thread, made.close)
    return {KUBERNETES: made}


async def _open_deep_checks(
    config: ControllerConfig,
    fleet: Fleet,
    client: NodeClient,
    store: SeriesStore,
    records: Records,
    stack: AsyncExitStack,
) -> DeepChecks:
    limits = config.settings.controller
    stale_after_s = config.settings.stale_after_s
    foreign = ForeignCheck(client, lambda name: progress_of(store, name, records.clock.now(), stale_after_s))
    deep_checks = await DeepChecks.opened(
        records, fleet, client, foreign, interval_s=limits.deep_check_interval_s, at_once=limits.max_deep_checks
    )
    stack.push_async_callback(deep_checks.stop)
    return deep_checks


def _rollouts(
    config: ControllerConfig,
    records: Records,
    fleet: Fleet,
    routing: Routing,
    freezes: Freezes,
    gateways: Gateways,
    store: SeriesStore,
    providers: Providers,
) -> Rollouts:
    settings = config.settings
    return Rollouts(
        records,
        fleet,
        routing,
        freezes,
        EvidenceReader(store, settings.rollouts, settings.stale_after_s),
        gateways.shadow_differences,
        settings.rollouts,
        PoolLimits(settings.actions.surge, settings.controller.capacity_floor_ratio),
        stale_after_s=settings.stale_after_s,
        read_settings=providers.settings_of,
    )


def _effects(
    config: ControllerConfig,
    provider: NodeProvider,
    client: NodeClient,
    fleet: Fleet,
    gateways: Gateways,
    routing: Routing,
    traffic_rules: TrafficRules,
    scraper: Scraper,
    pod_rollouts: PodRollouts,
    account: DrainAccount,
    records: Records,
    store: SeriesStore,
    *,
    engine: EngineCalls,
    outreach: Outreach,
    evidence: Evidence,
) -> FleetEffects:
    limits = config.settings.actions
    watch = GatewayWatch(client, config.gateway_urls, records.clock, limits.gateway_wait_s)
    by_gauges = GaugeDrain(
        records,
        client,
        gateways,
        watch,
        routing,
        # A rule's value may be of the scrape before it.
        lambda node, since: held_since(
            store, node, since + config.settings.controller.scrape_interval_s, records.clock.now()
        ),
        limits.drain_grace_s,
    )
    return FleetEffects(
        database=records.database,
        fleet=fleet,
        provider=provider,
        client=client,
        routing=routing,
        traffic_rules=traffic_rules,
        gateway=watch,
        by_gauges=by_gauges,
        gateways=gateways,
        account=account,
        clock=records.clock,
        forget_signals=scraper.forget,
        default_spec=config.node_specs[0] if config.node_specs else None,
        carry_out=pod_rollouts.order,
        engine=engine,
        outreach=outreach,
        evidence=evidence,
        drain_grace_s=limits.drain_grace_s,
        silent_after_s=limits.silent_after_s,
    )


def _open_executor(
    config: ControllerConfig,
    content: ContentStore,
    journal: Journal,
    effects: FleetEffects,
    lookup: FleetLookup,
    approvals: ApprovalPolicy,
    records: Records,
    stack: AsyncExitStack,
) -> Executor:
    executor = Executor(
        journal,
        content.pages,
        effects,
        lookup,
        clock=records.clock,
        on_event=_RunEvents(records),
        capacity_floor_ratio=config.settings.controller.capacity_floor_ratio,
        budget=ActionBudget(**config.settings.actions.per_hour.model_dump()),
        breaker=BreakerLimits(**config.settings.actions.breaker.model_dump()),
        thread=records.database.thread,
        judge_need=approvals.judge_need,
    )
    stack.callback(executor.close)
    return executor


class _RunEvents:
    """Puts what the executor tells on the timeline, and counts the runs that end."""

    def __init__(self, records: Records) -> None:
        self._records = records

    def __call__(self, kind: str, text: str, run: Run, data: dict[str, Any]) -> None:
        if kind == f"run.{run.status.value}" and run.status.is_terminal:
            self._records.metrics.runs.labels(status=run.status.value).inc()
        self._records.timeline.append_soon(
            kind,
            text,
            incident_id=run.incident_id,
            run_id=run.id,
            node=run.node,
            data=data,
        )
