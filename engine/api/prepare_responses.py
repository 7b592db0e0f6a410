"""From a `/v1/responses` body to the chat that it stands for."""

from __future__ import annotations

import msgspec
from pydantic import ValidationError

from engine.api import prepare
from engine.api.errors import from_validation
from engine.api.schema import ChatBody
from engine.api.schema_responses import ResponsesBody
from engine.node.generation_request import GenerationRequest
from engine.node.request_record import Arrival
from engine.node.served_model import ServedModel


async def response_request(model: ServedModel, body: ResponsesBody, arrival: Arrival) -> GenerationRequest:
    """Raises ApiError, TooLongError, RefusedError."""
    try:
        chat = ChatBody.model_validate(body.as_chat())
    except ValidationError as exc:
        raise from_validation(exc) from exc
    request = await prepare.chat_request(model, chat, arrival)
    return msgspec.structs.replace(request, kind="response", answer_id=f"resp_{arrival.request_id}")
