"""The command line of the cockpit: what is typed after `:` means what it means after `fleetctl`. Pure.

A noun goes to its screen, and a name with it to that thing. A verb is the command itself: the controller judges it, as
it does what a shell sends. Every other command is run as it stands, and what it prints is shown.
"""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from fleetctl.tui.noun import LOOKING, NOUNS, Jump, jump_of
from fleetctl.tui.shell import Command, command_of
from runbooks.command import parse_command
from runbooks.errors import RunbookError
from runbooks.verb import Verb
from runbooks.verbs import VERBS


@dataclass(frozen=True, slots=True)
class Said:
    """What stands beside a command that acts: why, and why although something is frozen."""

    dry_run: bool = False
    reason: str = ""
    override: str = ""


@dataclass(frozen=True, slots=True)
class Act:
    """Send a command; a dry run only asks what it would do. `target` is what has to be typed again where it is
    dangerous."""

    command: str
    verb: Verb
    target: str
    said: Said = Said()


@dataclass(frozen=True, slots=True)
class Start:
    """Run a page, or only ask what it would do. `target`: what it is about, to be typed again."""

    runbook: str
    inputs: Mapping[str, str]
    target: str
    said: Said = Said()


@dataclass(frozen=True, slots=True)
class Answer:
    """Approve or deny a run."""

    run_id: str
    approve: bool
    comment: str = ""
    override: str = ""


@dataclass(frozen=True, slots=True)
class Handle:
    """Say that an incident was seen, or whose it is."""

    what: Literal["ack", "assign"]
    incident_id: str
    to: str = ""


@dataclass(frozen=True, slots=True)
class Simple:
    """What needs no words: help, quit, refresh."""

    what: Literal["help", "quit", "refresh"]


@dataclass(frozen=True, slots=True)
class Wrong:
    """It can't be done: why, and what to type instead, where that follows from what was typed."""

    why: str
    remedy: str = ""


Order = Jump | Act | Start | Answer | Handle | Command | Simple | Wrong

GENTLE = frozenset({"cordon"})
"""Take nodes out, and end or move nothing of what they hold."""


SIMPLE: dict[str, Literal["help", "quit", "refresh"]] = {
    "q": "quit",
    "quit": "quit",
    "exit": "quit",
    "help": "help",
    "?": "help",
    "refresh": "refresh",
}


