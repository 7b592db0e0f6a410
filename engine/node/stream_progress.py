"""What each event of a stream covers, told beside it: enough for another node to continue when this one dies.

A progress line is a comment of the event stream, before the event that it belongs to: `:p <choice> <token id>...`, with
`!<how it ended>` after the choice in its last one. `:p $` stands before the last event but [DONE]. The caller removes
and keeps the lines without reading them; `read_progress` reads them on the node that continues.

Text depends on tokens alone, so tokens say all. Those whose text is still held back (half a character, the beginning
of a stop string) are covered by the next event: nothing of them was sent, and replaying them sends nothing either.

Streams of `/v1/responses` number their events: there a line stands before each one, also where it covers no token, and
`read_told_events` counts them.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

import msgspec

from engine.node.generation_request import GenerationRequest

LINE_START = ":p "
ALL_SENT = "$"
STOP_STRING = "stop_string"  # how a choice ended, as told here: its finish reason is `stop`
FINISH_REASONS = frozenset({"stop", "length", "repetition", STOP_STRING})


@dataclass(frozen=True, slots=True)
class CoveredTokens:
    """How far the events that were sent cover one choice. A choice that is listed was opened."""

    index: int
    token_ids: tuple[int, ...]
    finish_reason: str | None = None
    is_stopped_by_string: bool = False


@dataclass(frozen=True, slots=True)
class ToldEvents:
    """How far a stream was told that has a line for each event. `batches`: tokens that became events together."""

    num_events: int
    batches: tuple[CoveredTokens, ...]


class ProgressLines:
    """Writes the progress lines of one stream."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: dict[int, list[int]] = {}  # by choice: tokens that no event covers yet

    def hold(self, index: int, token_ids: Iterable[int]) -> None:
        """Tokens of choice `index` that the next line covers."""
        held = self._held.get(index)
        if held is None:
            self._held[index] = [*token_ids]
        else:
            held.extend(token_ids)

    def line(self, index: int, finish_reason: str | None = None, *, is_stopped_by_string: bool = False) -> bytes:
        """The line for the next event of choice `index`."""
        end = "" if finish_reason is None else f"!{STOP_STRING if is_stopped_by_string else finish_reason}"
        return f"{LINE_START}{index}{end}{''.join([f' {i}' for i in self._held.pop(index, ())])}\n".encode()

    def rest(self) -> bytes:
        """Lines for all that no event covers, before a hand-off: its receiver begins after them."""
        return b"".join([self.line(index) for index in list(self._held)])


def all_sent_line() -> bytes:
    """The line before the last event but [DONE]."""
    return f"{LINE_START}{ALL_SENT}\n".encode()


def read_progress(text: str, num_choices: int) -> list[CoveredTokens]:
    """What these lines, in the order in which they were sent, cover. Raises ValueError naming the line."""
    token_ids: dict[int, list[int]] = {}
    ends: dict[int, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        index, ids, end = _read_line(line, number, num_choices)
        if index in ends and (ids or end):
            raise ValueError(f"line {number}: choice {index} has ended already")
        token_ids.setdefault(index, []).extend(ids)
        if end:
            ends[index] = end
    return [_covered(index, tuple(ids), ends.get(index)) for index, ids in sorted(token_ids.items())]


def read_told_events(text: str) -> ToldEvents:
    """The same, of a stream with one choice and a line for each event. Raises ValueError naming the line."""
    lines = [_read_line(line, number, 1) for number, line in enumerate(text.splitlines(), start=1)]
    return ToldEvents(len(lines), tuple(_covered(0, tuple(ids), end or None) for _, ids, end in lines if ids or end))


def _read_line(line: str, number: int, num_choices: int) -> tuple[int, list[int], str]:
    """The choice, its tokens and how it ended; empty: it goes on."""
    head, *ids = line.removeprefix(LINE_START).split(" ")
    choice, _, end = head.partition("!")
    if not choice.isdecimal() or int(choice) >= num_choices or not all(map(str.isdecimal, ids)):
        raise ValueError(f"line {number} is no progress of one of {num_choices} choices")
    if end and end not in FINISH_REASONS:
        raise ValueError(f"line {number}: choice {choice} has ended in an unknown way")
    return int(choice), [*map(int, ids)], end


def _covered(index: int, token_ids: tuple[int, ...], end: str | None) -> CoveredTokens:
    is_string = end == STOP_STRING
    return CoveredTokens(index, token_ids, "stop" if is_string else end, is_string)


class ResolvedRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the first node settled where the client's body left it open, so that no other one settles it differently."""

    created: int
    model: str
    prompt_digest: str
    max_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    seed: int

    @classmethod
    def of(cls, request: GenerationRequest) -> ResolvedRequest:
        """As the first node resolved it."""
        sampling = request.sampling
        return cls(
            created=request.created,
            model=request.model,
            prompt_digest=prompt_digest(request.prompts),
            max_tokens=sampling.max_tokens,
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            min_p=sampling.min_p,
            repetition_penalty=sampling.repetition_penalty,
            seed=sampling.seed,
        )

    def apply(self, request: GenerationRequest) -> GenerationRequest:
        """`request`, prepared again from the same body, as the first node resolved it."""
        sampling = replace(
            request.sampling,
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            seed=self.seed,
        )
        return msgspec.structs.replace(request, created=self.created, model=self.model, sampling=sampling)


def prompt_digest(prompts: Sequence[Sequence[int]]) -> str:
    """16 hex digits: another tokenizer or chat template gives another one."""
    digest = blake2b(digest_size=8)
    for prompt in prompts:
        digest.update(array("I", prompt).tobytes() + b"|")
    return digest.hexdigest()
