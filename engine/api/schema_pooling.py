"""Bodies of the routes that answer with vectors or scores: OpenAI's embeddings, and vLLM's score and rerank."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator

from engine.api.schema import OnByDefault, Text, TokenIds, WorkBody

MAX_INPUTS = 2048  # OpenAI's
MAX_DIMENSIONS = 1 << 18

Texts = Annotated[list[Text], Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True)]


class PoolingBody(WorkBody):
    """What all of them share."""

    normalize: bool | None = None  # vLLM's: false: the vector as it is
    add_special_tokens: OnByDefault = True


class EmbeddingBody(PoolingBody):
    """`/v1/embeddings`."""

    input: (
        Text | TokenIds | Annotated[list[Text | TokenIds], Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True)]
    )
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, Field(ge=1, le=MAX_DIMENSIONS)] | None = None


class ScoreBody(PoolingBody):
    """`/v1/score`: one text against many, or as many pairs as there are."""

    text_1: Text | Texts
    text_2: Text | Texts

    @model_validator(mode="before")
    @classmethod
    def _newer_names(cls, value: Any) -> Any:
        if isinstance(value, dict):
            value = dict(value)
            for older, *newer in (("text_1", "queries", "data_1"), ("text_2", "documents", "items", "data_2")):
                for name in newer:
                    if older not in value and name in value:
                        value[older] = value[name]
        return value

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Which text is held against which."""
        first = [self.text_1] if isinstance(self.text_1, str) else self.text_1
        second = [self.text_2] if isinstance(self.text_2, str) else self.text_2
        if len(first) == 1:
            first = first * len(second)
        return list(zip(first, second, strict=True))

    @model_validator(mode="after")
    def _same_number(self) -> ScoreBody:
        first = 1 if isinstance(self.text_1, str) else len(self.text_1)
        second = 1 if isinstance(self.text_2, str) else len(self.text_2)
        if first not in (1, second):
            raise ValueError(f"text_1 has {first} texts, text_2 {second}: give one text_1, or as many as text_2 has")
        return self


class Document(BaseModel):
    """A document with its text in a field."""

    model_config = ConfigDict(extra="ignore")

    text: Text


class RerankBody(PoolingBody):
    """`/v1/rerank`, Jina's and Cohere's."""

    query: Annotated[str, StringConstraints(min_length=1, max_length=8_000_000)]
    documents: Annotated[list[Text | Document], Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True)]
    top_n: Annotated[int, Field(ge=0, le=MAX_INPUTS)] = 0  # 0: all

    @field_validator("top_n", mode="before")
    @classmethod
    def _all(cls, value: Any) -> Any:
        return 0 if value is None else value

    @property
    def texts(self) -> list[str]:
        """The documents' texts."""
        return [one if isinstance(one, str) else one.text for one in self.documents]
