"""A hand-driven scheduler around a real ModelRunner: tests say what runs beside what, and in which pieces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from engine.model_runner import ModelRunner
from engine.step import NewSequence, SamplingParams, Scheduled, StepPlan, StepResult, TokenLogprobs

BLOCK_SIZE = 16


@dataclass
class Drive:
    """One sequence under test: what is computed of it, and its blocks."""

    seq_id: int
    prompt: tuple[int, ...]
    sampling: SamplingParams
    chunk: int = 10_000
    block_ids: tuple[int, ...] = ()
    computed: int = 0
    output: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)  # when asked for

    @property
    def token_ids(self) -> tuple[int, ...]:
        return (*self.prompt, *self.output)

    def new(self) -> NewSequence:
        return NewSequence(self.seq_id, self.token_ids, len(self.prompt), self.sampling)

    def next(self) -> Scheduled:
        count = min(self.chunk, len(self.token_ids) - self.computed)
        end = self.computed + count
        blocks = self.block_ids[: -(-end // BLOCK_SIZE)]
        return Scheduled(self.seq_id, self.computed, count, blocks, samples=end == len(self.token_ids))

    def again(self) -> Drive:
        """The same request, not begun."""
        return replace(self, computed=0, output=[], logprobs=[])

    @property
    def is_done(self) -> bool:
        return len(self.output) >= self.sampling.max_tokens


def give_blocks(drives: Sequence[Drive], num_blocks: int, *, backwards: bool = False) -> None:
    """Distinct blocks for each, interleaved, so that no sequence's blocks lie side by side."""
    ids = list(range(num_blocks))
    if backwards:
        ids.reverse()
    need = [-(-(len(d.prompt) + d.sampling.max_tokens) // BLOCK_SIZE) for d in drives]
    for i, drive in enumerate(drives):
        drive.block_ids = tuple(ids[i :: len(drives)][: need[i]])
        assert len(drive.block_ids) == need[i], "the test needs more blocks"


def step(runner: ModelRunner, drives: Sequence[Drive], new: Sequence[Drive] = ()) -> StepResult:
    """One step of all the given sequences, each with its next chunk or token."""
    scheduled = tuple(d.next() for d in drives)
    result = runner.run(StepPlan(0, scheduled, new=tuple(d.new() for d in new)))
    for drive, done in zip(drives, scheduled, strict=True):
        drive.computed = done.start + done.num_tokens
        if drive.seq_id in result.token_ids:
            drive.output.append(result.token_ids[drive.seq_id])
        if drive.seq_id in result.logprobs:
            drive.logprobs.append(result.logprobs[drive.seq_id])
    return result


def run_all(runner: ModelRunner, drives: Sequence[Drive], *, stagger: int = 0) -> list[list[int]]:
    """Outputs when all run together, sequence i joining `stagger * i` steps late."""
    waiting, running, at = list(drives), [], 0
    while waiting or any(not d.is_done for d in running):
        joining = [d for i, d in enumerate(drives) if d in waiting and at >= i * stagger]
        running = [d for d in running if not d.is_done] + joining
        waiting = [d for d in waiting if d not in joining]
        if running:
            result = step(runner, running, joining)
            assert not result.failed
        at += 1
    runner.run(StepPlan(0, (), forgotten=tuple(d.seq_id for d in drives)))
    return [d.output for d in drives]
