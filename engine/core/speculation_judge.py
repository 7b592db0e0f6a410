"""Whether proposing tokens pays, judged by what steps were measured to cost and how many proposals were right.

A proposal that is right saves a sequence one step; every proposal makes steps longer: the one that verifies it, and
where a model or heads draft it, the one before. The price of each, as a share of the step without any, is learned for
each size of batch: with one sequence the weights are read anyway and a row more costs little, with many the products
are what takes the time. The chance that a proposal is right is learned for each
sequence, beginning with what matches of that length were worth to all. A step takes proposals, the likeliest first,
while tokens per second rise: none with a large batch or a text that does not repeat itself.

What does not seem to pay is still tried now and then, with at most a hundredth of the time: so a judgement that was
wrong, or is no longer right, shows. No clock: seconds are arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

UNKNOWN_PRICE = 0.1  # of a proposal, until it was measured
MARGIN = 1.1  # a proposal must gain so many times its price
TRIAL_SHARE = 0.01  # of all steps' time may go into proposals that do not seem to pay
MOST_SAVED = 10.0  # for trials, in steps without proposals: whose seconds rise and fall with what else runs
TRIAL_TOKENS = 4
_SMOOTHING = 0.1
_LEAST, _MOST = 0.5, 2.0  # a step counts as no less and no more of what was expected: a neighbour's turn is no price
_REFRESH = 32  # steps; then one without proposals, as contexts grow
_MIN_PLAIN_STEPS = 3
_SAME_CONTEXT = 256  # tokens, and a quarter: steps of contexts that differ by less take about as long
_DECAY = 0.9  # of a sequence's own past at each draft
_SHARED_DECAY = 0.98
_PRIOR_WEIGHT = 2.0  # draws that the experience of all counts as
_MOST_MATCH = 8


class Candidate(NamedTuple):
    """A draft that was found."""

    seq_id: str
    match_length: int
    num_tokens: int


@dataclass(slots=True)
class Tally:
    """Draws that met a proposal, and those that were it; the past fades."""

    met: float = 0.0
    right: float = 0.0

    def add(self, met: int, right: int, decay: float) -> None:
        """One draft more."""
        self.met = self.met * decay + met
        self.right = self.right * decay + right

    def chance(self, prior: float) -> float:
        """That the next proposal is right."""
        return (self.right + _PRIOR_WEIGHT * prior) / (self.met + _PRIOR_WEIGHT)


class BatchSize(NamedTuple):
    """What the seconds of a step without proposals depend on."""

    num_seqs: int
    context_tokens: int


@dataclass(slots=True)
class PlainStep:
    """What a step without proposals takes, with so many sequences and about so much context."""

    context_tokens: int = 0
    num_steps: int = 0
    seconds: float = 0.0
    own_seconds: float = 0.0
    last_step: int = 0  # of all steps; contexts grow and machines change, so that a measurement grows old

    def is_known(self, size: BatchSize, now_step: int) -> bool:
        """Whether steps of this size were measured, and of late."""
        is_near = abs(size.context_tokens - self.context_tokens) <= 0.25 * self.context_tokens + _SAME_CONTEXT
        return is_near and self.num_steps >= _MIN_PLAIN_STEPS and now_step - self.last_step < _REFRESH

    def times(self, seconds: float, own_seconds: float) -> float:
        """How much longer a step took: the neighbour that came or went meanwhile does not make a proposal cheap."""
        found = seconds / self.seconds
        return max(found, own_seconds / self.own_seconds) if self.own_seconds else found

    def observe(self, size: BatchSize, seconds: float, own_seconds: float, now_step: int) -> None:
        """Learn from one step; one of another context begins anew, and so does one of what seems another machine."""
        is_other = abs(size.context_tokens - self.context_tokens) > 0.25 * self.context_tokens + _SAME_CONTEXT
        if is_other or (self.num_steps >= _MIN_PLAIN_STEPS and seconds != _clip(seconds, self.seconds)):
            self.num_steps = 0
        self.num_steps += 1
        weight = max(_SMOOTHING, 1.0 / self.num_steps)
        self.seconds += weight * (seconds - self.seconds)
        self.own_seconds += weight * (own_seconds - self.own_seconds)
        self.context_tokens, self.last_step = size.context_tokens, now_step


@dataclass(slots=True)
class Price:
    """Of one proposal, as a share of the step's seconds without any."""

    drafting: float
    verifying: float = UNKNOWN_PRICE

    def observe(self, num_drafted: int, num_verified: int, times: float) -> None:
        """Learn from a step that took so many times the seconds of one without: what is amiss goes to what was done.

        Where a step does both, as it does while proposals go on, their sum is learned.
        """
        expected = self.expected(num_drafted, num_verified)
        amiss = _SMOOTHING * (_clip(times, expected) - expected) / (num_drafted**2 + num_verified**2)
        self.drafting = max(0.0, self.drafting + amiss * num_drafted)
        self.verifying = max(0.0, self.verifying + amiss * num_verified)

    def expected(self, num_drafted: int, num_verified: int) -> float:
        """How many times a step without proposals one takes that has so many."""
        return 1.0 + num_drafted * self.drafting + num_verified * self.verifying


