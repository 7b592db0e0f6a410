"""What became of one request: judged from what came back for what was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from fleetctl.load.streamed_answer import StreamedAnswer

REPEAT_TOKENS = 4  # so many tokens in a row that were there before are a repeat, not chance


GAVE_UP = "gave_up"  # nothing came for as long as its user waits
_NOTHING_CAME = ("SocketTimeoutError", "ServerTimeoutError")  # aiohttp's, of a connection that stands


class RequestFate(StrEnum):
    """Each sent request has exactly one."""

    FINISHED = "finished"  # exactly the tokens asked for, and a proper end
    REFUSED = "refused"  # 429 or 503 before the first byte: it may be sent again
    LOST = "lost"  # anything else that is not what was asked for
    DUPLICATED = "duplicated"  # more tokens than asked for, or some of them twice
    ABANDONED = "abandoned"  # we hung up: the run was stopped


class JudgedFate(NamedTuple):
    """A fate and why."""

    fate: RequestFate
    reason: str = ""  # one of a few words


def judge(answer: StreamedAnswer, asked_tokens: int, *, is_exact: bool = True) -> JudgedFate:
    """The fate of a request that asked for exactly `asked_tokens`, or for at most so many. Pure."""
    if answer.status is None:
        return JudgedFate(RequestFate.LOST, GAVE_UP if answer.error in _NOTHING_CAME else "unreachable")
    if answer.status in (429, 503):
        return JudgedFate(RequestFate.REFUSED, f"http_{answer.status}")
    if answer.status != 200:
        return JudgedFate(RequestFate.LOST, f"http_{answer.status}")
    num_tokens = answer.num_tokens
    if (num_tokens or 0) > asked_tokens or answer.num_dones > 1 or answer.num_finishes > 1:
        return JudgedFate(RequestFate.DUPLICATED, "too_much")
    if answer.error is not None:
        return JudgedFate(RequestFate.LOST, "error_event")
    if answer.num_dones == 0:
        return JudgedFate(RequestFate.LOST, "cut")
    if answer.is_garbled:
        return JudgedFate(RequestFate.LOST, "garbled")
    if not is_exact:
        return JudgedFate(RequestFate.FINISHED) if answer.num_finishes else JudgedFate(RequestFate.LOST, "cut")
    if num_tokens is None or num_tokens < asked_tokens:
        return JudgedFate(RequestFate.LOST, "missing_tokens")
    if answer.completion_tokens != num_tokens:
        return JudgedFate(RequestFate.LOST, "usage_disagrees")
    if len(answer.ids) > 1:
        return JudgedFate(RequestFate.LOST, "id_changed")
    return JudgedFate(RequestFate.FINISHED)


def compare(first: StreamedAnswer, again: StreamedAnswer) -> JudgedFate:
    """The fate of a moved answer beside the same request, sent again undisturbed. Pure."""
    if first.token_ids == again.token_ids and first.text == again.text:
        return JudgedFate(RequestFate.FINISHED)
    if _repeats(first.token_ids, again.token_ids):
        return JudgedFate(RequestFate.DUPLICATED, "repeated_after_move")
    return JudgedFate(RequestFate.LOST, "differs_after_move")


def _repeats(got: Sequence[int], wanted: Sequence[int]) -> bool:
    """Whether `got`, where it leaves `wanted`, goes on with tokens that it already gave."""
    at = next((i for i, (a, b) in enumerate(zip(got, wanted, strict=False)) if a != b), None)
    if at is None:
        return len(got) > len(wanted)
    stretch = list(got[at : at + REPEAT_TOKENS])
    return any(list(wanted[start : start + len(stretch)]) == stretch for start in range(at))
