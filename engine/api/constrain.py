"""From a body's wishes on the form of its answer to a grammar that is known to compile: else 400, naming the field."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from engine.api.errors import ApiError
from engine.api.schema_output import OutputFields, StructuredOutputs
from engine.node.refusal import RefusedError
from engine.node.served_model import ServedModel
from engine.protocol.grammar import (
    WHITESPACE,
    BadGrammarError,
    checked_size,
    choice_grammar,
    json_grammar,
    lark_grammar,
    parse_schema,
    regex_grammar,
)

MAX_COMPILING = 32  # requests that wait for a grammar to be compiled; each may take tenths of a second
MAX_PATH_CHARS = 256

ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


async def output_grammar(model: ServedModel, body: OutputFields) -> str | None:
    """The grammar of the answer; None when the body asks for none. Raises ApiError, RefusedError."""
    fields = body.output_fields
    if not fields:
        return None
    if len(fields) > 1:
        message = f"{' and '.join(fields)} exclude each other: give one of them"
        raise ApiError(400, message, param=fields[1], code="invalid_value")
    param, grammar = built(body, fields[0])
    await check_compiles(model, grammar, param)
    return grammar


def built(body: OutputFields, name: str) -> tuple[str, str]:
    """(path of the field that holds it, grammar) of one of the body's fields. Raises ApiError."""
    path = name
    try:
        match name:
            case "response_format":
                assert body.response_format is not None, "it is in output_fields"
                form = body.response_format.json_schema
                path = name if form is None else f"{name}.json_schema.schema"
                schema = None if form is None else form.schema_
                return path, json_grammar(ANY_OBJECT if schema is None else schema)
            case "structured_outputs":
                assert body.structured_outputs is not None, "it is in output_fields"
                path = f"{name}.{kind_of(body.structured_outputs)}"
                return path, _structured(body.structured_outputs)
            case "guided_json":
                return path, _json(body.guided_json or ANY_OBJECT)
            case "guided_regex":
                return path, regex_grammar(body.guided_regex or "")
            case "guided_choice":
                return path, choice_grammar(body.guided_choice or ())
            case _:
                return path, lark_grammar(body.guided_grammar or "")
    except BadGrammarError as error:
        raise bad_grammar(error, path) from error


def kind_of(outputs: StructuredOutputs) -> str:
    """Which of its fields says what is wanted."""
    if outputs.json_ is not None:
        return "json"
    return next(kind for kind in ("regex", "choice", "grammar", "json_object") if getattr(outputs, kind) is not None)


def _structured(outputs: StructuredOutputs) -> str:
    whitespace = None if outputs.disable_any_whitespace else WHITESPACE
    match kind_of(outputs):
        case "json":
            return _json(outputs.json_ if outputs.json_ is not None else ANY_OBJECT, whitespace)
        case "regex":
            return regex_grammar(outputs.regex or "")
        case "choice":
            return choice_grammar(outputs.choice or ())
        case "grammar":
            return lark_grammar(outputs.grammar or "")
        case _:
            return json_grammar(ANY_OBJECT, whitespace=whitespace)


def _json(schema: str | Mapping[str, Any], whitespace: str | None = WHITESPACE) -> str:
    return json_grammar(parse_schema(schema) if isinstance(schema, str) else schema, whitespace=whitespace)


def bad_grammar(error: BadGrammarError, path: str) -> ApiError:
    """400, naming the field that holds the grammar and the place in it."""
    # Below the field the names are the client's own, of any length.
    path = f"{path}.{error.where[:MAX_PATH_CHARS]}" if error.where else path
    return ApiError(400, f"{path}: {error}", param=path, code="invalid_grammar")


async def check_compiles(model: ServedModel, grammar: str, param: str) -> None:
    """Raises ApiError when it does not, RefusedError when too many wait for that."""
    try:
        await compiled(model, grammar)
    except BadGrammarError as error:
        raise bad_grammar(error, param) from error


async def check_continued(model: ServedModel, grammar: str | None) -> None:
    """Whether what another node handed off can be continued here. Raises ApiError, RefusedError."""
    if grammar is None:
        return
    try:
        await compiled(model, checked_size(grammar))
    except BadGrammarError as error:
        raise ApiError(409, f"can't be continued here: its grammar: {error}", code="bad_grammar") from error


async def compiled(model: ServedModel, grammar: str) -> None:
    """Compiles it beside the event loop. Raises BadGrammarError, RefusedError."""
    if model.grammars.has(grammar):
        return
    if model.grammars.num_compiling >= MAX_COMPILING:
        raise RefusedError("overloaded", f"{MAX_COMPILING} requests wait for their grammar to be compiled", 1)
    await asyncio.wrap_future(model.grammars.submit(grammar))
