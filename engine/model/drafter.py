"""What proposes tokens for a model, and what it is told: nothing of what it says decides what is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

from engine.model.layer_features import LayerFeatures
from kernels.kv_cache import Pairs


class Wanted(NamedTuple):
    """A sequence that proposals are wanted for, as it is after the step."""

    seq_id: str
    token_ids: Sequence[int]
    block_ids: tuple[int, ...]
    num_tokens: int
    sample_row: int  # of the step's sampled rows the one that its last token was drawn from


class Drafter(Protocol):
    """`prepare` once, then `propose` after each step. One thread uses it."""

    features: LayerFeatures | None  # what the model is to keep of its layers' inputs in each step

    def prepare(self) -> None:
        """Packs the weights."""

    def sleep(self) -> int:
        """Drops what it keeps of sequences; returns its bytes."""

    def wake(self) -> None:
        """Takes that memory again."""

    def forget(self, seq_id: str) -> None:
        """The sequence has ended, or lies in other blocks from now on."""

    def move(self, swap_out: Pairs, swap_in: Pairs, copies: Pairs) -> None:
        """KV blocks go to host memory, come back, and are copied onto others, before the step."""

    def propose(self, wanted: Sequence[Wanted], hidden: Tensor) -> dict[str, tuple[int, ...]]:
        """By sequence id the tokens that come next, as it takes it; fewer than wanted, or none, where it can't say.

        `hidden`: [num_sampled_rows, hidden], what the step's logits were made from.
        """
