"""Continuous batching: which tokens of which sequences are computed in the next step, and what its result means.

One step:
1. Decodes (sequences that lack one token only) get it, in serving order.
2. Running prefills get a chunk each (chunked prefill), so that a long prompt costs the others' ITL little.
3. Where KV blocks run out, the running sequence that is last in order is preempted: lowest priority, newest first.
   Its KV is swapped to host blocks or computed again, whichever was measured to be cheaper.
4. Without a preemption, waiting sequences are admitted in order, from the prefix that is cached of them, while
   `max_num_seqs`, the token budget and the predicted growth of all block tables allow.
5. With speculation, decodes get proposals for the tokens after the next one, in what is left of budget and blocks.

The order (`sequence_queue.serving_order`) is total and never changes, and the first in the queue is passed over only
for a step that computes its own next tokens for somebody else: so nothing starves. The best sequence can always go
on, because `max_tokens` bounds it by the whole pool: so every plan makes progress. No torch, no clock, no I/O: `now` is
an argument.
"""

from __future__ import annotations

from itertools import islice

from engine.core.block_pool import BlockPool, HostBlocks
from engine.core.cached_prefix import CachedPrefix, PrefixesInStep, find_cached_prefix
from engine.core.pending_step import PendingStep, PreemptedBy, Preemption, StepOutcome
from engine.core.preemption_cost import PreemptionCost
from engine.core.scheduler_config import Refused, SchedulerConfig, why_refused
from engine.core.sequence import CoreSequence, SequenceState
from engine.core.sequence_queue import SequenceQueue, serving_order
from engine.core.speculation import DraftedRow, Speculation, SpeculationCounts
from engine.protocol.failure import FailureKind, SequenceFailure
from engine.protocol.messages import AddSequence, FinishReason, SequenceUpdate, StepKind
from engine.protocol.output_length import OutputLengthForecast
from engine.protocol.step import StepPlan, StepResult

_MOST_PASSED_OVER = 32  # waiting sequences looked at in one step beyond those that `max_num_seqs` leaves room for


