"""A step while it is being planned, and what is kept of it until its result is in."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple

from engine.core.sequence import CoreSequence
from engine.protocol.messages import FinishReason, SequenceUpdate, StepKind
from engine.protocol.step import NewSequence, Scheduled, StepPlan


class PreemptedBy(StrEnum):
    """What became of a preempted sequence's KV."""

    RECOMPUTE = "recompute"  # dropped: its tokens are computed again
    SWAP = "swap"  # copied to host blocks
    FAILED_STEP = "failed_step"  # dropped, because a step that failed may have spoilt it


@dataclass(frozen=True, slots=True)
class Preemption:
    """Who was preempted, for whom, and what it costs."""

    seq_id: str
    at: float
    how: PreemptedBy
    lost_tokens: int  # computed tokens that must be computed again; a swap loses none
    num_blocks: int  # device blocks released
    for_seq_id: str | None  # who needed the blocks; None after a failed step


class StepOutcome(NamedTuple):
    """What one step changed."""

    kind: StepKind
    updates: list[SequenceUpdate]
    preemptions: tuple[Preemption, ...]
    prefix_queries_tokens: int
    prefix_hits_tokens: int
    probe_tokens: int = 0  # computed for probes
    swapped_out_blocks: int = 0
    swapped_in_blocks: int = 0
    num_drafts: int = 0  # sequences that tokens were proposed for
    num_draft_tokens: int = 0
    accepted_per_position: tuple[int, ...] = ()  # proposals that were right, by their place in a draft

    @classmethod
    def nothing(cls) -> StepOutcome:
        """Of no step at all."""
        return cls(StepKind.NONE, [], (), 0, 0)


class StepRow(NamedTuple):
    """One sequence's share of a step."""

    sequence: CoreSequence
    scheduled: Scheduled


@dataclass(slots=True)
class PendingStep:
    """Grows while a step is planned; frozen into a `StepPlan` by `as_plan`."""

    step_id: int
    budget_tokens: int
    rows: list[StepRow] = field(default_factory=list)
    planned: set[str] = field(default_factory=set)  # seq_ids in `rows`
    forgotten: list[str] = field(default_factory=list)
    new: list[NewSequence] = field(default_factory=list)
    swap_out: list[tuple[int, int]] = field(default_factory=list)
    swap_in: list[tuple[int, int]] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    preempted: list[CoreSequence] = field(default_factory=list)
    preemptions: list[Preemption] = field(default_factory=list)
    # Copy sources and host blocks that are read in this step: nobody may have them before it is done.
    pinned_blocks: list[int] = field(default_factory=list)
    pinned_host_blocks: list[int] = field(default_factory=list)
    prefix_queries_tokens: int = 0
    prefix_hits_tokens: int = 0

    def add_draft(self, index: int, token_ids: tuple[int, ...], num_wanted: int) -> None:
        """Propose tokens for a row that draws one, and ask for more; its sequence's block table is long enough."""
        sequence, scheduled = self.rows[index]
        num_tokens = scheduled.num_tokens + len(token_ids)
        block_ids = sequence.block_table
        drafted = replace(scheduled, num_tokens=num_tokens, block_ids=block_ids, draft=token_ids, num_wanted=num_wanted)
        self.rows[index] = StepRow(sequence, drafted)
        self.budget_tokens -= len(token_ids)

    def add_row(self, sequence: CoreSequence, num_tokens: int) -> None:
        """Plan the next `num_tokens` of a sequence; its block table is long enough."""
        start = sequence.num_computed_tokens
        samples = start + num_tokens == sequence.num_tokens and sequence.sampling.max_tokens > 0
        row = Scheduled(sequence.seq_id, start, num_tokens, sequence.block_table, samples)
        self.rows.append(StepRow(sequence, row))
        self.planned.add(sequence.seq_id)
        self.budget_tokens -= num_tokens

    @property
    def kind(self) -> StepKind:
        """What the step computes, probes aside."""
        rows = [row for row in self.rows if not row.sequence.is_probe]
        if not rows:
            return StepKind.NONE
        num_decodes = sum(
            scheduled.num_known_tokens == 1 and scheduled.samples and scheduled.start >= sequence.num_prompt_tokens
            for sequence, scheduled in rows
        )
        if num_decodes == len(rows):
            return StepKind.DECODE
        return StepKind.MIXED if num_decodes else StepKind.PREFILL

    def as_plan(self) -> StepPlan:
        """What the runner is given."""
        new = {sequence.seq_id for sequence in self.new}
        return StepPlan(
            step_id=self.step_id,
            scheduled=tuple(row.scheduled for row in self.rows),
            new=tuple(self.new),
            forgotten=tuple(i for i in self.forgotten if i not in new),  # a new one replaces what was known
            swap_out=tuple(self.swap_out),
            swap_in=tuple(self.swap_in),
            copies=tuple(self.copies),
        )

    def as_outcome(self, speculated: tuple[int, int, tuple[int, ...]] = (0, 0, ())) -> StepOutcome:
        """With the news of the step's sequences and its victims; nothing of those whose end was told by an abort."""
        touched = {r.seq_id: r for r in (*(row.sequence for row in self.rows), *self.preempted)}
        told = [r for r in touched.values() if r.has_news and r.finish_reason is not FinishReason.ABORT]
        return StepOutcome(
            self.kind,
            [sequence.take_update() for sequence in told],
            tuple(self.preemptions),
            self.prefix_queries_tokens,
            self.prefix_hits_tokens,
            sum(row.scheduled.num_tokens for row in self.rows if row.sequence.is_probe),
            len(self.swap_out),
            len(self.swap_in),
            *speculated,
        )
