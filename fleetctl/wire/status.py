"""How the controller is, and whom it reaches."""

from __future__ import annotations

from pydantic import Field

from fleetctl.traffic_rule import KnownRules
from fleetctl.wire.alertmanager import AlertmanagerState, WebhookState
from fleetctl.wire.base import Wire
from fleetctl.wire.content import ContentState
from fleetctl.wire.discovery import DiscoveryState
from fleetctl.wire.freeze import Freeze
from fleetctl.wire.silence import SilencesState


class LeadershipState(Wire):
    """Who leads, of the controllers on one database. A SQLite file has one, and `shared` is false."""

    shared: bool = False
    url: str = ""  # of the one that answers: a standby answers nothing of its own
    is_certain: bool = True  # False: it does not know whether it still leads, and acts on nothing
    since: float | None = None
    takeover: str = ""  # how it came to lead
    standbys: list[str] = Field(default_factory=list)  # addresses of those that are there
    missing: list[str] = Field(default_factory=list)  # addresses that the settings name, and that are not there


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
