"""The grammar of fenced commands: what a person types after `fleetctl`, and nothing more.

The table `runbooks.verbs.VERBS` is the whole grammar. Commands are words, never shell: there are no pipes, variables
or globs, and quotes only group words.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

from runbooks.errors import BadCommandError, BadInputError
from runbooks.node_selector import SelectorWords
from runbooks.target import Target, TargetKind, parse_target, written_forms
from runbooks.value import (
    ValueType,
    check_text,
    check_value,
    did_you_mean,
    parse_duration,
    parse_ratio,
    parse_share,
    parse_threshold,
)
from runbooks.verb import Action, Option, Verb
from runbooks.verbs import VERBS

MAX_COMMAND_CHARS = 2000
MAX_NODES = 100  # in one list
MAX_SHARES = 20  # steps of a rollout

_SIZE = re.compile(r"[+-]?\d{1,4}|before")
_COUNT = re.compile(r"\d{1,7}")
_PATH = re.compile(r"[^\s,'\"\\]{1,500}")
_SETTING = re.compile(r"[a-z][a-z0-9_-]{0,99}=[^\s,'\"\\]{0,500}")


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


def parse_words(words: Sequence[str]) -> Action:
    """As `parse_command`, of words that are already apart."""
    rest = list(words[1:] if words[:1] == ["fleetctl"] else words)
    if not rest:
        raise BadCommandError("the command is empty", remedy=f"known: {', '.join(VERBS)}")
    verb, rest = _split_verb(rest)
    targets: list[str] = []
    args: dict[str, Any] = {option.key: option.default for option in verb.options}
    seen: set[str] = set()
    selecting = SelectorWords(verb.name)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-"):
            targets.append(word)
            continue
        name, equals, value = word.partition("=")
        if name in ("--yes", "-y") and not equals:
            continue
        option = verb.option(name)
        if option is None and verb.takes_selector and name in SelectorWords.OPTIONS:
            selecting.read(name, value if equals else rest.pop(0) if rest else "")
            continue
        if option is None:
            known = [*(option.name for option in verb.options), "--yes"]
            raise BadCommandError(f"{verb.name}: unknown option {name}", remedy=did_you_mean(name, known))
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
        args[option.key] = _option_value(verb, option, value)
    for option in verb.options:
        if option.required and option.name not in seen:
            raise BadCommandError(f"{verb.name}: {option.name} is missing", remedy=f"{option.name}: {option.help}")
    selector = selecting.selector
    if selector is not None and targets:
        raise BadCommandError(f"{verb.name}: {targets[0]} and {selector.words}", remedy="name a node, or its labels")
    target = _target(verb, targets) if selector is None else Target(TargetKind.FLEET, "")
    return Action(verb, target, MappingProxyType(args), selector)


def _split_verb(words: list[str]) -> tuple[Verb, list[str]]:
    for count in (2, 1):
        verb = VERBS.get(" ".join(words[:count]))
        if verb is not None and len(words) >= count:
            return verb, words[count:]
    groups = {name.split()[0] for name in VERBS if " " in name}
    wrong = " ".join(words[:2]) if words[0] in groups else words[0]
    raise BadCommandError(f"unknown command {wrong!r}", remedy=did_you_mean(wrong, VERBS))


def _target(verb: Verb, targets: list[str]) -> Target:
    written = written_forms(verb.kinds)
    if not targets and (implied := verb.implied_target) is not None:
        return implied
    if len(targets) != 1:
        got = "none" if not targets else ", ".join(targets)
        kinds = " or ".join(kind.value for kind in verb.kinds)
        raise BadCommandError(
            f"{verb.name}: takes one {kinds}, got {got}", remedy=f"write `fleetctl {verb.name} {written}`"
        )
    try:
        return parse_target(targets[0], verb.kinds)
    except BadInputError as error:
        raise BadCommandError(f"{verb.name}: {error.message}", remedy=error.remedy) from None


def _share_up_to_all(text: str) -> float:
    """A share above 0, all included."""
    return 1.0 if text in ("1", "100%") else parse_ratio(text)


def _setting(text: str) -> str:
    if not _SETTING.fullmatch(text):
        raise BadInputError(f"{text[:80]!r} is not a setting", remedy="write it like max-num-seqs=32, without spaces")
    return text


def _option_value(verb: Verb, option: Option, text: str) -> str | int | float | tuple[str, ...] | tuple[float, ...]:
    try:
        match option.kind:
            case "duration" | "lifetime":
                return parse_duration(text)
            case "ratio":
                return parse_ratio(text)
            case "share":
                return parse_share(text)
            case "shares":
                return tuple(_share_up_to_all(share) for share in text.split(",")[:MAX_SHARES])
            case "path":
                if not _PATH.fullmatch(text):
                    raise BadInputError(f"{text[:80]!r} is not a path", remedy="write it without spaces and commas")
                return text
            case "settings":
                return tuple(_setting(one) for one in text.split(",")[:MAX_NODES])
            case "threshold":
                parse_threshold(text)
                return text
            case "word":
                return check_value(ValueType.STRING, text)
            case "nodes":
                names = text.split(",")
                if len(names) > MAX_NODES:
                    raise BadInputError(f"{len(names)} nodes", remedy=f"name at most {MAX_NODES}")
                return tuple(check_value(ValueType.NODE, name) for name in names)
            case "text":
                return check_text(text)
            case "names":
                return tuple(check_value(ValueType.STRING, name) for name in text.split(",")[:MAX_NODES])
            case "size":
                if not _SIZE.fullmatch(text):
                    raise BadInputError(f"{text[:80]!r} is not a size", remedy="write it like 5, +2, -1 or before")
                return text
            case "count":
                if not _COUNT.fullmatch(text):
                    raise BadInputError(f"{text[:80]!r} is not a count", remedy="write a whole number")
                return int(text)
            case _:
                return check_value(ValueType.NODE, text)
    except BadInputError as error:
        raise BadCommandError(f"{verb.name} {option.name}: {error.message}", remedy=error.remedy) from None
