"""A greedy answer to the known prompt, and whether two of them are the same model's. Pure.

Two answers agree when their tokens do. A token may differ only where the two best candidates were nearly tied: batch,
card and kernel decide then, and what follows says nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

TIE_NATS = 0.25
"""Candidates nearer than this may change places. More than our own engine's: others compute logits in bfloat16, whose
steps are 0.125 between 16 and 32."""
LOGPROB_TOLERANCE = 1.0  # nats; kernels and batches of one model differ by far less
MAX_SHOWN_CHARS = 60


@dataclass(frozen=True, slots=True)
class Candidate:
    """One token that could stand at a place, and its log probability."""

    token: str
    logprob: float


@dataclass(frozen=True, slots=True)
class Token:
    """The token that was chosen, its log probability, and the best candidates for its place, itself among them."""

    token: str
    logprob: float
    best: tuple[Candidate, ...] = ()

    def might_be(self, other: str) -> bool:
        """Whether `other` was as good as chosen."""
        return any(one.token == other and abs(self.logprob - one.logprob) < TIE_NATS for one in self.best)

    @property
    def is_tied(self) -> bool:
        """Whether another one was as good as chosen."""
        return any(one.token != self.token and abs(self.logprob - one.logprob) < TIE_NATS for one in self.best)


@dataclass(frozen=True, slots=True)
class Answer:
    """`tokens` is empty where the engine gives no log probabilities: then only the text can be compared."""

    text: str
    tokens: tuple[Token, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As it is stored."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Answer:
        """A stored answer."""
        tokens = (
            Token(one["token"], one["logprob"], tuple(Candidate(**best) for best in one["best"]))
            for one in data["tokens"]
        )
        return cls(data["text"], tuple(tokens))


def difference(one: Answer, other: Answer) -> str:
    """How they differ, for people; empty when they agree."""
    if not one.tokens or not other.tokens:
        return "" if one.text == other.text else f"{_shown(one.text)} where others say {_shown(other.text)}"
    for place, (left, right) in enumerate(zip(one.tokens, other.tokens, strict=False), 1):
        if left.token != right.token:
            if left.might_be(right.token) or right.might_be(left.token):
                return ""
            return f"token {place} is {_shown(left.token)} where others say {_shown(right.token)}"
        if not abs(left.logprob - right.logprob) <= LOGPROB_TOLERANCE:  # NaN is off too
            return f"token {place}: its log probability is off by {abs(left.logprob - right.logprob):.2f}"
    if len(one.tokens) == len(other.tokens):
        return ""
    # One ended. Engines do not agree on whether and how the end is among the candidates.
    longer = max(one.tokens, other.tokens, key=len)
    if longer[min(len(one.tokens), len(other.tokens))].is_tied:
        return ""
    return f"{len(one.tokens)} tokens where others say {len(other.tokens)}"


def _shown(text: str) -> str:
    return repr(text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}...")
