"""The state of a request in a form that another node goes on from, and its check on arrival.

The gateway carries it unread. Drawing depends on (seed, output position) and text on the tokens alone, so prompt,
output tokens, parameters and the number of characters sent are all there is to know.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from engine.api.errors import ApiError
from engine.api.schema import MAX_CHOICES, MAX_PROMPTS, MAX_STOPS, MAX_TOKENS
from engine.node.generation_request import MAX_SEED, ChoiceProgress, GenerationRequest, Kind
from engine.node.inflight import InflightRequest
from engine.node.served_model import ServedModel
from engine.protocol.request_id import REQUEST_ID

VERSION: Literal[1] = 1


class HandoffState(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"request": "ask"}):
    """What is left to do. On the wire the request is called `ask`: nodes of two versions hand off to each other."""

    request: GenerationRequest
    choices: tuple[ChoiceProgress, ...]
    elapsed_s: float  # since the first node took the request


class HandoffEnvelope(msgspec.Struct, frozen=True):
    """The object that crosses; a version that is not known here is refused before its state is looked at."""

    version: int
    request_id: str
    kind: Kind
    state: HandoffState


class _Version(msgspec.Struct, frozen=True):
    version: int


_decoder = msgspec.json.Decoder(HandoffEnvelope)
_version_decoder = msgspec.json.Decoder(_Version)


def handoff_version(body: bytes) -> int | None:
    """1: a hand-off; 2: a continuation (`continuation.py`); None: neither."""
    try:
        return _version_decoder.decode(body).version
    except (msgspec.DecodeError, RecursionError):
        return None


def write_handoff(inflight: InflightRequest, now: float) -> HandoffEnvelope:
    """The hand-off of a settled request; everything up to here must have been written to its client."""
    return HandoffEnvelope(
        version=VERSION,
        request_id=inflight.request.request_id,
        kind=inflight.request.kind,
        state=HandoffState(
            request=inflight.request,
            choices=tuple(choice.progress() for choice in inflight.choices),
            elapsed_s=now - inflight.arrived_at + inflight.elapsed_before_s,
        ),
    )


def read_handoff(body: bytes, model: ServedModel) -> HandoffState:
    """Raises ApiError: 400 for what can be continued nowhere, 409 for what can't be continued here."""
    version = handoff_version(body)
    if version not in (None, VERSION):
        raise ApiError(409, f"hand-off version {version} is not known here", code="handoff_version")
    try:
        handoff = _decoder.decode(body)
    except (msgspec.DecodeError, RecursionError) as exc:
        raise ApiError(400, f"not a hand-off: {exc}", code="bad_handoff") from exc
    state = handoff.state
    problem = _problem(state, model.facts.vocab_size)
    if problem is not None:
        raise ApiError(400, f"not a hand-off: {problem}", code="bad_handoff")
    if state.request.model not in model.names:
        raise ApiError(409, f"the model `{state.request.model}` is not served here", code="model_not_found")
    return state


def _problem(state: HandoffState, vocab_size: int) -> str | None:
    request = state.request
    if request.kind not in ("chat", "completion"):
        return f"state.ask.kind: a {request.kind} does not go on from a hand-off"
    if (
        not 1 <= request.n <= MAX_CHOICES
        or not 1 <= len(request.prompts) <= MAX_PROMPTS
        or len(request.stop) > MAX_STOPS
    ):
        return "state.ask: more choices, prompts or stop strings than are allowed"
    if (
        not REQUEST_ID.fullmatch(request.request_id)
        or len(request.answer_id) > 160
        or len(request.cache_salt) > 256
        or any(not s for s in request.stop)
    ):
        return "state.ask: bad id, salt or stop string"
    if [c.index for c in state.choices] != list(range(request.n * len(request.prompts))):
        return "state.choices: must be one for each choice, in order"
    if request.echo_texts and len(request.echo_texts) != len(request.prompts):
        return "state.ask.echo_texts: must be one for each prompt"
    if not 0 <= request.sampling.max_tokens <= MAX_TOKENS or not 0 <= request.sampling.seed <= MAX_SEED:
        return "state.ask.sampling: max_tokens or seed is out of range"
    if not state.elapsed_s >= 0:
        return "state.elapsed_s: must not be negative"
    for name, token_ids in (
        *((f"state.ask.prompts[{i}]", p) for i, p in enumerate(request.prompts)),
        *((f"state.choices[{c.index}].output_token_ids", c.output_token_ids) for c in state.choices),
    ):
        if token_ids and (min(token_ids) < 0 or max(token_ids) >= vocab_size):
            return f"{name}: a token id is out of the vocabulary"
    if any(not p for p in request.prompts):
        return "state.ask.prompts: empty"
    if any(len(c.output_token_ids) > request.sampling.max_tokens for c in state.choices):
        return "state.choices: more output than max_tokens"
    return None
