"""Nodes of `providers.hosts`."""

from __future__ import annotations

from typing import Literal

from fleetctl.wire.base import Wire


class ListedUnit(Wire):
    """A node of providers.hosts, as its host tells of it now."""

    name: str
    runs: Literal["yes", "no", "unknown"]
    host: str
    unit: str
    pool: str = ""
    model: str = ""
    zone: str = ""
    sku: str = ""
    url: str = ""
    instance: str | None = None
    why: str = ""  # it does not run, or is not known


class HostCommand(Wire):
    """What would be run for a node of providers.hosts."""

    name: str
    what: str
    words: list[str]
