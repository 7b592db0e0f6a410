"""What the runner remembers of a sequence between steps: its tokens, how it is sampled, what it has said."""

from __future__ import annotations

from engine.protocol.failure import SequenceFailure
from engine.protocol.step import NewSequence, TokenLogprobs
from engine.text.grammar_compiler import GrammarMatcher, TokenMask, without
from kernels.sample_row import Drawn, SampleRow


class Sequence:
    """Changed by `append` alone. The counts that penalties read are kept only when the sequence has penalties."""

    __slots__ = (
        "_counts",
        "_has_counts",
        "_has_seen",
        "_seen",
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
        self.problem = problem
        self.token_ids = list(new.token_ids)
        self.num_prompt_tokens = new.num_prompt_tokens
        self.sampling = new.sampling
        self._has_counts = bool(self.sampling.presence_penalty or self.sampling.frequency_penalty)
        self._has_seen = self.sampling.repetition_penalty != 1
        self._seen = set(self.token_ids) if self._has_seen else set()
        self._counts: dict[int, int] = {}
        for token_id in self.token_ids[self.num_prompt_tokens :] if self._has_counts else ():
            self._counts[token_id] = self._counts.get(token_id, 0) + 1

    def append(self, token_id: int) -> None:
        """Takes the drawn token in; its grammar and its counts with it."""
        self.token_ids.append(token_id)
        if self.matcher is not None:
            self.matcher.accept_token(token_id)
        if self._has_seen:
            self._seen.add(token_id)
        if self._has_counts:
            self._counts[token_id] = self._counts.get(token_id, 0) + 1

    def sample_row(self, eos_token_ids: tuple[int, ...], allowed: TokenMask | None = None) -> SampleRow:
        """How the next token is drawn. Its place in the output keys the randomness, so it survives recomputation.

        `allowed` is what the grammar says; whatever else forbids tokens gives way where nothing would be left.
        """
        params, position = self.sampling, len(self.token_ids) - self.num_prompt_tokens
        banned: tuple[int, ...] = ()
        if position < params.min_tokens:
            banned = params.stop_token_ids if params.ignore_eos else (*params.stop_token_ids, *eos_token_ids)
        if allowed is not None:
            if params.ignore_eos:
                banned = (*banned, *eos_token_ids)  # goes on for as long as the grammar does
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
            output_counts=self._counts,
            seen=self._seen,
            logit_bias=params.logit_bias,
            banned=banned,
            allowed=allowed,
            num_logprobs=params.num_logprobs,
        )


def logprobs_of(drawn: Drawn) -> TokenLogprobs | None:
    """What was asked of a drawn token, as the core passes it on; None when nothing was."""
    return None if drawn.logprob is None else TokenLogprobs(drawn.logprob, drawn.top)
