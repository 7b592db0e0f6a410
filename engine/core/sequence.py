"""One sequence inside the core: its tokens, its blocks, its state, and what the API process has not been told yet."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from engine.core.block import BlockContent, extend_contents
from engine.core.repetition import repeats
from engine.protocol.failure import SequenceFailure
from engine.protocol.messages import AddSequence, FinishReason, SequenceUpdate
from engine.protocol.step import NewSequence, TokenLogprobs


class SequenceState(StrEnum):
    """Where a sequence stands in the scheduler; changed along `TRANSITIONS` only."""

    WAITING = "waiting"  # holds no blocks; everything is to be computed (again)
    RUNNING = "running"  # holds device blocks and gets tokens in steps
    SWAPPED = "swapped"  # preempted; its KV waits in host blocks
    FINISHED = "finished"  # ended; holds nothing


TRANSITIONS: dict[SequenceState, frozenset[SequenceState]] = {
    SequenceState.WAITING: frozenset({SequenceState.RUNNING, SequenceState.FINISHED}),
    SequenceState.RUNNING: frozenset({SequenceState.WAITING, SequenceState.SWAPPED, SequenceState.FINISHED}),
    # to waiting when the host copy can't be trusted, after a step that failed
    SequenceState.SWAPPED: frozenset({SequenceState.RUNNING, SequenceState.WAITING, SequenceState.FINISHED}),
    SequenceState.FINISHED: frozenset(),
}


class CoreSequence:
    """Mutable; owned by the scheduler. `token_ids` is the prompt, then all output, also that of other nodes."""

    __slots__ = (
        "_announces_schedule",
        "_new_logprobs",
        "_new_prompt_logprobs",
        "_new_token_ids",
        "_preempted",
        "arrived_at",
        "block_ids",
        "contents",
        "failure",
        "finish_reason",
        "host_block_ids",
        "is_probe",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_freed_blocks",
        "num_preemptions",
        "num_prompt_tokens",
        "num_prompt_tokens_scored",
        "num_registered_blocks",
        "order",
        "pooled",
        "priority",
        "salt",
        "sampling",
        "scheduled_at",
        "seq_id",
        "state",
        "stop_token_ids",
        "token_ids",
    )

    def __init__(self, message: AddSequence, order: tuple[float, int]) -> None:
        self.seq_id = message.seq_id
        self.order = order  # smaller is served first and preempted last
        self.priority = message.priority
        self.arrived_at = message.arrived_at
        self.sampling = message.sampling
        self.stop_token_ids = frozenset(message.sampling.stop_token_ids)
        self.salt = message.cache_salt
        self.is_probe = message.is_probe
        self.token_ids = [*message.prompt_token_ids, *message.output_token_ids]
        self.num_prompt_tokens = len(message.prompt_token_ids)
        self.state = SequenceState.WAITING
        self.finish_reason: FinishReason | None = None
        self.failure: SequenceFailure | None = None
        self.num_computed_tokens = 0  # tokens whose KV is in `block_ids` (or, swapped, in `host_block_ids`)
        self.block_ids: list[int] = []
        self.num_freed_blocks = 0  # leading entries of `block_ids` that are behind the window, and held no more
        self.host_block_ids: list[int] = []
        self.contents: list[BlockContent] = []
        self.num_registered_blocks = 0  # leading blocks that were offered to the prefix cache or came from it
        self.num_preemptions = 0
        self.num_prompt_tokens_scored = 0  # from the second on: nothing comes before the first
        self.pooled = b""
        self.scheduled_at: float | None = None
        self.num_cached_tokens: int | None = None
        self._announces_schedule = False
        self._new_token_ids: list[int] = []
        self._new_logprobs: list[TokenLogprobs] = []
        self._new_prompt_logprobs: list[TokenLogprobs] = []
        self._preempted = 0

    @property
    def num_tokens(self) -> int:
        """Prompt and output so far."""
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Generated tokens, those of other nodes among them."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        """Tokens to compute before the next one can be drawn; at least 1 while the sequence lives."""
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def needs_prompt_logits(self) -> bool:
        """Whether prompt tokens must be computed though their KV is cached: log probabilities of them are owed."""
        return (
            self.sampling.num_prompt_logprobs is not None and self.num_prompt_tokens_scored < self.num_prompt_tokens - 1
        )

    @property
    def may_share_prefix(self) -> bool:
        """Whether KV that others computed will do."""
        return not (self.is_probe or self.needs_prompt_logits or self.sampling.pooling == "mean")

    @property
    def held_block_ids(self) -> list[int]:
        """Blocks that it has a reference to."""
        return self.block_ids[self.num_freed_blocks :] if self.num_freed_blocks else self.block_ids

    @property
    def block_table(self) -> tuple[int, ...]:
        """A block for each position that is computed or to be computed.

        In place of those that it gave up stands its own first one: no query sees their positions, and what is read
        there without being seen must be numbers.
        """
        freed = self.num_freed_blocks
        return tuple(self.block_ids) if not freed else (self.block_ids[freed],) * freed + tuple(self.block_ids[freed:])

    def free_blocks(self, num_behind: int) -> list[int]:
        """Those of the first `num_behind` blocks that it still holds; it gives them up."""
        given_up = self.block_ids[self.num_freed_blocks : max(0, num_behind)]
        self.num_freed_blocks += len(given_up)
        return given_up

    def take_block_ids(self) -> list[int]:
        """All blocks that it holds; it has none then."""
        held, self.block_ids, self.num_freed_blocks = self.held_block_ids, [], 0
        return held

    @property
    def has_news(self) -> bool:
        """Whether `take_update` would tell something."""
        return bool(
            self._new_token_ids
            or self._new_prompt_logprobs
            or self._announces_schedule
            or self._preempted
            or self.finish_reason is not None
        )

    def move_to(self, state: SequenceState) -> None:
        """Change the state; only along `TRANSITIONS`."""
        assert state in TRANSITIONS[self.state], f"{self.seq_id}: {self.state} can't become {state}"
        self.state = state

    def find_problem(self, num_needed_blocks: int) -> str | None:
        """What contradicts the state, or None; `num_needed_blocks` hold the computed tokens."""
        on_device, on_host = len(self.block_ids), len(self.host_block_ids)
        blocks = f"{on_device} device and {on_host} host blocks, {num_needed_blocks} needed"
        match self.state:
            case SequenceState.WAITING if on_device or on_host or self.num_computed_tokens:
                return f"waits with {blocks}"
            case SequenceState.SWAPPED if on_device or on_host != num_needed_blocks:
                return f"is swapped with {blocks}"
            case SequenceState.RUNNING if on_device < num_needed_blocks or on_host:
                return f"runs with {blocks}"
            case SequenceState.FINISHED:
                return "has ended but is kept"
        return None if self.num_uncomputed_tokens else "has no token to compute"

    def contents_for(self, block_size: int) -> Sequence[BlockContent]:
        """What each full block of this sequence holds; hashed once and kept."""
        extend_contents(self.contents, self.token_ids, block_size, self.salt)
        return self.contents

    def as_new_sequence(self) -> NewSequence:
        """All that the runner must know of it."""
        return NewSequence(self.seq_id, tuple(self.token_ids), self.num_prompt_tokens, self.sampling)

    def append(self, token_id: int, logprobs: TokenLogprobs | None) -> None:
        """Take one drawn token in."""
        self.token_ids.append(token_id)
        self._new_token_ids.append(token_id)
        if logprobs is not None:
            self._new_logprobs.append(logprobs)

    def score_prompt(self, start: int, logprobs: Sequence[TokenLogprobs]) -> None:
        """Take in the log probabilities of the tokens from `start + 1` on; a preemption may bring them again."""
        fresh = logprobs[max(0, self.num_prompt_tokens_scored - start) :]
        self._new_prompt_logprobs += fresh
        self.num_prompt_tokens_scored += len(fresh)

    def end_of_output(self, eos_token_ids: frozenset[int], max_total_tokens: int) -> FinishReason | None:
        """Why the output ends with its last token; None if it goes on."""
        num_output = self.num_output_tokens
        sampling = self.sampling
        if not num_output and (self.needs_prompt_logits or sampling.pooling is not None):
            return None
        if num_output and sampling.grammar is not None and self.token_ids[-1] in eos_token_ids:
            return FinishReason.STOP  # it was drawn because the grammar ends here
        if num_output and num_output >= sampling.min_tokens:
            last = self.token_ids[-1]
            if last in self.stop_token_ids or (last in eos_token_ids and not sampling.ignore_eos):
                return FinishReason.STOP
            if sampling.repetition is not None and repeats(self.token_ids, self.num_prompt_tokens, sampling.repetition):
                return FinishReason.REPETITION
        if num_output >= sampling.max_tokens or len(self.token_ids) >= max_total_tokens:
            return FinishReason.LENGTH
        return None

    def mark_scheduled(self, now: float, num_cached_tokens: int) -> None:
        """Note the first time the sequence got into a step."""
        if self.scheduled_at is None:
            self.scheduled_at = now
            self.num_cached_tokens = min(num_cached_tokens, self.num_prompt_tokens)
            self._announces_schedule = True

    def mark_preempted(self) -> None:
        """Count one preemption, for the next update."""
        self.num_preemptions += 1
        self._preempted += 1

    def take_update(self) -> SequenceUpdate:
        """What happened since the last call; calling it again has no news."""
        update = SequenceUpdate(
            seq_id=self.seq_id,
            token_ids=tuple(self._new_token_ids),
            logprobs=tuple(self._new_logprobs),
            finish_reason=self.finish_reason,
            failure=self.failure,
            scheduled_at=self.scheduled_at if self._announces_schedule else None,
            num_cached_tokens=self.num_cached_tokens if self._announces_schedule else None,
            preempted=self._preempted,
            prompt_logprobs=tuple(self._new_prompt_logprobs),
            pooled=self.pooled,
        )
        self._new_token_ids.clear()
        self._new_logprobs.clear()
        self._new_prompt_logprobs.clear()
        self._announces_schedule = False
        self._preempted = 0
        return update
