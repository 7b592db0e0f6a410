"""Requests whose grammar is being compiled: kept out of the scheduler until a matcher costs nothing to make.

Compiling takes up to tenths of a second; done in the step loop's own thread it would hold up every other sequence.
"""

from __future__ import annotations

import queue
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import structlog

from engine.protocol.grammar import BadGrammarError
from engine.protocol.messages import AddRequest
from engine.text.grammar_compiler import GrammarCompiler

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class GrammarCompiled:
    """What the thread says: this request may start, or must end with `problem`."""

    request_id: str
    problem: str | None = None


class GrammarQueue:
    """Owned by the step loop; the book's thread compiles and puts `GrammarCompiled` into the inbox."""

    def __init__(self, grammars: GrammarCompiler | None, inbox: queue.SimpleQueue[Any]) -> None:
        self._grammars = grammars
        self._inbox = inbox
        self._waiting: dict[str, AddRequest] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def request_ids(self) -> list[str]:
        return list(self._waiting)

    def holds_back(self, message: AddRequest) -> bool:
        """Whether the request waits here now, until its `GrammarCompiled` comes."""
        grammar, book = message.sampling.grammar, self._grammars
        # A repeated id goes on to the scheduler, which knows how to refuse it.
        if grammar is None or book is None or book.has(grammar) or message.request_id in self._waiting:
            return False
        request_id = message.request_id
        self._waiting[request_id] = message
        book.submit(grammar).add_done_callback(lambda compiling: self._on_compiled(request_id, compiling))
        return True

    def pop_request(self, request_id: str) -> AddRequest | None:
        """The request, which no longer waits; None when it did not (it was aborted meanwhile)."""
        return self._waiting.pop(request_id, None)

    def _on_compiled(self, request_id: str, compiling: Future[None]) -> None:
        """In the book's thread. A request that waits gets its end whatever went wrong."""
        error = compiling.exception()
        if error is not None and not isinstance(error, BadGrammarError):
            log.error("grammar.failed", request_id=request_id, exc_info=error)
        problem = None if error is None else f"the grammar can't be compiled: {error}"
        self._inbox.put(GrammarCompiled(request_id, problem))
