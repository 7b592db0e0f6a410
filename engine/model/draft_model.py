"""A small model that proposes tokens for a large one (speculative decoding, Leviathan et al. 2023, arXiv:2211.17192).

Its KV lies in blocks of the same numbers as the large model's, in a cache of its own: what the scheduler gives a
sequence holds for both. It computes for a sequence only while it is asked to propose for it, and catches up then: it
costs nothing while proposing does not pay. Its most likely tokens are proposed; whatever they are, what is drawn from
the large model does not change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch import Tensor

from engine.model.batch import make_batch
from engine.model.decoder import Decoder
from engine.model.directory import ModelDir
from engine.model.drafter import Wanted
from engine.model.kv_memory import empty_kv
from engine.model.layer_features import LayerFeatures
from engine.model.weights import load_weights
from engine.protocol.step import Scheduled
from kernels.kv_cache import Pairs
from kernels.kv_codes import KvCacheDtype, kv_format

RECORDED_TOKENS = 8  # of a sequence: all that it is behind after proposals, right or wrong
CATCH_UP_TOKENS = 256  # of all sequences in one step: what comes beside it must not wait long


@dataclass(slots=True)
class _Drafted:
    """Tokens of a sequence whose KV this model has computed: some that are its own, then proposals that may not be."""

    token_ids: list[int] = field(default_factory=list)
    num_certain: int = 0

    def follow(self, token_ids: Sequence[int]) -> list[int]:
        """Drops proposals that did not come true, now that the sequence is `token_ids`."""
        same = self.num_certain
        while same < min(len(self.token_ids), len(token_ids)) and self.token_ids[same] == token_ids[same]:
            same += 1
        del self.token_ids[same:]
        return self.token_ids


class DraftModel:
    """A `Drafter`."""

    features: LayerFeatures | None = None

    def __init__(
        self,
        model: ModelDir,
        *,
        num_blocks: int,
        block_size: int,
        max_len: int,
        dtype: torch.dtype,
        device: torch.device,
        kv_cache_dtype: KvCacheDtype = "auto",
        enforce_eager: bool = False,
    ) -> None:
        """Raises BadModelError, and what torch raises where memory runs out."""
        config = model.config
        self._device, self._dtype, self._block_size = device, dtype, block_size
        self._max_len = min(max_len, config.max_position_embeddings)
        self._kv_dtype, row = kv_format(kv_cache_dtype, dtype, config.head_dim)
        self._kv_shape = (config.num_layers, 2, num_blocks, block_size, config.num_kv_heads, row)
        weights = load_weights(model, dtype=dtype, device=str(device))
        self._decoder = Decoder(config, weights, num_positions=self._max_len, enforce_eager=enforce_eager)
        self._sequences: dict[str, _Drafted] = {}
        self.wake()

    def prepare(self) -> None:
        """Packs the weights."""
        self._decoder.prepare()

    def sleep(self) -> int:
        """Drops the KV cache; returns its bytes."""
        self._sequences.clear()
        self._decoder.drop_recordings()
        num_bytes = self._kv.nbytes
        self._kv = torch.empty(0)
        return num_bytes

    def wake(self) -> None:
        """Takes the memory of the KV cache."""
        self._kv = empty_kv(self._kv_shape, self._kv_dtype, self._device)

    def forget(self, seq_id: str) -> None:
        """The sequence has ended, or lies in other blocks from now on."""
        self._sequences.pop(seq_id, None)

    def move(self, swap_out: Pairs, swap_in: Pairs, copies: Pairs) -> None:
        """Its own KV of a sequence in other blocks is made anew."""

    def propose(self, wanted: Sequence[Wanted], hidden: Tensor) -> dict[str, tuple[int, ...]]:
        """By sequence id the tokens that this model takes to come next; none of one that it has to catch up with."""
        proposals = self._first_proposals(wanted)
        asked = {one.seq_id: one for one in wanted if one.seq_id in proposals}
        while asked := {i: one for i, one in asked.items() if self._has_room(one, len(proposals[i]))}:
            rows = []
            for seq_id, one in asked.items():
                drafted = self._sequences[seq_id].token_ids
                rows.append(Scheduled(seq_id, len(drafted), 1, one.block_ids, samples=True))
                drafted.append(proposals[seq_id][-1])
            for row, token_id in zip(rows, self._most_likely(rows), strict=True):
                proposals[row.seq_id].append(token_id)
        return {seq_id: tuple(found) for seq_id, found in proposals.items()}

    def _first_proposals(self, wanted: Sequence[Wanted]) -> dict[str, list[int]]:
        """Brings KV up to what the sequences are now; one token of each that is there."""
        rows: list[Scheduled] = []
        left = CATCH_UP_TOKENS
        proposing: list[str] = []
        for one in wanted:
            sequence = self._sequences.setdefault(one.seq_id, _Drafted())
            drafted = sequence.follow(one.token_ids)
            # the last token is always computed: its logits are what is asked for
            start = min(len(drafted), len(one.token_ids) - 1)
            count = min(len(one.token_ids) - start, left)
            if count < 1 or not self._has_room(one, 0):
                continue
            left -= count
            tokens = tuple(one.token_ids[start : start + count])
            # A few tokens are sampled at each of them, as drafts are: such a step can be a recorded one.
            draft = tokens[1:] if count <= RECORDED_TOKENS else ()
            rows.append(Scheduled(one.seq_id, start, count, one.block_ids, samples=True, draft=draft))
            drafted[start:] = tokens
            sequence.num_certain = len(drafted)
            if start + count == len(one.token_ids):
                proposing.append(one.seq_id)
        last = dict(zip((row.seq_id for row in rows), self._most_likely(rows), strict=True))
        return {seq_id: [last[seq_id]] for seq_id in proposing}

    def _has_room(self, one: Wanted, num_proposed: int) -> bool:
        """Whether one more is wanted, and its predecessor's KV has a slot."""
        end = len(one.token_ids) + num_proposed
        return num_proposed < one.num_tokens and end <= min(len(one.block_ids) * self._block_size, self._max_len)

    @torch.inference_mode()
    def _most_likely(self, rows: Sequence[Scheduled]) -> list[int]:
        """The token after each row's last one."""
        if not rows:
            return []
        batch = make_batch(rows, self._sequences, block_size=self._block_size)
        best = self._decoder.forward(batch, self._kv).argmax(-1).tolist()
        return [best[end - 1] for end in accumulate(1 + len(row.draft) for row in rows)]
