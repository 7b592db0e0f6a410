"""Settings of both directions of Alertmanager: where our alerts go, and what its webhook may send us."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from fleetctl.kit.errors import BadInputError

LABEL_NAME = r"^[a-zA-Z_][a-zA-Z0-9_]*$"


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Credentials(_Section):
    """Bearer or basic. Files are read anew for each use, so that a secret can be changed while we run."""

    bearer_token: SecretStr | None = None
    bearer_token_file: Path | None = None
    username: str | None = Field(default=None, max_length=200)
    password: SecretStr | None = None
    password_file: Path | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> Credentials:
        bearer = self.bearer_token is not None or self.bearer_token_file is not None
        basic = self.username is not None or self.password is not None or self.password_file is not None
        if bearer and basic:
            raise ValueError("give bearer_token(_file), or username and password(_file), not both")
        if self.bearer_token is not None and self.bearer_token_file is not None:
            raise ValueError("give bearer_token or bearer_token_file, not both")
        if self.password is not None and self.password_file is not None:
            raise ValueError("give password or password_file, not both")
        if basic and (self.username is None or (self.password is None and self.password_file is None)):
            raise ValueError("basic authentication needs username and password(_file)")
        return self

    @property
    def is_set(self) -> bool:
        return self.username is not None or self.bearer_token is not None or self.bearer_token_file is not None

    def token(self) -> str | None:
        """The bearer token; None when basic or nothing is set. Raises BadInputError when its file can't be read."""
        return _secret(self.bearer_token, self.bearer_token_file)

    def basic(self) -> tuple[str, str] | None:
        """User and password, or None. Raises BadInputError when the password's file can't be read."""
        password = _secret(self.password, self.password_file)
        return None if self.username is None or password is None else (self.username, password)


class AlertmanagerPeer(Credentials):
    """One Alertmanager. In the file a plain URL stands for one without authentication."""

    url: str = Field(max_length=1000)
    ca_file: Path | None = None  # default: the system's certificates
    cert_file: Path | None = None  # ours, when the server asks for one
    key_file: Path | None = None
    insecure_skip_verify: bool = False
    timeout_s: float = Field(default=10.0, gt=0, le=60)

    @model_validator(mode="before")
    @classmethod
    def _from_url(cls, value: Any) -> Any:
        return {"url": value} if isinstance(value, str) else value

    @field_validator("url")
    @classmethod
    def _is_plain_http_url(cls, url: str) -> str:
        host = url.partition("://")[2].split("/")[0]
        if not url.startswith(("http://", "https://")) or not host or any(c.isspace() for c in url):
            raise ValueError("expected a URL like http://alertmanager:9093")
        if "@" in host:
            raise ValueError("no user or password in the URL: use username and password_file")
        if "?" in url or "#" in url:
            raise ValueError("expected a URL without query and fragment")
        return url.rstrip("/").removesuffix("/api/v2")

    def tls(self) -> ssl.SSLContext | bool:
        """What httpx takes as `verify`. Raises BadInputError naming the file that can't be used."""
        if not self.url.startswith("https://"):
            return True
        try:
            context = ssl.create_default_context(cafile=str(self.ca_file) if self.ca_file else None)
        except (OSError, ssl.SSLError) as error:
            raise BadInputError(f"alertmanagers: ca_file {self.ca_file}: {error}") from error
        if self.cert_file is not None:
            try:
                context.load_cert_chain(self.cert_file, self.key_file)
            except (OSError, ssl.SSLError) as error:
                raise BadInputError(f"alertmanagers: cert_file {self.cert_file}: {error}") from error
        if self.insecure_skip_verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


SCOPE_LABELS: dict[str, tuple[str, ...]] = {
    "node": ("node", "instance", "pod", "host", "hostname", "Hostname", "exported_instance"),
    "pool": ("pool",),
    "model": ("model", "model_name", "served_model_name"),
    "zone": ("zone", "availability_zone", "topology_kubernetes_io_zone"),
    "revision": ("revision",),
}
SEVERITIES = {
    "emergency": "critical", "fatal": "critical", "disaster": "critical", "p1": "critical", "sev1": "critical",
    "error": "page", "high": "page", "major": "page", "p2": "page", "sev2": "page",
    "warn": "warning", "minor": "warning", "medium": "warning", "p3": "warning", "sev3": "warning",
    "info": "ticket", "none": "ticket", "low": "ticket", "p4": "ticket", "p5": "ticket", "sev4": "ticket",
}  # fmt: skip


class WebhookSettings(Credentials):
    """`POST /webhooks/alertmanager`. Without credentials of its own it takes the controller's token as bearer."""

    max_body_bytes: int = Field(default=8 * 1024 * 1024, ge=1024, le=256 * 1024 * 1024)
    max_alerts: int = Field(default=10_000, ge=1, le=100_000)  # in one notification
    max_active: int = Field(default=5_000, ge=1, le=100_000)  # firing at the same time
    max_per_minute: int = Field(default=600, ge=1, le=100_000)  # notifications
    unknown_after_s: float = Field(
        default=9 * 3600, gt=0, le=30 * 86400
    )  # more than twice Alertmanager's repeat_interval
    scope_labels: dict[str, tuple[str, ...]] = Field(default_factory=lambda: dict(SCOPE_LABELS), max_length=5)
    alert_names: dict[str, str] = Field(default_factory=dict, max_length=1000)  # theirs to ours: picks the tree
    severities: dict[str, str] = Field(default_factory=lambda: dict(SEVERITIES), max_length=200)

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


def _secret(value: SecretStr | None, path: Path | None) -> str | None:
    if value is not None:
        return value.get_secret_value()
    if path is None:
        return None
    try:
        return path.expanduser().read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInputError(
            f"{path}: {getattr(error, 'strerror', None) or 'not text'}", remedy="it holds a secret for Alertmanager"
        ) from error
