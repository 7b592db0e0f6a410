"""Why a sequence ended with an error: a closed set that runner, scheduler, node and API agree by.

Nobody decides by a message's text. The message is for people: it goes into the log and the client's error.

| kind | HTTP status | code in the answer, the error event and the log |
|---|---|---|
| GRAMMAR | 400 | `grammar_failed` |
| OUT_OF_MEMORY | 503 | `out_of_memory`, with X-Fleet-Refused: another node may have the memory |
| every other | 500 | `engine_error` |

A stream that has begun ends with an error event of that code; its status was sent before. What the API refuses by
itself (429, 503, 400 before a sequence begins) never comes here: `engine/node/refusal.py`, `engine/api/errors.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class FailureKind(StrEnum):
    """What went wrong, as far as somebody acts on it."""

    GRAMMAR = "grammar"  # the client's grammar can't be compiled, or became too costly while it was followed
    OUT_OF_MEMORY = "out_of_memory"  # the step lacked memory and this was its largest sequence; counted as OOM caught
    NON_FINITE_LOGITS = "non_finite_logits"  # NaN or infinity: its KV blocks leave the prefix cache
    STEP_FAILED = "step_failed"  # the forward pass raised something else; all sequences of the step end so
    REFUSED = "refused"  # can never be served within the core's limits; the API checks the same, so seldom seen
    ASLEEP = "asleep"  # came while the core had given its memory back
    DEFECT = "defect"  # scheduler and runner contradict each other: a bug of ours


@dataclass(frozen=True, slots=True)
class SequenceFailure:
    """One sequence's failure. `message` names what was wrong with which numbers, without prompt or output."""

    kind: FailureKind
    message: str
