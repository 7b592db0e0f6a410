"""Whom the controller scrapes: nodes and gateways. Who does not answer is a fact too: `up` is 0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from alerts.evaluation.rules import RuleGroup
from alerts.series.store import SeriesStore
from fleetctl.controller.nodes.fleet import NodeState
from fleetctl.controller.nodes.gateways import GATEWAY_JOB, address_of
from fleetctl.controller.records import Records
from fleetctl.controller.signals.scrape_slots import ScrapeTarget, SlotScraper
from fleetctl.engines.table import engine_kind
from fleetctl.kit.fetch import Fetcher
from fleetctl.providers.found import METRICS_URL
from fleetctl.settings.tree import Settings
from fleetctl.wire.node import NodePhase

JOB = "llm-node"
_GATEWAY = "(gateway)"  # no node can have this name
MIN_TIMEOUT_S = 2.0
START_GRACE_S = 600.0  # a node that is still starting after this long is scraped, so that rules see it is not up


class Signals(Protocol):
    """Who fills the store that rules, trees and runbooks read. What it can't get is not there: no value is made up."""

    @property
    def last_success_at(self) -> Mapping[str, float]:
        """Node name to when its signals were last measured (Unix seconds)."""

    @property
    def problems(self) -> Mapping[str, str]:
        """Node name to why it could not be measured at the last attempt; without those where it could."""

    async def collect(self) -> None:
        """Fill the store with what is new."""

    def read_for(self, groups: Sequence[RuleGroup]) -> None:
        """From now on these rules read the store: what they need is collected."""

    def known_until(self, now: float) -> float | None:
        """Up to when all there is to know is in the store; None: too long ago to judge anything by it."""


class ScrapedFleet(Protocol):
    """Whose nodes are scraped."""

    nodes: dict[str, NodeState]
    """By name."""


class Scraper:
    """The fleet's nodes and the gateways as targets."""

    def __init__(
        self, fleet: ScrapedFleet, store: SeriesStore, records: Records, settings: Settings, gateway_urls: Sequence[str]
    ) -> None:
        """With a Prometheus in the settings the nodes' signals come from there, and only the gateways are scraped."""
        self._scrapes_nodes = settings.signals.prometheus is None
        self._fleet = fleet
        self._clock = records.clock
        self._metrics = records.metrics
        self._gateway_urls = gateway_urls
        interval_s = settings.controller.scrape_interval_s
        fetcher = Fetcher(
            timeout_s=max(MIN_TIMEOUT_S, interval_s), max_bytes=settings.signals.max_scrape_bytes, stalls=records.stalls
        )
        self._stalls = records.stalls
        self._stalled_before_s = 0.0  # long stalls until the last round that none interrupted
        self._known_until: float | None = None
        self._slots = SlotScraper(
            store,
            fetcher,
            records.clock,
            interval_s=interval_s,
            stale_after_s=settings.stale_after_s,
            told=self._count,
            keys=settings.fleet.key_ring(),
        )

    async def collect(self) -> None:
        """One scrape of every target."""
        now, stalled_s = self._clock.now(), self._stalls.long_s
        states = [state for state in self._fleet.nodes.values() if self._scrapes_nodes and is_target(state, now)]
        wanted = {
            state.name: ScrapeTarget(_metrics_of(state), target_labels(state), _key_of(state)) for state in states
        }
        for url in self._gateway_urls:
            labels = {"job": GATEWAY_JOB, "instance": address_of(url)}
            wanted[f"{_GATEWAY} {url}"] = ScrapeTarget(f"{url.rstrip('/')}/metrics", labels)
        await self._slots.scrape_round(wanted)
        if self._stalls.long_s == stalled_s:
            self._stalled_before_s = stalled_s

    @property
    def in_flight(self) -> int:
        """Scrapes that were begun and have no answer yet."""
        return self._slots.in_flight

    @property
    def last_success_at(self) -> dict[str, float]:
        """Node name to the time of its last scrape that went well."""
        return self._slots.last_success_at

    @property
    def problems(self) -> Mapping[str, str]:
        """Node name to why its last scrape failed."""
        return self._slots.problems

    def read_for(self, groups: Sequence[RuleGroup]) -> None:
        """A scrape takes all that a target tells: nothing changes."""

    def known_until(self, now: float) -> float | None:
        """Now: a node that does not answer is a fact of its own (`up` 0).

        After a long stall of our own: the time before it, until a whole round has asked everybody since.
        """
        if self._stalls.long_s == self._stalled_before_s or self._known_until is None:
            self._known_until = now
        return self._known_until

    def forget(self, name: str) -> None:
        """The node is gone by our will: its series end now, and its alerts with them."""
        self._slots.forget(name)

    async def stop(self) -> None:
        """End what is in flight."""
        await self._slots.stop()

    def _count(self, went_well: bool) -> None:
        self._metrics.scrapes.labels(result="ok" if went_well else "failed").inc()


def _metrics_of(state: NodeState) -> str | None:
    spec, url = state.row.spec, state.url or state.row.url
    path = engine_kind(spec.engine).metrics_path
    return spec.facts.get(METRICS_URL) or (None if url is None or not path else f"{url}{path}")


def _key_of(state: NodeState) -> str:
    """Name of its key; none for an exporter at another address, which is not the node."""
    spec, url = state.row.spec, state.url or state.row.url or ""
    elsewhere = spec.facts.get(METRICS_URL)
    return spec.api_key if not elsewhere or elsewhere.startswith(f"{url}/") else ""


def is_target(state: NodeState, now: float) -> bool:
    """Whether the node's silence would mean something: it is wanted, and not on its way up by our will."""
    row = state.row
    if not row.wanted or row.is_restarting or _metrics_of(state) is None:
        return False
    starting = state.phase is NodePhase.STARTING
    return not starting or (state.since is not None and now - state.since > START_GRACE_S)


def target_labels(state: NodeState) -> dict[str, str]:
    """The labels that every series of the node gets."""
    spec = state.row.spec
    address = address_of(state.url or state.row.url or "")
    return {
        "node": spec.name,
        "pool": spec.pool,
        "model": spec.model,
        "engine": spec.engine,
        "zone": spec.zone,
        "revision": spec.revision,
        "instance": address,
        "job": JOB,
    }
