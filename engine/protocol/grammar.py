"""Grammars as plain text: what an answer must look like, in the one form that API process, core and other nodes read.

The text is llguidance's own serialised form, so it travels through messages and hand-offs unchanged. Building it checks
size and shape; whether it can be compiled, and at what cost, is `grammar_compiler.py`'s question. Importing this module
does not import llguidance: only `regex_grammar` and `lark_grammar` do, which the API process leaves to its helper.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import Any

import msgspec

from engine.protocol.schema_references import MAX_REFERENCED_DEPTH, find_too_deep

MAX_SCHEMA_BYTES = 64 * 2**10
MAX_SCHEMA_DEPTH = 64
MAX_SCHEMA_NODES = 10_000
MAX_STRING_CHARS = 4_096  # one constant, pattern or name in a schema
MAX_REGEX_CHARS = 4_096
MAX_LARK_CHARS = 16_384
MAX_CHOICES = 1_024
MAX_CHOICE_CHARS = 1_024
MAX_GRAMMAR_BYTES = 256 * 2**10  # of the text as a whole; tools bring one schema each

# As models write JSON: on one line, or indented. Bounded, as one that likes spaces would write them to its last token.
WHITESPACE = r"( {0,2}|\n[ \t]{0,40})"


class BadGrammarError(ValueError):
    """This can't be a grammar; the message says why. `where` is the path below the field that held it."""

    def __init__(self, message: str, where: str = "") -> None:
        super().__init__(message)
        self.where = where


class GrammarKind(StrEnum):
    """What the text of a `GrammarSource` is."""

    TEXT = "text"  # a grammar already
    REGEX = "regex"
    LARK = "lark"  # or GBNF


class GrammarSource(msgspec.Struct, frozen=True):
    """What a client gave, to be made a grammar where that may fail: converters are as little to be trusted with a
    stranger's text as the compiler (GBNF of 16,000 blank lines takes one to ten seconds)."""

    kind: GrammarKind
    text: str

    def build(self) -> str:
        """The grammar. Raises BadGrammarError."""
        match self.kind:
            case GrammarKind.REGEX:
                return regex_grammar(self.text)
            case GrammarKind.LARK:
                return lark_grammar(self.text)
            case GrammarKind.TEXT:
                return self.text


def json_grammar(schema: Mapping[str, Any], *, whitespace: str | None = WHITESPACE) -> str:
    """JSON that the schema accepts; `whitespace` is a regex for what may stand between its parts, None for nothing.

    Raises BadGrammarError.
    """
    grammars = [{"json_schema": with_options(schema, whitespace=whitespace)}]
    return checked_size(json.dumps({"grammars": grammars}, ensure_ascii=False, separators=(",", ":")))


@contextmanager
def _telling() -> Iterator[None]:
    """llguidance can't take text that is no Unicode; it says so by ValueError."""
    try:
        yield
    except ValueError as error:
        raise BadGrammarError(str(error)[:MAX_CHOICE_CHARS]) from error


def with_options(schema: Mapping[str, Any], *, whitespace: str | None = WHITESPACE) -> dict[str, Any]:
    """The schema as a grammar holds it: checked, and with our options where a client might have put its own.

    Raises BadGrammarError.
    """
    check_schema(schema)
    options: dict[str, Any] = {"lenient": False, "coerce_one_of": False, "whitespace_flexible": whitespace is not None}
    if whitespace is not None:
        options["whitespace_pattern"] = whitespace
    return {**schema, "x-guidance": options}


