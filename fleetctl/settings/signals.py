"""Settings of where signals come from: our own scrapes, or a Prometheus that is there already."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from fleetctl.settings.remote import RemoteServer
from fleetctl.settings.section import LABEL_NAME, Section


class PrometheusSettings(RemoteServer):
    """One Prometheus, or what speaks its query API (Thanos, Mimir, VictoriaMetrics)."""

    example: ClassVar[str] = "http://prometheus:9090"
    api_path: ClassVar[str] = "/api/v1"

    timeout_s: float = Field(default=10.0, gt=0, le=120, description="Time-out of each request.")
    interval_s: float = Field(default=5.0, ge=1, le=300, description="Between two reads.")
    scrape_interval_s: float = Field(
        default=15.0, ge=1, le=300, description="Of that Prometheus: a rate needs several of its scrapes."
    )
    match: str = Field(default="", max_length=1000, description='Matchers for every series, e.g. `job="vllm"`.')
    labels: dict[Annotated[str, Field(pattern=LABEL_NAME)], str] = Field(
        default_factory=dict,
        max_length=20,
        description="Labels that its series lack: `{node: $instance, engine: vllm}`; `$x` copies the series' label x.",
    )
    recorded: bool = Field(
        default=False, description="It evaluates our signal files itself: read its `llm:` series, not the engines' own."
    )


class SignalSettings(Section):
    """Where the nodes' signals come from, and how much of them is kept."""

    prometheus: PrometheusSettings | None = Field(
        default=None, description="Read signals from there; without it the controller scrapes the nodes itself."
    )
    max_history_mb: int = Field(
        default=1024, ge=16, le=1 << 20, description="Memory for older points in MiB; beyond it the oldest go early."
    )
    max_scrape_bytes: int = Field(
        default=8 * 1024 * 1024, ge=1024, le=1 << 30, description="Largest answer that one scrape takes, unpacked."
    )
