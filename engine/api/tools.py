"""What a chat's tools mean for its prompt, its grammar and the reading of its answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.api.constrain import ANY_OBJECT, bad_grammar, check_compiles, output_grammar
from engine.api.errors import ApiError
from engine.api.schema_output import OutputFields
from engine.api.schema_tools import NamedToolChoice, ToolFields
from engine.node.served_model import ServedModel
from engine.protocol.grammar import BadGrammarError, json_grammar
from engine.text.tool_formats import Function, ToolFormatName, tools_grammar


@dataclass(frozen=True, slots=True)
class ToolPlan:
    """None of all: the chat has no tools, or may not use them."""

    rendered: tuple[dict[str, Any], ...] | None = None  # for the chat template
    format: ToolFormatName | None = None  # how calls are written and read
    max_calls: int | None = None
    forced: tuple[int, ...] = ()  # indices of the functions of which one must be called; empty: the model decides


def plan_tools(model: ServedModel, body: ToolFields) -> ToolPlan:
    """Raises ApiError when tools and choice do not fit each other, or this model."""
    names = [tool.function.name for tool in body.tools or ()]
    for index, name in enumerate(names):
        if name in names[:index]:
            path = f"tools.{index}.function.name"
            raise ApiError(400, f"{path}: {name!r} is used twice", param=path, code="invalid_value")
    choice = body.tool_choice
    if isinstance(choice, NamedToolChoice) and choice.function.name not in names:
        path = "tool_choice.function.name"
        message = f"{path}: there is no {choice.function.name!r} in tools"
        raise ApiError(400, message, param=path, code="invalid_value")
    if not names:
        if choice in ("auto", "required"):
            message = "tool_choice: is only allowed when tools are specified"
            raise ApiError(400, message, param="tool_choice", code="invalid_value")
        return ToolPlan()
    if choice == "none":
        return ToolPlan()
    forced: tuple[int, ...] = ()
    if isinstance(choice, NamedToolChoice):
        forced = (names.index(choice.function.name),)
    elif choice == "required":
        forced = tuple(range(len(names)))
    if model.tool_format is None and not forced:
        raise ApiError(
            400,
            "tool_choice: this model's chat template shows no tool-call format that is known here; use required or a "
            "named function, or start the node with --tool-call-parser",
            param="tool_choice",
            code="tools_not_supported",
        )
    is_single = isinstance(choice, NamedToolChoice) or body.parallel_tool_calls is False
    return ToolPlan(
        rendered=tuple(tool.for_template() for tool in body.tools or ()),
        format=model.tool_format or "json",
        max_calls=1 if is_single else None,
        forced=forced,
    )


async def chat_grammar(
    model: ServedModel, body: OutputFields, tools: ToolFields, plan: ToolPlan, client: str
) -> str | None:
    """The grammar of a chat's answer: calls where they are forced, what the body asks for, or either of both.

    Raises ApiError, RefusedError.
    """
    if plan.format is None:
        return await output_grammar(model, body, client)
    content = _content_schema(body, plan)
    if not plan.forced and content is None:
        return None
    functions = [Function(tool.function.name, tool.function.parameters) for tool in tools.tools or ()]
    indices = plan.forced or tuple(range(len(functions)))
    try:
        grammar = tools_grammar(
            plan.format,
            [functions[i] for i in indices],
            is_parallel=plan.max_calls is None,
            special_ids=model.tokenizer.special_ids,
            content_schema=content,
        )
        await check_compiles(model, grammar, client)
    except BadGrammarError as error:
        await _blame(model, functions, indices, body if content is not None else None, client)
        raise bad_grammar(BadGrammarError(str(error)), "tools") from error
    return grammar


def _content_schema(body: OutputFields, plan: ToolPlan) -> Mapping[str, Any] | None:
    """What text beside calls must be; only JSON can stand beside calls."""
    fields = body.output_fields
    if not fields or (plan.forced and fields == ["response_format"]):
        return None  # a forced call leaves no text that could have a format
    if fields != ["response_format"] or body.response_format is None:
        message = f"{fields[0]}: does not go with tools; response_format does, or tool_choice none"
        raise ApiError(400, message, param=fields[0], code="invalid_value")
    form = body.response_format.json_schema
    return ANY_OBJECT if form is None or form.schema_ is None else form.schema_


async def _blame(
    model: ServedModel, functions: list[Function], indices: tuple[int, ...], body: OutputFields | None, client: str
) -> None:
    """Raises ApiError for the first part of a grammar that does not even compile alone."""
    for index in indices:
        parameters = functions[index].parameters
        if parameters is not None:
            path = f"tools.{index}.function.parameters"
            try:
                await check_compiles(model, json_grammar(parameters), client)
            except BadGrammarError as error:
                raise bad_grammar(error, path) from error
    if body is not None:
        await output_grammar(model, body, client)
