"""The controller's parts put together: what knows what, and in which order they start."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import structlog

from alerts.evaluation.engine import RuleEngine
from alerts.evaluation.rules import RuleGroup, lookback_s_by_metric
from alerts.evaluation.target_liveness import CLEAR_AFTER_S
from alerts.series.store import SeriesStore
from fleetctl.controller.alertmanager_link import AlertmanagerLink
from fleetctl.controller.config import ControllerConfig
from fleetctl.controller.content.content import Content
from fleetctl.controller.content.load import load_content
from fleetctl.controller.content.store import POLL_S, ContentStore
from fleetctl.controller.database import Database
from fleetctl.controller.incidents.alerting import Alerting
from fleetctl.controller.incidents.closing import Closing
from fleetctl.controller.incidents.diagnosing import Diagnosing
from fleetctl.controller.incidents.incident_book import IncidentBook
from fleetctl.controller.incidents.remediation import Remediation
from fleetctl.controller.loops import Loops
from fleetctl.controller.metrics import ControllerMetrics
from fleetctl.controller.nodes.effects import FleetEffects
from fleetctl.controller.nodes.fleet import Fleet
from fleetctl.controller.nodes.gateway_watch import GatewayWatch
from fleetctl.controller.nodes.lookup import FleetLookup
from fleetctl.controller.nodes.node_client import NodeClient
from fleetctl.controller.nodes.routing import Routing
from fleetctl.controller.signals.prometheus_signals import PrometheusSignals, rules_for, window_s
from fleetctl.controller.signals.scrape import Scraper, Signals
from fleetctl.controller.state_lock import hold_state_lock
from fleetctl.controller.timeline import Timeline
from fleetctl.kit.clock import Clock, SystemClock
from fleetctl.kit.errors import BadInputError
from fleetctl.providers.provider import NodeProvider
from fleetctl.settings.signals import PrometheusSettings
from fleetctl.wire import NodePhase
from runbooks.errors import RunbookError
from runbooks.executor import Executor
from runbooks.journal import Journal
from runbooks.run import Run

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Controller:
    config: ControllerConfig
    clock: Clock
    database: Database
    timeline: Timeline
    routing: Routing
    provider: NodeProvider
    fleet: Fleet
    store: SeriesStore
    scraper: Scraper
    signals: Signals
    book: IncidentBook
    alerting: Alerting
    diagnosing: Diagnosing
    content: ContentStore
    journal: Journal
    executor: Executor
    effects: FleetEffects
    lookup: FleetLookup
    loops: Loops
    metrics: ControllerMetrics
    alertmanager: AlertmanagerLink
    started_at: float

    def exposition(self) -> bytes:
        """The controller's metrics, gauges brought up to date."""
        for phase in NodePhase:
            count = sum(state.phase is phase for state in self.fleet.nodes.values())
            self.metrics.nodes.labels(phase=phase.value).set(count)
        states = [str(alert.state) for alert in self.alerting.alerts()]
        for state in ("pending", "firing", "unknown"):
            self.metrics.alerts.labels(state=state).set(states.count(state))
        self.metrics.open_incidents.set(len(self.book.open()))
        self.metrics.silences_known.set(self.alertmanager.silences.state().known)
        return self.metrics.exposition()


