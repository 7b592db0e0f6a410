"""The state of a request in a form that another node goes on from, and its check on arrival.

The gateway carries it unread. Drawing depends on (seed, output position) and text on the tokens alone, so prompt,
output tokens, parameters and the number of characters sent are all there is to know.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from engine.api.errors import ApiError
from engine.api.schema import MAX_CHOICES, MAX_PROMPTS, MAX_STOPS, MAX_TOKENS
from engine.node.inflight import MAX_SEED, Ask, Flight, Kind, Progress
from engine.node.node import Node
from engine.protocol.request_id import REQUEST_ID

VERSION: Literal[1] = 1


class HandoffState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    ask: Ask
    choices: tuple[Progress, ...]
    elapsed_s: float  # since the first node took the request


class Handoff(msgspec.Struct, frozen=True):
    version: int
    request_id: str
    kind: Kind
    state: HandoffState


_decoder = msgspec.json.Decoder(Handoff)


def write_handoff(flight: Flight, now: float) -> Handoff:
    """The hand-off of a settled flight; everything up to here must have been written to its client."""
    return Handoff(
        version=VERSION,
        request_id=flight.ask.request_id,
        kind=flight.ask.kind,
        state=HandoffState(
            ask=flight.ask,
            choices=tuple(choice.progress() for choice in flight.choices),
            elapsed_s=now - flight.arrived_at + flight.elapsed_before_s,
        ),
    )


def read_handoff(body: bytes, node: Node) -> HandoffState:
    """Raises ApiError: 400 for what can be continued nowhere, 409 for what can't be continued here."""
    try:
        handoff = _decoder.decode(body)
    except (msgspec.DecodeError, RecursionError) as exc:
        raise ApiError(400, f"not a hand-off: {exc}", code="bad_handoff") from exc
    if handoff.version != VERSION:
        raise ApiError(409, f"hand-off version {handoff.version} is not known here", code="handoff_version")
    state = handoff.state
    problem = _problem(state, node.facts.vocab_size)
    if problem is not None:
        raise ApiError(400, f"not a hand-off: {problem}", code="bad_handoff")
    if state.ask.model not in node.config.served_model_names:
        raise ApiError(409, f"the model `{state.ask.model}` is not served here", code="model_not_found")
    return state


def _problem(state: HandoffState, vocab_size: int) -> str | None:
    ask = state.ask
    if not 1 <= ask.n <= MAX_CHOICES or not 1 <= len(ask.prompts) <= MAX_PROMPTS or len(ask.stop) > MAX_STOPS:
        return "state.ask: more choices, prompts or stop strings than are allowed"
    if (
        not REQUEST_ID.fullmatch(ask.request_id)
        or len(ask.id) > 160
        or len(ask.cache_salt) > 256
        or any(not s for s in ask.stop)
    ):
        return "state.ask: bad id, salt or stop string"
    if [c.index for c in state.choices] != list(range(ask.n * len(ask.prompts))):
        return "state.choices: must be one for each choice, in order"
    if ask.echo_texts and len(ask.echo_texts) != len(ask.prompts):
        return "state.ask.echo_texts: must be one for each prompt"
    if not 0 <= ask.sampling.max_tokens <= MAX_TOKENS or not 0 <= ask.sampling.seed <= MAX_SEED:
        return "state.ask.sampling: max_tokens or seed is out of range"
    if not state.elapsed_s >= 0:
        return "state.elapsed_s: must not be negative"
    for name, token_ids in (
        *((f"state.ask.prompts[{i}]", p) for i, p in enumerate(ask.prompts)),
        *((f"state.choices[{c.index}].output_token_ids", c.output_token_ids) for c in state.choices),
    ):
        if token_ids and (min(token_ids) < 0 or max(token_ids) >= vocab_size):
            return f"{name}: a token id is out of the vocabulary"
    if any(not p for p in ask.prompts):
        return "state.ask.prompts: empty"
    if any(len(c.output_token_ids) > ask.sampling.max_tokens for c in state.choices):
        return "state.choices: more output than max_tokens"
    return None
