"""Settings of where signals come from: our own scrapes, or a Prometheus that is there already."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from fleetctl.alertmanager_settings import LABEL_NAME, Credentials


class PrometheusSettings(Credentials):
    """One Prometheus, or what speaks its query API (Thanos, Mimir, VictoriaMetrics)."""

    url: str = Field(max_length=1000)
    ca_file: Path | None = None  # default: the certificates that come with requests
    cert_file: Path | None = None  # ours, when the server asks for one
    key_file: Path | None = None
    insecure_skip_verify: bool = False
    timeout_s: float = Field(default=10.0, gt=0, le=120)  # of each request
    interval_s: float = Field(default=5.0, ge=1, le=300)  # between two reads
    scrape_interval_s: float = Field(default=15.0, ge=1, le=300)  # of that Prometheus: rates need several scrapes
    match: str = Field(default="", max_length=1000)  # matchers for every series, e.g. job="vllm"
    # Labels that its series lack: {node: $instance, engine: vllm}. $x copies the series' own label x.
    labels: dict[Annotated[str, Field(pattern=LABEL_NAME)], str] = Field(default_factory=dict, max_length=20)
    recorded: bool = False  # it evaluates our signal files itself: read its llm: series, not the engines' own

    @field_validator("url")
    @classmethod
    def _is_plain_http_url(cls, url: str) -> str:
        host = url.partition("://")[2].split("/")[0]
        if not url.startswith(("http://", "https://")) or not host or any(c.isspace() for c in url):
            raise ValueError("expected a URL like http://prometheus:9090")
        if "@" in host:
            raise ValueError("no user or password in the URL: use username and password_file")
        if "?" in url or "#" in url:
            raise ValueError("expected a URL without query and fragment")
        return url.rstrip("/").removesuffix("/api/v1")

    @model_validator(mode="after")
    def _has_both_files(self) -> PrometheusSettings:
        if self.key_file is not None and self.cert_file is None:
            raise ValueError("key_file needs cert_file")
        return self


class SignalSettings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    prometheus: PrometheusSettings | None = None  # without one the controller scrapes the nodes itself
    max_history_mb: int = Field(default=1024, ge=16, le=1 << 20)  # of older points; beyond it the oldest go early