@asynccontextmanager
async def open_controller(
    config: ControllerConfig, provider: NodeProvider, clock: Clock | None = None
) -> AsyncIterator[Controller]:
    """A controller with its state open and its past taken up; nothing runs yet.

    Raises BadInputError when the state can't be used, or a rule, tree or page is wrong.
    """
    clock = clock or SystemClock()
    settings = config.settings
    prometheus = settings.signals.prometheus
    content = load_content(settings.content)
    groups = _rules(content, prometheus)
    store = SeriesStore(retention_s=_retention_s(groups), max_bytes=settings.signals.max_history_mb << 20)
    clear_after_s = CLEAR_AFTER_S if prometheus is None else max(CLEAR_AFTER_S, window_s(prometheus))
    engine = RuleEngine(groups, store, clear_after_s=clear_after_s)
    async with AsyncExitStack() as stack:
        stack.enter_context(hold_state_lock(settings.state_dir))
        database = Database(settings.database_url)
        stack.callback(database.close)
        try:
            journal = Journal(database.engine)
        except RunbookError as error:
            raise BadInputError(error.message, remedy=error.remedy) from error
        database.claim(journal.claim_epoch())
        http = await stack.enter_async_context(httpx.AsyncClient(trust_env=False))
        client = NodeClient(http, config.node_token)
        metrics = ControllerMetrics()
        timeline = Timeline(database, clock)
        contents = ContentStore(settings.content, content, timeline, metrics, clock)
        routing = Routing(database, clock)
        book = IncidentBook(database, clock)
        fleet = Fleet(database, provider, client, routing, timeline, clock, book.of_node)
        scraper = Scraper(
            fleet,
            store,
            clock,
            metrics,
            interval_s=settings.controller.scrape_interval_s,
            max_bytes=settings.signals.max_scrape_bytes,
            gateway_url=config.gateway_url,
            scrapes_nodes=prometheus is None,
        )
        stack.push_async_callback(scraper.stop)
        signals: Signals = scraper
        if prometheus is not None:
            read = PrometheusSignals(prometheus, groups, store, clock, metrics, scraper)
            stack.push_async_callback(read.stop)
            signals = read
        effects = FleetEffects(
            database=database,
            fleet=fleet,
            provider=provider,
            client=client,
            routing=routing,
            gateway=GatewayWatch(client, config.gateway_url, clock, settings.actions.gateway_wait_s),
            clock=clock,
            forget_signals=scraper.forget,
            default_spec=config.node_specs[0] if config.node_specs else None,
            drain_grace_s=settings.actions.drain_grace_s,
        )
        lookup = FleetLookup(database, fleet, store, clock, stale_after_s=settings.stale_after_s)
        executor = Executor(
            journal,
            contents.pages,
            effects,
            lookup,
            clock=clock,
            on_event=_RunEvents(timeline, metrics),
            capacity_floor_ratio=settings.controller.capacity_floor_ratio,
        )
        stack.callback(executor.close)
        link = AlertmanagerLink(config, engine.alerts, database, fleet, timeline, clock, metrics)
        stack.push_async_callback(link.stop)
        automation = link.automation
        alerting = Alerting(
            engine,
            database,
            fleet,
            book,
            timeline,
            clock,
            metrics,
            link.external,
            automation.may_open,
            signals.known_until,
        )
        diagnosing = Diagnosing(
            lambda: contents.current,
            store,
            book,
            timeline,
            clock,
            every_s=settings.incidents.diagnose_every_s,
            for_s=settings.incidents.diagnose_for_s,
            may_diagnose=automation.may_diagnose,
        )
        remediation = Remediation(
            executor,
            journal,
            lambda: contents.current,
            lookup,
            database,
            book,
            timeline,
            clock,
            policy=settings.controller.policy,
            policy_causes=settings.controller.policy_causes,
            may_propose=automation.may_propose,
            may_run_unasked=automation.may_run_unasked,
        )
        closing = Closing(
            database,
            book,
            journal,
            executor,
            store,
            timeline,
            clock,
            folder=settings.incidents_dir,
            quiet_s=settings.incidents.resolve_quiet_s,
            withdraw_after_s=settings.incidents.withdraw_after_s,
            blackbox_lead_s=settings.incidents.blackbox_lead_s,
        )

        def exchange_rules(new: Content) -> None:
            groups = _rules(new, prometheus)
            store.keep_at_least(_retention_s(groups))
            engine.replace_groups(groups, clock.now())
            if isinstance(signals, PrometheusSignals):
                signals.read_for(groups)

        contents.when_loaded(exchange_rules)
        loops = Loops(clock)
        loops.add("content", POLL_S, contents.turn)
        loops.add("fleet", settings.controller.probe_interval_s, fleet.turn)
        loops.add("scrape", settings.controller.scrape_interval_s, signals.turn)
        loops.add("alerts", settings.controller.evaluation_interval_s, alerting.turn)
        loops.add("diagnosis", settings.controller.evaluation_interval_s, diagnosing.turn)
        loops.add("remediation", settings.controller.evaluation_interval_s, remediation.turn)
        loops.add("closing", settings.controller.evaluation_interval_s, closing.turn)
        metrics.watch_loops(loops, clock)
        await timeline.load()
        await routing.load()
        await book.load()
        await alerting.restore()
        await link.start(alerting, loops)
        await fleet.seed(config.node_specs)
        await timeline.append("controller.started", f"controller started, epoch {database.epoch}")
        yield Controller(
            config=config,
            clock=clock,
            database=database,
            timeline=timeline,
            routing=routing,
            provider=provider,
            fleet=fleet,
            store=store,
            scraper=scraper,
            signals=signals,
            book=book,
            alerting=alerting,
            diagnosing=diagnosing,
            content=contents,
            journal=journal,
            executor=executor,
            effects=effects,
            lookup=lookup,
            loops=loops,
            metrics=metrics,
            alertmanager=link,
            started_at=clock.now(),
        )


def _rules(content: Content, prometheus: PrometheusSettings | None) -> list[RuleGroup]:
    return list(content.groups) if prometheus is None else rules_for(prometheus, content)


def _retention_s(groups: Sequence[RuleGroup]) -> float:
    """An hour for people, trees and black boxes; longer when a rule reads what we do not record further back."""
    recorded = {rule.name for group in groups for rule in group.rules if rule.kind == "record"}
    reaches = [reach_s for name, reach_s in lookback_s_by_metric(groups).items() if name not in recorded]
    return max(3600.0, *(reach_s + 300.0 for reach_s in reaches))


class _RunEvents:
    """Puts what the executor tells on the timeline, and counts the runs that end."""

    def __init__(self, timeline: Timeline, metrics: ControllerMetrics) -> None:
        self._timeline = timeline
        self._metrics = metrics

    def __call__(self, kind: str, text: str, run: Run, data: dict[str, Any]) -> None:
        if kind == f"run.{run.status.value}" and run.status.is_terminal:
            self._metrics.runs.labels(status=run.status.value).inc()
        self._timeline.append_soon(
            kind,
            text,
            incident_id=run.incident_id,
            run_id=run.id,
            node=run.node,
            data=data,
        )
