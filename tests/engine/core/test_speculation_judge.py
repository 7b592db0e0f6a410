"""When proposing pays: seconds are invented here, so that what is judged is known."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from engine.core.speculation_judge import TRIAL_SHARE, BatchSize, Candidate, SpeculationJudge

NUM_PROPOSED = 8


def _quiet(rng: random.Random) -> Iterator[float]:
    while True:
        yield rng.uniform(0.9, 1.1)


def _beside_a_neighbour(rng: random.Random) -> Iterator[float]:
    """Who takes some of the memory's bandwidth for a while, or most of the machine."""
    share = 1.0
    while True:
        if rng.random() < 0.02:
            share = rng.choice([1.0, 1.0, 1.2, 2.0, 4.0, 8.0])
        yield share * rng.uniform(0.9, 1.3)


def _tossed_about(rng: random.Random) -> Iterator[float]:
    while True:
        yield rng.lognormvariate(0.0, 0.5)


NOISES = {"quiet": _quiet, "beside a neighbour": _beside_a_neighbour, "tossed about": _tossed_about}


@dataclass
class Machine:
    """Steps that cost so much for each proposal, and sequences whose proposals are right with some chance.

    Where drafting has a price, proposals are made in the step before the one that verifies them, and a sequence that
    was not asked about for long has to be caught up with first.
    """

    num_seqs: int
    price: float  # of verifying a proposal, as a share of a step without
    chance: float
    drafting: float = 0.0  # the price of making one
    catching_up: float = 0.0  # and of making the first
    noise: str = "quiet"
    tells_own: bool = False  # the time that its thread had a CPU
    judge: SpeculationJudge = field(init=False)
    random: random.Random = field(default_factory=lambda: random.Random(1))
    context_tokens: int = 1000
    tokens: int = 0
    seconds: float = 0.0  # without noise
    proposed: list[int] = field(default_factory=list)  # in each step
    _drafted: dict[int, int] = field(default_factory=dict)  # what the next step verifies
    _behind: Counter[int] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.judge = SpeculationJudge(drafts=self.drafting > 0.0)
        self._noise = NOISES[self.noise](self.random)

    def step(self) -> None:
        size = BatchSize(self.num_seqs, self.context_tokens)
        places = self.judge.worth_looking_at(size, [(i, f"s{i}") for i in range(self.num_seqs)])
        found = [Candidate(f"s{i}", 3, NUM_PROPOSED) for i in places]
        lengths = dict(zip(places, self.judge.lengths(size, found), strict=True))
        verified, drafted, seconds = lengths, 0, 0.01
        if self.drafting:
            verified, self._drafted, drafted = self._drafted, {}, sum(lengths.values())
            seconds += 0.01 * self.drafting * drafted
            for i, length in lengths.items():
                if length and self._behind[i] > NUM_PROPOSED:
                    seconds += 0.01 * self.catching_up
            self._drafted = {i: length for i, length in lengths.items() if length}
            self._behind = Counter({i: 0 if lengths.get(i) else self._behind[i] + 1 for i in range(self.num_seqs)})
        self.tokens += self.num_seqs
        for i, length in verified.items():
            if not length:
                continue
            right = 0
            while right < length and self.random.random() < self.chance:
                right += 1
            self.tokens += right
            self.judge.observe_draft(f"s{i}", 3, length, right)
        num_verified = sum(verified.values())
        seconds += 0.01 * self.price * num_verified
        own = seconds * self.random.uniform(0.95, 1.1)
        seen = own * next(self._noise)
        own = own if self.tells_own else 0.0
        self.judge.observe_step(size, seen, own_seconds=own, num_verified=num_verified, num_drafted=drafted)
        self.seconds += seconds
        self.proposed.append(num_verified)

    def run(self, num_steps: int) -> Machine:
        for _ in range(num_steps):
            self.step()
        return self

    @property
    def gain(self) -> float:
        """Tokens per second beside those without proposals."""
        return self.tokens / self.seconds / (self.num_seqs / 0.01)


def test_text_that_repeats_itself_is_proposed_whole() -> None:
    machine = Machine(1, price=0.06, chance=0.95).run(400)
    assert machine.gain > 3.0
    assert sorted(machine.proposed[50:])[len(machine.proposed) // 2 - 50] == NUM_PROPOSED


@pytest.mark.parametrize("num_seqs", [1, 4, 8, 32, 64])
@pytest.mark.parametrize("price", [0.02, 0.1, 0.5])
@pytest.mark.parametrize("chance", [0.0, 0.1, 0.5, 0.95])
def test_never_slower_than_without(num_seqs: int, price: float, chance: float) -> None:
    assert Machine(num_seqs, price=price, chance=chance).run(2000).gain > 0.98


@pytest.mark.parametrize(
    ("noise", "tells_own"),
    [("quiet", False), ("beside a neighbour", False), ("beside a neighbour", True), ("tossed about", True)],
)
@pytest.mark.parametrize("num_seqs", [1, 8])
@pytest.mark.parametrize(("drafting", "price"), [(0.2, 0.02), (0.15, 0.05), (0.05, 0.1), (0.0, 0.1)])
@pytest.mark.parametrize("chance", [0.0, 0.05, 0.4, 0.9])
def test_never_slower_than_without_where_drafting_has_a_price(
    noise: str, tells_own: bool, num_seqs: int, drafting: float, price: float, chance: float
) -> None:
    """Heads that know nothing of the text among them, and a drafter that sees a text for the first time."""
    machine = Machine(num_seqs, price, chance, drafting, 2 * drafting, noise, tells_own)
    assert machine.run(2000).gain > 0.98


def test_drafts_that_are_right_pay_for_themselves() -> None:
    for noise in ("quiet", "tossed about"):
        assert Machine(1, price=0.03, chance=0.9, drafting=0.06, noise=noise).run(1000).gain > 1.3


def test_nothing_is_proposed_for_a_large_batch_but_trials() -> None:
    """With 64 sequences and a price of 5 % a right proposal costs more than three steps' worth of tokens."""
    machine = Machine(64, price=0.05, chance=1.0).run(1000)
    assert sum(machine.proposed) * 0.05 <= 1.5 * TRIAL_SHARE * 1000


def test_a_text_that_begins_to_repeat_itself_is_found_out() -> None:
    machine = Machine(1, price=0.06, chance=0.0).run(500)
    assert sum(machine.proposed[-200:]) < 60
    machine.chance = 0.95
    machine.run(300)
    before = machine.tokens
    machine.run(100)
    assert machine.tokens - before > 300


def test_a_price_that_falls_is_found_out() -> None:
    machine = Machine(8, price=0.6, chance=0.8).run(300)
    assert sum(machine.proposed[-100:]) < 40
    machine.price = 0.02
    machine.run(1500)
    before = machine.tokens
    machine.run(100)
    assert machine.tokens - before > 1.5 * 8 * 100


def test_another_context_is_measured_before_it_is_judged() -> None:
    machine = Machine(1, price=0.06, chance=0.95).run(100)
    assert machine.proposed[-1]
    machine.context_tokens = 20_000
    machine.run(3)
    assert machine.proposed[-3:] == [0, 0, 0]
    machine.run(3)
    assert machine.proposed[-1]
