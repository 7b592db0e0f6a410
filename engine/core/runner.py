"""What the core needs of a runner: the part that turns a step plan into drawn tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from engine.protocol.failure import FailureKind, SequenceFailure
from engine.protocol.grammar import BadGrammarError
from engine.protocol.step import StepPlan, StepResult


@dataclass(frozen=True, slots=True)
class Slept:
    """What a sleeping runner gave back."""

    freed_kv_bytes: int
    weights: Literal["kept", "offloaded"]


NO_GRAMMARS = SequenceFailure(FailureKind.DEFECT, "this runner was made without grammars")


def grammar_failure(error: BadGrammarError) -> SequenceFailure:
    """What a runner says of a sequence whose grammar can't be followed."""
    return SequenceFailure(FailureKind.GRAMMAR, f"its grammar: {error}")


class Runner(Protocol):
    """Computes steps in the order in which they are given.

    Threading: used by one thread. A runner keeps what it was told of a sequence until its id is in `forgotten`; an id
    that it does not know there is no error, and a `NewSequence` of a known id replaces what was known.
    """

    @property
    def marks_per_step(self) -> int:
        """About how often a step shows progress while it is computed, at even intervals; 1: only by its end.

        With more than 1 the runner writes the time of its progress into the heartbeat page.
        """
        ...

    def warm_up(self) -> None:
        """Do now what the first requests would otherwise wait for."""

    def sleep(self) -> Slept:
        """Give memory back. Called only while no sequence is known; what the KV cache held is lost."""
        ...

    def wake(self) -> None:
        """Be as after `warm_up` again.

        Raises:
            Exception: whatever taking the memory raises. The runner is then of no use any more.
        """
        ...

    def run_step(self, plan: StepPlan) -> StepResult:
        """Compute one step.

        Raises:
            MemoryError: device or host memory ran out; a library's own error for that is translated.
            Exception: the step as a whole could not be computed. What one sequence alone spoilt is in `failed`.
        """
        ...
