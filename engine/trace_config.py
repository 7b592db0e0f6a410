"""Where spans are to be sent, from the command line or OpenTelemetry's environment. Imports nothing of its SDK."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

TRACES_PATH = "/v1/traces"
_OFF = {"true", "1"}


class BadEndpointError(ValueError):
    """The collector's address can't be used; the message names its source and what would do."""


def trace_endpoint(option: str | None, environ: Mapping[str, str]) -> str | None:
    """The URL that spans are posted to; None when nothing asks for traces. The option wins over the environment.

    As OpenTelemetry has it, OTEL_EXPORTER_OTLP_ENDPOINT is a base to which /v1/traces is added; so is an option
    without a path. Raises BadEndpointError.
    """
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() in _OFF:
        return None
    if option is not None:
        url = _checked("--otlp-traces-endpoint", option)
        return url if urlsplit(url).path.strip("/") else url.rstrip("/") + TRACES_PATH
    if environ.get("OTEL_TRACES_EXPORTER", "otlp").strip() == "none":
        return None
    for name, path in (("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", ""), ("OTEL_EXPORTER_OTLP_ENDPOINT", TRACES_PATH)):
        if value := environ.get(name, "").strip():
            _check_protocol(environ)
            url = _checked(name, value)
            return url.rstrip("/") + path if path else url
    return None


def _check_protocol(environ: Mapping[str, str]) -> None:
    for name in ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        if value := environ.get(name, "").strip():
            if value != "http/protobuf":
                raise BadEndpointError(
                    f"{name}={value}: spans are sent by http/protobuf only; point to the collector's HTTP port "
                    "(4318) with --otlp-traces-endpoint"
                )
            return


def _checked(source: str, value: str) -> str:
    try:
        parts = urlsplit(value)
        is_usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_usable = False
    if not is_usable:
        raise BadEndpointError(f"{source}: not an http:// or https:// address, like http://127.0.0.1:4318/v1/traces")
    return value
