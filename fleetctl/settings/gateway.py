"""Settings of the gateway: where it listens, and from when on a node that says nothing counts as gone."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, field_validator

from fleetctl.settings.admission import AdmissionSettings
from fleetctl.settings.gateway_health import EjectionSettings, RetrySettings
from fleetctl.settings.gateway_http import GatewayHttpSettings
from fleetctl.settings.gateway_routing import RoutingSettings
from fleetctl.settings.gateway_tracing import whole_endpoint
from fleetctl.settings.overflow import OverflowSettings
from fleetctl.settings.prompts import PromptSettings
from fleetctl.settings.response_cache import ResponseCacheSettings
from fleetctl.settings.section import Section


class GatewaySettings(Section):
    """The gateway process, and how long it waits for nodes."""

    host: str = Field(default="127.0.0.1", description="Address that it listens on.")
    port: int = Field(default=7800, ge=0, le=65535, description="Port that it listens on; 0 picks a free one.")
    workers: int = Field(default=1, ge=1, le=64, description="Processes that serve on its address; one uses one core.")
    retire_limit_s: float = Field(
        default=3600.0,
        gt=0,
        le=86_400,
        description="After a reload: longest time that streams of the process before go on; then an error event.",
    )
    connect_limit_s: float = Field(default=2.0, gt=0, le=60, description="Until a node must have taken a connection.")
    probe_after_s: float = Field(
        default=1.5,
        gt=0,
        le=300,
        description="A node from which a waiting request heard nothing for this long is asked for its health.",
    )
    probe_limit_s: float = Field(default=2.0, gt=0, le=60, description="Until a node must have answered that question.")
    probe_failures: int = Field(
        default=2,
        ge=1,
        le=20,
        description="Unanswered in a row: the node is silent, and gets nothing; what it was given goes elsewhere.",
    )
    first_byte_limit_s: float = Field(
        default=3600.0,
        gt=0,
        le=86_400,
        description="Longest wait for the first byte from a node that answers probes; a plain answer comes as a whole.",
    )
    lost_request_after_s: float = Field(
        default=60.0,
        gt=0,
        le=86_400,
        description="This long, and ten times the predicted wait, without a first byte: the node is asked whether it"
        " has the request; one that it does not know goes elsewhere.",
    )
    stream_idle_limit_s: float = Field(
        default=300.0, gt=0, le=86_400, description="Longest pause in a stream from a node that answers probes."
    )
    stream_silence_limit_s: float = Field(
        default=15.0,
        gt=0,
        le=3600,
        description="Longest pause in a stream that can't move from a silent node; then it ends with an error event.",
    )
    traces_endpoint: str | None = Field(
        default=None,
        description="Collector that a span of each request is sent to by OTLP/HTTP, like http://127.0.0.1:4318; "
        "without it OTEL_EXPORTER_OTLP_ENDPOINT holds.",
    )
    max_resends: int = Field(
        default=1,
        ge=0,
        le=8,
        description="Other nodes that get a request after one died or fell silent with it: it may be what ends nodes.",
    )
    continue_by_text: bool = Field(
        default=True,
        description="Whether a stream of another engine whose node died goes on with a request for what follows its"
        " text; not token-exact. Else it ends with an error event.",
    )
    fail_open: bool = Field(
        default=True,
        description="Whether requests go to nodes of which the controller sees none well; else they get 503.",
    )
    ejection: EjectionSettings = Field(
        default=EjectionSettings(), description="When a node that fails more than its peers gets no requests."
    )
    retries: RetrySettings = Field(
        default=RetrySettings(), description="How many tries beyond the first one requests may have."
    )
    response_cache: ResponseCacheSettings = Field(default=ResponseCacheSettings())
    overflow: OverflowSettings = Field(default=OverflowSettings())
    prompts: PromptSettings = Field(default=PromptSettings())
    tenants_file: Path | None = Field(
        default=None,
        description="YAML file of tenants, their limits and the hashes of their keys; empty: anybody may ask, no keys.",
    )
    node_key_file: Path | None = Field(
        default=None, description="Holds the API key that the nodes want of the gateway (their --api-key-file)."
    )
    admission: AdmissionSettings = Field(default=AdmissionSettings())

    @field_validator("tenants_file", "node_key_file")
    @classmethod
    def _is_absolute(cls, path: Path | None) -> Path | None:
        return None if path is None else path.expanduser().absolute()

    @field_validator("traces_endpoint")
    @classmethod
    def _is_whole(cls, endpoint: str | None) -> str | None:
        return None if endpoint is None else whole_endpoint(endpoint)

    http: GatewayHttpSettings = Field(default=GatewayHttpSettings())
    routing: RoutingSettings = Field(default=RoutingSettings())

    @property
    def base_url(self) -> str:
        """Where clients find it."""
        scheme = "http" if self.http.tls_certificate is None else "https"
        return f"{scheme}://{self.host}:{self.port}"
