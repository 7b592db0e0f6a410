"""Parts of a controller, each made of its settings and of parts that are ready. In which order: `controller.py`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import httpx

from alerts.series.store import SeriesStore
from diagnostics.incident import Incident
from diagnostics.postmortem import began_at
from fleetctl.controller.alertmanager.external_scope import places_of
from fleetctl.controller.config import ControllerConfig
from fleetctl.controller.content.store import ContentStore
from fleetctl.controller.heartbeat import Heartbeat, Vitals
from fleetctl.controller.incidents.approvals import ApprovalPolicy
from fleetctl.controller.incidents.impact import impact_in_parts
from fleetctl.controller.incidents.incident_book import IncidentBook
from fleetctl.controller.incidents.incident_store import get_incident
from fleetctl.controller.incidents.views import no_remedy, record_of
from fleetctl.controller.loops import Loop
from fleetctl.controller.nodes.changes import Changes
from fleetctl.controller.nodes.deep_checks import DeepChecks
from fleetctl.controller.nodes.drain_account import DrainAccount
from fleetctl.controller.nodes.effects import FleetEffects
from fleetctl.controller.nodes.engine_calls import EngineCalls
from fleetctl.controller.nodes.evidence import Evidence
from fleetctl.controller.nodes.fleet import Fleet
from fleetctl.controller.nodes.foreign_check import ForeignCheck
from fleetctl.controller.nodes.freezes import Freezes
from fleetctl.controller.nodes.gateways import Gateways
from fleetctl.controller.nodes.gauge_drain import GaugeDrain
from fleetctl.controller.nodes.lookup import FleetLookup, held_since, progress_of
from fleetctl.controller.nodes.node_client import MAX_ANSWER_BYTES, PROBE_TIMEOUT_S, NodeClient
from fleetctl.controller.nodes.outreach import Outreach
from fleetctl.controller.nodes.routing import GatewayWatch, Routing
from fleetctl.controller.nodes.traffic_rules import TrafficRules
from fleetctl.controller.notifications.incident_notice import impact_words
from fleetctl.controller.notifications.notifications import IncidentSource
from fleetctl.controller.records import Records
from fleetctl.controller.rollouts.evidence import EvidenceReader
from fleetctl.controller.rollouts.pod_rollouts import PodRollouts
from fleetctl.controller.rollouts.rollouts import PoolLimits, Rollouts
from fleetctl.controller.signals.prometheus_signals import PrometheusSignals
from fleetctl.controller.signals.rules_in_force import RulesInForce
from fleetctl.controller.signals.scrape import Scraper, Signals
from fleetctl.kit.errors import BadInputError
from fleetctl.kit.fetch import Fetcher
from fleetctl.kit.tls import client_tls
from fleetctl.priority_class import PriorityClass
from fleetctl.providers.hosts.options import hosts_options
from fleetctl.providers.hosts.provider import HOSTS, HostsProvider
from fleetctl.providers.kubernetes.options import KubernetesOptions
from fleetctl.providers.local_gateway import LocalGateway
from fleetctl.providers.provider import NodeProvider
from fleetctl.providers.providers import KUBERNETES, Providers
from fleetctl.settings.controller import ControllerSettings
from fleetctl.settings.hosts import HostsSettings
from fleetctl.settings.kubernetes import KubernetesSettings
from fleetctl.settings.tree import Settings
from runbooks.breaker import BreakerLimits
from runbooks.budget import ActionBudget
from runbooks.context import Limits
from runbooks.executor import Executor
from runbooks.journal import Journal
from runbooks.run import Run

if TYPE_CHECKING:
    from fleetctl.providers.kubernetes.provider import KubernetesProvider

IMPACT_LEAD_S = 300.0  # of the series, before an incident began: what was usual


async def open_changes(records: Records) -> Changes:
    """What changed lately: as the timeline has it, and from now on."""
    changes = Changes()
    for entry in await records.timeline.read_newest():
        changes.hear(entry.kind, entry.at, entry.node, entry.data)
    records.timeline.listen(changes.hear)
    return changes


def may_speak(records: Records) -> Callable[[], bool]:
    """Whether alerts may be sent: not by one that was stopped and is about to learn that another one leads."""
    return lambda: records.lease.is_valid or bool(records.database.storage_error)


def incident_source(
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

    async def by_hand(incident: Incident, runs: tuple[Run, ...]) -> str:
        return no_remedy(incident, content.current, runs, await records.timeline.read_all(incident.id))

    return IncidentSource(
        recent=book.recent,
        stored=stored,
        runs_of=runs_of,
        places_of=lambda node: places_of(fleet.nodes[node]) if node in fleet.nodes else {},
        impact=impact,
        by_hand=by_hand,
    )


async def open_node_client(config: ControllerConfig, records: Records, stack: AsyncExitStack) -> NodeClient:
    probes = Fetcher(timeout_s=PROBE_TIMEOUT_S, max_bytes=MAX_ANSWER_BYTES, stalls=records.stalls)
    stack.push_async_callback(probes.close)
    http = await stack.enter_async_context(httpx.AsyncClient(trust_env=False, verify=client_tls()))
    return NodeClient(http, probes, config.node_token, records.lease.require, config.settings.fleet.key_ring())


def heartbeat_loops(
    settings: ControllerSettings, http: httpx.AsyncClient, vitals: Vitals, records: Records
) -> Iterator[Loop]:
    """None where nobody is to be told."""
    if settings.heartbeat_url is not None:
        heartbeat = Heartbeat(settings.heartbeat_url, http, vitals, records)
        yield Loop("heartbeat", settings.heartbeat_interval_s, heartbeat.send)


def open_gateways(config: ControllerConfig, client: NodeClient, records: Records) -> Gateways:
    """The local one is looked after where it was started by `fleetctl up`, as the nodes are."""
    settings = config.settings
    is_ours = config.gateway_url is not None and settings.controller.restart_gateway
    process = LocalGateway(settings.run_dir, records.lease.require) if is_ours else None
    return Gateways(records, client, config.gateway_urls, process)


def priority_classes(settings: Settings) -> frozenset[str] | None:
    """Without a tenants file everybody is standard; what gateways of other machines were given is not known here."""
    if settings.gateway.tenants_file is not None or settings.controller.gateways:
        return None
    return frozenset({PriorityClass.STANDARD.value})


def open_signals(
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


def open_hosts(settings: HostsSettings | None) -> dict[str, HostsProvider]:
    """By its name; empty without the setting."""
    if settings is None:
        return {}
    return {HOSTS: HostsProvider(hosts_options(settings.model_dump()))}


def open_kubernetes(settings: KubernetesSettings | None, stack: AsyncExitStack) -> dict[str, KubernetesProvider]:
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


async def open_deep_checks(
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


def make_rollouts(
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


def make_effects(
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


def open_executor(
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
        limits=Limits(
            capacity_floor_ratio=config.settings.controller.capacity_floor_ratio,
            budget=ActionBudget(**config.settings.actions.per_hour.model_dump()),
            breaker=BreakerLimits(**config.settings.actions.breaker.model_dump()),
        ),
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
