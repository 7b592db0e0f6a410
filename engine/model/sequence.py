"""What the runner remembers of a sequence between steps: its tokens, how it is sampled, what it has said."""

from __future__ import annotations

from collections.abc import Sequence as Tokens

import numpy as np
import numpy.typing as npt

from engine.protocol.failure import SequenceFailure
from engine.protocol.step import NewSequence, SamplingParams, TokenLogprobs
from engine.text.grammar_compiler import GrammarMatcher, TokenMask, without
from engine.text.token_rules import rules_of
from kernels.sample_row import LIKELIEST, Drawn, SampleRow


class Sequence:
    """Changed by `extend` alone. The counts that penalties read are kept only when the sequence has penalties."""

    __slots__ = (
        "_counts",
        "_has_counts",
        "_has_seen",
        "_is_plainly_greedy",
        "_rules",
        "_seen",
        "hidden_sum",
        "matcher",
        "num_prompt_tokens",
        "problem",
        "sampling",
        "token_ids",
    )

    def __init__(
        self, new: NewSequence, matcher: GrammarMatcher | None = None, problem: SequenceFailure | None = None
    ) -> None:
        """`matcher` has taken the output so far; `problem` is why a sequence with a grammar has none."""
        self.matcher = matcher
        self.hidden_sum: npt.NDArray[np.float64] | None = None  # of a prompt whose mean is asked for
        self.problem = problem
        self.token_ids = list(new.token_ids)
        self.num_prompt_tokens = new.num_prompt_tokens
        self.sampling = new.sampling
        self._rules = rules_of(self.sampling, self.token_ids, self.num_prompt_tokens)
        self._has_counts = bool(self.sampling.presence_penalty or self.sampling.frequency_penalty)
        self._has_seen = self.sampling.repetition_penalty != 1
        self._seen = set(self.token_ids) if self._has_seen else set()
        self._is_plainly_greedy = _is_plainly_greedy(self.sampling) and matcher is None and self._rules is None
        self._counts: dict[int, int] = {}
        for token_id in self.token_ids[self.num_prompt_tokens :] if self._has_counts else ():
            self._counts[token_id] = self._counts.get(token_id, 0) + 1

    @property
    def reads_prompt_states(self) -> bool:
        """Whether more is asked of its prompt than to go on from it."""
        return self.sampling.num_prompt_logprobs is not None or self.sampling.pooling is not None

    def add_hidden(self, rows: npt.NDArray[np.float64]) -> None:
        """Adds up hidden states, [num_tokens, hidden], one token after the other."""
        before = [] if self.hidden_sum is None else [self.hidden_sum[None]]
        self.hidden_sum = np.add.reduce(np.concatenate([*before, rows]), axis=0)

    def extend(self, token_ids: Tokens[int]) -> None:
        """Takes drawn tokens in; its grammar and its counts with them."""
        self.token_ids.extend(token_ids)
        if self._rules is not None:
            self._rules.extend(token_ids)
        for token_id in token_ids:
            if self.matcher is not None:
                self.matcher.accept_token(token_id)
            if self._has_seen:
                self._seen.add(token_id)
            if self._has_counts:
                self._counts[token_id] = self._counts.get(token_id, 0) + 1

    def sample_rows(
        self, eos_token_ids: tuple[int, ...], draft: Tokens[int] = (), masks: Tokens[TokenMask] | None = None
    ) -> list[SampleRow]:
        """How the next token is drawn, and those after it if each token of the draft is drawn before.

        `masks` are what the grammar says at each; draws that have none come to nothing, as what is before them can't be
        drawn.
        """
        if self._is_plainly_greedy:
            return [LIKELIEST] * (len(draft) + 1)
        allowed: Tokens[TokenMask | None] = (None,) * (len(draft) + 1) if masks is None else masks
        rows = [self._sample_row(eos_token_ids, draft[:ahead], mask) for ahead, mask in enumerate(allowed)]
        return rows + [SampleRow()] * (len(draft) + 1 - len(rows))

    def _sample_row(self, eos_token_ids: tuple[int, ...], ahead: Tokens[int], allowed: TokenMask | None) -> SampleRow:
        """A draw with `ahead` behind what was said. Its place in the output keys the randomness, so it survives
        recomputation.

        `allowed` is what the grammar says; whatever else forbids tokens gives way where nothing would be left.
        """
        params, position = self.sampling, len(self.token_ids) + len(ahead) - self.num_prompt_tokens
        banned: tuple[int, ...] = ()
        if position < params.min_tokens:
            banned = params.stop_token_ids if params.ignore_eos else (*params.stop_token_ids, *eos_token_ids)
        if allowed is not None and params.ignore_eos:
            banned = (*banned, *eos_token_ids)  # goes on for as long as the grammar does
        if self._rules is not None:
            banned = (*banned, *self._rules.banned(ahead))
            allowed = self._rules.mask(allowed, ahead)
        if allowed is not None:
            allowed, banned = without(allowed, banned) if banned else allowed, ()
        return SampleRow(
            temperature=params.temperature,
            top_k=params.top_k,
            top_p=params.top_p,
            min_p=params.min_p,
            presence_penalty=params.presence_penalty,
            frequency_penalty=params.frequency_penalty,
            repetition_penalty=params.repetition_penalty,
            seed=params.seed,
            position=position,
            output_counts=self._counts_with(ahead),
            seen=self._seen.union(ahead) if self._has_seen and ahead else self._seen,
            logit_bias=params.logit_bias,
            banned=banned,
            allowed=allowed,
            num_logprobs=params.num_logprobs,
            logprob_ids=params.logprob_token_ids,
        )

    def _counts_with(self, ahead: Tokens[int]) -> dict[int, int]:
        if not ahead or not self._has_counts:
            return self._counts
        counts = dict(self._counts)
        for token_id in ahead:
            counts[token_id] = counts.get(token_id, 0) + 1
        return counts


def _is_plainly_greedy(params: SamplingParams) -> bool:
    """Whether it is drawn as `LIKELIEST` whatever was said before."""
    has_penalty = params.presence_penalty or params.frequency_penalty or params.repetition_penalty != 1
    asks = params.num_logprobs is not None or params.logprob_token_ids
    return params.temperature == 0 and not (has_penalty or asks or params.logit_bias or params.min_tokens)


def logprobs_of(drawn: Drawn) -> TokenLogprobs | None:
    """What was asked of a drawn token, as the core passes it on; None when nothing was."""
    return None if drawn.logprob is None else TokenLogprobs(drawn.logprob, drawn.top)
