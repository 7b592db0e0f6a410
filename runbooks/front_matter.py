"""The YAML head of a page: decoded once, strictly, with the line of whatever is wrong."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from alerts.yaml_keys import REMEDY, YamlKeys, read_document
from runbooks.errors import BadInputError, BadPageError
from runbooks.value import EXAMPLES, ValueType, check_value, parse_duration
from runbooks.verb import Verify

Risk = Literal["low", "medium", "high"]


@dataclass(frozen=True, slots=True)
class InputSpec:
    """One input of a page. `default` is checked when the page is loaded.

    `seen`: an expression of tokens that a proposal takes in place of the default, "" if none: what suits the fleet as
    it is measured then.
    """

    type: ValueType
    required: bool
    default: str | None
    description: str
    seen: str = ""

    @property
    def example(self) -> str:
        """A value of the input's type, with which a page is checked."""
        return EXAMPLES[self.type]


class FrontMatter(NamedTuple):
    """The head of a page, decoded; `lines` finds the line of a key for later errors."""

    name: str
    title: str
    risk: Risk
    causes: tuple[str, ...]
    inputs: dict[str, InputSpec]
    verify: Verify | None
    lines: KeyLines


class Place(NamedTuple):
    """Where in which file: the start of every message about a page."""

    file: str
    line: int

    def error(self, message: str, remedy: str | None = None) -> BadPageError:
        """The error to raise for what stands here."""
        return BadPageError(self.file, self.line, message, remedy=remedy)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


_NAME = r"^[a-z][a-z0-9-]{0,62}$"


class _Input(_Strict):
    type: Literal["node", "new_node", "duration", "string", "number", "pool", "size", "threshold", "ratio"]
    required: bool = False
    default: str | int | float | None = None
    description: str = Field(min_length=1, max_length=500)
    seen: str = Field(default="", max_length=2000)


class _Verify(_Strict):
    expect: str = Field(min_length=1, max_length=2000)
    says: str = Field(default="", max_length=200)
    within: str | int = "90s"
    settle: str | int = "5s"


class _Head(_Strict):
    name: str = Field(pattern=_NAME)
    title: str = Field(min_length=1, max_length=200)
    risk: Risk
    causes: list[str] = Field(default_factory=list, max_length=50)
    inputs: dict[str, _Input] = Field(default_factory=dict, max_length=50)
    verify: _Verify | None = None


def read_front_matter(file: str, text: str, first_line: int) -> FrontMatter:
    """What the YAML between the `---` lines says. `first_line` is the file line of its first line.

    Raises BadPageError naming the line of the key that is wrong.
    """
    try:
        raw, keys = read_document(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = Place(file, first_line + (mark.line if mark else 0))
        raise place.error(
            f"not valid YAML: {error.problem or error.context}", "see the YAML of a built-in page"
        ) from None
    except yaml.YAMLError as error:
        raise Place(file, first_line).error(f"not valid YAML: {error}", "remove what is not text") from None
    except RecursionError:
        raise Place(file, first_line).error("nested too deeply", "inputs and verify are the only levels") from None
    lines = KeyLines(file, first_line, keys)
    if keys.twice:
        raise Place(file, first_line + keys.twice[0].line - 1).error(str(keys.twice[0]), REMEDY)
    try:
        head = _Head.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join(str(part) for part in first["loc"] if part not in _UNION_TAGS) or "front matter"
        raise lines.at(first["loc"]).error(f"{path}: {first['msg']}", _remedy(first["type"])) from None
    inputs = {name: _input(name, spec, lines) for name, spec in head.inputs.items()}
    verify = _verify(head.verify, lines) if head.verify else None
    return FrontMatter(head.name, head.title, head.risk, tuple(head.causes), inputs, verify, lines)


def _input(name: str, raw: _Input, lines: KeyLines) -> InputSpec:
    where = ("inputs", name)
    if not (name.isascii() and name.replace("_", "a").isalnum() and name[0].isalpha() and name.islower()):
        raise lines.at(where).error(f"input {name!r} is not a name", "use a-z, 0-9 and _, starting with a letter")
    value_type = ValueType(raw.type)
    if raw.required and raw.default is not None:
        raise lines.at(where).error(f"input {name!r} is required and has a default", "remove one of the two")
    if not raw.required and raw.default is None:
        raise lines.at(where).error(f"input {name!r} has no default", "give a default or `required: true`")
    default = None if raw.default is None else str(raw.default)
    if default is not None:
        try:
            check_value(value_type, default)
        except BadInputError as error:
            raise lines.at((*where, "default")).error(
                f"default of input {name!r}: {error.message}", error.remedy
            ) from None
    if raw.seen and (value_type is not ValueType.THRESHOLD or default is None):
        raise lines.at((*where, "seen")).error(
            f"input {name!r}: `seen` is for a threshold that has a default", "remove it, or give a default"
        )
    return InputSpec(value_type, raw.required, default, raw.description, " ".join(raw.seen.split()))


def _verify(raw: _Verify, lines: KeyLines) -> Verify:
    seconds: dict[str, float] = {}
    for key in ("within", "settle"):
        try:
            seconds[key] = parse_duration(str(getattr(raw, key)))
        except BadInputError as error:
            raise lines.at(("verify", key)).error(f"verify.{key}: {error.message}", error.remedy) from None
    if not 0 < seconds["within"] < math.inf or seconds["settle"] >= seconds["within"]:
        raise lines.at(("verify",)).error("verify: settle must be shorter than within", "raise within or lower settle")
    return Verify(" ".join(raw.expect.split()), seconds["within"], seconds["settle"], " ".join(raw.says.split()))


_UNION_TAGS = frozenset({"str", "int", "float"})  # pydantic puts the tried member of a union into the path


def _remedy(kind: str) -> str | None:
    return {
        "missing": "add it",
        "extra_forbidden": "remove it or correct its spelling",
        "string_type": "write it as text, in quotes if it looks like a number or a date",
        "bool_type": "write true or false",
    }.get(kind)


class KeyLines:
    """File lines of the YAML keys."""

    def __init__(self, file: str, first_line: int, keys: YamlKeys) -> None:
        self._file = file
        self._first_line = first_line
        self._keys = keys

    def at(self, path: Sequence[Any]) -> Place:
        """The place of the longest part of `path` that is in the file."""
        return Place(self._file, self._first_line + max(self._keys.line_of(*path), 1) - 1)
