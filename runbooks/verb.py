"""What a verb is: declared once, and read by grammar, command line, cockpit, API, pages, guards and effects.

The declarations live in `runbooks.verbs`. Standard library only: the command line reads them for its help.
"""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from runbooks.ability import Ability
from runbooks.fleet_view import Change, FleetView
from runbooks.node_selector import NodeSelector
from runbooks.ports import Clock, Effects, Receipt
from runbooks.target import Target, TargetKind, node_target, parse_target, written_forms

OptionKind = Literal[
    "duration",
    "lifetime",
    "node",
    "nodes",
    "count",
    "size",
    "ratio",
    "share",
    "shares",
    "threshold",
    "word",
    "names",
    "path",
    "settings",
    "text",
    "flag",
]
"""duration: seconds that the command may take. lifetime: seconds that what it makes lasts. nodes: names with commas
between. count: whole. size: 5, +2, -1, or `before`. ratio: 0.25 or 25%. share: a ratio, or 0. shares: 5%,25%,1.
threshold: 32k (tokens), 5s, 25%. word: a name. path: of a directory. settings: key=value with commas between. text: a
sentence, or an expression. flag: no value."""


@dataclass(frozen=True, slots=True)
class Option:
    """`name VALUE`, or `name` alone for a flag. `key` is its name in `Action.args`; durations are kept in seconds."""

    name: str
    key: str
    kind: OptionKind
    default: float | bool | None
    help: str
    required: bool = False

    @property
    def default_text(self) -> str | None:
        """The default as it would be typed; None where there is none."""
        return None if self.default is None or self.kind == "flag" else _written(self.kind, self.default)


@dataclass(frozen=True, slots=True)
class Verify:
    """`expect`, a PromQL template, must hold for `settle_s` without a break, and that inside `within_s`.

    `says` is the same in words, for people; without it they read the expression.
    """

    expect: str
    within_s: float
    settle_s: float
    says: str = ""

    @property
    def words(self) -> str:
        """The expectation for people."""
        return self.says or self.expect


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a verb does to the nodes that take requests: guards, claims and the dry run follow from it.

    `change_of` gives None when the action does not say yet which nodes it means.
    """

    label: str  # for the API and for people
    change_of: Callable[[Action], Change | None]


@dataclass(frozen=True, slots=True)
class Shortcut:
    """A key of the cockpit for the chosen node, or for its pool where the verb takes pools."""

    key: str
    label: str
    options: str = ""  # "--to +1"


@dataclass(frozen=True, slots=True)
class Word:
    """What a person said to a step that waits: `yes`, `no`, `skip` or `cancel`."""

    what: str
    by: str
    comment: str = ""


async def _nothing_said() -> Word | None:
    return None


async def _not_known(expression: str) -> float | None:
    return None


@dataclass(frozen=True, slots=True)
class EffectCall:
    """What a verb's effect is called with."""

    effects: Effects
    action: Action
    before_removal: Callable[[str], Awaitable[None]]
    """Asks the guard again for one node. Raises TemporaryError when it does not say yes."""
    asked_by: str = ""
    """Who asked for the run."""
    reason: str = ""
    """Why the run was asked for."""
    override: str = ""
    """Why it acts against what keeps automation, and people, from acting."""
    key: str = ""
    """Of this step of this run: the same whenever it is called again."""
    run_id: str = ""
    incident_id: str | None = None
    clock: Clock | None = None  # for a verb that waits
    poll_s: float = 1.0
    word: Callable[[], Awaitable[Word | None]] = _nothing_said
    """The last word of a person that is about this step."""
    evaluate: Callable[[str], Awaitable[float | None]] = _not_known
    """An expression's value now; None is unknown."""


