"""Words of a person's own in place of a command's: what they stand for, and that the shell offers them after TAB."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from fleetctl.cli import context
from fleetctl.cli.command_table import COMMANDS
from fleetctl.kit.errors import BadInputError, FleetctlError

COMPLETE, WORDS, PLACE, LINE = "_FLEETCTL_COMPLETE", "COMP_WORDS", "COMP_CWORD", "_TYPER_COMPLETE_ARGS"
"""What a shell tells after TAB: bash all words and which one it is; zsh and fish the line up to it."""


def first_word(words: Sequence[str]) -> str | None:
    """The verb among the words: the first that is neither an option nor an option's value."""
    place = _place_of_verb(words)
    return None if place is None else words[place]


def from_verb(words: Sequence[str]) -> Sequence[str]:
    """The words from the verb on; none where there is no verb."""
    place = _place_of_verb(words)
    return () if place is None else words[place:]


def _place_of_verb(words: Sequence[str]) -> int | None:
    place = 0
    while place < len(words) and words[place].startswith("-"):
        place += 2 if words[place] in context.OPTIONS_WITH_VALUE else 1
    return place if place < len(words) else None


def with_alias(words: list[str]) -> list[str]:
    """The words with an alias of the settings in place of what it stands for. Raises BadInputError.

    Only for what is no command: reading the settings takes longer than all else.
    """
    place = _place_of_verb(words)
    if place is None or words[place] in COMMANDS:
        return words
    meant = _aliases(words[:place]).get(words[place])
    if meant is None:
        return words
    try:
        meant_words = shlex.split(meant)
    except ValueError as error:
        raise BadInputError(f"aliases.{words[place]}: {error}", remedy="fleetctl config show") from error
    if first_word(meant_words) not in COMMANDS:
        raise BadInputError(f"aliases.{words[place]}: {meant!r} has no command of fleetctl", remedy="fleetctl --help")
    return [*words[:place], *meant_words, *words[place + 1 :]]


def completed_words() -> list[str] | None:
    """What stands on the line before the word that a shell asks about after TAB, with aliases as what they stand for;
    None when none asks. What completes the line is told the same."""
    words = _words_to_complete()
    if words is None:
        return None
    try:
        meant = with_alias(words)
    except FleetctlError:  # nothing is offered, and nobody who presses TAB wants to read why
        return words
    if meant != words:
        _tell(words, meant)
    return meant


def aliases_to_offer(words: Sequence[str]) -> Mapping[str, str]:
    """Names and meanings, where these words have no verb yet and the next one may be an alias."""
    if _place_of_verb(words) is not None:
        return {}
    try:
        return _aliases(words)
    except FleetctlError:
        return {}


def _aliases(options: Sequence[str]) -> Mapping[str, str]:
    """Those of the settings that these words before the verb name. Raises BadInputError."""
    given = dict(pairwise(options))
    config = given.get("--config") or next(
        (word.partition("=")[2] for word in options if word.startswith("--config=")), None
    )
    return context.Context(Path(config) if config else None).settings().aliases


def _words_to_complete() -> list[str] | None:
    if COMPLETE not in os.environ:
        return None
    if WORDS in os.environ:
        place = os.environ.get(PLACE, "")
        return os.environ[WORDS].split()[1 : int(place) if place.isdecimal() else 1]
    line = os.environ.get(LINE, "")
    given = line.split()[1:]
    return given if line.endswith(" ") else given[:-1]


def _tell(words: Sequence[str], meant: Sequence[str]) -> None:
    """Put the words that an alias stands for where the shell told of the alias."""
    if WORDS in os.environ:
        program, *given = os.environ[WORDS].split()
        os.environ[WORDS] = shlex.join([program, *meant, *given[len(words) :]])
        os.environ[PLACE] = str(len(meant) + 1)
    else:
        line = os.environ.get(LINE, "")
        begun = "" if line.endswith(" ") else line.split()[-1]
        os.environ[LINE] = f"{shlex.join([line.split()[0], *meant])} {begun}"
