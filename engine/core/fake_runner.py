"""A runner without torch: repeatable tokens, a cost model instead of work. For tests, drills and simulations.

A token depends on the prompt, the output so far and the seed, as a real model's does, and on nothing else: if a
request goes on after preemption or on another node, its tokens must be those of `generate`. With `checks_kv` every
block slot keeps what real KV would depend on, the whole prefix, and a step that reads a slot which does not hold its
sequence's prefix raises: a wrong block table, a missed copy or a block that was given away too early is found.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engine.core.runner import NO_GRAMMARS, Slept, grammar_failure
from engine.protocol.clock import ManualClock, MonotonicClock
from engine.protocol.failure import SequenceFailure
from engine.protocol.grammar import BadGrammarError
from engine.protocol.step import (
    NewSequence,
    SamplingParams,
    Scheduled,
    StepPlan,
    StepResult,
    TokenLogprobs,
    scored_positions,
)
from engine.text.grammar_compiler import GrammarCompiler, GrammarMatcher, allowed_ids, without
from engine.text.token_rules import rules_of

POOLED_SIZE = 32  # numbers of a vector; `served_model.FAKE_VECTOR_SIZE`
_MASK = 2**64 - 1


@dataclass(frozen=True, slots=True)
class FakeCost:
    """Seconds of a step: fixed, plus so much for each token, row and swapped block."""

    step_s: float = 0.002
    token_s: float = 0.00002
    row_s: float = 0.0001
    swapped_block_s: float = 0.00005

    def seconds(self, plan: StepPlan) -> float:
        """What the cost model says that this step takes."""
        return (
            self.step_s
            + self.token_s * plan.num_tokens
            + self.row_s * len(plan.scheduled)
            + self.swapped_block_s * (len(plan.swap_out) + len(plan.swap_in))
        )


class FakeKvError(AssertionError):
    """A step read a KV slot that does not hold the prefix of the sequence that read it."""


def _mix(value: int) -> int:
    """Spread a number over 64 bits (splitmix64's finaliser)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _hash_prompt(token_ids: Sequence[int]) -> int:
    return hash(tuple(token_ids)) & _MASK  # of integers only: the same in every process


def _hash_next(prefix: int, token_id: int) -> int:
    return _mix(prefix ^ (token_id * 0x9FB21C651E98DF25 & _MASK))


def _draw(prefix: int, position: int, sampling: SamplingParams, vocab_size: int) -> int:
    seed = sampling.seed if sampling.temperature > 0.0 else 0
    return _mix(prefix ^ _mix(position ^ _mix(seed & _MASK))) % vocab_size


def generate(
    prompt: Sequence[int],
    sampling: SamplingParams,
    vocab_size: int,
    output: Sequence[int] = (),
    count: int | None = None,
) -> list[int]:
    """The tokens that follow prompt and output, `count` of them or up to `max_tokens`. Knows no end of sequence."""
    prefix = _hash_prompt(prompt)
    for token_id in output:
        prefix = _hash_next(prefix, token_id)
    last = sampling.max_tokens if count is None else len(output) + count
    drawn: list[int] = []
    for position in range(len(output), last):
        drawn.append(_draw(prefix, position, sampling, vocab_size))
        prefix = _hash_next(prefix, drawn[-1])
    return drawn


class _Sequence:
    """What the runner keeps of one sequence."""

    __slots__ = ("matcher", "num_output", "num_prompt_tokens", "prefix", "rules", "sampling", "token_ids")

    def __init__(self, new: NewSequence, keeps_tokens: bool, matcher: GrammarMatcher | None = None) -> None:
        self.matcher = matcher
        self.sampling = new.sampling
        self.rules = rules_of(new.sampling, new.token_ids, new.num_prompt_tokens)
        self.num_prompt_tokens = new.num_prompt_tokens
        self.num_output = len(new.token_ids) - new.num_prompt_tokens
        self.prefix = _hash_prompt(new.token_ids[: new.num_prompt_tokens])
        for token_id in new.token_ids[new.num_prompt_tokens :]:
            self.prefix = _hash_next(self.prefix, token_id)
        self.token_ids = list(new.token_ids) if keeps_tokens else []


class FakeRunner:
    """Answers plans at once by its own clock: `seconds` is what the cost model says, and the clock is moved by it."""

    def __init__(
        self,
        *,
        vocab_size: int = 32_000,
        cost: FakeCost | None = None,
        clock: MonotonicClock | None = None,
        checks_kv: bool = False,
        block_size: int = 16,
        grammars: GrammarCompiler | None = None,
        window_tokens: int | None = None,
    ) -> None:
        """`window_tokens`: a position sees so many of the latest, its own included; None: all."""
        self._grammars = grammars
        self._window_tokens = window_tokens
        self.vocab_size = vocab_size
        self.cost = cost or FakeCost()
        self.clock = clock or ManualClock()
        self._checks_kv = checks_kv
        self._block_size = block_size
        self._sequences: dict[str, _Sequence] = {}
        self._device: dict[int, list[int | None]] = {}  # block to what each slot holds: the hash of its prefix
        self._host: dict[int, list[int | None]] = {}

    @property
    def num_sequences(self) -> int:
        """Sequences whose state is kept."""
        return len(self._sequences)

    @property
    def marks_per_step(self) -> int:
        """It computes nothing that could show progress."""
        return 1

    def warm_up(self) -> None:
        """Nothing to warm."""

    def sleep(self) -> Slept:
        """Nothing to give back but the KV that it checks."""
        self._sequences.clear()
        self._device.clear()
        self._host.clear()
        return Slept(freed_kv_bytes=0, weights="kept")

    def wake(self) -> None:
        """Nothing to take."""

    def run_step(self, plan: StepPlan) -> StepResult:
        """Draw the step's tokens.

        Raises:
            FakeKvError: with `checks_kv`, a row read KV that is not its own.
        """
        failed: dict[str, SequenceFailure] = {}
        for seq_id in plan.forgotten:
            self._sequences.pop(seq_id, None)
        for new in plan.new:
            self._sequences[new.seq_id] = _Sequence(new, self._checks_kv, self._matcher_of(new, failed))
        if self._checks_kv:
            self._move_blocks(plan)
            for row in plan.scheduled:
                self._store(row)
            for row in plan.scheduled:
                self._check(row)
        token_ids: dict[str, tuple[int, ...]] = {}
        logprobs: dict[str, tuple[TokenLogprobs, ...]] = {}
        for row in plan.scheduled:
            if row.samples and row.seq_id not in failed:
                try:
                    token_ids[row.seq_id] = self._sample_row(row, logprobs)
                except BadGrammarError as error:
                    failed[row.seq_id] = grammar_failure(error)
        seconds = self.cost.seconds(plan)
        self.clock.sleep(seconds)
        scored = {row.seq_id: self._score(row) for row in plan.scheduled if row.seq_id not in failed}
        prompt_logprobs = {seq_id: found for seq_id, found in scored.items() if found}
        proposals = {
            row.seq_id: self._propose(self._sequences[row.seq_id], row.num_wanted)
            for row in plan.scheduled
            if row.num_wanted and row.seq_id in token_ids
        }
        ended = [row for row in plan.scheduled if self._ends_pooled(row)]
        pooled = {row.seq_id: self._pool(row.seq_id) for row in ended}
        return StepResult(plan.step_id, token_ids, seconds, logprobs, failed, prompt_logprobs, proposals, pooled)

    def _ends_pooled(self, row: Scheduled) -> bool:
        sequence = self._sequences[row.seq_id]
        return sequence.sampling.pooling is not None and row.start + row.num_tokens == sequence.num_prompt_tokens

    def _pool(self, seq_id: str) -> bytes:
        """Numbers from -1 to 1 that the prompt decides."""
        prefix = self._sequences[seq_id].prefix
        numbers = [_mix(prefix ^ place) / 2**63 - 1 for place in range(POOLED_SIZE)]
        return np.array(numbers, dtype="<f4").tobytes()

    def _propose(self, sequence: _Sequence, count: int) -> tuple[int, ...]:
        """As a good draft model does: what comes next, and now and then something else."""
        prefix, found = sequence.prefix, []
        for position in range(sequence.num_output, sequence.num_output + count):
            found.append(_draw(prefix, position, sequence.sampling, self.vocab_size))
            prefix = _hash_next(prefix, found[-1])
        return tuple((token_id + (_mix(prefix ^ i) % 4 == 0)) % self.vocab_size for i, token_id in enumerate(found))

    def _score(self, row: Scheduled) -> tuple[TokenLogprobs, ...]:
        """As likely as those drawn: all tokens are."""
        sequence = self._sequences[row.seq_id]
        if (wanted := sequence.sampling.num_prompt_logprobs) is None:
            return ()
        each = -math.log(self.vocab_size)
        entry = TokenLogprobs(each, tuple((token_id, each) for token_id in range(wanted)), rank=1)
        return (entry,) * len(scored_positions(row, sequence.num_prompt_tokens))

    def _matcher_of(self, new: NewSequence, failed: dict[str, SequenceFailure]) -> GrammarMatcher | None:
        grammar = new.sampling.grammar
        if grammar is None:
            return None
        if self._grammars is None:
            failed[new.seq_id] = NO_GRAMMARS
            return None
        try:
            return self._grammars.matcher(grammar, new.token_ids[new.num_prompt_tokens :])
        except BadGrammarError as error:
            failed[new.seq_id] = grammar_failure(error)
            return None

    def _sample_row(self, row: Scheduled, logprobs: dict[str, tuple[TokenLogprobs, ...]]) -> tuple[int, ...]:
        """What is drawn one by one, for as long as it is what was proposed."""
        sequence = self._sequences[row.seq_id]
        drawn = [self._sample(sequence)]
        for proposed in row.draft:
            if drawn[-1] != proposed:
                break
            try:
                drawn.append(self._sample(sequence))
            except BadGrammarError:
                break  # it is the next step's to find, if there is one
        if (num_top := sequence.sampling.num_logprobs) is not None:
            each = -math.log(self.vocab_size)  # tokens are drawn uniformly
            wanted = sequence.sampling.logprob_token_ids
            tops = [wanted or [token_id, *(t for t in range(num_top) if t != token_id)][:num_top] for token_id in drawn]
            logprobs[row.seq_id] = tuple(TokenLogprobs(each, tuple((t, each) for t in top)) for top in tops)
        return tuple(drawn)

    def _sample(self, sequence: _Sequence) -> int:
        sampling, matcher, rules = sequence.sampling, sequence.matcher, sequence.rules
        mask = None if matcher is None else matcher.mask()
        if rules is not None:
            full = np.full(-(-self.vocab_size // 32), -1, dtype=np.int32)
            mask = rules.mask(mask)
            mask = without(full if mask is None else mask, rules.banned())
        if mask is None:
            token_id = _draw(sequence.prefix, sequence.num_output, sampling, self.vocab_size)
        else:
            allowed = allowed_ids(mask, self.vocab_size)
            token_id = int(allowed[_draw(sequence.prefix, sequence.num_output, sampling, len(allowed))])
        if matcher is not None:
            matcher.accept_token(token_id)
        if rules is not None:
            rules.extend((token_id,))
        sequence.prefix = _hash_next(sequence.prefix, token_id)
        sequence.num_output += 1
        if self._checks_kv:
            sequence.token_ids.append(token_id)
        return token_id

    def _move_blocks(self, plan: StepPlan) -> None:
        for source, target in plan.swap_out:
            self._host[target] = list(self._slots(self._device, source))
        for source, target in plan.swap_in:
            self._device[target] = list(self._slots(self._host, source))
        for source, target in plan.copies:
            self._device[target] = list(self._slots(self._device, source))

    def _slots(self, blocks: dict[int, list[int | None]], block_id: int) -> list[int | None]:
        return blocks.setdefault(block_id, [None] * self._block_size)

    def _tokens_of(self, row: Scheduled) -> list[int]:
        """All that a row computes or reads, from the sequence's first token on."""
        return [*self._sequences[row.seq_id].token_ids[: row.start + row.num_known_tokens], *row.draft]

    def _store(self, row: Scheduled) -> None:
        token_ids, block_ids, start = self._tokens_of(row), row.block_ids, row.start
        before = self._read(block_ids, start - 1) if start else 0
        if self._window_tokens == 1:  # the position before is not seen
            before = 0
            for token_id in token_ids[:start]:
                before = _hash_next(before, token_id)
        if before is None:
            raise FakeKvError(f"sequence {row.seq_id} starts at {start}, but the position before holds no KV")
        for position in range(start, start + row.num_tokens):
            before = _hash_next(before, token_ids[position])
            block_id = block_ids[position // self._block_size]
            self._slots(self._device, block_id)[position % self._block_size] = before

    def _check(self, row: Scheduled) -> None:
        """Read back all positions as attention would, after all rows of the step stored theirs."""
        expected = 0
        first = 0 if self._window_tokens is None else row.start - self._window_tokens + 1
        for position, token_id in enumerate(self._tokens_of(row)):
            expected = _hash_next(expected, token_id)
            if position >= first and self._read(row.block_ids, position) != expected:
                where = (
                    f"sequence {row.seq_id}, position {position}: block {row.block_ids[position // self._block_size]}"
                )
                raise FakeKvError(f"{where} holds another prefix")

    def _read(self, block_ids: tuple[int, ...], position: int) -> int | None:
        return self._slots(self._device, block_ids[position // self._block_size])[position % self._block_size]