def check_schema(schema: object) -> None:
    """Raises BadGrammarError when this is no object, or is larger or deeper than is allowed."""
    if not isinstance(schema, Mapping):
        raise BadGrammarError("a JSON schema must be an object")
    waiting: list[tuple[object, int, str]] = [(schema, 1, "")]
    num_nodes = num_chars = 0
    while waiting:
        node, depth, path = waiting.pop()
        num_nodes += 1
        if num_nodes > MAX_SCHEMA_NODES:
            raise BadGrammarError(f"the schema has more than {MAX_SCHEMA_NODES} values")
        if depth > MAX_SCHEMA_DEPTH:
            raise BadGrammarError(f"the schema is nested deeper than {MAX_SCHEMA_DEPTH}", path)
        if isinstance(node, Mapping):
            waiting += [(value, depth + 1, f"{path}.{key}".removeprefix(".")) for key, value in node.items()]
            texts = list(node)
        elif isinstance(node, list):
            waiting += [(value, depth + 1, f"{path}.{i}".removeprefix(".")) for i, value in enumerate(node)]
            texts = []
        else:
            texts = [node] if isinstance(node, str) else []
            if isinstance(node, float) and not math.isfinite(node):
                raise BadGrammarError("a number is no JSON", path)
            if isinstance(node, int) and not -(2**63) <= node < 2**64:
                raise BadGrammarError("an integer has more than 64 bits", path)
        for text in texts:
            num_chars += len(text)
            if len(text) > MAX_STRING_CHARS and path.rpartition(".")[2] not in {"description", "title", "$comment"}:
                raise BadGrammarError(f"a string is longer than {MAX_STRING_CHARS} characters", path)
        if num_chars > MAX_SCHEMA_BYTES:
            raise BadGrammarError(f"the schema is larger than {MAX_SCHEMA_BYTES} bytes")
    too_deep = find_too_deep(schema)
    if too_deep is not None:
        raise BadGrammarError(f"the schema is nested deeper than {MAX_REFERENCED_DEPTH} along its $refs", too_deep)


def parse_schema(text: str) -> dict[str, Any]:
    """The schema in a JSON text, as vLLM's clients may send it. Raises BadGrammarError."""
    if len(text) > MAX_SCHEMA_BYTES:
        raise BadGrammarError(f"the schema is larger than {MAX_SCHEMA_BYTES} bytes")
    try:
        schema = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise BadGrammarError(f"not JSON: {error}") from error
    if not isinstance(schema, dict):
        raise BadGrammarError("a JSON schema must be an object")
    return schema


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def regex_grammar(pattern: str) -> str:
    r"""Text that the pattern (Rust's syntax) matches from end to end. Raises BadGrammarError.

    `\d`, `\w` and `\s` are ASCII: a digit that only the newest Unicode knows would match here and not at the client's.
    """
    from llguidance import regex_to_lark

    if not pattern:
        raise BadGrammarError("an empty pattern matches no text")
    if len(pattern) > MAX_REGEX_CHARS:
        raise BadGrammarError(f"the pattern is longer than {MAX_REGEX_CHARS} characters")
    with _telling():
        return checked_size(f"start: /{regex_to_lark(pattern, 'dws')}/\n")


def choice_grammar(choices: Sequence[str]) -> str:
    """One of these texts. Raises BadGrammarError."""
    if not choices or len(choices) > MAX_CHOICES:
        raise BadGrammarError(f"1 to {MAX_CHOICES} choices are allowed")
    for index, choice in enumerate(choices):
        if not 1 <= len(choice) <= MAX_CHOICE_CHARS:
            raise BadGrammarError(f"a choice has 1 to {MAX_CHOICE_CHARS} characters", str(index))
    return checked_size(f"start: {' | '.join(map(literal, dict.fromkeys(choices)))}\n")


def lark_grammar(text: str) -> str:
    """A context-free grammar in Lark's syntax, or in GBNF (llama.cpp's). Raises BadGrammarError."""
    from llguidance.gbnf_to_lark import any_to_lark

    if len(text) > MAX_LARK_CHARS:
        raise BadGrammarError(f"the grammar is longer than {MAX_LARK_CHARS} characters")
    checked_size(text)
    try:
        converted: str = any_to_lark(text)
    except Exception as error:  # the converter raises bare Exception for bad syntax
        raise BadGrammarError(f"not a grammar in Lark's syntax or GBNF: {error}") from error
    return checked_size(converted)


def literal(text: str) -> str:
    """This very text, as Lark writes it."""
    return json.dumps(text, ensure_ascii=False)


def checked_size(grammar: str) -> str:
    """The grammar. Raises BadGrammarError when it is too large to be carried around."""
    try:
        size = len(grammar.encode())
    except UnicodeEncodeError as error:
        raise BadGrammarError(f"not Unicode text: {error}") from error
    if size > MAX_GRAMMAR_BYTES:
        raise BadGrammarError(f"the grammar takes {size} bytes, at most {MAX_GRAMMAR_BYTES} are allowed")
    return grammar
