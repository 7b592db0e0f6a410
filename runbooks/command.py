"""The grammar of fenced commands: what a person types after `fleetctl`, and nothing more.

One declared table, `VERBS`, is the whole grammar; a contract test holds the command line to it. Commands are words,
never shell: there are no pipes, variables or globs, and quotes only group words.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Literal

from runbooks.errors import BadCommandError, BadInputError
from runbooks.value import ValueType, check_value, did_you_mean, parse_duration

MAX_COMMAND_CHARS = 2000


class Capacity(StrEnum):
    """What an action does to the number of nodes that take requests."""

    ADDS = "adds"
    REMOVES = "removes"
    PAUSES = "pauses"  # removes the node for a while and brings it back


@dataclass(frozen=True, slots=True)
class Option:
    """`--name VALUE`, or `--name` alone for a flag. Durations are kept in seconds under the key of the effect."""

    key: str
    kind: Literal["duration", "node", "flag"]
    default: float | bool | None
    help: str


@dataclass(frozen=True, slots=True)
class Verb:
    """One command. `predicts` is the sentence a dry run shows."""

    name: str
    capacity: Capacity
    predicts: str
    options: Mapping[str, Option] = field(default_factory=dict)
    target_exists: bool = True
    mutates: bool = True


_WAIT = Option("wait_s", "duration", 120.0, "how long to wait until the node is ready and routed")

VERBS: Mapping[str, Verb] = MappingProxyType(
    {
        verb.name: verb
        for verb in (
            Verb(
                "node start",
                Capacity.ADDS,
                "starts {node} and waits until it is ready and routed",
                {"--like": Option("like", "node", None, "copy this node's settings"), "--wait": _WAIT},
                target_exists=False,
            ),
            Verb(
                "node stop",
                Capacity.REMOVES,
                "stops {node}, if it holds no requests",
                {
                    "--grace": Option("grace_s", "duration", 10.0, "time between SIGTERM and SIGKILL"),
                    "--force": Option("force", "flag", False, "stop it even while it holds requests"),
                },
            ),
            Verb("cordon", Capacity.REMOVES, "sends no new requests to {node}"),
            Verb("uncordon", Capacity.ADDS, "lets {node} take requests again"),
            Verb(
                "drain",
                Capacity.REMOVES,
                "sends no new requests to {node}, lets its requests finish and moves the rest",
                {"--deadline": Option("deadline_s", "duration", 30.0, "when to move what has not finished")},
            ),
            Verb(
                "restart",
                Capacity.PAUSES,
                "stops and starts {node} under its own name and waits until it is ready",
                {"--wait": _WAIT},
            ),
        )
    }
)


@dataclass(frozen=True, slots=True)
class Action:
    """A parsed command. `args` holds every option, defaults included; durations in seconds."""

    verb: str
    target: str
    args: Mapping[str, Any]

    @property
    def mutates(self) -> bool:
        return VERBS[self.verb].mutates

    @property
    def capacity(self) -> Capacity:
        return VERBS[self.verb].capacity

    @property
    def predicted(self) -> str:
        return VERBS[self.verb].predicts.format(node=self.target)

    @property
    def own_time_s(self) -> float:
        """The longest the command says it takes, in seconds."""
        return sum(float(self.args[o.key]) for o in VERBS[self.verb].options.values() if o.kind == "duration")


def parse_command(text: str) -> Action:
    """The action that `text` asks for; a leading `fleetctl` and `--yes` are accepted and ignored.

    Raises BadCommandError, which names the wrong word and what was probably meant.
    """
    if len(text) > MAX_COMMAND_CHARS:
        raise BadCommandError(f"the command has {len(text)} characters", remedy=f"at most {MAX_COMMAND_CHARS}")
    if not text.isprintable():
        raise BadCommandError("the command has a line break or control character", remedy="write one command a line")
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise BadCommandError(f"{text!r}: {error}", remedy="close the quote or remove the backslash") from None
    return parse_words(words)


def parse_words(words: list[str]) -> Action:
    """As `parse_command`, of words that are already apart."""
    rest = words[1:] if words[:1] == ["fleetctl"] else list(words)
    if not rest:
        raise BadCommandError("the command is empty", remedy=f"known: {', '.join(VERBS)}")
    verb, rest = _split_verb(rest)
    targets: list[str] = []
    args: dict[str, Any] = {option.key: option.default for option in verb.options.values()}
    seen: set[str] = set()
    while rest:
        word = rest.pop(0)
        if not word.startswith("-"):
            targets.append(word)
            continue
        name, equals, value = word.partition("=")
        if name in ("--yes", "-y") and not equals:
            continue
        option = verb.options.get(name)
        if option is None:
            raise BadCommandError(
                f"{verb.name}: unknown option {name}", remedy=did_you_mean(name, [*verb.options, "--yes"])
            )
        if name in seen:
            raise BadCommandError(f"{verb.name}: {name} is given twice", remedy="give it once")
        seen.add(name)
        if option.kind == "flag":
            if equals:
                raise BadCommandError(f"{verb.name}: {name} takes no value", remedy=f"write {name} alone")
            args[option.key] = True
            continue
        if not equals:
            if not rest:
                raise BadCommandError(f"{verb.name}: {name} has no value", remedy=f"{name}: {option.help}")
            value = rest.pop(0)
        args[option.key] = _option_value(verb, name, option, value)
    return Action(verb.name, _target(verb, targets), MappingProxyType(args))


def _split_verb(words: list[str]) -> tuple[Verb, list[str]]:
    for count in (2, 1):
        verb = VERBS.get(" ".join(words[:count]))
        if verb is not None and len(words) >= count:
            return verb, words[count:]
    groups = {name.split()[0] for name in VERBS if " " in name}
    wrong = " ".join(words[:2]) if words[0] in groups else words[0]
    raise BadCommandError(f"unknown command {wrong!r}", remedy=did_you_mean(wrong, VERBS))


def _target(verb: Verb, targets: list[str]) -> str:
    if len(targets) != 1:
        got = "none" if not targets else ", ".join(targets)
        raise BadCommandError(f"{verb.name}: takes one node, got {got}", remedy=f"write `fleetctl {verb.name} NODE`")
    try:
        return check_value(ValueType.NODE, targets[0])
    except BadInputError as error:
        raise BadCommandError(f"{verb.name}: {error.message}", remedy=error.remedy) from None


def _option_value(verb: Verb, name: str, option: Option, value: str) -> str | float:
    try:
        return parse_duration(value) if option.kind == "duration" else check_value(ValueType.NODE, value)
    except BadInputError as error:
        raise BadCommandError(f"{verb.name} {name}: {error.message}", remedy=error.remedy) from None
