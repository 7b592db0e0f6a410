"""Policies: what happens with the page of a cause, whatever `controller.policy` says of the rest; and how many persons
approve what is dangerous.

policies:
  slow_node: run      acted on unasked when the cause is confirmed and the guards allow it
  gpu_fault: ask      proposed; a person answers
approvals:
  drains-of-decode:   a name of yours, or of a built-in rule, which it replaces
    when: {action: drain, pool: decode}
    approvers: 2
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from alerts.duration import parse_duration_s
from diagnostics.content_file import BadContentFileError, Problem, read_content_file, unknown, validate
from fleetctl.settings.controller import PolicyName
from runbooks.approval import MAX_APPROVERS, ApprovalRule


def _as_list(given: object) -> object:
    return [given] if isinstance(given, str) else given


def _as_seconds(given: object) -> object:
    return parse_duration_s(given) if isinstance(given, str) else given


Name = Annotated[str, Field(min_length=1, max_length=200)]
Names = Annotated[list[Name], BeforeValidator(_as_list), Field(max_length=100)]


class _WhenForm(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    action: Names = []
    pool: Names = []
    cause: Names = []
    risk: Annotated[list[Literal["low", "medium", "high"]], BeforeValidator(_as_list)] = []
    confidence: Annotated[list[Literal["confirmed", "likely"]], BeforeValidator(_as_list)] = []
    override: bool | None = None
    takes_out: bool | None = None
    near_floor: bool | None = None
    asked_by: Literal["person", "automation"] | None = None


class _ApprovalForm(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    when: _WhenForm = _WhenForm()
    approvers: int = Field(ge=0, le=MAX_APPROVERS)
    asker_counts: bool = False
    expires: Annotated[float, BeforeValidator(_as_seconds), Field(gt=0, le=7 * 86400)] | None = None


class _PoliciesForm(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    policies: dict[Annotated[str, Field(max_length=64)], PolicyName] = Field(default_factory=dict, max_length=500)
    approvals: dict[Annotated[str, Field(max_length=64, pattern=r"^[a-z][a-z0-9-]*$")], _ApprovalForm] = Field(
        default_factory=dict, max_length=100
    )

    @model_validator(mode="after")
    def _says_something(self) -> _PoliciesForm:
        if not self.policies and not self.approvals:
            raise ValueError("neither policies nor approvals are in it")
        return self


@dataclass(frozen=True, slots=True)
class PolicyFile:
    """One file: cause to policy, and rules of approval."""

    policies: dict[str, PolicyName]
    approvals: tuple[ApprovalRule, ...]


def read_policy_file(path: Path, causes: Collection[str]) -> PolicyFile:
    """Raises BadContentFileError, also for a cause that is not among `causes`."""
    file = read_content_file(path)
    form = validate(file, _PoliciesForm, lambda where: ("", 0))
    problems = []
    for name in form.policies:
        if name not in causes:
            reason, remedy = unknown("cause", name, causes)
            problems.append(Problem(file.name, reason, remedy, f"policy {name}", file.line_of("policies", name)))
    for name, rule in form.approvals.items():
        for cause in rule.when.cause:
            if cause not in causes:
                reason, remedy = unknown("cause", cause, causes)
                line = file.line_of("approvals", name, "when", "cause")
                problems.append(Problem(file.name, reason, remedy, f"approval {name}", line))
    if problems:
        raise BadContentFileError(problems)
    return PolicyFile(form.policies, tuple(_rule(name, rule) for name, rule in form.approvals.items()))


def _rule(name: str, form: _ApprovalForm) -> ApprovalRule:
    when = form.when
    return ApprovalRule(
        name,
        form.approvers,
        actions=frozenset(when.action),
        pools=frozenset(when.pool),
        risks=frozenset(when.risk),
        causes=frozenset(when.cause),
        confidences=frozenset(when.confidence),
        is_override=when.override,
        takes_out=when.takes_out,
        near_floor=when.near_floor,
        by_automation=None if when.asked_by is None else when.asked_by == "automation",
        asker_counts=form.asker_counts,
        expires_s=form.expires,
    )
