"""What crosses between the scheduler and the runner: plain data, no tensors, no torch.

A step is "how many tokens for which sequence" (vLLM v1's contract): there is no prefill or decode phase, only
positions whose KV is still to be computed. The scheduler writes a `StepPlan`; a runner (GPU, CPU or simulated)
answers with a `StepResult`. A runner learns a sequence once (`NewSequence`) and then only differences.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from engine.protocol.failure import SequenceFailure


@dataclass(frozen=True, slots=True)
class ThinkingBudget:
    """After so many tokens between the two marks the closing one is said. The prompt may have opened them."""

    num_tokens: int
    start_id: int
    end_id: int


@dataclass(frozen=True, slots=True)
class RepetitionLimit:
    """The output ends once its last tokens are one pattern so many times."""

    min_pattern_tokens: int
    max_pattern_tokens: int
    min_count: int


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one request's tokens are drawn. Values are checked at the HTTP edge.

    Drawing is counter-based: the random number for output position `i` depends on `(seed, i)` and on nothing else,
    so a request continues with the same tokens after preemption, on another node, and in any batch.
    """

    max_tokens: int
    temperature: float = 1.0  # 0 is greedy
    top_k: int = 0  # 0 keeps all
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    num_logprobs: int | None = None  # None: none asked; 0: the chosen token's only
    num_prompt_logprobs: int | None = None  # the same for the prompt's tokens; they are then computed, not looked up
    logit_bias: tuple[tuple[int, float], ...] = ()
    grammar: str | None = None  # what the output must look like (`grammar.py`); it wins over min_tokens and ignore_eos
    allowed_token_ids: tuple[int, ...] = ()  # no others are drawn; empty: all
    bad_words: tuple[tuple[int, ...], ...] = ()  # the last token of each is not drawn behind its others
    thinking: ThinkingBudget | None = None
    repetition: RepetitionLimit | None = None
    logprob_token_ids: tuple[int, ...] = ()  # told of in place of the most likely tokens
    pooling: Literal["last", "mean"] | None = None  # with max_tokens 0: which hidden states become the prompt's vector


@dataclass(frozen=True, slots=True)
class NewSequence:
    """All that a runner must know of a sequence; sent when it is first scheduled, and again after preemption."""

    seq_id: str
    token_ids: tuple[int, ...]  # prompt, then what was generated before (recompute, hand-over)
    num_prompt_tokens: int
    sampling: SamplingParams


@dataclass(frozen=True, slots=True)
class Scheduled:
    """Compute KV for positions [start, start + num_tokens) of one sequence in this step."""

    seq_id: str
    start: int  # tokens whose KV is computed already (a prefix hit counts)
    num_tokens: int  # >= 1
    block_ids: tuple[int, ...]  # the sequence's whole block table, long enough for start + num_tokens
    samples: bool  # draw a token from the last position's logits
    # Proposals for the tokens to come (speculative decoding). They are the last of `num_tokens`; a token is then drawn
    # from the last known position and from each of theirs, until one differs from what was proposed.
    draft: tuple[int, ...] = ()
    num_wanted: int = 0  # proposals that the runner's draft model is asked for, for the step after this one

    @property
    def num_known_tokens(self) -> int:
        """Tokens of the row that belong to the sequence whatever is drawn."""
        return self.num_tokens - len(self.draft)


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One forward pass. Copies and swaps are carried out in the order written, before any KV is stored."""

    step_id: int
    scheduled: tuple[Scheduled, ...]
    new: tuple[NewSequence, ...] = ()
    forgotten: tuple[str, ...] = ()  # seq_ids whose state the runner may drop
    swap_out: tuple[tuple[int, int], ...] = ()  # (device block, host block)
    swap_in: tuple[tuple[int, int], ...] = ()  # (host block, device block)
    copies: tuple[tuple[int, int], ...] = ()  # (source block, target block), copy on write

    @property
    def num_tokens(self) -> int:
        """Tokens whose KV is computed in this step."""
        return sum(s.num_tokens for s in self.scheduled)


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log probabilities at one position: the chosen token's, and the most likely ones, or those of tokens asked for."""

    chosen: float
    top: tuple[tuple[int, float], ...] = ()
    rank: int | None = None  # of the chosen token, 1 the most likely; told of prompt tokens only


def scored_positions(row: Scheduled, num_prompt_tokens: int) -> range:
    """Positions of a row whose logits tell the log probability of a prompt token: that of the position after."""
    return range(row.start, min(row.start + row.num_tokens, num_prompt_tokens - 1))


@dataclass(frozen=True, slots=True)
class StepResult:
    """Sampled tokens by sequence; only sequences with `samples` are in it.

    One token of each, and one more for each proposal in a row that was drawn as it was proposed.
    """

    step_id: int
    token_ids: dict[str, tuple[int, ...]]
    seconds: float
    logprobs: dict[str, tuple[TokenLogprobs, ...]] = field(default_factory=dict)  # one for each token
    failed: dict[str, SequenceFailure] = field(default_factory=dict)  # has no token
    prompt_logprobs: dict[str, tuple[TokenLogprobs, ...]] = field(default_factory=dict)  # see `scored_positions`
    proposals: dict[str, tuple[int, ...]] = field(default_factory=dict)  # what may come after `token_ids`
    pooled: dict[str, bytes] = field(default_factory=dict)  # float32, of prompts that end in this step
    own_seconds: float = 0.0  # of a CPU that its thread had: a neighbour does not count; 0: unknown
