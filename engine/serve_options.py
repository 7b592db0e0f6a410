"""What `serve` takes, as data: for who writes a node's options down before there is a node to refuse them."""

from __future__ import annotations

import argparse
from typing import Any, Literal

from engine.config import LEAST, add_serve_arguments

Kind = Literal["text", "words", "integer", "number", "flag", "switch"]
"""flag: also as `--no-`; switch: given or not; words: one or more."""


def serve_options() -> list[dict[str, Any]]:
    """Each name that an option can be given by, without dashes, with how its value is written.

    `least` and `choices` are null where nothing bounds it. What only a start can tell, as whether a directory is
    there, is not in it.
    """
    parser = argparse.ArgumentParser(add_help=False)
    add_serve_arguments(parser)
    return [
        {
            "name": name.removeprefix("--"),
            "kind": _kind(action),
            "least": LEAST.get(action.option_strings[0]),
            "choices": None if action.choices is None else [str(one) for one in action.choices],
        }
        for action in parser._actions  # argparse has no public list of them
        for name in action.option_strings
    ]


def _kind(action: argparse.Action) -> Kind:
    if isinstance(action, argparse.BooleanOptionalAction):
        return "flag"
    if action.nargs == 0:
        return "switch"
    if action.nargs == "+":
        return "words"
    return "integer" if action.type is int else "number" if action.type is float else "text"
