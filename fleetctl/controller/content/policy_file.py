"""Policies: what happens with the page of a cause, for single causes, whatever `controller.policy` says of the rest.

policies:
  slow_node: run      acted on unasked when the cause is confirmed and the guards allow it
  gpu_fault: ask      proposed; a person answers
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from diagnostics.content_file import BadContentFileError, Problem, read_content_file, unknown, validate
from fleetctl.settings.controller import PolicyName


class _PoliciesForm(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    policies: dict[Annotated[str, Field(max_length=64)], PolicyName] = Field(min_length=1, max_length=500)


def read_policy_file(path: Path, causes: Collection[str]) -> dict[str, PolicyName]:
    """Cause to policy. Raises BadContentFileError, also for a cause that is not among `causes`."""
    file = read_content_file(path)
    form = validate(file, _PoliciesForm, lambda where: ("", 0))
    problems = []
    for name in form.policies:
        if name not in causes:
            reason, remedy = unknown("cause", name, causes)
            problems.append(Problem(file.name, reason, remedy, f"policy {name}", file.line_of("policies", name)))
    if problems:
        raise BadContentFileError(problems)
    return form.policies