@dataclass(frozen=True, slots=True)
class Verb:
    """One command. `predicts` is the sentence that a dry run shows."""

    name: str
    kinds: tuple[TargetKind, ...]
    help: str
    example: str
    capacity: Capacity
    predicts: Callable[[Action], str]
    effect: Callable[[EffectCall], Awaitable[Receipt]]
    idempotency: str  # how a second call finds the work of the first
    options: tuple[Option, ...] = ()
    needs_target: bool = True  # the target must exist before
    default_target: str = ""  # meant when none is typed; empty: one must be
    mutates: bool = True
    moves_requests: bool = False  # it drains the nodes that it takes out
    waits: bool = False  # for a person or a signal: it acts on nothing meanwhile, and may be skipped
    resolve: Callable[[Action, FleetView, Action | None], Action] | None = None
    """The action in full, from the fleet before it and from the same verb's last action on the target. Kept with the
    run, so that going on after a crash means the same nodes. Raises BadInputError when it can't be done."""
    check_start: Callable[[Action, FleetView], str] | None = None
    """Why a resolved action does not fit the fleet any more; empty when it does. Asked once, when the run starts."""
    needs: tuple[Ability, ...] = ()
    """What the nodes that it acts on must be able to do: those it starts are like the one they copy."""
    orders: Callable[[Action], dict[str, Any]] | None = None
    """What the traffic rule orders that it makes under its target's name; None: it makes none."""
    undo: str = ""
    """Command template that undoes it, with {target}; empty: a run of this one command is not undone."""
    verify: Callable[[Action], Verify] | None = None
    """What must hold after a run of this one command."""
    shortcuts: tuple[Shortcut, ...] = ()

    def option(self, name: str) -> Option | None:
        """The option that is written `name`, dashes included."""
        return next((option for option in self.options if option.name == name), None)

    @property
    def takes_selector(self) -> bool:
        """Whether it may be told by labels which nodes it means."""
        return self.kinds == (TargetKind.NODE,) and self.needs_target

    @property
    def implied_target(self) -> Target | None:
        """The target that is meant when none is typed."""
        return parse_target(self.default_target, self.kinds) if self.default_target else None

    @property
    def usage(self) -> str:
        """`drain NODE [--deadline DURATION]`, as help and errors show it."""
        target = written_forms(self.kinds)
        words = [self.name]
        if self.kinds != (TargetKind.FLEET,):
            words.append(f"[{target}]" if self.default_target else target)
        for option in self.options:
            text = option.name if option.kind == "flag" else f"{option.name} {option.kind.upper()}"
            words.append(text if option.required else f"[{text}]")
        return " ".join(words)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON; holds every field of `fleetctl.wire.runbook.VerbInfo`."""
        return {
            "name": self.name,
            "targets": [kind.value for kind in self.kinds],
            "usage": self.usage,
            "help": self.help,
            "example": f"fleetctl {self.example}",
            "capacity": self.capacity.label,
            "idempotency": self.idempotency,
            "has_undo": bool(self.undo),
            "options": [
                {
                    "name": option.name,
                    "kind": option.kind,
                    "default": option.default,
                    "required": option.required,
                    "help": option.help,
                }
                for option in self.options
            ],
        }


@dataclass(frozen=True, slots=True)
class Action:
    """A parsed command. `args` holds every option, defaults included; durations in seconds."""

    verb: Verb
    target: Target
    args: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    selector: NodeSelector | None = None
    """The nodes that it means instead of `target`, until a plan names them."""

    @property
    def change(self) -> Change | None:
        """What it does to the nodes that take requests; None while it does not say which nodes it means."""
        return self.verb.capacity.change_of(self)

    @property
    def predicted(self) -> str:
        """What a dry run says of it."""
        return self.verb.predicts(self)

    @property
    def num_rounds(self) -> int:
        """How many nodes it takes out, one after the other; at least 1."""
        change = self.change
        return max(1, len(change.removes)) if change is not None else 1

    @property
    def own_time_s(self) -> float:
        """The longest the command says it takes, in seconds."""
        seconds = sum(float(self.args[o.key]) for o in self.verb.options if o.kind == "duration")
        return seconds * self.num_rounds

    @property
    def command(self) -> str:
        """The command that parses to this action, without options that have their default."""
        words = self.verb.name.split()
        if self.target != self.verb.implied_target:
            words.append(str(self.target))
        for option in self.verb.options:
            value = self.args[option.key]
            if value == option.default or value is None or value == ():
                continue
            words.append(option.name)
            if option.kind != "flag":
                words.append(_written(option.kind, value))
        return shlex.join(words)

    def on_node(self, name: str) -> Action:
        """The same action on this node, instead of on what a selector means."""
        return Action(self.verb, node_target(name), self.args)

    def with_args(self, **args: Any) -> Action:
        """The same action with some options set."""
        return Action(self.verb, self.target, MappingProxyType({**self.args, **args}))


def _written(kind: OptionKind, value: Any) -> str:
    if kind in ("duration", "lifetime"):
        return f"{value:g}s"
    if kind == "shares":
        return ",".join(f"{share:g}" for share in value)
    return ",".join(value) if kind in ("nodes", "names", "settings") else str(value)


def _target_node(action: Action) -> frozenset[str]:
    return frozenset({action.target.name})


KEEPS = Capacity("changes nothing", lambda action: Change())
ADDS = Capacity("adds the node", lambda action: Change(adds=_target_node(action)))
CREATES = Capacity("adds the node", lambda action: Change(creates={action.target.name: action.args["like"]}))
REMOVES = Capacity("removes the node", lambda action: Change(removes=_target_node(action)))
PAUSES = Capacity("removes the node for a while", lambda action: Change(pauses=_target_node(action)))
