"""The ledger of a load run: every sent request has exactly one fate, and the report adds up."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fleetctl.load.request_fate import JudgedFate, RequestFate
from fleetctl.load.streamed_answer import StreamedAnswer

MAX_SAMPLES = 50_000


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

    def add_value(self, value: float) -> None:
        """Count one value in."""
        self._count += 1
        if len(self._values) < self._limit:
            self._values.append(value)
        elif (at := self._rng.randrange(self._count)) < self._limit:
            self._values[at] = value

    def percentiles(self) -> Percentiles:
        """p50, p95 and p99 of what is kept, and the count of all that came."""
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
    """A load run in numbers. `sent` is the sum of the fates and `in_flight`."""

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
        """Ready for json.dumps."""
        return asdict(self)


class RequestLedger:
    """Counts fates while a run goes on. A request is booked as sent once and as ended once."""

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

    def book_sent(self, request_id: str) -> None:
        """A request is on its way."""
        assert request_id not in self._open
        self._open.add(request_id)
        self._sent += 1

    def book_end(self, request_id: str, judged: JudgedFate, answer: StreamedAnswer) -> None:
        """The request ended so, once."""
        self._open.remove(request_id)
        self._fates[judged.fate] += 1
        if judged.reason:
            self._reasons[judged.reason] += 1
        self._output_tokens += answer.num_tokens or 0
        if answer.ttft_s is not None:
            self._ttft.add_value(answer.ttft_s)
        for gap_s in answer.gaps_s:
            self._itl.add_value(gap_s)

    def correct(self, judged: JudgedFate) -> None:
        """A request that was booked as finished proved to be something else."""
        self._fates[RequestFate.FINISHED] -= 1
        self._fates[judged.fate] += 1
        self._reasons[judged.reason] += 1
        self.moved_finished -= 1

    def report(self, duration_s: float) -> Report:
        """The run so far, in numbers."""
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
        """Every sent request is on its way or has one fate. Raises AssertionError."""
        assert self._sent == len(self._open) + sum(self._fates.values())
        assert all(count >= 0 for count in self._fates.values())
        assert 0 <= self.verified <= self.moved_finished <= self.moved
