"""A step that is a page of its own: `fleetctl runbook run drain-node node={{node}}`, once or for each selected node."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from runbooks.errors import BadCommandError
from runbooks.node_selector import NodeSelector, SelectorWords

_HEAD = ("runbook", "run")
_NAME = re.compile(r"[a-z][a-z0-9-]{0,62}")


@dataclass(frozen=True, slots=True)
class SubPage:
    """The page `name` with these inputs; with a selector, once for each node that it means, as `node`."""

    name: str
    inputs: Mapping[str, str]
    selector: NodeSelector | None = None


def is_sub_page(command: str) -> bool:
    """Whether the command, without its `fleetctl`, runs a page."""
    return tuple(command.split()[:2]) == _HEAD


def parse_sub_page(command: str) -> SubPage:
    """What a command with its values filled in runs. Raises BadCommandError."""
    words = shlex.split(command)[2:]
    selecting = SelectorWords("runbook run")
    inputs: dict[str, str] = {}
    names: list[str] = []
    while words:
        word = words.pop(0)
        option, equals, value = word.partition("=")
        if word in ("--yes", "-y"):
            continue
        if word.startswith("-"):
            if option not in SelectorWords.OPTIONS or option == "--at-once":
                raise BadCommandError(f"runbook run: {option} is not taken in a step", remedy="remove it")
            selecting.read(option, value if equals else words.pop(0) if words else "")
        elif equals:
            inputs[option] = value
        else:
            names.append(word)
    if len(names) != 1 or not _NAME.fullmatch(names[0]):
        raise BadCommandError("runbook run: names one page", remedy="write `fleetctl runbook run NAME input=value`")
    selector = selecting.selector
    if selector is not None and "node" in inputs:
        raise BadCommandError("runbook run: node= and a selector", remedy="keep one of them")
    return SubPage(names[0], inputs, selector)
