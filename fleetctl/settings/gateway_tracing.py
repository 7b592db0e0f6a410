"""Where the gateway sends its spans. OpenTelemetry's own environment holds where nothing is set here."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

TRACES_PATH = "/v1/traces"
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


def traces_wanted(endpoint: str | None, environ: Mapping[str, str]) -> bool:
    """Whether spans are to be sent: an endpoint is set, here or in the environment, and the SDK is not disabled."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() in ("true", "1"):
        return False
    if endpoint is not None:
        return True
    is_off = environ.get("OTEL_TRACES_EXPORTER", "otlp").strip() == "none"
    return not is_off and any(environ.get(name, "").strip() for name in _ENDPOINTS)


def whole_endpoint(value: str) -> str:
    """The URL that spans are posted to; an address without a path gets OTLP's. Raises ValueError."""
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("not an http:// or https:// address, like http://127.0.0.1:4318/v1/traces")
    return value if parts.path.strip("/") else value.rstrip("/") + TRACES_PATH