def parse_order(text: str, commands: Collection[str] = ()) -> Order:
    """What a typed line means. `commands`: those of fleetctl that are no verbs and can be run, by their own words."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        return Wrong(f"{text!r}: {error}", "close the quote or remove the backslash")
    if words[:1] == ["fleetctl"]:
        words = words[1:]
    if not words:
        return Wrong("nothing was typed", "a kind, as :nodes, or a command, as :drain node-2")
    if len(words) == 1 and words[0] in SIMPLE:
        return Simple(SIMPLE[words[0]])
    plain, options = _parted(words)
    if options is None:
        return Wrong(f"{words[-1]}: say why behind it", f":{shlex.join(words)} 'disk works'")
    if words[0] in ("incident", "runbook", "replace") and (special := _special(plain, options)) is not None:
        return special
    command, verb = command_of(words, commands), verb_of(plain)
    if verb is None and (jump := jump_of(words, command.name if command is not None else "")) is not None:
        return jump
    if command is not None and (verb is None or " " in command.name):
        return Wrong(command.why_not, f"in a shell: {command.line}") if command.why_not else command
    if verb is None:
        return _unknown(words, commands)
    line = shlex.join(plain)
    try:
        action = parse_command(line)
    except RunbookError as error:
        return Wrong(error.message, error.remedy or "")
    return Act(line, action.verb, str(action.target), options)


def _parted(words: Sequence[str]) -> tuple[list[str], Said | None]:
    """The command itself, and what stands beside every command that acts; None where a text is missing."""
    plain: list[str] = []
    said: dict[str, str] = {}
    left = list(words)
    while left:
        word = left.pop(0)
        option, equals, value = word.partition("=")
        if option in ("--reason", "--override", "--comment"):
            if not equals and not left:
                return plain, None
            said[option] = value if equals else left.pop(0)
        elif word not in ("--dry-run", "--yes", "-y"):
            plain.append(word)
    reason = said.get("--reason") or said.get("--comment", "")
    return plain, Said("--dry-run" in words, reason, said.get("--override", ""))


def _special(words: list[str], said: Said) -> Order | None:
    match words:
        case ["incident", "ack" | "assign", *rest] if not rest:
            return Wrong(f"incident {words[1]}: which incident?", f":incident {words[1]} ID, with one of :incidents")
        case ["incident", "ack", incident_id] if not said.reason:
            return Handle("ack", incident_id)
        case ["incident", "assign", incident_id, *rest] if not said.reason:
            return Handle("assign", incident_id, " ".join(rest).removeprefix("--to").strip())
        case ["runbook", "approve" | "deny" as what, run_id]:
            return Answer(run_id, what == "approve", said.reason, said.override)
        case ["runbook", "approve" | "deny" as what]:
            return Wrong(f"runbook {what}: which run?", f":runbook {what} RUN, with one of :runs")
        case ["replace", *rest]:
            return _replace(rest, said)
        case ["runbook", "run", *rest]:
            return _run_page(rest, said)
    return None


def _replace(words: list[str], said: Said) -> Order:
    """The page behind `fleetctl replace`."""
    match words:
        case [node]:
            inputs = {"node": node}
        case [node, "--deadline", deadline]:
            inputs = {"node": node, "deadline": deadline}
        case _:
            return Wrong("replace: which node?", ":replace NODE --deadline 30s; with --dry-run it only tells")
    return Start("replace-node", inputs, node, said)


def _run_page(words: list[str], said: Said) -> Order:
    if not words or not all("=" in word for word in words[1:]):
        why = "runbook run: which page, with which inputs?"
        return Wrong(why, ":runbook run replace-node node=NODE; with --dry-run it only tells")
    inputs = dict(word.split("=", 1) for word in words[1:])
    return Start(words[0], inputs, inputs.get("node") or inputs.get("pool") or words[0], said)


def _unknown(words: Sequence[str], commands: Collection[str]) -> Wrong:
    rest = [word for word in words if word not in LOOKING]
    wrong = rest[0] if rest else words[0]
    if wrong in NOUNS:
        return Wrong(f"{' '.join(rest)}: no screen shows that; {wrong} takes one name at most", f":{wrong}")
    known = (*NOUNS, *VERBS, "replace", *sorted(commands))
    near = difflib.get_close_matches(wrong, known, 2) or [name for name in known if name.startswith(wrong[:2])][:2]
    remedy = f"perhaps {', or '.join(f':{example_of(name)}' for name in near)}" if near else ":help"
    return Wrong(f"{wrong!r} is no kind and no command of the cockpit", remedy)


def example_of(name: str) -> str:
    """A line to type for a kind, a verb or a command, by its own words."""
    if name in NOUNS:
        return name
    if name in VERBS:
        return VERBS[name].example
    return "replace NODE" if name == "replace" else f"{name} --help"


def verb_of(words: Sequence[str]) -> Verb | None:
    return VERBS.get(" ".join(words[:2])) or VERBS.get(words[0]) if words else None


def is_dangerous(verb: Verb, command: str) -> bool:
    """Whether it takes nodes out and ends or moves what they hold: what it acts on is typed again.

    A cordon does neither, and a pool that grows takes nothing out.
    """
    try:
        action = parse_command(command)
    except RunbookError:
        return False
    change = action.change
    if change is None:
        return not str(action.args.get("to", "")).startswith("+")
    return bool(change.taken_out) and verb.name not in GENTLE
