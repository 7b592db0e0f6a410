"""Fields of a body that say what the answer must look like: OpenAI's `response_format`, and vLLM's names.

vLLM's newest name is `structured_outputs`; the older `guided_*` mean the same. One of all of these may be given. What
a schema may hold and cost is checked when its grammar is built (`constrain.py`).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from engine.protocol.grammar import (
    MAX_CHOICE_CHARS,
    MAX_CHOICES,
    MAX_LARK_CHARS,
    MAX_REGEX_CHARS,
    MAX_SCHEMA_BYTES,
)

SchemaText = Annotated[str, StringConstraints(max_length=MAX_SCHEMA_BYTES)]
Schema = dict[str, Any]
Pattern = Annotated[str, StringConstraints(min_length=1, max_length=MAX_REGEX_CHARS)]
Grammar = Annotated[str, StringConstraints(min_length=1, max_length=MAX_LARK_CHARS)]
Choices = Annotated[
    list[Annotated[str, StringConstraints(min_length=1, max_length=MAX_CHOICE_CHARS)]],
    Field(min_length=1, max_length=MAX_CHOICES, fail_fast=True),
]


class JsonSchemaFormat(BaseModel):
    """The schema that the answer must fit."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=())

    name: Annotated[str, StringConstraints(min_length=1, max_length=64)]
    description: Annotated[str, StringConstraints(max_length=16_384)] | None = None
    schema_: Annotated[Schema | None, Field(alias="schema")] = None
    strict: bool | None = None  # always kept to, whatever is said


class ResponseFormat(BaseModel):
    """OpenAI's `response_format`."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None

    @model_validator(mode="after")
    def _schema_where_named(self) -> ResponseFormat:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("json_schema goes with type json_schema, and only with it")
        return self


class StructuredOutputs(BaseModel):
    """vLLM's, less what would change the prompt or the parser: those are refused when they ask for something."""

    json_: Annotated[SchemaText | Schema | None, Field(alias="json")] = None
    regex: Pattern | None = None
    choice: Choices | None = None
    grammar: Grammar | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool | None = False
    whitespace_pattern: None = None
    structural_tag: None = None
    disable_additional_properties: Literal[False] | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> StructuredOutputs:
        kinds = (self.json_, self.regex, self.choice, self.grammar, self.json_object or None)
        if sum(kind is not None for kind in kinds) != 1:
            raise ValueError("give exactly one of json, regex, choice, grammar, json_object")
        return self


class OutputFields(BaseModel):
    """For a body: at most one of these says what the answer looks like."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: SchemaText | Schema | None = None
    guided_regex: Pattern | None = None
    guided_choice: Choices | None = None
    guided_grammar: Grammar | None = None

    @property
    def output_fields(self) -> list[str]:
        """Names of those that were given and ask for something."""
        names = [name for name in OutputFields.model_fields if getattr(self, name) is not None]
        if self.response_format is not None and self.response_format.type == "text":
            names.remove("response_format")
        return names
