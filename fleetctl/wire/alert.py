"""One alert, and why it stands as it does."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Literal

from pydantic import Field

from fleetctl.wire.base import Wire


class AlertState(StrEnum):
    """Where an alert stands; unknown is neither firing nor clear."""

    INACTIVE = "inactive"
    PENDING = "pending"
    FIRING = "firing"
    UNKNOWN = "unknown"  # its signal is missing or stale: neither firing nor clear
    RESOLVED = "resolved"


class Alert(Wire):
    """One alert of our rules or of Alertmanager."""

    fingerprint: str  # of name and labels: one alert, one of these
    name: str  # of its rule
    severity: str  # ticket, warning, page or critical
    state: AlertState  # where it stands
    labels: dict[str, str]  # what it is about
    summary: str = ""  # what is wrong, in a line
    description: str = ""  # what that means
    value: float | None = None  # of its expression now
    active_at: float | None = None  # when its condition began to hold
    fired_at: float | None = None  # when that had held long enough
    resolved_at: float | None = None  # when it ended
    said_at: float | None = None  # when its summary was so; None: as it fired, or now
    source: str = "rules"  # who judged it: our own rules, or alertmanager (its webhook)
    source_url: str = ""  # where Alertmanager says more
    silenced: Literal["no", "yes", "unknown"] = "no"  # unknown: Alertmanager's silences could not be read
    silenced_by: list[str] = Field(default_factory=list)  # ids of silences

    @property
    def told_value(self) -> str:
        """The number in its summary, with its unit ("501", "60.3ms", "38%"), else the expression's. "": it has none, or
        that of a state (0, 1, -1, or an increase of one as Prometheus extrapolates it), which says nothing to a reader.
        """
        names = sorted((value for value in self.labels.values() if value), key=len, reverse=True)
        said = (
            re.sub(rf"(?<!\w)(?:{'|'.join(map(re.escape, names))})(?!\w)", " ", self.summary) if names else self.summary
        )
        if (found := _NUMBER_TOLD.search(said)) is not None:
            return found[0]
        return "" if self.value is None or round(self.value, 2) in _STATES else f"{self.value:.4g}"


_STATES = (-1, 0, 1)
_NUMBER_TOLD = re.compile(r"(?<![\w.-])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?[\w%×]*(?: \d+[smh]\b)*")


class AlertPart(Wire):
    """One part of a rule's expression, for one alert. None: no value, or several; not known."""

    joined: str = ""  # how it is joined to the parts before it: and, or, unless; empty: the first
    expression: str
    comparison: str = ""  # empty: it holds where it has a value
    limit: str = ""  # the other side, as it is written
    value: float | None = None
    limit_value: float | None = None


class AlertExplanation(Wire):
    """Why an alert stands as it does: its rule, part by part."""

    name: str
    expression: str
    for_s: float = 0.0  # for how long the condition holds before it fires
    parts: list[AlertPart] = Field(default_factory=list)
