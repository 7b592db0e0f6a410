"""What became of the soak's requests, as their clients counted it and as the gateways' logs say."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from fleetctl.gateway_soak.told_answer import first_difference

EVENT = '"request.finished"'


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one request in the end. `told` None: no whole answer; `problem` says why."""

    request_id: str
    told: str | None
    problem: str = ""
    attempts: int = 1
    unheard: int = 0  # attempts that no gateway took up under this id: in flight already, or not reached
    longest_pause_s: float = 0.0
    ttft_s: float | None = None  # of a stream, from the first attempt on
    duration_s: float = 0.0


class Changed(NamedTuple):
    """An answer that was not that of the quiet run."""

    request_id: str
    kind: str
    difference: str


@dataclass(slots=True)
class Tally:
    """All requests of a soak, as their clients saw them."""

    finished: Counter[str] = field(default_factory=Counter)  # by kind
    streams: int = 0  # of the finished ones
    retried: int = 0  # came again after a refusal, or after their gateway was gone
    lost: list[Answer] = field(default_factory=list)
    changed: list[Changed] = field(default_factory=list)  # told something else than in the quiet run, or twice
    longest_pause_s: float = 0.0
    attempts: Counter[str] = field(default_factory=Counter)  # by request id: those that the log should know

    def note(self, answer: Answer, kind: str, expected: str | None, *, is_streamed: bool) -> None:
        """Count one answer. `expected` None: whatever it told is right, as long as it is whole."""
        self.retried += answer.attempts > 1
        self.longest_pause_s = max(self.longest_pause_s, answer.longest_pause_s)
        self.attempts[answer.request_id] += answer.attempts - answer.unheard
        if answer.told is None:
            self.lost.append(answer)
        elif expected is not None and answer.told != expected:
            self.changed.append(Changed(answer.request_id, kind, first_difference(expected, answer.told)))
        else:
            self.finished[kind] += 1
            self.streams += is_streamed


@dataclass(slots=True)
class FateCheck:
    """Whether each request has one fate in the gateways' logs. Lists hold request ids."""

    outcomes: Counter[str] = field(default_factory=Counter)  # of the last line of each request
    twice: list[str] = field(default_factory=list)  # more fates than attempts
    missing: list[str] = field(default_factory=list)  # fewer: right where a gateway was killed, and nowhere else

    @classmethod
    def of(cls, attempts: Mapping[str, int], fates: Mapping[str, list[str]]) -> FateCheck:
        """Hold what the clients asked against what the logs say."""
        check = cls()
        for request_id, count in attempts.items():
            found = fates.get(request_id, [])
            check.outcomes[found[-1] if found else "unknown"] += 1
            if len(found) > count:
                check.twice.append(request_id)
            elif len(found) < count:
                check.missing.append(request_id)
        return check


def read_fates(logs: Iterable[Path]) -> dict[str, list[str]]:
    """Outcomes of each request id in gateways' logs, in their order. Raises OSError."""
    fates: dict[str, list[str]] = {}
    for log in logs:
        with log.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if EVENT not in line:
                    continue
                try:
                    fate = json.loads(line)
                except ValueError:
                    continue  # a line that its process was killed at
                fates.setdefault(str(fate["request_id"]), []).append(str(fate["outcome"]))
    return fates
