"""Settings of both directions of Alertmanager: where our alerts go, and what its webhook may send us."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field, field_validator, model_validator

from fleetctl.settings.remote import Credentials, RemoteServer
from fleetctl.settings.section import Section


class AlertmanagerPeer(RemoteServer):
    """One Alertmanager. In the file a plain URL stands for one without authentication."""

    example: ClassVar[str] = "http://alertmanager:9093"
    api_path: ClassVar[str] = "/api/v2"
    section: ClassVar[str] = "alertmanagers"

    timeout_s: float = Field(default=10.0, gt=0, le=60, description="Time-out of each request.")

    @model_validator(mode="before")
    @classmethod
    def _from_url(cls, value: Any) -> Any:
        return {"url": value} if isinstance(value, str) else value


class DeliverySettings(Section):
    """How our alerts go to the Alertmanagers, and how often their silences are read."""

    resend_s: float = Field(default=60.0, gt=0, le=3600, description="Between two sendings of an alert that fires.")
    silences_interval_s: float = Field(default=10.0, gt=0, le=3600, description="Between two reads of the silences.")
    alive_alert: bool = Field(
        default=False,
        description="Whether LLMControllerAlive is sent, which always fires: route it to what calls when it ends.",
    )
    docs_url: str | None = Field(
        default=None,
        max_length=2000,
        pattern=r"^https?://[^\s]+$",
        description="Where the folder that holds `docs/` is published: a relative `runbook_url` is a link under it.",
        json_schema_extra={"default": "none: alerts go out with the command that explains them"},
    )


SCOPE_LABELS: dict[str, tuple[str, ...]] = {
    "node": ("node", "instance", "pod", "host", "hostname", "Hostname", "exported_instance"),
    "pool": ("pool",),
    "model": ("model", "model_name", "served_model_name"),
    "zone": ("zone", "availability_zone", "topology_kubernetes_io_zone"),
    "revision": ("revision",),
}
SEVERITIES = {
    **dict.fromkeys(("emergency", "fatal", "disaster", "p1", "sev1"), "critical"),
    **dict.fromkeys(("error", "high", "major", "p2", "sev2"), "page"),
    **dict.fromkeys(("warn", "minor", "medium", "p3", "sev3"), "warning"),
    **dict.fromkeys(("info", "none", "low", "p4", "p5", "sev4"), "ticket"),
}


class WebhookSettings(Credentials):
    """`POST /webhooks/alertmanager`. Without credentials of its own it takes the controller's token as bearer."""

    max_body_bytes: int = Field(
        default=8 * 1024 * 1024, ge=1024, le=256 * 1024 * 1024, description="Largest notification."
    )
    max_alerts: int = Field(default=10_000, ge=1, le=100_000, description="In one notification.")
    max_active: int = Field(default=5_000, ge=1, le=100_000, description="Alerts that fire at the same time.")
    max_per_minute: int = Field(default=600, ge=1, le=100_000, description="Notifications; more are told to wait.")
    unknown_after_s: float = Field(
        default=9 * 3600,
        gt=0,
        le=30 * 86400,
        description="Silence after which an alert is unknown; more than twice Alertmanager's repeat_interval.",
    )
    scope_labels: dict[str, tuple[str, ...]] = Field(
        default_factory=lambda: dict(SCOPE_LABELS),
        max_length=5,
        description="For node, pool, model, zone and revision: the labels that may name it, the first one wins.",
    )
    alert_names: dict[str, str] = Field(
        default_factory=dict, max_length=1000, description="Their alert's name to ours, which picks the tree."
    )
    severities: dict[str, str] = Field(
        default_factory=lambda: dict(SEVERITIES),
        max_length=200,
        description="Their severity to ours: ticket, warning, page or critical.",
    )

    @field_validator("scope_labels")
    @classmethod
    def _known_scopes(cls, value: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        if unknown := value.keys() - SCOPE_LABELS.keys():
            raise ValueError(f"{', '.join(sorted(unknown))}: not a scope; one of {', '.join(SCOPE_LABELS)}")
        return {**SCOPE_LABELS, **value}

    @field_validator("severities")
    @classmethod
    def _known_severities(cls, value: dict[str, str]) -> dict[str, str]:
        ours = ("ticket", "warning", "page", "critical")
        for theirs, own in value.items():
            if own not in ours:
                raise ValueError(f"{theirs}: {own!r} is none of {', '.join(ours)}")
        return {**SEVERITIES, **{theirs.lower(): own for theirs, own in value.items()}}
