"""Busy told from hung: the core's own forecast of each step, over hours of hard work on a clock that is asked all the
time, and over steps that never end."""

from __future__ import annotations

import queue
import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from engine.core.fake_runner import FakeRunner
from engine.core.scheduler import Scheduler
from engine.core.step_loop import StepLoop
from engine.core.step_time import UNSEEN_FACTOR, StepSize, StepSlowness, StepTimeForecast
from engine.node.health import STUCK_FLOOR_S, STUCK_STEPS, allowed_silence_s, is_stuck
from engine.protocol.clock import ManualClock
from engine.protocol.heartbeat import CoreState, Heartbeat, HeartbeatPage
from engine.protocol.messages import AddSequence, FromCore, GoldenAnswer, StepReport, ToCore
from engine.protocol.step import Scheduled, StepPlan
from tests.fixtures.core import make_config, make_request

HOUR_S = 3600.0


class StuckError(Exception):
    """The judge called the core stuck."""


class WatchedClock(ManualClock):
    """Time passes in slices, and after each slice the judge is asked."""

    def __init__(self, heartbeats: HeartbeatPage) -> None:
        super().__init__()
        self.heartbeats = heartbeats
        self.most_used = 0.0  # of what the judge allows

    def sleep(self, seconds: float) -> None:
        heartbeat = self.heartbeats.read()
        assert heartbeat is not None
        slice_s = allowed_silence_s(heartbeat) / 20
        while seconds > 0.0:
            super().sleep(min(slice_s, seconds))
            seconds -= slice_s
            self.most_used = max(self.most_used, (self.now() - heartbeat.at) / allowed_silence_s(heartbeat))
            if is_stuck(heartbeat, awake_since=0.0, now=self.now()):
                raise StuckError


@dataclass
class Machine:
    """Seconds of a step as a real one has them: weights, tokens, attention, and a neighbour that takes a share."""

    base_s: float
    token_s: float
    context_token_s: float
    pair_s: float
    dice: random.Random

    def seconds(self, plan: StepPlan) -> float:
        size = StepSize.of(plan)
        own = self.base_s + self.token_s * plan.num_tokens
        own += self.context_token_s * size.context_tokens + self.pair_s * size.pairs
        pause_s = 3.0 if self.dice.random() < 0.02 else 0.0  # a kernel is built, the machine swaps
        return own * self.dice.choice([1.0, 1.0, 1.0, 1.2, 1.5, 2.5]) + pause_s


class Site:
    """A step loop under a watched clock. `feed` is asked for more work whenever the core is about to idle."""

    def __init__(self, machine: Machine, **config: object) -> None:
        heartbeats = HeartbeatPage.private()
        self.clock = WatchedClock(heartbeats)
        self.inbox: queue.SimpleQueue[ToCore] = queue.SimpleQueue()
        self.scheduler = Scheduler(make_config(**config))
        self.reports: list[StepReport] = []
        runner = FakeRunner(vocab_size=1000, clock=self.clock, cost=machine)  # type: ignore[arg-type]
        self.loop = StepLoop(self.scheduler, runner, self.inbox, self._publish, self.clock, heartbeats=heartbeats)
        self.heartbeats = heartbeats
        golden: GoldenAnswer = self.loop.warm_up(make_request("golden", 24, max_tokens=8))
        assert len(golden.token_ids) == 8

    def _publish(self, message: FromCore) -> None:
        if isinstance(message, StepReport):
            self.reports.append(message)

    def serve(self, requests: list[AddSequence]) -> None:
        """Serves these to their ends."""
        for request in requests:
            self.inbox.put(request)
        self.loop._handle_messages()
        while self.scheduler.has_work:
            self.loop._step()
            self.loop._handle_messages() if self.scheduler.has_work else None

    def hang_in_next_step(self, request: AddSequence) -> float:
        """Serves until the judge cries; returns how long the hung step had been running."""
        hang: Callable[[StepPlan], float] = lambda plan: 1e9  # noqa: E731
        self.loop._faults._runner.cost.seconds = hang  # type: ignore[attr-defined]
        self.inbox.put(request)
        self.loop._handle_messages()
        plan = self.scheduler.plan(self.clock.now())
        assert plan is not None
        started_at = self.clock.now()
        with pytest.raises(StuckError):
            self.loop._compute(plan)
        return self.clock.now() - started_at


def cpu(seed: int) -> Machine:
    """Long steps: a chunk of a long prompt takes many seconds."""
    return Machine(0.05, 0.004, 0.00002, 2e-7, random.Random(seed))


def gpu(seed: int) -> Machine:
    """Short steps."""
    return Machine(0.008, 0.00002, 2e-8, 5e-11, random.Random(seed))


@pytest.mark.parametrize("seed", range(3))
def test_an_hour_of_very_long_prompts_raises_no_alarm(seed: int) -> None:
    site = Site(
        cpu(seed),
        num_blocks=20_000,
        block_size=16,
        max_model_len=262_144,
        max_num_seqs=4,
        max_num_batched_tokens=2048,
        prefill_chunk_tokens=2048,
        prefix_caching=False,
    )
    lengths = [60_000, 131_000, 3_000, 40_000]
    number = 0
    while site.clock.now() < HOUR_S:
        site.serve([make_request(f"{seed}-{number}", lengths[number % len(lengths)], max_tokens=5)])
        number += 1
    assert max(report.seconds for report in site.reports) > 10 * STUCK_FLOOR_S, "the steps are long enough to matter"
    assert site.clock.most_used > 0.2


