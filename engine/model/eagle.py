"""EAGLE-3: one layer that drafts from what the model itself had in mind. Li et al. 2025, arXiv:2503.01840.

Position i of the drafter has the token at i + 1 and the feature of token i, made of the model's hidden states there
(`layer_features.py`), and says which token comes at i + 2. Beyond the last known token, what the layer gave out stands
for the feature. Its KV lies in blocks of the same numbers as the model's. It sees the latest `WINDOW` positions: so it
can begin in the middle of a long text, and what it has to catch up with is bounded. It does so when it is asked to
propose, some of it beside each step: until then a text costs it nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

import torch
from torch import Tensor

from engine.model.batch import make_batch
from engine.model.decoder import Decoder
from engine.model.draft_model import CATCH_UP_TOKENS
from engine.model.drafter import Wanted
from engine.model.eagle_chain import MAX_DRAFTS, EagleChain
from engine.model.eagle_directory import EagleDir
from engine.model.eagle_stack import EagleStack
from engine.model.eagle_weights import load_eagle
from engine.model.kv_memory import empty_kv
from engine.model.layer_features import LayerFeatures
from engine.model.recorded_steps import can_record
from engine.model.weights import DecoderWeights
from engine.protocol.step import Scheduled
from kernels.kv_cache import Pairs
from kernels.linear import pack, row_linear

WINDOW = 1024
RECORDED_TOKENS = 9  # of a sequence: what it is behind after eight proposals that were right


@dataclass(slots=True)
class _Drafted:
    """The tokens of a sequence from its second on, and of how many positions KV was made from true features."""

    token_ids: list[int] = field(default_factory=list)
    num_certain: int = 0


class Eagle:
    """A `Drafter`. `target`: the weights of the model, whose embeddings it may share."""

    def __init__(
        self,
        eagle: EagleDir,
        target: DecoderWeights,
        *,
        num_blocks: int,
        num_host_blocks: int,
        block_size: int,
        max_len: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Raises BadModelError, and what torch raises where memory runs out."""
        config = replace(eagle.config, sliding_window=WINDOW, windowed_layers=frozenset((0,)))
        self._device, self._dtype, self._block_size = device, dtype, block_size
        self._max_len, self._window = max_len, WINDOW
        weights = load_eagle(eagle, target, dtype=dtype, device=device)
        self._fusion, self._to_model = weights.fusion, weights.to_model
        self._stack = EagleStack(
            config,
            weights.decoder,
            weights.feature_norm,
            norms_residual=eagle.norms_residual,
            num_positions=max_len,
        )
        # Not captured on a GPU: its features are another tensor in each step.
        self._decoder = Decoder(config, weights.decoder, num_positions=max_len, stack=self._stack, enforce_eager=True)
        self._kv_shape = (1, 2, num_blocks, block_size, config.num_kv_heads, config.head_dim)
        self._kv = empty_kv(self._kv_shape, dtype, device)
        self.features: LayerFeatures | None = LayerFeatures(
            eagle.feature_layers,
            eagle.target_hidden_size,
            num_blocks=num_blocks,
            num_host_blocks=num_host_blocks,
            block_size=block_size,
            dtype=dtype,
            device=device,
        )
        self._features = self.features
        self._sequences: dict[str, _Drafted] = {}
        self._chain: EagleChain | None = None  # where drafts can be recorded

    def prepare(self) -> None:
        """Packs the weights."""
        self._decoder.prepare()
        if self._device.type == "cpu" and isinstance(self._fusion, Tensor):
            self._fusion = pack(self._fusion)
        if self._device.type == "cpu" and can_record(self._decoder.weights):
            self._chain = EagleChain(self._stack, self._to_model, self._block_size)

    def sleep(self) -> int:
        """Drops features and KV; returns their bytes."""
        self._sequences.clear()
        self._decoder.drop_recordings()
        if self._chain is not None:
            self._chain.drop()
        num_bytes = self._kv.nbytes + self._features.drop()
        self._kv = torch.empty(0)
        return num_bytes

    def wake(self) -> None:
        """Takes their memory."""
        self._features.take()
        self._kv = empty_kv(self._kv_shape, self._dtype, self._device)

    def forget(self, seq_id: str) -> None:
        """The sequence has ended, or lies in other blocks from now on."""
        self._sequences.pop(seq_id, None)

    def move(self, swap_out: Pairs, swap_in: Pairs, copies: Pairs) -> None:
        """KV blocks were moved: features go with them. KV of a sequence in other blocks is made anew."""
        self._features.move(swap_out, swap_in, copies)

    @torch.inference_mode()
    def propose(self, wanted: Sequence[Wanted], hidden: Tensor) -> dict[str, tuple[int, ...]]:
        """By sequence id what comes next, as the drafter takes it; none of one that it has to catch up with."""
        asked, rows = self._catch_up(wanted)
        proposals: dict[str, list[int]] = {one.seq_id: [] for one in asked}
        features: Tensor | None = None
        found: list[list[int]]  # of each that was asked about, one or more
        while asked:
            if self._chain is None or features is None:
                tokens, features = self._say(rows, features)
                found = [[token_id] for token_id in tokens]
            else:
                found, features = self._say_several(asked, rows, features, proposals)
            for one, token_ids in zip(asked, found, strict=True):
                proposals[one.seq_id] += token_ids
            going_on = [k for k, one in enumerate(asked) if self._has_room(one, len(proposals[one.seq_id]))]
            asked, rows = [asked[k] for k in going_on], []
            features = features[torch.tensor(going_on, dtype=torch.int64, device=self._device)]
            for one, token_ids in zip(asked, (found[k] for k in going_on), strict=True):
                drafted = self._sequences[one.seq_id].token_ids
                drafted += token_ids
                rows.append(Scheduled(one.seq_id, len(drafted) - 1, 1, one.block_ids, samples=True))
        return {seq_id: tuple(found) for seq_id, found in proposals.items()}

    def _say_several(
        self, asked: Sequence[Wanted], rows: Sequence[Scheduled], features: Tensor, proposals: Mapping[str, list[int]]
    ) -> tuple[list[list[int]], Tensor]:
        """As many tokens after each row's as all of them have room for, or fewer, and the feature of the last.

        1, 3, 7 and so on, as with one of `_say` they are 2, 4 and 8: each number is recorded once, which takes a step's
        time.
        """
        assert self._chain is not None
        num_steps, most = 1, max(MAX_DRAFTS // len(rows), 1)
        while (more := 2 * num_steps + 1) <= most and all(
            self._has_room(one, len(proposals[one.seq_id]) + more - 1) for one in asked
        ):
            num_steps = more
        batch = make_batch(rows, self._sequences, block_size=self._block_size).to(self._device)
        return self._chain.draft(batch, features, num_steps, self._kv)

    def _catch_up(self, wanted: Sequence[Wanted]) -> tuple[list[Wanted], list[Scheduled]]:
        """Makes KV of what the sequences have become; those that are there, and what is left to compute of each."""
        left, asked = CATCH_UP_TOKENS, []
        stored: list[Scheduled] = []
        rows: list[Scheduled] = []
        for one in wanted:
            sequence = self._sequences.setdefault(one.seq_id, _Drafted())
            drafted, end = sequence.token_ids, len(one.token_ids) - 1
            del drafted[sequence.num_certain :]  # what was proposed is over, right or wrong: features are known now
            drafted += one.token_ids[1 + sequence.num_certain :]
            # the last position is always computed: what it says is what is asked for
            start = min(max(sequence.num_certain, end - self._window), end - 1)
            if end - start > RECORDED_TOKENS:
                count = min(end - 1 - start, left)
                if count > 0:
                    stored.append(Scheduled(one.seq_id, start, count, one.block_ids, samples=False))
                left, start = left - count, start + count
                sequence.num_certain = start
            if end - start > RECORDED_TOKENS or not self._has_room(one, 0):
                continue
            # A few positions are sampled each, as drafts are: such a step can be a recorded one.
            draft = tuple(drafted[start + 1 : end])
            rows.append(Scheduled(one.seq_id, start, end - start, one.block_ids, samples=True, draft=draft))
            sequence.num_certain = end
            asked.append(one)
        if stored:
            batch = make_batch(stored, self._sequences, block_size=self._block_size).to(self._device)
            self._stack.next_features = row_linear(self._features.at(batch.slots), self._fusion)
            self._stack.store(batch, self._kv)
        return asked, rows

    def _has_room(self, one: Wanted, num_proposed: int) -> bool:
        """Whether one more is wanted, and the position that says it has a slot."""
        end = len(one.token_ids) - 1 + num_proposed
        return num_proposed < one.num_tokens and end <= min(len(one.block_ids) * self._block_size, self._max_len)

    def _say(self, rows: Sequence[Scheduled], features: Tensor | None) -> tuple[list[int], Tensor]:
        """The token after each row's last one, and that position's feature. Without features, the model's own."""
        batch = make_batch(rows, self._sequences, block_size=self._block_size).to(self._device)
        if features is None:
            features = row_linear(self._features.at(batch.slots), self._fusion)
        self._stack.next_features = features
        logits = self._decoder.forward(batch, self._kv)
        last = [end - 1 for end in accumulate(1 + len(row.draft) for row in rows)]
        places = torch.tensor(last, dtype=torch.int64, device=self._device)
        best = logits.argmax(-1)[places]
        if self._to_model is not None:
            best = self._to_model[best]
        return best.tolist(), self._decoder.last_hidden[places]
