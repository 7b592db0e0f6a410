"""What to type after an error: each one ends with a command that works, whatever else its remedy says."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from fleetctl.cli.command_table import COMMANDS
from fleetctl.cli.context import OPTIONS_WITH_VALUE
from fleetctl.cli.examples import EXAMPLES

_FLEETCTL = re.compile(r"\bfleetctl(-node)? (--)?([a-z][a-z-]*)")
_OTHERS = re.compile(r"\b(chmod|chown|export|kubectl|make|nvidia-smi|pip install|timedatectl|ulimit) \S")
_MEANT = re.compile(r"did you mean ([a-z-]+)\?")
_NOT_THERE = re.compile(
    r"\b(?:there is no|unknown) "
    r"(alert|freeze|gateway|incident|node|notification|pool|receipt|revision|rollout|run|runbook|silence|token)\b"
)


_KIND_OF_ID = {"inc": "incident", "run": "run", "rollout": "rollout", "rev": "revision"}


def with_command(error: str, remedy: str | None, exit_code: int, words: Sequence[str]) -> str:
    """The remedy, with a command behind it where it names none. `words`: what was typed, from the verb on."""
    if remedy and names_command(remedy):
        return remedy
    meant = _MEANT.search(remedy or "")
    if meant is not None and words and words[0] in ("get", "top", "describe", "explain"):
        return f"{remedy} fleetctl {words[0] if words[0] != 'describe' else 'get'} {meant[1]}"
    missing = _NOT_THERE.search(error)
    kind = f"{missing[1]}s" if missing is not None else ""
    command = f"fleetctl get {kind}" if kind else next_command(exit_code, words)
    return f"{remedy}; {command}" if remedy else command


def command_meant(words: Sequence[str], kinds: Callable[[], Iterable[str]]) -> str | None:
    """What to type where the first word is no command, and it is sure what was meant: a kind's name, or `help`.

    `kinds` are read for such words alone: it takes as long as all else.
    """
    if not words or words[0] in COMMANDS:
        return None
    if words[0] == "help":
        return " ".join(("fleetctl", *_command_in(words[1:]), "--help"))
    named = [kind for kind in kinds() if words[0] in (kind, kind.removesuffix("s"))]
    return f"fleetctl get {named[0]}" if named else None


def kind_left_out(words: Sequence[str], kinds: Callable[[], Iterable[str]]) -> str | None:
    """What to type in place of `describe node-1`, where the kind is missing; None where it is not."""
    if len(words) != 2 or words[0] != "describe" or words[1].startswith("-"):
        return None
    if words[1] in {name for kind in kinds() for name in (kind, kind.removesuffix("s"))}:
        return None
    kind = _KIND_OF_ID.get(words[1].partition("-")[0], "node")
    return shlex.join(("fleetctl", "describe", kind, words[1]))


class MisplacedOption(NamedTuple):
    """An option of `fleetctl` itself that stands behind the verb, and the command with it where it belongs."""

    option: str
    command: str


def misplaced_option(before: Sequence[str], words: Sequence[str]) -> MisplacedOption | None:
    """For `get nodes --controller URL`: kubectl takes such options anywhere, we before the command alone.

    `before`: what was typed before the verb; `words`: from it on.
    """
    for place, word in enumerate(words):
        option, equals, _ = word.partition("=")
        if option in OPTIONS_WITH_VALUE:
            end = place + (1 if equals else 2)
            command = ("fleetctl", *before, *words[place:end], *words[:place], *words[end:])
            return MisplacedOption(option, shlex.join(command))
    return None


def names_command(text: str) -> bool:
    """Whether something in it can be typed as it stands."""
    ours = (match[1] or match[2] or match[3] in COMMANDS for match in _FLEETCTL.finditer(text))
    return any(ours) or _OTHERS.search(text) is not None


def next_command(exit_code: int, words: Sequence[str]) -> str:
    """What to try after an error that names nothing of its own."""
    match exit_code:
        case 2:
            return " ".join(("fleetctl", *_command_in(words), "--help"))
        case 3:
            return "fleetctl events --since 10m"
        case _:
            return "fleetctl doctor"


def _command_in(words: Sequence[str]) -> Sequence[str]:
    """The longest command that these words begin with."""
    for length in (3, 2):
        if len(words) >= length and " ".join(words[:length]) in EXAMPLES:
            return words[:length]
    return words[:1] if words and words[0] in COMMANDS else ()