@dataclass(slots=True)
class SpeculationJudge:
    """`worth_looking_at`, then `lengths`, then `observe_draft` for each draft and `observe_step`, for each step.

    `drafts`: proposals are computed, in the step before the one that verifies them; else they are found for nothing.
    """

    drafts: bool = False
    _plain: dict[int, PlainStep] = field(default_factory=dict)  # by number of sequences
    _prices: dict[int, Price] = field(default_factory=dict)  # by the bits of the number of sequences
    _num_steps: int = 0
    _own: dict[str, Tally] = field(default_factory=dict)
    _shared: list[Tally] = field(default_factory=lambda: [Tally(2.0, 1.0) for _ in range(_MOST_MATCH + 1)])
    _saved: float = 0.0  # for trials, in steps
    _is_trial: bool = False  # of the step being planned
    _spends: bool = False  # the step under way, on a trial
    _num_trials: int = 0

    def worth_looking_at(self, size: BatchSize, sequences: Sequence[tuple[int, str]]) -> list[int]:
        """The places of those sequences that a draft should be looked for; looking costs time as well."""
        self._is_trial = False
        if not sequences or not self._plain_step(size).is_known(size, self._num_steps):
            return []
        least = MARGIN * self.price(size) * size.num_seqs
        found = [place for place, seq_id in sequences if self._chance(seq_id, 1.0) > least]
        if not found and self._can_afford_trial(size):
            self._is_trial = True
            self._num_trials += 1
            return [sequences[self._num_trials % len(sequences)][0]]
        return found

    def lengths(self, size: BatchSize, candidates: Sequence[Candidate]) -> list[int]:
        """How many tokens of each draft to verify."""
        price = self.price(size)
        chances = [self._chance(c.seq_id, self._shared_chance(c.match_length)) for c in candidates]
        gains = [
            (chance**position, which)
            for which, (chance, candidate) in enumerate(zip(chances, candidates, strict=True))
            for position in range(1, candidate.num_tokens + 1)
        ]
        lengths = [0] * len(candidates)
        tokens, seconds = float(size.num_seqs), 1.0
        for gain, which in sorted(gains, reverse=True):
            if gain * seconds <= MARGIN * price * tokens:
                break
            tokens, seconds = tokens + gain, seconds + price
            lengths[which] += 1
        if candidates and not any(lengths) and (self._is_trial or self._can_afford_trial(size)):
            which = max(range(len(candidates)), key=chances.__getitem__)
            lengths[which] = min(TRIAL_TOKENS, candidates[which].num_tokens)
            self._saved -= price * lengths[which]
            self._spends = True
        return lengths

    def observe_draft(self, seq_id: str, match_length: int, num_proposed: int, num_right: int) -> None:
        """What came of one draft: the first proposal that was wrong ends it, and those behind it say nothing."""
        met = min(num_right + 1, num_proposed)
        self._own.setdefault(seq_id, Tally()).add(met, num_right, _DECAY)
        self._shared[min(match_length, _MOST_MATCH)].add(met, num_right, _SHARED_DECAY)

    def observe_step(
        self,
        size: BatchSize,
        seconds: float,
        *,
        own_seconds: float = 0.0,
        num_verified: int = 0,
        num_drafted: int = 0,
    ) -> None:
        """What one step cost in which every sequence decoded; of it the time that its thread had a CPU, 0: unknown."""
        self._num_steps += 1
        self._saved = min(self._saved + TRIAL_SHARE, MOST_SAVED)
        plain, spends = self._plain_step(size), self._spends
        self._spends = False
        if not num_verified and not num_drafted:
            plain.observe(size, seconds, own_seconds, self._num_steps)
        elif plain.seconds:
            times, price = plain.times(seconds, own_seconds), self._price(size)
            if spends:  # on catching up, say, which is no proposal's price
                self._saved -= max(0.0, min(times, _MOST) - price.expected(num_drafted, num_verified))
            price.observe(num_drafted, num_verified, times)

    def price(self, size: BatchSize) -> float:
        """Of one proposal, drafted and verified, as a share of the step's seconds without any."""
        price = self._price(size)
        return price.drafting + price.verifying

    def forget(self, seq_id: str) -> None:
        """The sequence has ended."""
        self._own.pop(seq_id, None)

    def _price(self, size: BatchSize) -> Price:
        unknown = Price(UNKNOWN_PRICE if self.drafts else 0.0)
        return self._prices.setdefault(size.num_seqs.bit_length(), unknown)

    def _plain_step(self, size: BatchSize) -> PlainStep:
        return self._plain.setdefault(size.num_seqs, PlainStep())

    def _can_afford_trial(self, size: BatchSize) -> bool:
        return self._saved > TRIAL_TOKENS * self.price(size)

    def _chance(self, seq_id: str, prior: float) -> float:
        own = self._own.get(seq_id)
        return prior if own is None else own.chance(prior)

    def _shared_chance(self, match_length: int) -> float:
        tally = self._shared[min(match_length, _MOST_MATCH)]
        return tally.right / tally.met if tally.met else 0.0


def _clip(value: float, expected: float) -> float:
    return min(max(value, _LEAST * expected), _MOST * expected)
