"""Which fleetctl this is."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version


@cache
def software_version() -> str:
    """The installed package's version; "source" when it runs from a checkout that is not installed."""
    try:
        return version("llm-fleetctl")
    except PackageNotFoundError:
        return "source"
