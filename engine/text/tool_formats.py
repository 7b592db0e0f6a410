"""How models write tool calls: the formats that are known, which one a chat template teaches, and grammars in them.

Names are those of vLLM's `--tool-call-parser`. Reading calls back is `tool_stream.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

from engine.protocol.grammar import BadGrammarError, checked_size, literal, with_options

ToolFormatName = Literal["hermes", "llama3_json", "mistral", "json"]

MAX_CALLS = 16  # that a grammar lets a model write in one answer
NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """One way to write calls. `marker` announces them; where it may be left out, calls can only begin the answer."""

    name: ToolFormatName
    marker: str
    is_marker_needed: bool
    end: str  # closes one call
    arguments_key: str

    @property
    def specials(self) -> tuple[str, ...]:
        """Texts that are special tokens in some tokenizers, and must be seen all the same."""
        more = ("[ARGS]", "[CALL_ID]") if self.name == "mistral" else ()
        return tuple(text for text in (self.marker, self.end, *more) if text)


FORMATS: dict[str, ToolFormat] = {
    "hermes": ToolFormat("hermes", "<tool_call>", True, "</tool_call>", "arguments"),
    "mistral": ToolFormat("mistral", "[TOOL_CALLS]", True, "", "arguments"),
    "llama3_json": ToolFormat("llama3_json", "<|python_tag|>", False, "", "parameters"),
    # What vLLM has models write under tool_choice "required" when it knows no format of theirs.
    "json": ToolFormat("json", "", False, "", "parameters"),
}
PARSERS = tuple(name for name in get_args(ToolFormatName) if name != "json")


def detect_format(template: str) -> ToolFormatName | None:
    """The format that a chat template teaches its model; None when it knows no tools, or a format that we don't."""
    if "tools" not in template:
        return None
    if "<tool_call>" in template:
        # Qwen3-Coder's and GLM's calls look the same from outside and are no JSON within.
        return None if "<function=" in template or "<arg_key>" in template else "hermes"
    if "[TOOL_CALLS]" in template:
        return "mistral"
    if "<|python_tag|>" in template or ('"parameters"' in template and "ipython" in template):
        return "llama3_json"
    return None


class Function(NamedTuple):
    """A function that may be called, with the JSON schema of its arguments; None: it takes none."""

    name: str
    parameters: Mapping[str, Any] | None


def tools_grammar(
    format_name: ToolFormatName,
    functions: Sequence[Function],
    *,
    is_parallel: bool,
    special_ids: Mapping[str, int],
    content_schema: Mapping[str, Any] | None = None,
) -> str:
    """One call of these functions, or with `is_parallel` one and more; with a content schema, or such JSON instead.

    `special_ids` are the tokenizer's special tokens by text. Raises BadGrammarError; `where` is the function's index.
    """
    fmt = FORMATS[format_name]

    def term(text: str) -> str:
        return f"<[{special_ids[text]}]>" if text in special_ids else literal(text)

    more = f"{{0,{MAX_CALLS - 1}}}" if is_parallel else None
    has_names = format_name == "mistral" and "[ARGS]" in special_ids
    rules = [f"call: {' | '.join(f'call_{i}' for i in range(len(functions)))}"]
    for i, function in enumerate(functions):
        name = json.dumps(function.name)
        if has_names:
            rules.append(f"call_{i}: {term(fmt.marker)} {literal(function.name)} {term('[ARGS]')} args_{i}")
        else:
            head = f'{{"name": {name}, "{fmt.arguments_key}": '
            rules.append(f'call_{i}: {literal(head)} args_{i} "}}"')
        rules.append(f"args_{i}: %json {_args_schema(function, i)}")
    match format_name:
        case "hermes":
            rules.append(f'wrapped: {term(fmt.marker)} "\\n" call "\\n" {term(fmt.end)}')
            calls = f'wrapped ("\\n" wrapped){more}' if more else "wrapped"
        case "mistral" if has_names:
            calls = f"call call{more}" if more else "call"
        case "mistral":
            calls = f'{term(fmt.marker)} "[" call (", " call){more} "]"' if more else f'{term(fmt.marker)} "[" call "]"'
        case "llama3_json":
            calls = f'call ("; " call){more}' if more else "call"
        case "json":
            calls = f'"[" call (", " call){more} "]"' if more else '"[" call "]"'
    rules.append(f"calls: {calls}")
    if content_schema is not None:
        rules.append(f"content: %json {json.dumps(with_options(content_schema))}")
    rules.insert(0, "start: calls" if content_schema is None else "start: calls | content")
    return checked_size("\n".join(rules) + "\n")


def _args_schema(function: Function, index: int) -> str:
    try:
        return json.dumps(with_options(NO_PARAMETERS if function.parameters is None else function.parameters))
    except BadGrammarError as error:
        raise BadGrammarError(str(error), f"{index}.{error.where}".rstrip(".")) from error