class Scheduler:
    """Owns the sequences and the block pool. `plan` and `apply` (or `fail`) alternate; the rest may come any time."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self.pool = BlockPool(config.num_blocks, config.block_size)
        self.host_blocks = HostBlocks(config.num_host_blocks)
        self.preemption_cost = PreemptionCost()
        self.output_length = OutputLengthForecast()
        self.finds_prefixes = True  # False is a fault: look-ups are counted and find nothing
        self._speculation = None if config.speculation is None else Speculation(config.speculation)
        self._eos_token_ids = frozenset(config.eos_token_ids)
        self._sequences: dict[str, CoreSequence] = {}
        self._waiting = SequenceQueue()
        self._running = SequenceQueue()
        self._forgotten: list[str] = []
        self._pending: PendingStep | None = None  # of the step whose result is awaited
        self._num_added = 0
        self._num_steps = 0

    @property
    def num_running(self) -> int:
        """Sequences with device blocks; each gets tokens in every step that has room."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Sequences without device blocks, swapped ones among them."""
        return len(self._waiting)

    @property
    def has_work(self) -> bool:
        """While this is true, `plan` returns a plan."""
        return bool(self._sequences)

    @property
    def sequences(self) -> dict[str, CoreSequence]:
        """All sequences that have not ended, by id; to be read only."""
        return self._sequences

    def add(self, message: AddSequence, now: float) -> Refused | SequenceUpdate | None:
        """Take a sequence in. Returns why not, or its only update if its output was complete already, or None."""
        problem = why_refused(message, self.config)
        if problem is not None:
            return Refused(message.seq_id, problem)
        if message.seq_id in self._sequences:
            return Refused(message.seq_id, "a sequence of this id is being served", is_duplicate=True)
        order = serving_order(message.priority, min(message.arrived_at, now), self.config.ageing_s, self._num_added)
        self._num_added += 1
        sequence = CoreSequence(message, order)
        reason = sequence.end_of_output(self._eos_token_ids, self.config.max_tokens)
        if reason is not None:
            sequence.finish_reason = reason
            return sequence.take_update()
        self._sequences[sequence.seq_id] = sequence
        self._waiting.add(sequence)
        return None

    def abort(self, seq_id: str) -> SequenceUpdate | None:
        """End a sequence; None if it is not here (any more). Allowed while a step of it is being computed."""
        sequence = self._sequences.get(seq_id)
        if sequence is None:
            return None
        self._finish(sequence, FinishReason.ABORT)
        return sequence.take_update()

    def plan(self, now: float) -> StepPlan | None:
        """The next step; None when there is nothing to do."""
        assert self._pending is None, "the result of the last step is not in"
        if not self.has_work:
            return None
        self._num_steps += 1
        step = PendingStep(self._num_steps, self.config.max_num_batched_tokens)
        rows = list(self._running)
        for sequence in rows:
            if sequence.num_uncomputed_tokens == 1:
                self._plan_running(sequence, step, now)
        for sequence in rows:
            if sequence.num_uncomputed_tokens > 1:
                self._plan_running(sequence, step, now)
        if self._waiting and not step.preempted:
            self._admit(step, now)
        if self._speculation is not None and not step.preempted:
            for row in self._speculation.drafts(tuple(step.rows), self._most_ahead):
                self._add_draft(row, step)
        assert step.rows, "work but no step: the pool's arithmetic is broken"
        self._pending = step
        step.forgotten, self._forgotten = self._forgotten, []
        return step.as_plan()

    def apply(self, result: StepResult, now: float) -> StepOutcome:
        """Take a step's result in."""
        step = self._close_step()
        assert result.step_id == step.step_id, f"result of step {result.step_id}, awaited {step.step_id}"
        num_tokens = sum(row.scheduled.num_tokens for row in step.rows)
        self.preemption_cost.observe(num_tokens, result.seconds, len(step.swap_out) + len(step.swap_in))
        speculated = self._observe_drafts(step, result)
        for sequence, scheduled in step.rows:
            if sequence.state is not SequenceState.RUNNING:
                continue  # aborted while the step was computed
            failure = result.failed.get(sequence.seq_id)
            if failure is not None:
                self._finish(sequence, FinishReason.ERROR, failure)
                continue
            sequence.num_computed_tokens = scheduled.start + scheduled.num_known_tokens
            sequence.score_prompt(scheduled.start, result.prompt_logprobs.get(sequence.seq_id, ()))
            if scheduled.samples:
                self._take_tokens(sequence, result)
                self._free_behind_window(sequence)
                continue
            self._register_blocks(sequence)
            self._free_behind_window(sequence)
            if not sequence.num_uncomputed_tokens:  # max_tokens 0: only its prompt was asked about
                sequence.pooled = result.pooled.get(sequence.seq_id, b"")
                self._finish(sequence, FinishReason.STOP if sequence.pooled else FinishReason.LENGTH)
        return step.as_outcome(speculated)

    def fail(self, failure: SequenceFailure, now: float) -> StepOutcome:
        """Take in that the step could not be computed: its sequences end with this failure.

        Out of memory ends only the one with most tokens in the step, the newest among equals; the others start over.
        KV that the step was to move is given up, as nobody can say how far it came.
        """
        step = self._close_step()
        self._forgotten += step.forgotten  # perhaps the runner never got to it
        alive = [row for row in step.rows if row.sequence.state is SequenceState.RUNNING]
        culprits = alive
        if failure.kind is FailureKind.OUT_OF_MEMORY and alive:
            culprits = [max(alive, key=lambda row: (row.scheduled.num_tokens, row.sequence.order))]
        for sequence, _ in culprits:
            self._finish(sequence, FinishReason.ERROR, failure)
        for sequence, _ in alive:
            if sequence.state is SequenceState.RUNNING:
                self._start_over(sequence, step, now)
        for sequence in step.preempted:
            if sequence.state is SequenceState.SWAPPED:
                self._start_over(sequence, step, now)
        return step.as_outcome()

    def check_integrity(self) -> str | None:
        """The first thing that is wrong with sequences or blocks, or None."""
        held = [sequence.held_block_ids for sequence in self._running]
        held_on_host = [sequence.host_block_ids for sequence in self._waiting]
        if self._pending is not None:
            held.append(self._pending.pinned_blocks)
            held_on_host.append(self._pending.pinned_host_blocks)
        problem = self.pool.check_integrity(held) or self.host_blocks.check_integrity(held_on_host)
        if problem is not None:
            return problem
        if len(self._sequences) != len(self._running) + len(self._waiting):
            return f"{len(self._sequences)} sequences, {len(self._running)} run and {len(self._waiting)} wait"
        for sequence in self._sequences.values():
            problem = sequence.find_problem(self.config.num_blocks_for(sequence.num_computed_tokens))
            if problem is not None:
                return f"sequence {sequence.seq_id}: {problem}"
        return None

    def rebuild_pools(self) -> None:
        """Start over with empty pools after their books were found wrong. Allowed only while nothing is served."""
        assert not self._sequences, "blocks are in use"
        assert self._pending is None, "a step is being computed"
        self.pool = BlockPool(self.config.num_blocks, self.config.block_size)
        self.host_blocks = HostBlocks(self.config.num_host_blocks)

    def _plan_running(self, sequence: CoreSequence, step: PendingStep, now: float) -> None:
        """Give a running sequence its next tokens; those last in order are preempted for its KV blocks if need be.

        One that comes after all that could be preempted keeps what it has and waits: they preempt it if they must.
        """
        while sequence.state is SequenceState.RUNNING:
            chunk = self._chunk_tokens(sequence.num_uncomputed_tokens, step)
            num_tokens = self._reserve(sequence, chunk) if chunk else 0
            if num_tokens:
                step.add_row(sequence, num_tokens)
            if num_tokens or not chunk:
                return
            victim = next(r for r in reversed(self._running) if r.seq_id not in step.planned)
            if victim is sequence:
                return
            self._preempt(victim, sequence, step, now)

    def _chunk_tokens(self, num_uncomputed: int, step: PendingStep) -> int:
        """How many tokens one sequence may get of what is left of the step."""
        if not self.config.chunked_prefill:
            return num_uncomputed if num_uncomputed <= step.budget_tokens else 0
        limit = self.config.prefill_chunk_tokens
        chunk = num_uncomputed if limit is None else _even_part(num_uncomputed, limit, self.config.block_size)
        return min(chunk, step.budget_tokens)

    def _reserve(self, sequence: CoreSequence, num_tokens: int) -> int:
        """Lengthen the block table for up to `num_tokens` more; returns for how many it is long enough."""
        computed = sequence.num_computed_tokens
        missing = self.config.num_blocks_for(computed + num_tokens) - len(sequence.block_ids)
        if missing > 0:
            sequence.block_ids += self.pool.allocate(min(missing, self.pool.num_free)) or []
        capacity = len(sequence.block_ids) * self.config.block_size - computed
        return min(num_tokens, capacity)

    def _preempt(self, victim: CoreSequence, needed_by: CoreSequence, step: PendingStep, now: float) -> None:
        num_blocks = self.config.num_blocks_for(victim.num_computed_tokens)
        lost_tokens = victim.num_computed_tokens
        host_block_ids: list[int] | None = None
        # What a mean has added up is lost with the runner's state.
        may_swap = self.config.num_host_blocks and victim.sampling.pooling != "mean" and not victim.num_freed_blocks
        if may_swap and self.preemption_cost.prefers_swap(num_blocks, lost_tokens):
            host_block_ids = self.host_blocks.allocate(num_blocks)
        how = PreemptedBy.RECOMPUTE
        if host_block_ids and num_blocks:
            how, lost_tokens = PreemptedBy.SWAP, 0
            step.swap_out += zip(victim.block_ids[:num_blocks], host_block_ids, strict=True)
        step.preempted.append(victim)
        num_blocks = len(victim.held_block_ids)
        self._leave_device(victim, SequenceState.SWAPPED if how is PreemptedBy.SWAP else SequenceState.WAITING)
        victim.host_block_ids = host_block_ids or []
        self._record(Preemption(victim.seq_id, now, how, lost_tokens, num_blocks, needed_by.seq_id), victim, step)

    def _start_over(self, sequence: CoreSequence, step: PendingStep, now: float) -> None:
        """Drop all KV of a sequence that a failed step was to read, write or move."""
        lost_tokens, num_blocks = sequence.num_computed_tokens, len(sequence.held_block_ids)
        if sequence.state is SequenceState.SWAPPED:
            self.host_blocks.release(sequence.host_block_ids)
            sequence.host_block_ids = []
            sequence.num_computed_tokens = 0
            sequence.move_to(SequenceState.WAITING)
        else:
            self._leave_device(sequence, SequenceState.WAITING)
        self._record(
            Preemption(sequence.seq_id, now, PreemptedBy.FAILED_STEP, lost_tokens, num_blocks, None),
            sequence,
            step,
        )

    def _record(self, preemption: Preemption, sequence: CoreSequence, step: PendingStep) -> None:
        sequence.mark_preempted()
        step.preemptions.append(preemption)

    def _leave_device(self, sequence: CoreSequence, state: SequenceState) -> None:
        self.pool.release(sequence.take_block_ids())
        if state is SequenceState.WAITING:
            sequence.num_computed_tokens = 0
        sequence.move_to(state)
        self._forgotten.append(sequence.seq_id)
        self._running.remove(sequence)
        self._waiting.add(sequence)

    def _admit(self, step: PendingStep, now: float) -> None:
        """Start waiting sequences in order, up to the first that does not fit.

        One whose next tokens this step computes for another finds them in the next step: of many that come at once
        with one system prompt, it is computed once.
        """
        promised = sum(self._growth_blocks(sequence) for sequence in self._running)
        in_step = PrefixesInStep(step.rows, self.config.block_size)
        for sequence in list(islice(self._waiting, self.config.max_num_seqs - len(self._running) + _MOST_PASSED_OVER)):
            if len(self._running) == self.config.max_num_seqs or not step.budget_tokens:
                return
            prefix = CachedPrefix([], None, sequence.num_computed_tokens)
            if self.config.prefix_caching and self.finds_prefixes and sequence.may_share_prefix:
                prefix = find_cached_prefix(sequence, self.pool)
                chunk = self._chunk_tokens(sequence.num_tokens - prefix.num_tokens, step)
                if in_step.computes_most_of(chunk, prefix, sequence):
                    continue
            if not self._try_start(sequence, prefix, promised, step, now):
                return
            promised += self._growth_blocks(sequence)

    def _growth_blocks(self, sequence: CoreSequence) -> int:
        """Blocks that a sequence is expected to need beyond those it has."""
        more = self.output_length.remaining_tokens(
            sequence.num_output_tokens, sequence.sampling.max_tokens, at_least=self.config.block_size
        )
        num_tokens = min(sequence.num_tokens + more, self.config.max_tokens)
        growth = self.config.num_blocks_for(num_tokens) - len(sequence.block_ids)
        most = self.config.most_blocks_held
        return max(0, growth if most is None else min(growth, most - len(sequence.held_block_ids)))

    def _try_start(
        self, sequence: CoreSequence, prefix: CachedPrefix, promised: int, step: PendingStep, now: float
    ) -> bool:
        if prefix.copied is not None and not self._fits(sequence, prefix, promised, step):
            prefix = prefix.without_copy(self.config.block_size)
        if not self._fits(sequence, prefix, promised, step):
            return False
        self._start(sequence, prefix, step, now)
        return True

    def _fits(self, sequence: CoreSequence, prefix: CachedPrefix, promised: int, step: PendingStep) -> bool:
        chunk = self._chunk_tokens(sequence.num_tokens - prefix.num_tokens, step)
        if not chunk:
            return False
        available = self.pool.num_free - self.pool.num_free_among(prefix.block_ids)
        needed = self.config.num_blocks_for(prefix.num_tokens + chunk) - len(prefix.shared)
        if self._running:
            needed = max(needed, self._growth_blocks(sequence) - len(prefix.shared)) + promised
        return needed <= available

    def _start(self, sequence: CoreSequence, prefix: CachedPrefix, step: PendingStep, now: float) -> None:
        """Move a sequence from the queue into the step."""
        was_swapped = sequence.state is SequenceState.SWAPPED
        self._waiting.remove(sequence)
        sequence.move_to(SequenceState.RUNNING)
        self._running.add(sequence)
        self.pool.share(prefix.shared)
        sequence.block_ids = list(prefix.shared)
        sequence.num_registered_blocks = len(prefix.shared)
        sequence.num_computed_tokens = prefix.num_tokens
        if prefix.copied is not None:
            self.pool.share([prefix.copied])
            target = self.pool.copy_on_write(prefix.copied)
            assert target is not None, "no block for a copy that was counted in"
            sequence.block_ids.append(target)
            step.copies.append((prefix.copied, target))
            step.pinned_blocks.append(prefix.copied)
        num_tokens = self._reserve(sequence, self._chunk_tokens(sequence.num_uncomputed_tokens, step))
        assert num_tokens, "no block for a chunk that was counted in"
        if was_swapped:
            first, last = len(prefix.shared), len(sequence.host_block_ids)
            step.swap_in += zip(sequence.host_block_ids[first:], sequence.block_ids[first:last], strict=True)
            step.pinned_host_blocks += sequence.host_block_ids
            sequence.host_block_ids = []
        if sequence.scheduled_at is None and self.config.prefix_caching and sequence.may_share_prefix:
            self.pool.record_lookup(sequence.num_tokens, prefix.num_tokens)
            step.prefix_queries_tokens += sequence.num_tokens
            step.prefix_hits_tokens += prefix.num_tokens
        sequence.mark_scheduled(now, prefix.num_tokens)
        step.new.append(sequence.as_new_sequence())
        step.add_row(sequence, num_tokens)

    def _close_step(self) -> PendingStep:
        step = self._pending
        assert step is not None, "no step is being computed"
        self._pending = None
        self.pool.release(step.pinned_blocks)
        self.host_blocks.release(step.pinned_host_blocks)
        return step

    def _register_blocks(self, sequence: CoreSequence) -> None:
        """Offer the blocks that became full in this step to the prefix cache."""
        num_full = sequence.num_computed_tokens // self.config.block_size
        if not self.config.prefix_caching or sequence.is_probe or num_full <= sequence.num_registered_blocks:
            return
        contents = sequence.contents_for(self.config.block_size)
        for index in range(sequence.num_registered_blocks, num_full):
            self.pool.register(sequence.block_ids[index], contents[index])
        sequence.num_registered_blocks = num_full

    def _free_behind_window(self, sequence: CoreSequence) -> None:
        """Give up blocks whose positions no query to come sees. What the prefix cache holds of them stays there."""
        window = self.config.window_tokens
        if window is not None and sequence.state is SequenceState.RUNNING:
            num_behind = (sequence.num_computed_tokens - window + 1) // self.config.block_size
            self.pool.release(sequence.free_blocks(num_behind))

    def _take_tokens(self, sequence: CoreSequence, result: StepResult) -> None:
        """Take in what was drawn, up to the end of its output. The KV of all but the last token is computed."""
        token_ids = result.token_ids.get(sequence.seq_id)
        if not token_ids:
            failure = SequenceFailure(FailureKind.DEFECT, "the runner drew no token")
            self._finish(sequence, FinishReason.ERROR, failure)
            return
        reason: FinishReason | None = None
        logprobs = result.logprobs.get(sequence.seq_id) or (None,) * len(token_ids)
        for token_id, own_logprobs in zip(token_ids, logprobs, strict=True):
            sequence.append(token_id, own_logprobs)
            reason = sequence.end_of_output(self._eos_token_ids, self.config.max_tokens)
            if reason is not None:
                break
        sequence.num_computed_tokens = sequence.num_tokens - 1
        self._register_blocks(sequence)
        if reason is not None:
            if not sequence.is_probe:
                self.output_length.observe(sequence.num_output_tokens)
            self._finish(sequence, reason)

    def _most_ahead(self, sequence: CoreSequence) -> int:
        """How many proposals could be taken in besides the token that is drawn in any case."""
        left = min(
            sequence.sampling.max_tokens - sequence.num_output_tokens, self.config.max_tokens - sequence.num_tokens
        )
        return left - 1

    def _add_draft(self, row: DraftedRow, step: PendingStep) -> None:
        """Nobody loses KV blocks for proposals: they take free ones, or are left out."""
        sequence = step.rows[row.place].sequence
        token_ids = row.token_ids[: step.budget_tokens]
        room = self._reserve(sequence, 1 + len(token_ids) + row.num_wanted) - 1
        if room > 0:
            step.add_draft(row.place, token_ids[:room], row.num_wanted)

    def _observe_drafts(self, step: PendingStep, result: StepResult) -> SpeculationCounts:
        if self._speculation is None:
            return SpeculationCounts()
        moved_blocks = step.swap_in or step.swap_out or step.copies
        is_plain = step.kind is StepKind.DECODE and not moved_blocks
        return self._speculation.observe(step.rows, result, is_plain=is_plain)

    def _finish(self, sequence: CoreSequence, reason: FinishReason, failure: SequenceFailure | None = None) -> None:
        if sequence.state is SequenceState.RUNNING:
            self._running.remove(sequence)
            self._forgotten.append(sequence.seq_id)
        else:
            self._waiting.remove(sequence)
        if reason is FinishReason.ERROR:
            # An earlier chunk may have stored what only now shows, as non-finite logits: nobody else must find it.
            self.pool.forget(sequence.held_block_ids)
        self.pool.release(sequence.take_block_ids())
        self.host_blocks.release(sequence.host_block_ids)
        sequence.host_block_ids = []
        sequence.finish_reason, sequence.failure = reason, failure
        sequence.move_to(SequenceState.FINISHED)
        if self._speculation is not None:
            self._speculation.forget(sequence.seq_id)
        del self._sequences[sequence.seq_id]


def _even_part(num_tokens: int, limit: int, block_size: int) -> int:
    """The first of as few parts as the limit allows, all about as long: 600 by 512 are 304 and 296, so that no answer
    waits for 512. Of whole blocks, which others can share."""
    part = -(-num_tokens // -(-num_tokens // limit))
    return min(-(-part // block_size) * block_size, limit, num_tokens)
