"""The books of a load run: every sent request has exactly one fate, and the report adds up."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from fleetctl.load.answer import Answer

MAX_SAMPLES = 50_000
REPEAT_TOKENS = 4  # so many tokens in a row that were there before are a repeat, not chance


class RequestFate(StrEnum):
    FINISHED = "finished"  # exactly the tokens asked for, and a proper end
    REFUSED = "refused"  # 429 or 503 before the first byte: it may be sent again
    LOST = "lost"  # anything else that is not what was asked for
    DUPLICATED = "duplicated"  # more tokens than asked for, or some of them twice
    ABANDONED = "abandoned"  # we hung up: the run was stopped


class Verdict(NamedTuple):
    fate: RequestFate
    reason: str = ""  # one of a few words


def judge(answer: Answer, asked_tokens: int) -> Verdict:
    """The fate of a request that asked for exactly `asked_tokens`. Pure."""
    if answer.status is None:
        return Verdict(RequestFate.LOST, "unreachable")
    if answer.status in (429, 503):
        return Verdict(RequestFate.REFUSED, f"http_{answer.status}")
    if answer.status != 200:
        return Verdict(RequestFate.LOST, f"http_{answer.status}")
    num_tokens = answer.num_tokens
    if (num_tokens or 0) > asked_tokens or answer.num_dones > 1 or answer.num_finishes > 1:
        return Verdict(RequestFate.DUPLICATED, "too_much")
    if answer.error is not None:
        return Verdict(RequestFate.LOST, "error_event")
    if answer.num_dones == 0:
        return Verdict(RequestFate.LOST, "cut")
    if answer.is_garbled:
        return Verdict(RequestFate.LOST, "garbled")
    if num_tokens is None or num_tokens < asked_tokens:
        return Verdict(RequestFate.LOST, "missing_tokens")
    if answer.completion_tokens != num_tokens:
        return Verdict(RequestFate.LOST, "usage_disagrees")
    if len(answer.ids) > 1:
        return Verdict(RequestFate.LOST, "id_changed")
    return Verdict(RequestFate.FINISHED)


def compare(first: Answer, again: Answer) -> Verdict:
    """The fate of a moved answer beside the same request, run again undisturbed. Pure."""
    if first.token_ids == again.token_ids and first.text == again.text:
        return Verdict(RequestFate.FINISHED)
    if _repeats(first.token_ids, again.token_ids):
        return Verdict(RequestFate.DUPLICATED, "repeated_after_move")
    return Verdict(RequestFate.LOST, "differs_after_move")


def _repeats(got: Sequence[int], wanted: Sequence[int]) -> bool:
    """Whether `got`, where it leaves `wanted`, goes on with tokens that it already gave."""
    at = next((i for i, (a, b) in enumerate(zip(got, wanted, strict=False)) if a != b), None)
    if at is None:
        return len(got) > len(wanted)
    stretch = list(got[at : at + REPEAT_TOKENS])
    return any(list(wanted[start : start + len(stretch)]) == stretch for start in range(at))


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Of `count` values, in seconds; None without values."""

    count: int
    p50: float | None
    p95: float | None
    p99: float | None


class Samples:
    """Values for percentiles in bounded memory: past the limit, a uniform sample of all that came."""

    def __init__(self, limit: int = MAX_SAMPLES) -> None:
        self._limit = limit
        self._values: list[float] = []
        self._count = 0
        self._rng = random.Random(0)

    def add(self, value: float) -> None:
        self._count += 1
        if len(self._values) < self._limit:
            self._values.append(value)
        elif (at := self._rng.randrange(self._count)) < self._limit:
            self._values[at] = value

    def percentiles(self) -> Percentiles:
        ordered = sorted(self._values)
        return Percentiles(self._count, *(_percentile(ordered, ratio) for ratio in (0.5, 0.95, 0.99)))


def _percentile(ordered: Sequence[float], ratio: float) -> float | None:
    """Linear between the two nearest ranks, as numpy's default."""
    if not ordered:
        return None
    rank = ratio * (len(ordered) - 1)
    low = int(rank)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (rank - low)


@dataclass(frozen=True, slots=True)
class Report:
    """A load run in numbers. `sent` is the sum of the fates and `in_flight`; `as_json` is ready for json.dumps."""

    sent: int
    in_flight: int
    finished: int
    refused: int
    lost: int
    duplicated: int
    abandoned: int
    held_back: int  # not sent, because too many were in flight
    moved: int  # of the sent ones, those that changed their node
    move_unknown: int  # ended, and the gateway could not be asked whether they moved
    verified: int  # moved, run again, and equal
    unverified: int  # moved and finished, and not compared yet, or the second run failed
    reasons: dict[str, int]
    output_tokens: int
    duration_s: float
    output_tokens_per_s: float | None
    ttft_s: Percentiles
    itl_s: Percentiles

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class Books:
    """Counts fates while a run goes on. Requests are opened once and closed once."""

    def __init__(self) -> None:
        self._open: set[str] = set()
        self._fates: Counter[RequestFate] = Counter()
        self._reasons: Counter[str] = Counter()
        self._sent = 0
        self.held_back = 0
        self.moved = 0
        self.move_unknown = 0
        self.moved_finished = 0
        self.verified = 0
        self._output_tokens = 0
        self._ttft, self._itl = Samples(), Samples()

    def open(self, request_id: str) -> None:
        assert request_id not in self._open
        self._open.add(request_id)
        self._sent += 1

    def close(self, request_id: str, verdict: Verdict, answer: Answer) -> None:
        self._open.remove(request_id)
        self._fates[verdict.fate] += 1
        if verdict.reason:
            self._reasons[verdict.reason] += 1
        self._output_tokens += answer.num_tokens or 0
        if answer.ttft_s is not None:
            self._ttft.add(answer.ttft_s)
        for gap_s in answer.gaps_s:
            self._itl.add(gap_s)

    def correct(self, verdict: Verdict) -> None:
        """A request that was booked as finished proved to be something else."""
        self._fates[RequestFate.FINISHED] -= 1
        self._fates[verdict.fate] += 1
        self._reasons[verdict.reason] += 1
        self.moved_finished -= 1

    def report(self, duration_s: float) -> Report:
        fates = self._fates
        return Report(
            sent=self._sent,
            in_flight=len(self._open),
            finished=fates[RequestFate.FINISHED],
            refused=fates[RequestFate.REFUSED],
            lost=fates[RequestFate.LOST],
            duplicated=fates[RequestFate.DUPLICATED],
            abandoned=fates[RequestFate.ABANDONED],
            held_back=self.held_back,
            moved=self.moved,
            move_unknown=self.move_unknown,
            verified=self.verified,
            unverified=self.moved_finished - self.verified,
            reasons=dict(self._reasons),
            output_tokens=self._output_tokens,
            duration_s=duration_s,
            output_tokens_per_s=self._output_tokens / duration_s if duration_s > 0 else None,
            ttft_s=self._ttft.percentiles(),
            itl_s=self._itl.percentiles(),
        )

    def check_integrity(self) -> None:
        assert self._sent == len(self._open) + sum(self._fates.values())
        assert all(count >= 0 for count in self._fates.values())
        assert 0 <= self.verified <= self.moved_finished <= self.moved
