"""Sequences whose grammar is being compiled: kept out of the scheduler until a matcher costs nothing to make.

Compiling takes up to tenths of a second; done in the step loop's own thread it would hold up every other sequence.
"""

from __future__ import annotations

import queue
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import structlog

from engine.protocol.failure import FailureKind, SequenceFailure
from engine.protocol.grammar import BadGrammarError
from engine.protocol.messages import AddSequence
from engine.protocol.request_id import log_ids
from engine.text.grammar_compiler import GrammarCompiler

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class GrammarCompiled:
    """What the compiler's thread says: this sequence may start, or must end with `failure`."""

    seq_id: str
    failure: SequenceFailure | None = None


class GrammarQueue:
    """Owned by the step loop; the compiler's thread compiles and puts `GrammarCompiled` into the inbox."""

    def __init__(self, grammars: GrammarCompiler | None, inbox: queue.SimpleQueue[Any]) -> None:
        self._grammars = grammars
        self._inbox = inbox
        self._waiting: dict[str, AddSequence] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def seq_ids(self) -> list[str]:
        """Of the sequences that wait, oldest first."""
        return list(self._waiting)

    def holds_back(self, message: AddSequence) -> bool:
        """Whether the sequence waits here now, until its `GrammarCompiled` comes."""
        grammar, compiler = message.sampling.grammar, self._grammars
        # A repeated id goes on to the scheduler, which knows how to refuse it.
        if grammar is None or compiler is None or compiler.has(grammar) or message.seq_id in self._waiting:
            return False
        seq_id = message.seq_id
        self._waiting[seq_id] = message
        compiler.submit(grammar).add_done_callback(lambda compiling: self._on_compiled(seq_id, compiling))
        return True

    def pop_sequence(self, seq_id: str) -> AddSequence | None:
        """The sequence, which no longer waits; None when it did not (it was aborted meanwhile)."""
        return self._waiting.pop(seq_id, None)

    def _on_compiled(self, seq_id: str, compiling: Future[None]) -> None:
        """In the compiler's thread. A sequence that waits gets its end whatever went wrong."""
        error, failure = compiling.exception(), None
        if error is not None:
            kind = FailureKind.GRAMMAR
            if not isinstance(error, BadGrammarError):
                kind = FailureKind.DEFECT
                log.error("grammar.failed", **log_ids(seq_id), exc_info=error)
            failure = SequenceFailure(kind, f"the grammar can't be compiled: {error}")
        self._inbox.put(GrammarCompiled(seq_id, failure))
