"""Settings of the controller: where it listens, how often it looks, and the limits on what it may do unasked."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, SecretStr, field_validator

from fleetctl.kit.http_url import is_http_url
from fleetctl.settings.section import Section


def _known_policy(value: object) -> object:
    if value == "propose":
        raise ValueError("'propose' is gone: it meant the same as 'ask'; write ask")
    return value


PolicyName = Annotated[Literal["ask", "run"], BeforeValidator(_known_policy)]
"""ask: a proposed run waits for a person. run: causes in `policy_causes` are acted on at once."""


HOST_NAME = r"^[A-Za-z0-9_]([A-Za-z0-9._-]{0,251}[A-Za-z0-9_])?$"
"""A host's name without its port."""


STEP_NAME = r"^[a-z][a-z0-9-]{0,62}$"
"""A program's name in a runbook step."""


class LogSettings(Section):
    """Logs of every process, on stderr."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least severe level that is written."
    )
    format: Literal["auto", "pretty", "json"] = Field(
        default="auto", description="auto: pretty on a terminal, JSON elsewhere."
    )
    max_mb: int = Field(
        default=50,
        ge=1,
        le=1 << 20,
        description="Size of a process's log file on this machine in MiB; then it becomes `log.1`, and is begun anew.",
    )


class RateLimitSettings(Section):
    """How often one caller may ask the controller: each token, and each address that sends none. Beyond it: 429."""

    reads_per_s: float = Field(
        default=200.0, ge=1, le=1_000_000, description="Reads; up to ten seconds' worth may come at once."
    )
    changes_per_s: float = Field(
        default=20.0, ge=0.1, le=1_000_000, description="Requests that change something; ten seconds' worth at once."
    )


class ControllerSettings(Section):
    """The controller process, its loops and its policy."""

    host: str = Field(default="127.0.0.1", description="Address that it listens on.")
    port: int = Field(default=7700, ge=0, le=65535, description="Port that it listens on; 0 picks a free one.")
    url: str | None = Field(
        default=None,
        description="Where clients, and readers of its alerts, find the controller.",
        json_schema_extra={"default": "http://<host>:<port>"},
    )
    allowed_hosts: frozenset[Annotated[str, Field(pattern=HOST_NAME)]] = Field(
        default=frozenset(),
        max_length=100,
        description="Host names, beside localhost, its own and any IP address, under which this machine may read it"
        " without the token.",
    )
    max_connections: int = Field(
        default=1000,
        ge=10,
        le=100_000,
        description="Open connections of its HTTP API; beyond them clients that have sent no whole request go first.",
    )
    rate_limits: RateLimitSettings = Field(default=RateLimitSettings())
    gateways: tuple[Annotated[str, Field(pattern=r"^https?://[^/]+/?$")], ...] = Field(
        default=(),
        max_length=100,
        description="Further gateways, beside the one that `fleetctl up` starts: they are watched, and waited for after"
        " a change of the routing table.",
    )
    restart_gateway: bool = Field(
        default=True, description="Whether the gateway of this machine is started again when it ends by itself."
    )
    token: SecretStr | None = Field(
        default=None,
        description="Asked for with every change.",
        json_schema_extra={"default": "<state_dir>/controller.token, made by `fleetctl up`"},
    )
    database_url: str | None = Field(
        default=None,
        description="Where its state is; `postgresql+psycopg://...` for one that several machines reach.",
        json_schema_extra={"default": "SQLite at <state_dir>/controller.sqlite"},
    )
    lease_s: float = Field(
        default=6.0,
        ge=1,
        le=300,
        description="Of controllers on one PostgreSQL database: a leader that gives no sign for so long is replaced.",
    )
    peers: tuple[Annotated[str, Field(pattern=r"^https?://[^/]+/?$")], ...] = Field(
        default=(),
        max_length=16,
        description="The other controllers on the same database, or all of them: clients and gateways ask them when"
        " this one does not lead, and one that is missing is told of.",
    )
    heartbeat_url: SecretStr | None = Field(
        default=None,
        description="Asked (GET) again and again while the controller leads and its rules are in time: of a service"
        " that calls somebody when it is not asked. The URL is a secret.",
    )
    heartbeat_interval_s: float = Field(default=30.0, ge=1, le=120, description="Between two words to it.")
    probe_interval_s: float = Field(default=1.0, gt=0, le=300, description="Between two looks at every node.")
    scrape_interval_s: float = Field(default=1.0, gt=0, le=300, description="Between two scrapes of a node.")
    evaluation_interval_s: float = Field(
        default=1.0, gt=0, le=300, description="Between two evaluations of the rules, and two turns of what follows."
    )
    deep_check_interval_s: float = Field(
        default=60.0,
        ge=1,
        le=86400,
        description="Between two deep checks of a node: whether it answers a known prompt right.",
    )
    max_deep_checks: int = Field(default=8, ge=1, le=1000, description="Deep checks under way in the whole fleet.")
    stale_after_s: float = Field(default=10.0, gt=0, le=3600, description="A value older than this is no evidence.")
    policy: PolicyName = Field(
        default="ask",
        description="What happens with a proposed runbook: ask waits for a person, run starts it where guards allow.",
    )
    policy_causes: frozenset[str] = Field(
        default=frozenset(),
        max_length=200,
        description="With policy run: causes that are acted on unasked; empty means every cause.",
    )
    capacity_floor_ratio: float = Field(
        default=0.6,
        gt=0,
        le=1,
        description="No action may leave a smaller share serving of the nodes of a pool, a model or the fleet: of those"
        " wanted now, or within the last hour if that was more.",
    )

    @field_validator("heartbeat_url")
    @classmethod
    def _is_url(cls, url: SecretStr | None) -> SecretStr | None:
        if url is not None and not is_http_url(url.get_secret_value()):
            raise ValueError("not a URL like https://host/path")  # and is not repeated: it is a secret
        return url

    @property
    def base_url(self) -> str:
        """Where clients find it."""
        return self.url or f"http://{self.host}:{self.port}"

    @property
    def other_controllers(self) -> tuple[str, ...]:
        """`peers` without this one: controllers that share a file of settings are all in it."""
        own = self.base_url.rstrip("/")
        return tuple(url for one in self.peers if (url := one.rstrip("/")) != own)


class ActionBudgetSettings(Section):
    """How many nodes may be taken out of service in an hour, for a while or for good, by all runs together."""

    per_node: int = Field(default=8, ge=1, le=1_000_000, description="How often one node.")
    per_pool: int = Field(
        default=24, ge=1, le=1_000_000, description="How many of a pool; half of its wanted nodes, if that is more."
    )
    per_zone: int = Field(
        default=32, ge=1, le=1_000_000, description="How many of a zone; half of its wanted nodes, if that is more."
    )
    per_fleet: int = Field(
        default=64, ge=1, le=1_000_000, description="How many of the fleet; half of its wanted nodes, if that is more."
    )
    automation_ratio: float = Field(
        default=0.5, gt=0, le=1, description="The part of each that automation may bring the count to."
    )


class BreakerSettings(Section):
    """When automation stops by itself, because what it does does not help."""

    max_useless: int = Field(
        default=3, ge=1, le=1000, description="After so many of its runs in a row that were undone or failed."
    )
    rest_s: float = Field(
        default=900.0, ge=1, le=86_400, description="Then it rests so long, and tries one; twice as long after each."
    )
    max_rest_s: float = Field(default=14_400.0, ge=1, le=86_400, description="The longest rest.")


class ActionSettings(Section):
    """Limits of what is done to nodes."""

    per_hour: ActionBudgetSettings = Field(default=ActionBudgetSettings())
    breaker: BreakerSettings = Field(default=BreakerSettings())

    programs: dict[Annotated[str, Field(pattern=STEP_NAME)], Path] = Field(
        default_factory=dict,
        max_length=100,
        description="What `exec` may call: name to the absolute path of an executable.",
    )
    gateway_wait_s: float = Field(
        default=5.0, ge=0, le=300, description="How long an action waits for the gateway to follow a new routing table."
    )
    drain_grace_s: float = Field(
        default=60.0,
        ge=0,
        le=3600,
        description="Beyond a drain's deadline: requests that can't be moved are left to finish.",
    )
    forget_stopped_after_s: float = Field(
        default=86400.0, ge=60, le=366 * 86400, description="How long a stopped node stays in lists, with its log."
    )
    surge: int = Field(
        default=1, ge=1, le=64, description="Nodes of a pool beyond its wanted size while they are exchanged."
    )
    max_unavailable: int = Field(
        default=0,
        ge=0,
        le=64,
        description="Nodes of a pool that may be missing from its wanted size while they are exchanged.",
    )
    start_backoff_s: float = Field(
        default=10.0,
        gt=0,
        le=3600,
        description="A node that ended before it was ready is started again after so long; twice as long each time.",
    )
    start_backoff_max_s: float = Field(
        default=300.0, gt=0, le=86400, description="The longest that a start which failed again and again waits."
    )
    silent_after_s: float = Field(
        default=10.0,
        gt=0,
        le=300,
        description="A node that gave no answer for so long is not waited for: drain goes on, and stop stops it.",
    )

    @field_validator("programs")
    @classmethod
    def _are_absolute(cls, files: dict[str, Path]) -> dict[str, Path]:
        for name, path in files.items():
            if not path.is_absolute():
                raise ValueError(f"{name}: {path} is not an absolute path")
        return files


class AuditSettings(Section):
    """How much of the audit the database keeps; what goes is exported first."""

    keep_for_s: float = Field(
        default=400 * 86_400.0, gt=0, le=3650 * 86_400, description="Older rows are exported, then removed."
    )
    max_rows: int = Field(
        default=200_000,
        ge=100,
        le=100_000_000,
        description="Beyond so many rows the oldest are exported, then removed.",
    )
    dir: Path | None = Field(
        default=None,
        description="Where exported rows go; nothing there is ever removed.",
        json_schema_extra={"default": "<state_dir>/audit"},
    )


class IncidentSettings(Section):
    """An incident's course: how long it is diagnosed, when it is over, what is kept of it."""

    dir: Path | None = Field(
        default=None,
        description="Where post-mortems and black boxes are written.",
        json_schema_extra={"default": "<state_dir>/incidents"},
    )
    diagnose_every_s: float = Field(default=3.0, gt=0, le=300, description="Between two walks of an incident's tree.")
    diagnose_for_s: float = Field(
        default=60.0, ge=0, le=3600, description="So long it is asked this often, until a cause is confirmed."
    )
    rediagnose_every_s: float = Field(
        default=30.0, gt=0, le=3600, description="After that, between two walks for as long as the incident is open."
    )
    resolve_quiet_s: float = Field(
        default=5.0, ge=0, le=3600, description="Its alerts must be clear for this long before it is over."
    )
    withdraw_after_s: float = Field(
        default=60.0, ge=0, le=3600, description="Alerts clear for this long: an unanswered proposal is withdrawn."
    )
    blackbox_lead_s: float = Field(
        default=3600.0, ge=0, le=86_400, description="Series kept in its black box from before it began."
    )
    blackbox_series: Literal["read", "all"] = Field(
        default="read", description="Which series it keeps: those that rules and trees read, or all that were scraped."
    )
    blackbox_full_s: float = Field(
        default=300.0, ge=0, le=86_400, description="It keeps every point from so long before the onset to after it."
    )
    blackbox_step_s: float = Field(
        default=15.0, ge=0, le=300, description="Of other times it keeps one point each; 0 keeps all."
    )
    keep_for_s: float = Field(
        default=90 * 86_400.0,
        gt=0,
        le=3650 * 86_400,
        description="Resolved incidents with their files, events and ended runs are removed when they are older.",
    )
    keep_failures_for_s: float = Field(
        default=365 * 86_400.0,
        gt=0,
        le=3650 * 86_400,
        description="The record of failures goes so far back (`fleetctl get failures`).",
    )
    keep_mb: int = Field(
        default=2048,
        ge=10,
        le=1 << 20,
        description="Size of all incidents' files in MiB; beyond it the oldest resolved ones lose their black box.",
    )
    max_incidents: int = Field(
        default=10_000,
        ge=10,
        le=1_000_000,
        description="Resolved incidents kept; the oldest beyond them, as those that are too old, are written to"
        " `<state_dir>/exported` before they are removed.",
    )
    max_runs: int = Field(
        default=20_000, ge=100, le=1_000_000, description="Ended runs kept, dry runs among them; the oldest go first."
    )
    max_events: int = Field(
        default=500_000, ge=1000, le=100_000_000, description="Timeline entries kept, beside those of open incidents."
    )
