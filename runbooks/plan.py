"""From a page and inputs, or from one command, to what a run will do: pure, and the same for a dry run."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace

from runbooks.command import Action, Capacity, parse_command
from runbooks.errors import BadInputError
from runbooks.front_matter import InputSpec, Verify
from runbooks.page import Page, PageStep
from runbooks.run import ACTION, StepRecord, UndoItem
from runbooks.template import fill, fill_command
from runbooks.value import ValueType, check_value, did_you_mean


@dataclass(frozen=True, slots=True)
class Plan:
    """All commands are filled in. `existing` are nodes that must exist, `fresh` are names that must be free."""

    runbook: str
    title: str
    risk: str
    inputs: dict[str, str]
    steps: tuple[StepRecord, ...]
    undo: tuple[UndoItem, ...]
    verify: Verify | None
    targets: tuple[str, ...]
    existing: tuple[str, ...]
    fresh: tuple[str, ...]

    @property
    def actions(self) -> tuple[Action, ...]:
        return tuple(step.action for step in self.steps)


def plan_page(page: Page, given: Mapping[str, str]) -> Plan:
    """What the page does with these inputs. Raises BadInputError naming the input and the remedy."""
    inputs = resolve_inputs(page, given)
    steps = tuple(
        StepRecord(i, "do", fill(step.title, inputs), _command(step, inputs), step.number)
        for i, step in enumerate(page.steps)
    )
    undo = tuple(UndoItem(item.number, fill(item.title, inputs), _command(item, inputs)) for item in page.undo)
    verify = page.verify and replace(
        page.verify, expect=fill(page.verify.expect, inputs), says=fill(page.verify.says, inputs)
    )
    commands = [step.command for step in steps] + [item.command for item in undo if item.command]
    of_type: dict[ValueType, list[str]] = {value_type: [] for value_type in ValueType}
    for name, value in inputs.items():
        of_type[page.inputs[name].type].append(value)
    return Plan(
        page.name, fill(page.title, inputs), page.risk, inputs, steps, undo, verify,
        targets=_targets([parse_command(command) for command in commands]),
        existing=tuple(of_type[ValueType.NODE]),
        fresh=tuple(of_type[ValueType.NEW_NODE]),
    )  # fmt: skip


def plan_command(command: str) -> Plan:
    """A run of one step. Raises BadCommandError."""
    action = parse_command(command)
    words = [word for word in shlex.split(command) if word not in ("fleetctl", "--yes", "-y")]
    text = shlex.join(words)
    existing = [] if action.capacity is Capacity.ADDS and action.verb == "node start" else [action.target]
    if action.args.get("like"):
        existing.append(action.args["like"])
    step = StepRecord(0, "do", f"{action.verb} {action.target}", text, 1)
    return Plan(
        ACTION, text, "low", {}, (step,), (), None,
        targets=_targets([action]), existing=tuple(existing), fresh=(),
    )  # fmt: skip


def resolve_inputs(page: Page, given: Mapping[str, str]) -> dict[str, str]:
    """Every input of the page with its value, defaults filled in. Raises BadInputError."""
    for name in given:
        if name not in page.inputs:
            raise BadInputError(f"{page.name}: no input {name!r}", remedy=did_you_mean(name, page.inputs))
    return {name: _value(page.name, name, spec, given.get(name)) for name, spec in page.inputs.items()}


def _value(page: str, name: str, spec: InputSpec, text: str | None) -> str:
    if text is None:
        if spec.default is None:
            raise BadInputError(
                f"{page}: input {name!r} is missing", remedy=f"give {name}=<{spec.type.value}>: {spec.description}"
            )
        return spec.default
    try:
        return check_value(spec.type, text)
    except BadInputError as error:
        raise BadInputError(f"{page}: input {name!r}: {error.message}", remedy=error.remedy) from None


def _command(step: PageStep, inputs: Mapping[str, str]) -> str:
    """Empty for an undo item of prose."""
    return fill_command(step.command, inputs) if step.command else ""


def _targets(actions: list[Action]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(action.target for action in actions if action.mutates))
