"""Settings of the gateway's HTTP server: what one client, one address and all of them together may take."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, model_validator

from fleetctl.settings.section import Section


class GatewayHttpSettings(Section):
    """Limits on clients' connections, heads and bodies, and TLS."""

    max_head_bytes: int = Field(
        default=64 * 1024, ge=1024, le=1024 * 1024, description="Longest request line with headers; 431 beyond it."
    )
    max_headers: int = Field(default=128, ge=8, le=10_000, description="Most headers of one request; 431 beyond it.")
    head_limit_s: float = Field(
        default=10.0, gt=0, le=3600, description="Until a request's head must be whole, from its connection on; 408."
    )
    max_body_bytes: int = Field(
        default=16 * 1024 * 1024, ge=1024, le=1024**3, description="Longest request body; 413 beyond it."
    )
    max_receiving_bytes: int = Field(
        default=1024**3,
        ge=1024,
        le=1024**4,
        description="Of all bodies that are on their way in; 503 beyond it for the slowest, else for the next one.",
    )
    body_limit_s: float = Field(default=30.0, gt=0, le=3600, description="Until a request's body must be whole; 408.")
    idle_limit_s: float = Field(
        default=75.0, gt=0, le=86_400, description="A kept connection without a request is closed after this."
    )
    max_connections: int = Field(
        default=20_000, ge=1, le=1_000_000, description="Open at a time; half of the process's descriptors at most."
    )
    max_connections_per_address: int = Field(
        default=10_000, ge=1, le=1_000_000, description="Open at a time from one address; 503 beyond it."
    )
    max_half_open_per_address: int = Field(
        default=512,
        ge=1,
        le=1_000_000,
        description="Connections of one address whose head is not whole; the oldest has to go.",
    )
    client_buffer_bytes: int = Field(
        default=1024 * 1024,
        ge=16 * 1024,
        le=1024**3,
        description="Kept for a client that reads slowly, so that its node need not wait for it.",
    )
    slow_client_limit_s: float = Field(
        default=30.0, gt=0, le=3600, description="A client whose buffer stays full for this long is disconnected."
    )
    tls_certificate: Path | None = Field(
        default=None, description="PEM file with the certificate and its chain: TLS is on."
    )
    tls_key: Path | None = Field(default=None, description="PEM file with the certificate's private key.")

    @model_validator(mode="after")
    def _is_consistent(self) -> GatewayHttpSettings:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("tls_certificate and tls_key: give both, or none")
        if self.max_receiving_bytes < self.max_body_bytes:
            raise ValueError("max_receiving_bytes: must be at least max_body_bytes, or no such body ever fits")
        return self
