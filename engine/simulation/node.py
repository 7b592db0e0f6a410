"""One simulated node: the real scheduler and KV block pool; its clock moves by what the cost model says."""

from __future__ import annotations

import math
import sys
from typing import NamedTuple

from engine.core.scheduler import Scheduler
from engine.core.scheduler_config import SchedulerConfig
from engine.core.sequence import CoreSequence
from engine.protocol.clock import ManualClock
from engine.protocol.messages import AddSequence
from engine.protocol.step import SamplingParams, StepPlan, StepResult
from engine.simulation.scenario import SimNode, StepCost

_DRAWN = 0  # every token that is generated: nothing shares the prefix of an output
_MOST_BLOCKED_STEPS = 8  # taken together while something waits for KV, which may come with any step


class Arrival(NamedTuple):
    """One request. `generated`: tokens of its output that a node made which has left since."""

    number: int
    at_s: float
    prompt_tokens: int
    output_tokens: int
    prefix_tokens: int
    prefix_id: int
    generated: int = 0


class _Calm(NamedTuple):
    """Steps to come that only decode the same rows; `context_tokens`: KV positions that the first of them reads."""

    steps: int
    rows: int
    context_tokens: int


class SimulatedNode:
    """A node's scheduler on a clock of its own. `advance` takes whole steps, so the clock may pass the time asked for.

    `first_tokens` and `ended` collect what happened, for the fleet to take out: request number and time.
    """

    def __init__(self, node: SimNode, now: float, *, coarse: bool) -> None:
        limits = node.limits
        self.name, self.pool = node.name, node.pool
        self.config = SchedulerConfig(
            block_size=limits.block_size,
            num_blocks=limits.num_kv_blocks,
            max_model_len=limits.max_model_len,
            max_num_seqs=limits.max_num_seqs,
            max_num_batched_tokens=max(limits.max_num_batched_tokens, limits.max_num_seqs),
            prefill_chunk_tokens=limits.prefill_chunk_tokens,
            prefix_caching=limits.prefix_caching,
        )
        self.scheduler = Scheduler(self.config)
        self.ready_at_s = max(now, node.ready_at_s)
        self.steps = 0
        self.preemptions = 0
        self.unstarted_tokens = 0  # prompt tokens of requests whose first token has not come
        self.first_tokens: list[tuple[int, float]] = []
        self.ended: list[int] = []
        self._cost = node.cost
        self._coarse = coarse
        self._clock = ManualClock(self.ready_at_s)
        self._held: dict[str, Arrival] = {}
        self._running: dict[str, CoreSequence] = {}
        self._calm: _Calm | None = None
        self._is_blocked = False  # the last step let nothing in that waits

    @property
    def now(self) -> float:
        """The end of its last step."""
        return self._clock.now()

    @property
    def num_held(self) -> int:
        """Requests that run or wait here."""
        return len(self._held)

    def kv_ratio(self, now: float) -> float:
        """Share of the KV blocks that running sequences hold."""
        return 1.0 - self.free_kv_tokens(now) / (self.config.num_blocks * self.config.block_size)

    def free_kv_tokens(self, now: float) -> int:
        """Tokens for which blocks are free."""
        free = self.scheduler.pool.num_free * self.config.block_size
        calm = self._calm
        if calm is None or now <= self.now:
            return free
        return max(0, free - calm.rows * _steps_until(self._cost, calm, now - self.now))

    def takes(self, arrival: Arrival) -> bool:
        """Whether the request fits into the empty node."""
        return arrival.prompt_tokens + arrival.output_tokens <= self.config.max_tokens

    def add(self, arrival: Arrival, now: float) -> None:
        """Take a request in."""
        self._catch_up(now)
        if not self._held and now > self.now:
            self._clock.sleep(now - self.now)
        own = arrival.prompt_tokens - arrival.prefix_tokens
        message = AddSequence(
            seq_id=str(arrival.number),
            prompt_token_ids=(2 * arrival.prefix_id + 1,) * arrival.prefix_tokens + (2 * arrival.number + 2,) * own,
            sampling=SamplingParams(max_tokens=arrival.output_tokens),
            arrived_at=arrival.at_s,
            output_token_ids=(_DRAWN,) * arrival.generated,
        )
        refused = self.scheduler.add(message, max(now, arrival.at_s))
        assert refused is None, refused
        self._held[message.seq_id] = arrival
        self._is_blocked = False
        self._calm = None
        if not arrival.generated:
            self.unstarted_tokens += arrival.prompt_tokens

    def take_all(self, now: float) -> list[Arrival]:
        """Every request that is here, with what was generated of it; the node is empty afterwards."""
        self._catch_up(now)
        self._calm = None
        taken = []
        for seq_id, arrival in self._held.items():
            generated = self.scheduler.sequences[seq_id].num_output_tokens
            taken.append(arrival._replace(generated=generated))
            self.scheduler.abort(seq_id)
        self._held.clear()
        self._running.clear()
        self.unstarted_tokens = 0
        return taken

    def advance(self, until_s: float) -> None:
        """Take steps until the clock is there, or nothing is left to do.

        The clock stays behind while every step until then only decodes: nothing that others can see changes.
        """
        while self.now < until_s and self._held:
            if self._calm is None and self._coarse:
                self._calm = self._find_calm()
            if self._calm is None:
                self._take_step()
            elif _steps_until(self._cost, self._calm, until_s - self.now) <= self._calm.steps:
                return
            else:
                self._decode(self._calm, self._calm.steps)
                self._calm = None
                self._take_step()

    def _catch_up(self, now: float) -> None:
        if self._calm is not None and self.now < now:
            num_steps = min(self._calm.steps, _steps_until(self._cost, self._calm, now - self.now))
            self._decode(self._calm, num_steps)

    def _take_step(self) -> None:
        plan = self.scheduler.plan(self.now)
        assert plan is not None, "requests without a step"
        for new in plan.new:
            self._running[new.seq_id] = self.scheduler.sequences[new.seq_id]
        self._is_blocked = not plan.new and self.scheduler.num_waiting > 0
        seconds = self._seconds(plan)
        self._clock.sleep(seconds)
        self.steps += 1
        drawn: dict[str, tuple[int, ...]] = {row.seq_id: (_DRAWN,) for row in plan.scheduled if row.samples}
        outcome = self.scheduler.apply(StepResult(plan.step_id, drawn, seconds), self.now)
        for preemption in outcome.preemptions:
            self.preemptions += 1
            self._running.pop(preemption.seq_id, None)
        for update in outcome.updates:
            arrival = self._held[update.seq_id]
            if update.token_ids and not arrival.generated:
                self.first_tokens.append((arrival.number, self.now))
                self.unstarted_tokens -= arrival.prompt_tokens
                self._held[update.seq_id] = arrival._replace(generated=1)
            if update.finish_reason is not None:
                del self._held[update.seq_id]
                self._running.pop(update.seq_id, None)
                self.ended.append(arrival.number)
                self._is_blocked = False

    def _find_calm(self) -> _Calm | None:
        """Decode steps in which nothing ends and nothing can begin; None when the next step is no such."""
        num = len(self._running)
        has_seats = num < self.config.max_num_seqs
        if not num or (self.scheduler.num_waiting and has_seats and not self._is_blocked):
            return None
        steps = (self.scheduler.pool.num_free // num) * self.config.block_size
        if self.scheduler.num_waiting and has_seats:
            steps = min(steps, _MOST_BLOCKED_STEPS)
        context = 0
        for sequence in self._running.values():
            output = sequence.num_output_tokens
            if not output or sequence.num_uncomputed_tokens != 1:
                return None
            steps = min(steps, sequence.sampling.max_tokens - output - 1)
            context += len(sequence.token_ids)
        return _Calm(steps, num, context) if steps > 0 else None

    def _decode(self, calm: _Calm, num_steps: int) -> None:
        """What so many decode steps leave behind: longer sequences and block tables. Blocks come from the real pool."""
        size, pool = self.config.block_size, self.scheduler.pool
        for sequence in self._running.values():
            sequence.token_ids.extend((_DRAWN,) * num_steps)
            sequence.num_computed_tokens += num_steps
            missing = -(-sequence.num_computed_tokens // size) - len(sequence.block_ids)
            if missing > 0:
                blocks = pool.allocate(missing)
                assert blocks is not None, "no block for steps that were counted in"
                sequence.block_ids += blocks
        self._clock.sleep(_decode_seconds(self._cost, calm, num_steps))
        self.steps += num_steps
        self._calm = _Calm(calm.steps - num_steps, calm.rows, calm.context_tokens + calm.rows * num_steps)

    def _seconds(self, plan: StepPlan) -> float:
        cost = self._cost
        prompt = decodes = context = 0
        for row in plan.scheduled:
            context += row.start + row.num_tokens
            if row.num_tokens == 1:
                decodes += 1
            else:
                prompt += row.num_tokens
        return cost.fixed_s + cost.prompt_token_s * prompt + cost.decode_s * decodes + cost.context_token_s * context


def _decode_seconds(cost: StepCost, calm: _Calm, num_steps: int) -> float:
    """Each step reads one KV position more of each row than the one before."""
    grown = calm.rows * num_steps * (num_steps - 1) // 2
    read = calm.context_tokens * num_steps + grown
    return num_steps * (cost.fixed_s + cost.decode_s * calm.rows) + cost.context_token_s * read


def _steps_until(cost: StepCost, calm: _Calm, seconds: float) -> int:
    """How many decode steps take at least so long."""
    if math.isinf(seconds):
        return sys.maxsize
    first = cost.fixed_s + cost.decode_s * calm.rows + cost.context_token_s * calm.context_tokens
    growth = cost.context_token_s * calm.rows
    if growth <= 0.0:
        return math.ceil(seconds / first)
    base = first - growth / 2.0
    return math.ceil((math.sqrt(base * base + 2.0 * growth * seconds) - base) / growth)
