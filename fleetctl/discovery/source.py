"""Where targets are listed: each source gives its targets, or says why it can't."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fleetctl.settings.targets import MAX_TARGETS

ADDRESS = "__address__"


class SourceError(Exception):
    """The source could not be read: what it lists is not known. The message names it."""


@dataclass(frozen=True, slots=True)
class Target:
    """One listed target: its labels before relabelling, `__address__` among them."""

    labels: Mapping[str, str]
    facts: Mapping[str, str] = field(default_factory=dict)


class Source(Protocol):
    """One place where targets are listed."""

    name: str
    """For messages: `file targets/*.json`."""
    interval_s: float
    """Between two reads."""

    async def read(self) -> Sequence[Target]:
        """Everything that it lists now. Raises SourceError."""


def targets_of(groups: object, where: str) -> list[Target]:
    """The targets in a list of groups, `[{"targets": [...], "labels": {...}}]`. Raises SourceError naming the place."""
    if not isinstance(groups, list):
        raise SourceError(f"{where}: expected a list of target groups, found {type(groups).__name__}")
    found: list[Target] = []
    for number, group in enumerate(groups, 1):
        place = f"{where}: group {number}"
        if not isinstance(group, dict):
            raise SourceError(f"{place}: expected a mapping with targets, found {type(group).__name__}")
        unknown = sorted(str(key) for key in group.keys() - {"targets", "labels", "source"})
        if unknown:
            raise SourceError(f"{place}: there is no {unknown[0][:100]!r} in a target group; there are targets, labels")
        labels = _labels(group.get("labels") or {}, place)
        targets = group.get("targets")
        if not isinstance(targets, list) or not all(isinstance(one, str) and one for one in targets):
            raise SourceError(f"{place}: targets: expected a list of HOST:PORT")
        found += [Target({**labels, ADDRESS: one}) for one in targets]
        if len(found) > MAX_TARGETS:
            raise SourceError(f"{where}: lists more than {MAX_TARGETS} targets")
    return found


def _labels(given: Any, place: str) -> dict[str, str]:
    if not isinstance(given, dict):
        raise SourceError(f"{place}: labels: expected a mapping, found {type(given).__name__}")
    for name, value in given.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise SourceError(f"{place}: labels: {name}: expected a text, found {type(value).__name__}; quote it")
    return dict(given)
