"""From a page and inputs, or from one command, to what a run will do: pure, and the same for a dry run."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from runbooks.command import parse_command
from runbooks.errors import BadInputError
from runbooks.fleet_view import Change, FleetView
from runbooks.front_matter import InputSpec
from runbooks.page import Page, PageStep
from runbooks.ports import NodeFacts
from runbooks.run import ACTION, Condition, StepRecord, UndoItem
from runbooks.sub_page import SubPage, parse_sub_page
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


def plan_page(
    page: Page,
    given: Mapping[str, str],
    nodes: Mapping[str, NodeFacts] | None = None,
    library: Mapping[str, Page] = MappingProxyType({}),
) -> Plan:
    """What the page does with these inputs, pages that its steps run included.

    `nodes`: every node ever wanted, which selectors choose from. Raises BadInputError naming the input and the remedy.
    """
    if page.is_by_hand:
        raise BadInputError(
            f"{page.name} has no step that could be run", remedy=f"read it: fleetctl runbook show {page.name}"
        )
    inputs = resolve_inputs(page, given)
    layout = _Layout(nodes, library)
    undo = tuple(layout.add_page(page, inputs, ()))
    verify = page.verify and replace(
        page.verify, expect=fill(page.verify.expect, inputs), says=fill(page.verify.says, inputs)
    )
    return Plan(
        runbook=page.name,
        title=fill(page.title, inputs),
        risk=page.risk,
        inputs=inputs,
        steps=tuple(layout.steps),
        undo=undo,
        verify=verify,
        targets=_targets(
            [step.action for step in layout.steps] + [parse_command(i.command) for i in undo if i.command]
        ),
        existing=tuple(dict.fromkeys(layout.existing)),
        fresh=tuple(dict.fromkeys(layout.fresh)),
    )


def command_title(command: str) -> str:
    """What a run of this one command is called: the command as it was typed."""
    words = [word for word in shlex.split(command) if word not in ("fleetctl", "--yes", "-y")]
    action = parse_command(command)
    return _with_target(words, action) if action.selector is None else shlex.join(words)


def plan_command(command: str, nodes: Mapping[str, NodeFacts] | None = None) -> Plan:
    """A run of one command, with the verb's own undo; of one step for each node that a selector means.

    Raises BadCommandError, and BadInputError for a selector that means no node.
    """
    action = parse_command(command)
    verb = action.verb
    title = command_title(command)
    existing = [action.target] if verb.needs_target and action.selector is None else []
    if action.args.get("like"):
        existing.append(node_target(action.args["like"]))
    layout = _Layout(nodes, {})
    if action.selector is None:
        layout.add_step(f"{verb.name} {action.target}", title, layout.new_number())
    else:
        existing += [node_target(name) for name in layout.add_selected(verb.name, action, {}, ())]
    undo = tuple(
        UndoItem(step.number, f"Undo {verb.name} {step.action.target}", verb.undo.format(target=step.action.target))
        for step in reversed(layout.steps)
    )
    return Plan(
        runbook=ACTION,
        title=title,
        risk="low",
        inputs={},
        steps=tuple(layout.steps),
        undo=undo if verb.undo else (),
        verify=None,
        targets=_targets([step.action for step in layout.steps]),
        existing=tuple(existing),
        fresh=(),
    )


@dataclass
class _Layout:
    """Steps as a run has them: pages in pages laid out flat, selected nodes by name, each part with a number of its own
    that its undo has too."""

    nodes: Mapping[str, NodeFacts] | None
    library: Mapping[str, Page]
    steps: list[StepRecord] = field(default_factory=list)
    existing: list[Target] = field(default_factory=list)
    fresh: list[str] = field(default_factory=list)
    num_numbers: int = 0

    def new_number(self) -> int:
        self.num_numbers += 1
        return self.num_numbers

    def add_page(
        self, page: Page, inputs: Mapping[str, str], when: tuple[Condition, ...], path: tuple[str, ...] = ()
    ) -> list[UndoItem]:
        """Add the page's steps; what undoes them, in the order in which it is done."""
        if page.name in path:
            raise BadInputError(
                f"{' -> '.join([*path, page.name])}: a page that runs itself", remedy="break the circle"
            )
        path = (*path, page.name)
        for name, value in inputs.items():
            match page.inputs[name].type:
                case ValueType.NODE:
                    self.existing.append(node_target(value))
                case ValueType.POOL:
                    self.existing.append(Target(TargetKind.POOL, value))
                case ValueType.NEW_NODE:
                    self.fresh.append(value)
        undo: list[UndoItem] = []
        for number, group in itertools.groupby(page.steps, key=lambda step: step.number):
            items = [item for item in page.undo if item.number == number]
            undo = self._add_section(page, list(group), items, inputs, when, path) + undo
        return undo

    def add_step(
        self, title: str, command: str, number: int, when: tuple[Condition, ...] = (), wave: int | None = None
    ) -> None:
        """One more step."""
        self.steps.append(StepRecord(len(self.steps), "do", title, command, number, when=when, wave=wave))

    def add_selected(
        self, title: str, action: Action, numbers: dict[str, int], when: tuple[Condition, ...]
    ) -> tuple[str, ...]:
        """A step for each node that the action means; their names. `numbers`: of the nodes' parts, by name."""
        assert action.selector is not None
        names = action.selector.select(self.nodes)
        at_once = action.selector.at_once
        for i, name in enumerate(names):
            number = numbers[name] = numbers.get(name) or self.new_number()
            if i % at_once == 0:
                wave = number if at_once > 1 else None
            self.add_step(f"{title}: {name}", action.on_node(name).command, number, when, wave)
        return names

    def _add_section(
        self,
        page: Page,
        steps: Sequence[PageStep],
        items: Sequence[PageStep],
        inputs: Mapping[str, str],
        when: tuple[Condition, ...],
        path: tuple[str, ...],
    ) -> list[UndoItem]:
        number = self.new_number()
        if steps[0].when:
            when = (*when, Condition(number, fill(steps[0].when, inputs)))
        numbers: dict[str, int] = {}
        inner: list[UndoItem] = []
        for step in steps:
            title = fill(step.title, inputs)
            command = fill_command(step.command, inputs)
            if step.is_sub_page:
                inner = self._add_sub_page(parse_sub_page(command), title, when, path) + inner
            elif (action := parse_command(command)).selector is not None:
                self.existing += [node_target(name) for name in self.add_selected(title, action, numbers, when)]
            else:
                self.add_step(title, command, number, when)
        return [undone for item in items for undone in self._undo(item, number, numbers, inputs)] + inner

    def _add_sub_page(
        self, sub: SubPage, title: str, when: tuple[Condition, ...], path: tuple[str, ...]
    ) -> list[UndoItem]:
        page = self.library.get(sub.name)
        if page is None:
            raise BadInputError(
                f"{path[-1]}: there is no runbook {sub.name!r}", remedy=did_you_mean(sub.name, self.library)
            )
        if page.is_by_hand:
            raise BadInputError(f"{path[-1]}: {sub.name} has no step that could be run", remedy="name another page")
        undo: list[UndoItem] = []
        names = sub.selector.select(self.nodes) if sub.selector is not None else (None,)
        for name in names:
            inputs = resolve_inputs(page, {**sub.inputs, **({} if name is None else {"node": name})})
            undo = self.add_page(page, inputs, when, path) + undo
            if page.verify is not None:
                until = shlex.quote(fill(page.verify.expect, inputs))
                wait = f"wait --until {until} --within {page.verify.within_s:g}s --settle {page.verify.settle_s:g}s"
                self.add_step(fill(page.verify.says, inputs) or title, wait, self.new_number(), when)
        return undo

    def _undo(
        self, item: PageStep, number: int, numbers: Mapping[str, int], inputs: Mapping[str, str]
    ) -> list[UndoItem]:
        title, command = fill(item.title, inputs), _command(item, inputs)
        if not numbers:
            return [UndoItem(number, title, command)]
        if not command:
            return [UndoItem(one, f"{title}: {name}", "") for name, one in reversed(list(numbers.items()))]
        action = parse_command(command)
        if action.selector is None:
            return [UndoItem(number, title, command)]
        meant = set(action.selector.select(self.nodes))
        return [
            UndoItem(one, f"{title}: {name}", action.on_node(name).command)
            for name, one in reversed(list(numbers.items()))
            if name in meant
        ]


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
