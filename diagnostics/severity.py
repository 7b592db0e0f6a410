"""Severities, the SEV level that each is, and the clock that a level starts: how soon it is diagnosed and mitigated."""

from __future__ import annotations

from typing import NamedTuple, Protocol

SEVERITIES = ("ticket", "warning", "page", "critical")  # rising; a word not listed counts as a ticket


class SevLevel(NamedTuple):
    """A level; `within_s` counts from the opening of the incident, or from when it came back with something new. None:
    there is no clock."""

    number: int
    within_s: float | None

    @property
    def name(self) -> str:
        """As people say it."""
        return f"SEV-{self.number}"


class Clocked(Protocol):
    """An incident, or its record, as far as its level's clock goes by it."""

    @property
    def opened_at(self) -> float: ...
    @property
    def clock_at(self) -> float | None: ...


_LEVELS = {
    "critical": SevLevel(1, 900.0),  # users are hurt now: diagnosed and mitigated within a quarter of an hour
    "page": SevLevel(2, 3600.0),
    "warning": SevLevel(3, 4 * 3600.0),
    "ticket": SevLevel(4, None),  # in working hours
}


def sev_level(severity: str) -> SevLevel:
    """The level of a severity."""
    return _LEVELS.get(severity, _LEVELS["ticket"])


def clock_began_at(incident: Clocked) -> float:
    """When its level's clock began: at its opening, or when it came back with something new."""
    return incident.opened_at if incident.clock_at is None else incident.clock_at


def severity_rank(severity: str) -> int:
    """0 for the least grave."""
    return SEVERITIES.index(severity) if severity in SEVERITIES else 0


def parse_severity(text: str) -> str | None:
    """A severity by its word or its level (`critical`, `SEV-1`, `sev1`, `1`); None: it is neither."""
    word = text.strip().lower()
    digits = word.removeprefix("sev").removeprefix("-")
    by_level = {str(level.number): name for name, level in _LEVELS.items()}
    return word if word in SEVERITIES else by_level.get(digits)
