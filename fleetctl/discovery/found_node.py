"""A node as its labels say it is, after relabelling."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from fleetctl.discovery.source import ADDRESS
from fleetctl.engines.table import engine_kind
from fleetctl.providers.spec import NODE_NAME

MAX_NAME_CHARS = 63
MAX_VALUE_CHARS = 200
FACTS = ("host", "gpu", "sku", "version")
SCHEME, METRICS_PATH = "__scheme__", "__metrics_path__"
METRICS_ADDRESS = "__metrics_address__"  # where metrics are behind another port, as Triton's

_NOT_IN_NAMES = re.compile(r"[^a-z0-9]+")


class TargetError(ValueError):
    """A target can't be a node; the message says why and what to relabel."""


@dataclass(frozen=True, slots=True)
class FoundNode:
    """A node and where it answers. Empty: nobody said."""

    name: str
    url: str
    metrics_url: str = ""  # empty: at its engine's own path
    pool: str = ""
    model: str = ""
    engine: str = ""
    zone: str = ""
    revision: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    source: str = ""  # who listed it
    group: str = ""  # of the settings
    api_key: str = ""  # name of the key that it wants


def found_node(
    labels: Mapping[str, str],
    *,
    scheme: str = "http",
    metrics_path: str = "",
    source: str = "",
    group: str = "",
    api_key: str = "",
) -> FoundNode:
    """The node of these labels. Raises TargetError."""
    address = labels.get(ADDRESS, "")
    scheme = labels.get(SCHEME) or scheme
    url = _url(scheme, address)
    path = labels.get(METRICS_PATH) or metrics_path
    metrics_address = labels.get(METRICS_ADDRESS)
    engine = labels.get("engine", "").lower()
    if metrics_address or path:
        base = _url(scheme, metrics_address) if metrics_address else url
        metrics_url = base + (path or engine_kind(engine).metrics_path or "/metrics")
    else:
        metrics_url = ""
    return FoundNode(
        name=node_name(labels.get("node") or address),
        url=url,
        metrics_url=metrics_url,
        engine=engine,
        facts={key: labels[key][:MAX_VALUE_CHARS] for key in FACTS if labels.get(key)},
        source=source,
        group=group,
        api_key=labels.get("api_key", "")[:MAX_VALUE_CHARS] or api_key,
        **{key: labels.get(key, "")[:MAX_VALUE_CHARS] for key in ("pool", "model", "zone", "revision")},
    )


def node_name(text: str) -> str:
    """A node's name of any text: `10.0.0.7:8000` is 10-0-0-7-8000. Raises TargetError when nothing is left of it."""
    name = _NOT_IN_NAMES.sub("-", text.lower()).strip("-")
    if len(name) > MAX_NAME_CHARS:
        # The end tells pods of one workload apart.
        name = name[-MAX_NAME_CHARS:].strip("-")
    if not NODE_NAME.match(name):
        raise TargetError(f"{text[:100]!r} gives no name for a node: set the label `node` by relabel_configs")
    return name


def _url(scheme: str, address: str) -> str:
    if not address:
        raise TargetError("has no address: relabelling removed __address__")
    if scheme not in ("http", "https"):
        raise TargetError(f"{address[:200]}: scheme {scheme[:50]!r} is not http or https")
    url = f"{scheme}://{address}"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise TargetError(f"{address[:200]!r} is not HOST:PORT: {error}") from error
    if not host or parts.path or parts.query or parts.fragment or "@" in address or any(c.isspace() for c in address):
        raise TargetError(f"{address[:200]!r} is not HOST:PORT")
    return url if port is not None else f"{url}:{443 if scheme == 'https' else 80}"
