"""What to type after an error in the cockpit: each ends with a line that can be typed after `:`, or in a shell. Pure.

The command line does the same for its own errors; here a screen is what shows a list.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from fleetctl.tui.noun import NOUNS
from fleetctl.tui.order import Wrong, example_of, parse_order, verb_of
from fleetctl.tui.shell import command_of

TYPED = re.compile(r"(?:\bfleetctl |(?<![\w:/]):)([a-z](?:'[^'\n]*'|[^\n,;()|#\"`'])*)")
"""A command in a remedy: behind `fleetctl`, or behind a colon that nothing stands before; up to a punctuation mark that
is not in quotes."""
FILLED_IN = re.compile(r"\b[A-Z]{2,}\b(?!=)")  # by who types it

_NOT_THERE = re.compile(
    r"\b(?:there is no|no|unknown) (alert|incident|node|pool|revision|rollout|run|runbook|tenant)s?\b"
)
_BAD_INPUT, _REFUSED, _UNKNOWN = 2, 3, 4  # exit codes of `fleetctl.kit.errors`


def with_next_step(error: str, remedy: str, exit_code: int, typed: str, commands: Collection[str]) -> str:
    """The remedy, with what to type behind it where it names nothing that can be typed here.

    `typed`: the command that went wrong; `commands`: those that are no verbs and can be run from here.
    """
    if any(can_be_typed(match[1], commands) for match in TYPED.finditer(remedy)):
        return remedy
    step = f":{_step(error, exit_code, typed, commands)}"
    return f"{remedy}; {step}" if remedy else step


def can_be_typed(line: str, commands: Collection[str]) -> bool:
    """Whether it means something here, or in a shell where it wants a terminal of its own."""
    order = parse_order(FILLED_IN.sub("node-1", line.strip().rstrip(".")), commands)
    return not isinstance(order, Wrong) or order.remedy.startswith("in a shell: ")


def _step(error: str, exit_code: int, typed: str, commands: Collection[str]) -> str:
    missing = _NOT_THERE.search(error)
    if missing is not None and f"{missing[1]}s" in NOUNS:
        return f"{missing[1]}s"
    if exit_code == _UNKNOWN:
        return "doctor" if "doctor" in commands else "now"
    if exit_code != _BAD_INPUT:
        return "events"  # what was refused, or failed, is told there with its reason
    words = typed.split()
    verb, command = verb_of(words), command_of(words, commands)
    if verb is not None:
        return example_of(verb.name)
    return example_of(command.name) if command is not None else "help"
