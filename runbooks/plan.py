"""From a page and inputs, or from one command, to what a run will do: pure, and the same for a dry run."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from runbooks.command import parse_command
from runbooks.errors import BadInputError
from runbooks.fleet_view import Change, FleetView
from runbooks.front_matter import InputSpec
from runbooks.page import Page, PageStep
from runbooks.run import ACTION, StepRecord, UndoItem
from runbooks.target import Target, TargetKind, node_target
from runbooks.template import fill, fill_command
from runbooks.value import ValueType, check_value, did_you_mean
from runbooks.verb import Action, Verify


@dataclass(frozen=True, slots=True)
class Plan:
    """All commands are filled in. `existing` must exist, `fresh` are names of nodes that must be free."""

    runbook: str
    title: str
    risk: str
    inputs: dict[str, str]
    steps: tuple[StepRecord, ...]
    undo: tuple[UndoItem, ...]
    verify: Verify | None
    targets: tuple[Target, ...]
    existing: tuple[Target, ...]
    fresh: tuple[str, ...]

    @property
    def actions(self) -> tuple[Action, ...]:
        """What the steps do, in order."""
        return tuple(step.action for step in self.steps)

    @property
    def changes(self) -> tuple[Change | None, ...]:
        """What the steps do to the nodes that take requests, in order."""
        return tuple(action.change for action in self.actions)


VerbOnTarget = tuple[str, Target]
"""The name of a verb and what it acts on."""


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
        runbook=page.name,
        title=fill(page.title, inputs),
        risk=page.risk,
        inputs=inputs,
        steps=steps,
        undo=undo,
        verify=verify,
        targets=_targets([parse_command(command) for command in commands]),
        existing=(
            *(node_target(name) for name in of_type[ValueType.NODE]),
            *(Target(TargetKind.POOL, name) for name in of_type[ValueType.POOL]),
        ),
        fresh=tuple(of_type[ValueType.NEW_NODE]),
    )


def plan_command(command: str) -> Plan:
    """A run of one step, with the verb's own undo. Raises BadCommandError."""
    action = parse_command(command)
    verb = action.verb
    words = [word for word in shlex.split(command) if word not in ("fleetctl", "--yes", "-y")]
    existing = [action.target] if verb.needs_target else []
    if action.args.get("like"):
        existing.append(node_target(action.args["like"]))
    undo = (UndoItem(1, f"Undo {verb.name} {action.target}", verb.undo.format(target=action.target)),)
    return Plan(
        runbook=ACTION,
        title=_with_target(words, action),
        risk="low",
        inputs={},
        steps=(StepRecord(0, "do", f"{verb.name} {action.target}", _with_target(words, action), 1),),
        undo=undo if verb.undo else (),
        verify=None,
        targets=_targets([action]),
        existing=tuple(existing),
        fresh=(),
    )


def resolve_plan(plan: Plan, fleet: FleetView, last_actions: Mapping[VerbOnTarget, Action | None]) -> Plan:
    """The plan with every command in full: sizes as numbers, nodes by name, the undo back to what was before.

    `last_actions` has what an earlier run did last with the same verb to the same target. Each command is resolved on
    the fleet as those before it leave it. A fleet that is not known leaves the plan as it is: the guards say so. Raises
    BadInputError when a command can't be done.
    """
    if fleet.nodes is None:
        return plan
    steps = []
    done: dict[int, list[Action]] = {}
    created = list(plan.fresh)
    resolved: set[VerbOnTarget] = set()
    for step in plan.steps:
        action = step.action
        if action.verb.resolve is not None:
            key = (action.verb.name, action.target)
            if key in resolved:
                raise BadInputError(f"{action.verb.name} {action.target} stands twice", remedy="keep one step of it")
            resolved.add(key)
            action = action.verb.resolve(action, fleet, last_actions.get(key))
            step = replace(step, command=action.command)
        steps.append(step)
        done.setdefault(step.number, []).append(action)
        change = action.change
        if change is not None and action.target.kind is not TargetKind.NODE:
            created += change.creates
        fleet = fleet.after(change)
    undo = tuple(_resolved_undo(item, done.get(item.number, []), fleet) for item in plan.undo)
    last = done[steps[-1].number][-1]
    verify = plan.verify or (last.verb.verify(last) if last.verb.verify is not None else None)
    return replace(plan, steps=tuple(steps), undo=undo, verify=verify, fresh=tuple(dict.fromkeys(created)))


def resolve_inputs(page: Page, given: Mapping[str, str]) -> dict[str, str]:
    """Every input of the page with its value, defaults filled in. Raises BadInputError."""
    for name in given:
        if name not in page.inputs:
            raise BadInputError(f"{page.name}: no input {name!r}", remedy=did_you_mean(name, page.inputs))
    return {name: _value(page.name, name, spec, given.get(name)) for name, spec in page.inputs.items()}


def _resolved_undo(item: UndoItem, done: Sequence[Action], fleet: FleetView) -> UndoItem:
    """The item in full, seen from the step of this run that it undoes."""
    if not item.command:
        return item
    action = parse_command(item.command)
    if action.verb.resolve is None:
        return item
    undone = (step for step in reversed(done) if step.verb.name == action.verb.name and step.target == action.target)
    return replace(item, command=action.verb.resolve(action, fleet, next(undone, None)).command)


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


def _with_target(words: Sequence[str], action: Action) -> str:
    """The command as it was typed, with the target in its written form."""
    short, written = action.target.name, str(action.target)
    num_verb_words = len(action.verb.name.split())
    rest = [written if word == short and written != short else word for word in words[num_verb_words:]]
    return shlex.join([*words[:num_verb_words], *rest])


def _targets(actions: list[Action]) -> tuple[Target, ...]:
    return tuple(dict.fromkeys(action.target for action in actions if action.verb.mutates))
