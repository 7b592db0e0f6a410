"""When proposing pays: seconds are invented here, so that what is judged is known."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from engine.core.speculation_judge import TRIAL_SHARE, BatchSize, Candidate, SpeculationJudge

NUM_PROPOSED = 8


@dataclass
class Machine:
    """Steps that cost so much for each proposal, and sequences whose proposals are right with some chance."""

    num_seqs: int
    price: float  # of a proposal, as a share of a step without
    chance: float
    judge: SpeculationJudge = field(default_factory=SpeculationJudge)
    random: random.Random = field(default_factory=lambda: random.Random(1))
    context_tokens: int = 1000
    tokens: int = 0
    seconds: float = 0.0
    proposed: list[int] = field(default_factory=list)  # in each step

    def step(self) -> None:
        size = BatchSize(self.num_seqs, self.context_tokens)
        places = self.judge.worth_looking_at(size, [(i, f"s{i}") for i in range(self.num_seqs)])
        found = [Candidate(f"s{i}", 3, NUM_PROPOSED) for i in places]
        lengths = self.judge.lengths(size, found)
        self.tokens += self.num_seqs
        for candidate, length in zip(found, lengths, strict=True):
            if not length:
                continue
            right = 0
            while right < length and self.random.random() < self.chance:
                right += 1
            self.tokens += right
            self.judge.observe_draft(candidate.seq_id, candidate.match_length, length, right)
        seconds = 0.01 * (1 + self.price * sum(lengths)) * self.random.uniform(0.9, 1.1)
        self.judge.observe_step(size, sum(lengths), seconds)
        self.seconds += seconds
        self.proposed.append(sum(lengths))

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
