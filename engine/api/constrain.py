"""From a body's wishes on the form of its answer to a grammar that is known to compile: else 400, naming the field.

`client` is whose share of the grammar helper is taken (`arrival.client_of`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.api.errors import ApiError
from engine.api.schema_output import OutputFields, StructuredOutputs
from engine.node.served_model import ServedModel
from engine.protocol.grammar import (
    WHITESPACE,
    BadGrammarError,
    GrammarKind,
    GrammarSource,
    checked_size,
    choice_grammar,
    json_grammar,
    parse_schema,
)

MAX_PATH_CHARS = 256

ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


async def output_grammar(model: ServedModel, body: OutputFields, client: str) -> str | None:
    """The grammar of the answer; None when the body asks for none. Raises ApiError, RefusedError."""
    fields = body.output_fields
    if not fields:
        return None
    if len(fields) > 1:
        message = f"{' and '.join(fields)} exclude each other: give one of them"
        raise ApiError(400, message, param=fields[1], code="invalid_value")
    param, source = source_of(body, fields[0])
    return await compiled(model, source, param, client)


def source_of(body: OutputFields, name: str) -> tuple[str, GrammarSource]:
    """(path of the field that holds it, source of the grammar) of one of the body's fields. Raises ApiError."""
    path = name
    try:
        match name:
            case "response_format":
                assert body.response_format is not None, "it is in output_fields"
                form = body.response_format.json_schema
                path = name if form is None else f"{name}.json_schema.schema"
                schema = None if form is None else form.schema_
                return path, _text(json_grammar(ANY_OBJECT if schema is None else schema))
            case "structured_outputs":
                assert body.structured_outputs is not None, "it is in output_fields"
                path = f"{name}.{kind_of(body.structured_outputs)}"
                return path, _structured(body.structured_outputs)
            case "guided_json":
                return path, _json(body.guided_json or ANY_OBJECT)
            case "guided_regex":
                return path, _unbuilt(GrammarKind.REGEX, body.guided_regex)
            case "guided_choice":
                return path, _text(choice_grammar(body.guided_choice or ()))
            case _:
                return path, _unbuilt(GrammarKind.LARK, body.guided_grammar)
    except BadGrammarError as error:
        raise bad_grammar(error, path) from error


def kind_of(outputs: StructuredOutputs) -> str:
    """Which of its fields says what is wanted."""
    if outputs.json_ is not None:
        return "json"
    return next(kind for kind in ("regex", "choice", "grammar", "json_object") if getattr(outputs, kind) is not None)


def _text(grammar: str) -> GrammarSource:
    return GrammarSource(GrammarKind.TEXT, grammar)


def _unbuilt(kind: GrammarKind, text: str | None) -> GrammarSource:
    return GrammarSource(kind, checked_size(text or ""))


def _structured(outputs: StructuredOutputs) -> GrammarSource:
    whitespace = None if outputs.disable_any_whitespace else WHITESPACE
    match kind_of(outputs):
        case "json":
            return _json(outputs.json_ if outputs.json_ is not None else ANY_OBJECT, whitespace)
        case "regex":
            return _unbuilt(GrammarKind.REGEX, outputs.regex)
        case "choice":
            return _text(choice_grammar(outputs.choice or ()))
        case "grammar":
            return _unbuilt(GrammarKind.LARK, outputs.grammar)
        case _:
            return _text(json_grammar(ANY_OBJECT, whitespace=whitespace))


def _json(schema: str | Mapping[str, Any], whitespace: str | None = WHITESPACE) -> GrammarSource:
    return _text(json_grammar(parse_schema(schema) if isinstance(schema, str) else schema, whitespace=whitespace))


def bad_grammar(error: BadGrammarError, path: str) -> ApiError:
    """400, naming the field that holds the grammar and the place in it."""
    # Below the field the names are the client's own, of any length.
    path = f"{path}.{error.where[:MAX_PATH_CHARS]}" if error.where else path
    return ApiError(400, f"{path}: {error}", param=path, code="invalid_grammar")


async def compiled(model: ServedModel, source: GrammarSource, param: str, client: str) -> str:
    """The grammar, once it is known to compile. Raises ApiError when it does not, RefusedError when too many wait."""
    try:
        return await model.grammars.compiled(source, client)
    except BadGrammarError as error:
        raise bad_grammar(error, param) from error


async def check_compiles(model: ServedModel, grammar: str, client: str) -> None:
    """Raises BadGrammarError, RefusedError."""
    await model.grammars.compiled(_text(grammar), client)


async def check_continued(model: ServedModel, grammar: str | None, client: str) -> None:
    """Whether what another node handed off can be continued here. Raises ApiError, RefusedError."""
    if grammar is None:
        return
    try:
        await check_compiles(model, checked_size(grammar), client)
    except BadGrammarError as error:
        raise ApiError(409, f"can't be continued here: its grammar: {error}", code="bad_grammar") from error
