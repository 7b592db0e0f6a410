"""Everything the controller is told from outside, checked when built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from fleetctl.alertmanager_settings import AlertmanagerPeer, WebhookSettings
from fleetctl.kit.errors import BadInputError
from fleetctl.providers.spec import NodeSpec
from fleetctl.signal_settings import PrometheusSettings

PolicyName = Literal["propose", "ask", "run"]
"""propose and ask: a proposed run waits for a person. run: causes in `policy_causes` are acted on at once."""


@dataclass(frozen=True, slots=True)
class ControllerConfig:
    """One controller's settings. Raises BadInputError when a value can't work."""

    state_dir: Path
    token: str = field(repr=False)  # for every change asked over HTTP
    node_token: str = field(repr=False)  # for the nodes' admin routes
    database_url: str = ""  # empty: SQLite under state_dir
    host: str = "127.0.0.1"
    port: int = 7700
    gateway_url: str | None = None
    node_specs: tuple[NodeSpec, ...] = ()  # the fleet to start when the state holds no node yet
    scrape_interval_s: float = 1.0
    evaluation_interval_s: float = 1.0
    probe_interval_s: float = 1.0
    stale_after_s: float = 10.0  # an older value is no evidence
    policy: PolicyName = "ask"
    policy_causes: frozenset[str] = frozenset()  # with policy "run": causes acted on unasked; empty means every cause
    capacity_floor_ratio: float = 0.6
    postmortem_dir: Path | None = None  # default: <state_dir>/incidents
    max_scrape_bytes: int = 8 * 1024 * 1024
    gateway_wait_s: float = 5.0  # how long an effect waits for the gateway to follow a new routing table
    drain_grace_s: float = 60.0  # beyond the deadline: requests that can't be moved are left to finish
    diagnose_every_s: float = 3.0
    diagnose_for_s: float = 60.0
    resolve_quiet_s: float = 5.0  # alerts must be clear this long before an incident is over
    withdraw_after_s: float = 60.0  # alerts clear for this long: an unanswered proposal is withdrawn
    blackbox_lead_s: float = 600.0  # series kept from before an incident opened
    alertmanagers: tuple[AlertmanagerPeer, ...] = ()  # our alerts go to all of them; silences are theirs
    external_labels: Mapping[str, str] = field(default_factory=dict)  # added to alerts that go out
    public_url: str = ""  # of this controller, in alerts that go out; default: where it listens
    webhook: WebhookSettings = field(default_factory=WebhookSettings)
    silences_interval_s: float = 10.0
    resend_s: float = 60.0  # between two sendings of an alert that fires
    max_history_mb: int = 1024  # of series' older points; beyond it the oldest go early
    prometheus: PrometheusSettings | None = None  # signals come from there; default: we scrape the nodes

    def __post_init__(self) -> None:
        if not self.token or not self.node_token:
            raise BadInputError(
                "the controller has no token for changes or for its nodes",
                remedy="run fleetctl up once: it makes both",
            )
        for name in ("scrape_interval_s", "evaluation_interval_s", "probe_interval_s", "stale_after_s"):
            if getattr(self, name) <= 0:
                raise BadInputError(f"controller.{name}: must be more than 0 seconds, not {getattr(self, name)}")
        if not 0 < self.capacity_floor_ratio <= 1:
            raise BadInputError(
                f"controller.capacity_floor_ratio: must be above 0 and at most 1, not {self.capacity_floor_ratio}"
            )
        if self.policy not in ("propose", "ask", "run"):
            raise BadInputError(f"controller.policy: must be propose, ask or run, not {self.policy!r}")
        urls = [peer.url for peer in self.alertmanagers]
        if len(urls) != len(set(urls)):
            raise BadInputError(f"alertmanagers: one is named twice in {', '.join(urls)}")
        names = [spec.name for spec in self.node_specs]
        if len(names) != len(set(names)):
            raise BadInputError(f"fleet: a node name is used twice in {', '.join(names)}")

    @property
    def effective_stale_after_s(self) -> float:
        """A Prometheus that scrapes every 15 s is not stale after 10."""
        if self.prometheus is None:
            return self.stale_after_s
        return max(self.stale_after_s, 2 * self.prometheus.scrape_interval_s + self.prometheus.interval_s)

    @property
    def effective_public_url(self) -> str:
        return (self.public_url or f"http://{self.host}:{self.port}").rstrip("/")

    @property
    def effective_database_url(self) -> str:
        return self.database_url or f"sqlite:///{self.state_dir / 'controller.sqlite'}"

    @property
    def incidents_dir(self) -> Path:
        return self.postmortem_dir or self.state_dir / "incidents"
