"""Why it is happening: a verdict with its evidence."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fleetctl.wire.base import Body, Wire

NONE_ON_RECORD_S = 1e8
"""Of the unit `before_onset`: who tells of changes knows of none."""


class Evidence(Wire):
    """One answered question of a tree."""

    question: str  # its name in the tree
    title: str  # the question in words
    answer: Literal["yes", "no", "unknown"]  # unknown: nobody could tell
    query: str = ""  # what was read, in PromQL
    value: float | None = None  # what was found
    threshold: str = ""  # what it was held against
    unit: str = ""  # of `value`: ratio, points, seconds, tokens, times, per_second, count, before_onset (s)
    age_s: float | None = None  # of the value
    why_unknown: str = ""  # of an answer that is not known
    usual: str = ""  # of a yes that compares with the past: the same against this hour of other days
    speaks: Literal["", "for", "against"] = ""  # of the cause that was named


class Diagnosis(Wire):
    """What was found: cause, evidence, and what is ruled out or not known."""

    tree: str  # that was walked
    cause: str | None  # None: none was named
    title: str = ""  # the verdict in words
    confidence: Literal["confirmed", "likely", "unknown"] = "unknown"  # how sure it is
    evidence: list[Evidence] = Field(default_factory=list)  # in the order in which it was asked
    ruled_out: list[str] = Field(default_factory=list)  # causes that it is not
    not_known: list[str] = Field(default_factory=list)  # causes that nobody could rule out
    at: float = 0.0  # when it was found
    probability: float | None = None  # of the cause; None: nothing was scored
    also: str | None = None  # a second cause that is at work beside it
    runner_up: str | None = None  # the next best cause
    runner_up_probability: float | None = None  # of that cause
    tells_apart: str = ""  # what would tell the two apart
    why_not: dict[str, str] = Field(default_factory=dict)  # cause to what ruled it out
    onset: float | None = None  # when it began
    onset_early: float | None = None  # not before, not after
    onset_late: float | None = None  # and not after
    changes: list[str] = Field(default_factory=list)  # what changed just before, nearest first
    since: float | None = None  # since when the same is said, where the evidence was read again; else since `at`
    looked_at: float | None = None  # when it was asked last, where it was asked again
    then_found: str = ""  # what was found then, where that is not what stands
    awaits: str = ""  # why nothing is to be done about the cause yet
    is_of_one: bool = False  # one node of a wider scope has it, and the walk does not say which
    its_node: str = ""  # that node, where it was told apart since; the title names it then


class DiagnoseRequest(Body):
    """Walk a tree now; without one, the tree that fits the scope's alerts."""

    tree: str | None = Field(default=None, max_length=100)
    scope: dict[str, str] = Field(default_factory=dict, max_length=20)
