"""Computes the masks of a step's grammars in one thread, while the forward pass runs in another.

A mask takes from some microseconds to some milliseconds without the GIL; beside the forward pass that mostly costs
nothing, and sequences without a grammar do not wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from engine.protocol.grammar import BadGrammarError
from engine.text.grammar_compiler import GrammarMatcher, TokenMask, grammar_thread


class Matching(NamedTuple):
    """Whose masks are wanted."""

    seq_id: str
    matcher: GrammarMatcher
    draft: tuple[int, ...] = ()


@dataclass(slots=True)
class Masks:
    """By sequence id: what may be drawn, or why that can't be told.

    Of a row with proposals one mask for each of its draws, up to the first proposal that its grammar does not allow.
    """

    masks: dict[str, tuple[TokenMask, ...]] = field(default_factory=dict)
    failures: dict[str, BadGrammarError] = field(default_factory=dict)


class MaskWorker:
    """The thread is started by the first grammar."""

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None

    @contextmanager
    def working_on(self, matchers: Sequence[Matching]) -> Iterator[Callable[[], Masks]]:
        """While the block runs the masks are computed; the function given waits for them.

        No matcher is in use any more when the block ends, however it ends.
        """
        if not matchers:
            yield Masks
            return
        if self._thread is None:
            self._thread = grammar_thread("grammar-masks")
        computing = self._thread.submit(_masks_of, matchers)
        try:
            yield computing.result
        finally:
            computing.result()


def _masks_of(matchers: Sequence[Matching]) -> Masks:
    found = Masks()
    for seq_id, matcher, draft in matchers:
        try:
            found.masks[seq_id] = matcher.masks(draft)
        except BadGrammarError as error:
            found.failures[seq_id] = error
    return found
