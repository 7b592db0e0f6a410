"""Routes that answer with vectors or scores: embeddings, score, rerank."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from engine.api import prepare_pooling
from engine.api.chunks import usage
from engine.api.entry import Entry
from engine.api.respond import GenerationResponse
from engine.api.schema_pooling import EmbeddingBody, PoolingBody, RerankBody, ScoreBody
from engine.model.pooling import Pooling
from engine.node.inflight import InflightRequest

Vector = npt.NDArray[np.float32]


class PoolingRoutes:
    """What clients of embedding models and of cross-encoders use."""

    def __init__(self, entry: Entry) -> None:
        self._entry = entry

    def routes(self) -> list[Route]:
        """For the application."""
        return [
            Route("/v1/embeddings", self.embeddings, methods=["POST"]),
            *(Route(path, self.score, methods=["POST"]) for path in ("/v1/score", "/score")),
            *(Route(path, self.rerank, methods=["POST"]) for path in ("/v1/rerank", "/rerank", "/v2/rerank")),
        ]

    async def embeddings(self, request: Request) -> Response:
        """A vector for each input, in their order."""
        prepared = prepare_pooling.embedding_request
        inflight, body = await self._entry.take(request, "embedding", EmbeddingBody, prepared, text_field="input")
        return self._answer(inflight, lambda: embeddings_answer(inflight, body, self._pooling))

    async def score(self, request: Request) -> Response:
        """How well the texts of each pair go together."""
        prepared = prepare_pooling.score_request
        inflight, body = await self._entry.take(request, "score", ScoreBody, prepared, text_field="text_2")
        return self._answer(inflight, lambda: score_answer(inflight, body, self._pooling))

    async def rerank(self, request: Request) -> Response:
        """The documents by how well they go with the query."""
        prepared = prepare_pooling.rerank_request
        inflight, body = await self._entry.take(request, "score", RerankBody, prepared, text_field="documents")
        return self._answer(inflight, lambda: rerank_answer(inflight, body, self._pooling))

    @property
    def _pooling(self) -> Pooling:
        assert self._entry.model.pooling is not None, "the entry has checked it"
        return self._entry.model.pooling

    def _answer(self, inflight: InflightRequest, write: Callable[[], dict[str, Any]]) -> Response:
        return PooledResponse(self._entry, inflight, write)


class PooledResponse(GenerationResponse):
    """The answer once every text has its vector."""

    def __init__(self, entry: Entry, inflight: InflightRequest, write: Callable[[], dict[str, Any]]) -> None:
        super().__init__(entry.requests, entry.model.tokenizer, inflight)
        self._write = write

    def whole_answer(self) -> bytes:
        """The body."""
        return msgspec.json.encode(self._write())


def embeddings_answer(inflight: InflightRequest, body: EmbeddingBody, pooling: Pooling) -> dict[str, Any]:
    """OpenAI's list. A vector is cut before it is normalised, as Matryoshka has it."""
    is_base64 = body.encoding_format == "base64"
    vectors = [vector[: body.dimensions] for vector in _vectors(inflight)]
    if _is_normalised(body, pooling):
        vectors = [_normalised(vector) for vector in vectors]
    return _head(inflight, "list") | {
        "data": [
            {
                "index": index,
                "object": "embedding",
                "embedding": base64.b64encode(vector.astype("<f4").tobytes()).decode()
                if is_base64
                else vector.tolist(),
            }
            for index, vector in enumerate(vectors)
        ],
        "usage": usage(inflight, 0),
    }


def score_answer(inflight: InflightRequest, body: ScoreBody, pooling: Pooling) -> dict[str, Any]:
    """vLLM's list."""
    scores = _scores(inflight, body, pooling, body.pairs)
    data = [{"index": index, "object": "score", "score": score} for index, score in enumerate(scores)]
    return _head(inflight, "list") | {"data": data, "usage": usage(inflight, 0)}


def rerank_answer(inflight: InflightRequest, body: RerankBody, pooling: Pooling) -> dict[str, Any]:
    """Jina's and Cohere's results, the best first."""
    texts = body.texts
    scores = _scores(inflight, body, pooling, [(body.query, text) for text in texts])
    order = sorted(range(len(texts)), key=lambda index: (-scores[index], index))[: body.top_n or None]
    results = [
        {"index": index, "document": {"text": texts[index]}, "relevance_score": scores[index]} for index in order
    ]
    request = inflight.request
    return {"id": request.answer_id, "model": request.model, "usage": usage(inflight, 0), "results": results}


def _head(inflight: InflightRequest, kind: str) -> dict[str, Any]:
    request = inflight.request
    return {"id": request.answer_id, "object": kind, "created": request.created, "model": request.model}


def _scores(
    inflight: InflightRequest, body: PoolingBody, pooling: Pooling, pairs: Sequence[tuple[str, str]]
) -> list[float]:
    """Of a head for one class the logit, as a share from 0 to 1 unless it is asked for bare; of vectors the cosine."""
    vectors = _vectors(inflight)
    if pooling.task == "classify":
        logits = [float(vector[0]) for vector in vectors]
        return logits if body.normalize is False else [float(1 / (1 + np.exp(-logit))) for logit in logits]
    place_of = prepare_pooling.texts_of(pairs)
    units = [_normalised(vector).astype(np.float64) for vector in vectors]
    return [float(units[place_of[first]] @ units[place_of[second]]) for first, second in pairs]


def _vectors(inflight: InflightRequest) -> list[Vector]:
    return [np.frombuffer(choice.pooled, "<f4") for choice in inflight.choices]


def _is_normalised(body: PoolingBody, pooling: Pooling) -> bool:
    return pooling.is_normalised if body.normalize is None else body.normalize


def _normalised(vector: Vector) -> Vector:
    """Of length 1; a vector of zeros stays one."""
    length = float(np.sqrt(np.square(vector, dtype=np.float64).sum()))
    found: Vector = (vector / max(length, 1e-12)).astype("<f4")
    return found