def test_a_prompt_in_one_step_far_larger_than_any_before_raises_no_alarm() -> None:
    site = Site(
        cpu(0),
        num_blocks=2048,
        block_size=16,
        max_model_len=16_384,
        max_num_seqs=4,
        prefix_caching=False,
        max_num_batched_tokens=32_768,
        prefill_chunk_tokens=None,
        chunked_prefill=False,
    )
    site.serve([make_request("a", 8000, max_tokens=2)])
    assert max(report.seconds for report in site.reports) > 5 * STUCK_FLOOR_S


@pytest.mark.parametrize("machine", [cpu, gpu])
def test_bursts_of_1280_requests_raise_no_alarm(machine: Callable[[int], Machine]) -> None:
    site = Site(
        machine(1),
        num_blocks=40_000,
        block_size=16,
        max_model_len=4096,
        max_num_seqs=256,
        max_num_batched_tokens=4096,
        prefill_chunk_tokens=512,
        prefix_caching=False,
    )
    dice = random.Random(2)
    for burst in range(2):
        site.serve(
            [make_request(f"{burst}-{i}", dice.randint(10, 600), max_tokens=dice.randint(2, 12)) for i in range(1280)]
        )
    ends = [u for report in site.reports for u in report.updates if u.finish_reason is not None]
    assert len(ends) == 2 * 1280


@pytest.mark.parametrize("seed", range(2))
def test_a_step_that_hangs_after_quick_ones_is_found_within_five_seconds(seed: int) -> None:
    site = Site(gpu(seed), prefix_caching=False)
    site.serve([make_request(f"{i}", 40, max_tokens=20) for i in range(8)])
    assert STUCK_FLOOR_S <= site.hang_in_next_step(make_request("hung", 40)) < 5.0


def test_a_step_that_hangs_after_long_ones_is_found_after_a_multiple_of_its_forecast() -> None:
    site = Site(
        cpu(0),
        num_blocks=4000,
        block_size=16,
        max_model_len=60_000,
        max_num_batched_tokens=2048,
        prefill_chunk_tokens=2048,
        prefix_caching=False,
    )
    site.serve([make_request("a", 40_000, max_tokens=3)])
    hung_for_s = site.hang_in_next_step(make_request("hung", 2048))
    heartbeat = site.heartbeats.read()
    assert heartbeat is not None
    assert heartbeat.predicted_s is not None
    assert 1.0 < heartbeat.predicted_s < 60.0
    assert hung_for_s < 1.1 * STUCK_STEPS * heartbeat.predicted_s


def test_the_beat_says_what_is_being_computed() -> None:
    seen: list[Heartbeat | None] = []
    site = Site(gpu(0))
    run = site.loop._faults.run_step
    site.loop._faults.run_step = lambda plan: (seen.append(site.heartbeats.read()), run(plan))[1]  # type: ignore[method-assign]
    site.serve([make_request("a", 10, max_tokens=2)])
    assert [(b.state, b.num_seqs, b.num_tokens, b.context_tokens) for b in seen if b is not None] == [
        (CoreState.STEP, 1, 10, 10),
        (CoreState.STEP, 1, 1, 11),
    ]
    assert all(b is not None and b.predicted_s is not None for b in seen)


def plan_of(*rows: tuple[int, int]) -> StepPlan:
    return StepPlan(1, tuple(Scheduled(i, start, count, (), samples=True) for i, (start, count) in enumerate(rows)))


def test_the_forecast_learns_the_price_of_each_part() -> None:
    machine = Machine(0.02, 0.001, 0.00001, 1e-7, random.Random(0))
    machine.dice.choice = lambda options: 1.0  # type: ignore[method-assign,assignment]
    machine.dice.random = lambda: 1.0  # type: ignore[method-assign]
    forecast, dice = StepTimeForecast(), random.Random(1)
    assert forecast.seconds(StepSize.of(plan_of((0, 10)))) is None, "nothing was measured"
    for _ in range(400):
        decodes = [(dice.randint(10, 4000), 1) for _ in range(dice.randint(0, 32))]
        prompts = [(dice.randint(0, 4000), dice.randint(2, 512)) for _ in range(dice.randint(0, 3))]
        plan = plan_of(*(decodes + prompts or [(5, 1)]))
        forecast.observe(StepSize.of(plan), machine.seconds(plan))
    for rows in ([(1000, 1)] * 16, [(0, 512)], [(3000, 400), (200, 1)]):
        plan = plan_of(*rows)
        assert forecast.seconds(StepSize.of(plan)) == pytest.approx(machine.seconds(plan), rel=0.5)


def test_a_size_that_was_never_seen_gets_more_time() -> None:
    forecast = StepTimeForecast()
    for count in (10, 20, 30, 40):
        forecast.observe(StepSize.of(plan_of((0, count))), 0.01 * count)
    seen, unseen = (forecast.seconds(StepSize.of(plan_of((0, count)))) for count in (40, 4000))
    assert seen is not None
    assert unseen is not None
    assert unseen > 0.5 * UNSEEN_FACTOR * 100 * seen


def test_a_step_is_slow_beside_others_of_its_batch_and_context() -> None:
    norm, dice = StepSlowness(), random.Random(2)

    def ratio(slow: float) -> float | None:
        rows = [(dice.randint(10, 4000), 1) for _ in range(dice.randint(1, 32))]
        plan = plan_of(*rows)
        seconds = 0.01 + 0.001 * len(rows) + 2e-6 * sum(start for start, _ in rows)
        return norm.ratio(StepSize.of(plan), slow * seconds)

    assert ratio(1.0) is None, "nothing to compare with"
    for _ in range(200):
        ratio(1.0)
    assert ratio(1.0) == pytest.approx(1.0, rel=0.1)
    for _ in range(5000):
        slow = ratio(3.0)
    assert slow == pytest.approx(3.0, rel=0.15), "what stays slow does not become the norm"
    assert ratio(1.0) == pytest.approx(1.0, rel=0.1)
