"""Silences, Alertmanager's and ours."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fleetctl.wire.base import Body, Wire


class SilenceMatcher(Wire):
    """`name op value`; a label that an alert lacks counts as empty."""

    name: str = Field(min_length=1, max_length=500)  # of a label
    op: Literal["=", "!=", "=~", "!~"]  # =~ and !~ take a pattern
    value: str = Field(max_length=4096)  # to hold it against


class Silence(Wire):
    """One silence of Alertmanager."""

    id: str  # to expire it by
    state: Literal["pending", "active", "expired"]  # pending: it has not begun
    matchers: list[SilenceMatcher]  # all of which must fit
    starts_at: float  # when it begins
    ends_at: float  # when it ends
    created_by: str  # who
    comment: str  # why


class SilenceRequest(Body):
    """Make a silence from now on: in Alertmanager, or here where there is none."""

    matchers: list[SilenceMatcher] = Field(min_length=1, max_length=100)
    duration_s: float = Field(gt=0, le=366 * 86400)
    comment: str = Field(min_length=1, max_length=2000)
    created_by: str = Field(min_length=1, max_length=200)
    local: bool = (
        False  # kept here although there is an Alertmanager: fleetctl does nothing, Alertmanager goes on paging
    )


class SilencesState(Wire):
    """How much is known of Alertmanager's silences. Without an Alertmanager there are none."""

    known: bool = True
    active: int = 0
    read_at: float | None = None
    last_error: str = ""
