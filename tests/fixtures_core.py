"""A scheduler with its fake runner, and short ways to fill and drive them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from engine.draft import StepOutcome
from engine.fake_runner import FakeRunner
from engine.messages import AddRequest, RequestUpdate
from engine.scheduler import Refused, Scheduler
from engine.scheduler_config import SchedulerConfig
from engine.step import SamplingParams, StepPlan

VOCAB_SIZE = 1000
NO_EOS = VOCAB_SIZE  # a token id that is never drawn


def make_config(**changes: object) -> SchedulerConfig:
    values: dict[str, object] = {
        "block_size": 4,
        "num_blocks": 64,
        "max_model_len": 200,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "prefill_chunk_tokens": 16,
    }
    return SchedulerConfig(**{**values, **changes})  # type: ignore[arg-type]


def make_request(
    request_id: str,
    prompt: int | Sequence[int] = 6,
    *,
    arrived_at: float = 0.0,
    priority: int = 0,
    output: Sequence[int] = (),
    salt: str = "",
    max_tokens: int = 4,
    **sampling: object,
) -> AddRequest:
    """`prompt` as a number is that many tokens which differ between request ids."""
    if isinstance(prompt, int):
        first = sum(request_id.encode()) * 31
        prompt = [(first + i) % VOCAB_SIZE for i in range(prompt)]
    return AddRequest(
        request_id=request_id,
        prompt_token_ids=tuple(prompt),
        sampling=SamplingParams(max_tokens=max_tokens, **sampling),  # type: ignore[arg-type]
        arrived_at=arrived_at,
        priority=priority,
        output_token_ids=tuple(output),
        cache_salt=salt,
    )


class Bench:
    """Drives a scheduler with a runner that checks every KV slot it reads, and keeps what each request was told."""

    def __init__(self, config: SchedulerConfig | None = None, *, vocab_size: int = VOCAB_SIZE) -> None:
        self.config = config or make_config()
        self.scheduler = Scheduler(self.config)
        self.runner = FakeRunner(vocab_size=vocab_size, checks_kv=True, block_size=self.config.block_size)
        self.now = 0.0
        self.tokens: dict[str, list[int]] = defaultdict(list)
        self.ends: dict[str, RequestUpdate] = {}
        self.updates: list[RequestUpdate] = []
        self.outcomes: list[StepOutcome] = []

    def add(self, *messages: AddRequest) -> Refused | None:
        """Adds all; returns the last refusal."""
        refused = None
        for message in messages:
            answer = self.scheduler.add(message, self.now)
            match answer:
                case Refused():
                    refused = answer
                case RequestUpdate():
                    self.take([answer])
        return refused

    def abort(self, request_id: str) -> None:
        update = self.scheduler.abort(request_id)
        if update is not None:
            self.take([update])

    def plan(self) -> StepPlan:
        plan = self.scheduler.plan(self.now)
        assert plan is not None
        self.check()
        return plan

    def finish_step(self, plan: StepPlan) -> StepOutcome:
        return self.take_outcome(self.scheduler.apply(self.runner.run(plan), self.now))

    def step(self) -> StepPlan:
        plan = self.plan()
        self.finish_step(plan)
        return plan

    def run(self, max_steps: int = 2000) -> int:
        """Steps until nothing is left; returns how many."""
        for count in range(max_steps):
            if not self.scheduler.has_work:
                assert self.scheduler.plan(self.now) is None
                return count
            self.step()
        raise AssertionError(f"still at work after {max_steps} steps")

    def take_outcome(self, outcome: StepOutcome) -> StepOutcome:
        self.outcomes.append(outcome)
        self.take(outcome.updates)
        self.check()
        return outcome

    def take(self, updates: Iterable[RequestUpdate]) -> None:
        for update in updates:
            assert update.request_id not in self.ends, f"{update.request_id} had ended, then came {update}"
            self.updates.append(update)
            self.tokens[update.request_id] += update.token_ids
            if update.finish_reason is not None:
                self.ends[update.request_id] = update

    def check(self) -> None:
        problem = self.scheduler.check_integrity()
        assert problem is None, problem

    def ids_in(self, plan: StepPlan) -> dict[int, int]:
        """Tokens by seq_id; seq_ids count up from 0 in the order of adding."""
        return {row.seq_id: row.num_tokens for row in plan.scheduled}
