"""From a body that asks for vectors or scores to a `GenerationRequest` that generates nothing."""

from __future__ import annotations

import time
from collections.abc import Sequence

from engine.api.errors import ApiError
from engine.api.prepare import check_model, checked_ids, contexts, tokenise, truncated
from engine.api.schema_pooling import EmbeddingBody, PoolingBody, RerankBody, ScoreBody
from engine.model.pooling import Pooling
from engine.node.generation_request import GenerationRequest, Kind
from engine.node.refusal import check_fits
from engine.node.request_record import Arrival
from engine.node.served_model import ServedModel
from engine.protocol.step import SamplingParams

Input = str | list[int] | tuple[str, str]  # text, token ids, or a pair of texts


async def embedding_request(model: ServedModel, body: EmbeddingBody, arrival: Arrival) -> GenerationRequest:
    """Raises ApiError, TooLongError, RefusedError."""
    pooling = _pooling(model)
    if pooling.task != "embed":
        message = "this node scores pairs of texts (a head for classes): it answers /v1/score and /v1/rerank"
        raise ApiError(400, message, param="model", code="task_not_served")
    _check_dimensions(pooling, body.dimensions)
    return await _pooled(model, body, arrival, "embedding", "embd", _inputs(body))


async def score_request(model: ServedModel, body: ScoreBody, arrival: Arrival) -> GenerationRequest:
    """Raises ApiError, TooLongError, RefusedError."""
    return await _scores(model, body, arrival, "score", body.pairs)


async def rerank_request(model: ServedModel, body: RerankBody, arrival: Arrival) -> GenerationRequest:
    """Raises ApiError, TooLongError, RefusedError."""
    return await _scores(model, body, arrival, "rerank", [(body.query, text) for text in body.texts])


async def _scores(
    model: ServedModel, body: PoolingBody, arrival: Arrival, prefix: str, pairs: list[tuple[str, str]]
) -> GenerationRequest:
    """A head for classes reads both texts of a pair; without one each text has a vector, each different text once."""
    pooling = _pooling(model)
    if pooling.task == "classify" and pooling.size != 1:
        message = f"the model has {pooling.size} classes: a score needs a model with one"
        raise ApiError(400, message, param="model", code="task_not_served")
    inputs: list[Input] = list(pairs) if pooling.task == "classify" else list(texts_of(pairs))
    return await _pooled(model, body, arrival, "score", prefix, inputs)


def texts_of(pairs: Sequence[tuple[str, str]]) -> dict[str, int]:
    """Every text of these pairs, and its place among them."""
    return {text: place for place, text in enumerate(dict.fromkeys(text for pair in pairs for text in pair))}


def _pooling(model: ServedModel) -> Pooling:
    assert model.pooling is not None, "the entry has checked it"
    return model.pooling


def _inputs(body: EmbeddingBody) -> list[Input]:
    given = body.input
    if isinstance(given, str):
        return [given]
    ids = [item for item in given if isinstance(item, int)]
    return [ids] if ids else [item for item in given if not isinstance(item, int)]


def _check_dimensions(pooling: Pooling, wanted: int | None) -> None:
    if wanted is None:
        return
    allowed = pooling.dimensions
    if allowed == () and wanted != pooling.size:
        problem = (
            f"this model's vectors have {pooling.size} numbers and are not made to be cut (Matryoshka): leave it out"
        )
    elif wanted > pooling.size:
        problem = f"{wanted} is more than the {pooling.size} numbers of this model's vectors"
    elif allowed and wanted not in (*allowed, pooling.size):
        problem = f"this model's vectors may be cut to {', '.join(map(str, allowed))} numbers"
    else:
        return
    raise ApiError(400, f"dimensions: {problem}", param="dimensions", code="invalid_value")


async def _pooled(
    model: ServedModel, body: PoolingBody, arrival: Arrival, kind: Kind, prefix: str, inputs: list[Input]
) -> GenerationRequest:
    name = check_model(model, body.model)
    prompts = []
    for given in inputs:
        if isinstance(given, list):
            token_ids = checked_ids(model, given, param="input")
        else:
            token_ids = await tokenise(
                model, given, add_special_tokens=body.add_special_tokens, contexts=contexts(body)
            )
        token_ids = truncated(model, body, token_ids, 0)
        if not token_ids:
            raise ApiError(400, "input: each text must have at least one token", param="input", code="invalid_value")
        check_fits(len(token_ids), 0, model.max_sequence_tokens)  # before the next one is tokenised
        prompts.append(token_ids)
    return GenerationRequest(
        answer_id=f"{prefix}-{arrival.request_id}",
        request_id=arrival.request_id,
        kind=kind,
        model=name,
        created=int(time.time()),
        prompts=tuple(prompts),
        n=1,
        sampling=SamplingParams(max_tokens=0, pooling=_pooling(model).kind),
        cache_salt=body.cache_salt or "",
        priority=body.priority,
        deadline_s=body.deadline_s,
    )
