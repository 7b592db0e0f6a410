"""Compiled grammars, and for each sequence the matcher that says which tokens may come next.

A matcher's state is a function of the grammar and the tokens taken, so it is rebuilt from a sequence's output whenever
that sequence starts anew: after preemption, or on another node. Knows no requests and no torch.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import structlog

from engine.protocol.grammar import BadGrammarError
from engine.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

log = structlog.get_logger()

TokenMask = npt.NDArray[np.int32]  # 32 tokens a word, lowest bit first; a set bit is a token that may be drawn

MAX_COMPILED = 32  # compiled grammars that are kept
MAX_REASON_CHARS = 300
# Of CPU time. A mask mostly takes 0.1 ms; limits counted in work (`_limits`) end nearly all grammars long before this.
MAX_MASK_S = 0.25
MAX_REPLAYED_TOKEN_S = 0.0005
# Of threads that compile and follow grammars: much more than the trial of a grammar may take in the helper, as what
# survived there must never end an engine core. Only what is used of it takes memory.
STACK_BYTES = 64 * 2**20
NUM_TRIED_TOKENS = 2  # an object's properties, which may be many, begin with its second token


class GrammarMatcher:
    """Where one sequence stands in its grammar. Threading: one thread at a time."""

    __slots__ = ("_matcher", "_num_taken", "_own_words", "_untaken", "vocab_size")

    def __init__(self, matcher: LLMatcher, own_words: int, vocab_size: int, token_ids: Sequence[int] = ()) -> None:
        self._matcher = matcher
        self._own_words = own_words  # of the tokenizer's mask; a model's vocabulary may end before or after it
        self.vocab_size = vocab_size
        self._untaken = list(token_ids)  # drawn, but not looked at yet
        self._num_taken = 0

    def accept_token(self, token_id: int) -> None:
        """Go on by one token. Costs nothing here: `mask` looks at it."""
        self._untaken.append(token_id)

    def mask(self) -> TokenMask:
        """The tokens that may come next; where the grammar may end, the end of the sequence is one of them.

        Mostly without the GIL. Raises BadGrammarError when a token taken does not fit, or when the grammar allows
        nothing or has become too costly: what comes after is then unknown.
        """
        started_s = time.thread_time()  # of this thread alone: a process that was stopped has not been working
        limit_s = MAX_MASK_S + MAX_REPLAYED_TOKEN_S * len(self._untaken)
        for token_id in self._untaken:
            # Past its end a grammar takes any number of end tokens; there is nothing left to follow.
            is_over = self._matcher.is_stopped() and not self._matcher.is_error()
            if not is_over and not self._matcher.consume_token(token_id):
                reason = _shorten(self._matcher.get_error())
                raise BadGrammarError(f"output token {self._num_taken} does not fit the grammar: {reason}")
            self._num_taken += 1
            _check_cost(started_s, limit_s)
        self._untaken.clear()
        num_words = -(-self.vocab_size // 32)
        mask = np.zeros(max(num_words, self._own_words), dtype=np.int32)
        self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, self._own_words * mask.itemsize)
        if self._matcher.is_error():
            raise BadGrammarError(_shorten(self._matcher.get_error()))
        _check_cost(started_s, limit_s)
        mask = mask[:num_words]
        if self.vocab_size % 32:
            mask[-1] &= (1 << self.vocab_size % 32) - 1
        if not mask.any():
            raise BadGrammarError("the grammar allows no token of this model here")
        return mask

    def masks(self, draft: Sequence[int]) -> tuple[TokenMask, ...]:
        """`mask`, and what it would be after each token of a draft, up to the first that does not fit.

        This matcher stays where it is. Raises BadGrammarError for the first mask alone: the others' may never be asked.
        """
        found = [self.mask()]
        ahead: GrammarMatcher | None = None
        for token_id in draft:
            if not _allows(found[-1], token_id):
                break
            if ahead is None:
                ahead = GrammarMatcher(self._matcher.deep_copy(), self._own_words, self.vocab_size)
            ahead.accept_token(token_id)
            try:
                found.append(ahead.mask())
            except BadGrammarError:
                break
        return tuple(found)


def _allows(mask: TokenMask, token_id: int) -> bool:
    return bool(mask[token_id >> 5] >> (token_id & 31) & 1)


def _try(matcher: GrammarMatcher) -> None:
    """The first steps: a grammar that no text fits shows here, and mostly one that is too costly to follow. Raises
    BadGrammarError."""
    for _ in range(NUM_TRIED_TOKENS):
        allowed = allowed_ids(matcher.mask(), matcher.vocab_size)
        matcher.accept_token(int(allowed[0]))
    matcher.mask()


def _check_cost(started_s: float, limit_s: float) -> None:
    spent_s = time.thread_time() - started_s
    if spent_s > limit_s:
        raise BadGrammarError(
            f"it takes {spent_s:.2f} s to say what may come next, at most {limit_s:.2f} s are allowed"
        )


def without(mask: TokenMask, banned: Iterable[int]) -> TokenMask:
    """The mask less these tokens, or the mask itself when nothing would be left: the grammar wins."""
    less = mask.copy()
    octets = less.view(np.uint8)
    for token_id in banned:
        if 0 <= token_id < 8 * len(octets):
            octets[token_id >> 3] &= 0xFF & ~(1 << (token_id & 7))
    return less if less.any() else mask


def allowed_ids(mask: TokenMask, vocab_size: int) -> npt.NDArray[np.int64]:
    """Ids of the tokens in the mask, ascending."""
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")[:vocab_size])


class GrammarCompiler:
    """Compiles grammars for one model's tokens and keeps the last of them. Threading: any thread."""

    def __init__(
        self, load: Callable[[], Tokenizer], *, vocab_size: int | None, eos_token_ids: Sequence[int] | None
    ) -> None:
        """`load` is called at the first grammar. None: what the tokenizer says."""
        self._load = load
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._lock = threading.Lock()
        self._tokens_lock = threading.Lock()  # of its own: `has` never waits for a tokenizer to be read
        self._tokens: LLTokenizer | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()

    def has(self, grammar: str) -> bool:
        """Whether a matcher of this grammar is had at once."""
        with self._lock:
            return grammar in self._compiled

    def compile(self, grammar: str) -> None:
        """Make matchers of this grammar cheap to have. May take tenths of a second, most of it without the GIL.

        Raises BadGrammarError: it can't be compiled within its limits, or its first token can't be found.
        """
        self.matcher(grammar)

    def submit(self, grammar: str) -> Future[None]:
        """`compile` in the book's own thread, one after the other: strangers' grammars take one core at most."""
        with self._lock:
            if self._thread is None:
                self._thread = grammar_thread("grammars")
        return self._thread.submit(self.compile, grammar)

    def matcher(self, grammar: str, token_ids: Sequence[int] = ()) -> GrammarMatcher:
        """A matcher that has taken these tokens. Raises BadGrammarError."""
        from llguidance import LLMatcher

        tokens = self._tokenizer()
        with self._lock:
            found = self._compiled.get(grammar)
            if found is not None:
                self._compiled.move_to_end(grammar)
        own_words = -(-tokens.vocab_size // 32)
        vocab_size = tokens.vocab_size if self._vocab_size is None else self._vocab_size
        if found is None:
            found = LLMatcher(tokens, grammar, log_level=0, limits=_limits())
            if found.is_error():
                raise BadGrammarError(_shorten(found.get_error()))
            _try(GrammarMatcher(found.deep_copy(), own_words, vocab_size))
            with self._lock:
                self._compiled[grammar] = found
                if len(self._compiled) > MAX_COMPILED:
                    self._compiled.popitem(last=False)
        return GrammarMatcher(found.deep_copy(), own_words, vocab_size, token_ids)

    def _tokenizer(self) -> LLTokenizer:
        with self._tokens_lock:
            if self._tokens is None:
                self._tokens = _tokens_of(self._load(), self._eos_token_ids)
                log.info("grammar.tokenizer_made", vocab_size=self._tokens.vocab_size)
            return self._tokens


def grammar_thread(name: str) -> ThreadPoolExecutor:
    """One thread, already running, with room for the compiler's recursion."""
    before = threading.stack_size(STACK_BYTES)
    try:
        thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        thread.submit(int).result()
    finally:
        threading.stack_size(before)
    return thread


def _limits() -> LLParserLimits:
    """Counted in work, not in time: what is refused here is refused on every machine."""
    from llguidance import LLParserLimits

    return LLParserLimits(
        initial_lexer_fuel=1_000_000,  # about 20 ms
        step_lexer_fuel=200_000,  # about 15 ms
        step_max_items=50_000,
        max_items_in_row=2_500,  # 600 optional properties in one object
        max_lexer_states=50_000,  # about 2 kB each
        max_grammar_size=200_000,
        verbose_errors=False,  # a client's schema is not for our log
    )


def _tokens_of(tokenizer: Tokenizer, eos_token_ids: Sequence[int] | None) -> LLTokenizer:
    from llguidance import LLTokenizer, TokenizerWrapper

    ends = list(tokenizer.eos_token_ids if eos_token_ids is None else eos_token_ids)
    ends = [token_id for token_id in ends if 0 <= token_id < tokenizer.vocab_size]
    if not ends:
        raise BadGrammarError("this model has no end-of-sequence token, so no answer could end where its grammar does")
    return LLTokenizer(TokenizerWrapper(_Vocabulary(tokenizer, ends[0])), eos_token=ends)


class _Vocabulary:
    """Our table of bytes, in the form that llguidance reads: its masks and our text then agree to the byte."""

    def __init__(self, tokenizer: Tokenizer, eos_token_id: int) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = eos_token_id
        self.bos_token_id = None
        self.tokens = [tokenizer.piece(token_id) for token_id in range(tokenizer.vocab_size)]
        self.special_token_ids = list(tokenizer.special_texts)

    def __call__(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))


def _shorten(error: str) -> str:
    text = " ".join(error.replace("<non-verbose/>", "").split())
    return text if len(text) <= MAX_REASON_CHARS else f"{text[:MAX_REASON_CHARS]}..."
