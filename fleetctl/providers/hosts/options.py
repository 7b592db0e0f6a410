"""What the provider is told of hosts: the settings `providers.hosts`, checked and with their defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A node that may run: one unit of one host. Field by field `fleetctl.settings.hosts.HostNode`."""

    name: str
    host: str
    url: str
    unit: str
    engine: str
    model: str
    pool: str
    zone: str
    sku: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HostsOptions:
    """Field by field `fleetctl.settings.hosts.HostsSettings`, which says what each one means."""

    nodes: Sequence[Place]
    connect: tuple[str, ...]
    start: tuple[str, ...]
    stop: tuple[str, ...]
    kill: tuple[str, ...]
    observe: tuple[str, ...]
    logs: tuple[str, ...]
    logs_after: tuple[str, ...]
    timeout_s: float
    look_every_s: float
    stale_after_s: float


def hosts_options(told: Mapping[str, Any]) -> HostsOptions:
    """Of the settings `providers.hosts`, as plain values."""
    return HostsOptions(**{**told, "nodes": tuple(Place(**node) for node in told["nodes"])})
