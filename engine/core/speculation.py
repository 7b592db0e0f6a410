"""Tokens ahead: which sequences of a step get proposals, how long ones, and what became of them.

The scheduler asks `drafts` when everything else of a step is planned, so that proposals take only what is left, and
tells `observe` how the step went. What is drawn does not depend on any of this (`engine.model.verification`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from engine.core.ngram import Proposal, TokenHistory, find_draft
from engine.core.pending_step import StepRow
from engine.core.sequence import CoreSequence
from engine.core.speculation_config import SpeculationConfig
from engine.core.speculation_judge import BatchSize, Candidate, SpeculationJudge
from engine.protocol.step import StepResult


class DraftedRow(NamedTuple):
    """A row of the step, by its place, what is proposed for it, and how much a draft model is to propose next."""

    place: int
    token_ids: tuple[int, ...]
    num_wanted: int = 0


class Proposed(NamedTuple):
    """What a draft model said of a sequence of so many tokens."""

    num_tokens: int
    token_ids: tuple[int, ...]


class SpeculationCounts(NamedTuple):
    """Of one step: rows with proposals, proposals, and at each position of a draft how many were right."""

    num_drafts: int = 0
    num_draft_tokens: int = 0
    accepted_per_position: tuple[int, ...] = ()


class Speculation:
    """Owns what is known of each sequence for proposing, and the judgement of when it pays."""

    def __init__(self, config: SpeculationConfig) -> None:
        self.config = config
        self._judge = SpeculationJudge(drafts=config.method != "ngram")
        self._histories: dict[str, TokenHistory] = {}
        self._match_lengths: dict[str, int] = {}  # of the step whose result is awaited
        self._proposed: dict[str, Proposed] = {}  # by a draft model, in the last step

    def drafts(self, rows: Sequence[StepRow], most_tokens: Callable[[CoreSequence], int]) -> Iterator[DraftedRow]:
        """Proposals for the step of these rows; `most_tokens` says how many a sequence can still make use of."""
        self._match_lengths.clear()
        able = [index for index, row in enumerate(rows) if can_have_draft(row)]
        asked = able
        if self.config.is_adaptive:
            asked = self._judge.worth_looking_at(
                batch_size(rows), [(index, rows[index].sequence.seq_id) for index in able]
            )
        proposed, self._proposed = self._proposed, {}
        if self.config.method != "ngram":
            yield from self._from_draft_model(rows, able, asked, proposed, most_tokens)
            return
        found = [(index, draft) for index in asked if (draft := self._find(rows[index].sequence, most_tokens))]
        lengths = [len(draft.token_ids) for _, draft in found]
        if self.config.is_adaptive and found:
            candidates = [
                Candidate(rows[index].sequence.seq_id, draft.match_length, len(draft.token_ids))
                for index, draft in found
            ]
            lengths = self._judge.lengths(batch_size(rows), candidates)
        for (index, draft), length in zip(found, lengths, strict=True):
            if length:
                self._match_lengths[rows[index].sequence.seq_id] = draft.match_length
                yield DraftedRow(index, draft.token_ids[:length])

    def _from_draft_model(
        self,
        rows: Sequence[StepRow],
        able: Sequence[int],
        asked: Sequence[int],
        proposed: Mapping[str, Proposed],
        most_tokens: Callable[[CoreSequence], int],
    ) -> Iterator[DraftedRow]:
        """What was proposed with the last step, which is paid for; and for the next one as much as pays."""
        asked_for = set(asked)
        places = [place for place in able if place in asked_for or rows[place].sequence.seq_id in proposed]
        ahead = {place: max(most_tokens(rows[place].sequence), 0) for place in places}
        # One token comes in any case before what is asked for now is looked at.
        most = {place: min(self.config.num_speculative_tokens, max(ahead[place] - 1, 0)) for place in asked}
        wanted = most
        if self.config.is_adaptive and asked:
            candidates = [Candidate(rows[place].sequence.seq_id, 0, count) for place, count in most.items()]
            wanted = dict(zip(most, self._judge.lengths(batch_size(rows), candidates), strict=True))
        for place in places:
            sequence, num_wanted = rows[place].sequence, wanted.get(place, 0)
            found = proposed.get(sequence.seq_id)
            token_ids = found.token_ids[: ahead[place]] if found and found.num_tokens == sequence.num_tokens else ()
            if token_ids or num_wanted:
                yield DraftedRow(place, token_ids, num_wanted)

    def observe(self, rows: Sequence[StepRow], result: StepResult, *, is_plain: bool) -> SpeculationCounts:
        """Learn from a step's result. `is_plain`: nothing but decoding was done in it."""
        num_drafts = num_tokens = 0
        accepted_at = [0] * self.config.num_speculative_tokens
        for sequence, scheduled in rows:
            drawn = result.token_ids.get(sequence.seq_id)
            if drawn is not None and (token_ids := result.proposals.get(sequence.seq_id)):
                self._proposed[sequence.seq_id] = Proposed(sequence.num_tokens + len(drawn), token_ids)
            if not scheduled.draft or drawn is None or sequence.finish_reason is not None:
                continue  # failed, or aborted meanwhile
            accepted = len(drawn) - 1
            num_drafts += 1
            num_tokens += len(scheduled.draft)
            for position in range(accepted):
                accepted_at[position] += 1
            match_length = self._match_lengths.get(sequence.seq_id, 0)
            self._judge.observe_draft(sequence.seq_id, match_length, len(scheduled.draft), accepted)
        if is_plain:
            self._judge.observe_step(
                batch_size(rows),
                result.seconds,
                own_seconds=result.own_seconds,
                num_verified=sum(len(row.scheduled.draft) for row in rows),
                num_drafted=sum(row.scheduled.num_wanted for row in rows),
            )
        return SpeculationCounts(num_drafts, num_tokens, tuple(accepted_at) if num_drafts else ())

    def forget(self, seq_id: str) -> None:
        """The sequence has ended."""
        self._histories.pop(seq_id, None)
        self._judge.forget(seq_id)

    def _find(self, sequence: CoreSequence, most_tokens: Callable[[CoreSequence], int]) -> Proposal | None:
        num_tokens = min(self.config.num_speculative_tokens, most_tokens(sequence))
        if num_tokens < 1:
            return None
        history = self._histories.setdefault(sequence.seq_id, TokenHistory())
        return find_draft(
            history.follow(sequence.token_ids),
            min_match=self.config.prompt_lookup_min,
            max_match=self.config.prompt_lookup_max,
            num_tokens=num_tokens,
        )


def can_have_draft(row: StepRow) -> bool:
    """Whether the row computes a sequence's last token only, and draws the next one for a client."""
    return row.scheduled.num_tokens == 1 and row.scheduled.samples and not row.sequence.is_probe


def batch_size(rows: Sequence[StepRow]) -> BatchSize:
    """What a step of these rows reads without proposals."""
    return BatchSize(len(rows), sum(row.scheduled.start + row.scheduled.num_known_tokens for row in rows))
