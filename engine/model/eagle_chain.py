"""Several drafts of an EAGLE-3 layer in one replay, each from the likeliest token of the one before.

One by one, each draft was a parallel region whose end waits for every thread: beside a neighbour that took longer than
the layer. Where a draft lies, and what it sees, is known before: only its token is not.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from engine.model.batch import Batch
from engine.model.eagle_stack import EagleStack
from kernels.cpu.likeliest import likeliest
from kernels.cpu.paged_attention import CpuAttentionPlan
from kernels.cpu.recorder import Arena, Recorder
from kernels.cpu.recording import Recording
from kernels.paged_attention import AttentionPlan

MAX_DRAFTS = 256  # rows x steps of a recording


class EagleChain:
    """Recordings by number of sequences and of drafts; what must hold for them is as for `RecordedSteps`.

    Threading: one thread at a time.
    """

    def __init__(self, stack: EagleStack, to_model: Tensor | None, block_size: int) -> None:
        self._stack, self._to_model, self._block_size = stack, to_model, block_size
        self._arena = Arena()
        self._chains: dict[tuple[int, int, int], _Chain] = {}
        self._cache_at = 0

    def drop(self) -> None:
        """Forgets every recording: they hold the KV cache that they were recorded with."""
        self._chains.clear()
        self._cache_at = 0

    def draft(self, batch: Batch, features: Tensor, num_steps: int, kv: Tensor) -> tuple[list[list[int]], Tensor]:
        """So many tokens that come after the batch's, for each of them, and the feature of the last.

        `batch`: one token of each sequence, whose blocks have room for those that follow; features: [num_seqs, hidden].
        The feature is good until the next call.
        """
        if kv.data_ptr() != self._cache_at:
            self.drop()
            self._cache_at = kv.data_ptr()
        places = _Places(self._stack, batch, num_steps, self._block_size)
        key = (len(batch.slots), num_steps, torch.get_num_threads())
        chain = self._chains.get(key)
        if chain is None:
            chain = self._chains[key] = _Chain(self._stack, self._to_model, batch, places, features, kv, self._arena)
        else:
            chain.replay(batch, places, features)
        return chain.tokens.T.tolist(), chain.features


class _Places:
    """Of each draft where its KV goes, its position's rotation and its attention's plan, one token after the other."""

    def __init__(self, stack: EagleStack, batch: Batch, num_steps: int, block_size: int) -> None:
        positions = batch.positions + torch.arange(num_steps)[:, None]
        blocks = batch.block_tables.gather(1, (positions // block_size).T).T
        slots = blocks.to(torch.int64) * block_size + positions % block_size
        self.slots = slots.contiguous()  # [num_steps, num_seqs]
        self.cos, self.sin = stack.rotations(positions)
        [(window, first)] = stack.plans(batch).items()
        assert isinstance(first, CpuAttentionPlan)
        self.window = window
        # one query of each sequence: items and their order stay, what they see grows by one
        self.plans = [first.grown(i) for i in range(num_steps)]


class _Chain:
    """Recorded by doing it: `tokens` and `features` are the result for what it was made with."""

    def __init__(
        self,
        stack: EagleStack,
        to_model: Tensor | None,
        batch: Batch,
        places: _Places,
        features: Tensor,
        kv: Tensor,
        arena: Arena,
    ) -> None:
        self._stack = stack
        self._embedded = stack.weights.embedding.index_select(0, batch.token_ids)
        self._given, self._places, self._latest = features.clone(), places, places
        self._plans = [plan.with_room(0) for plan in places.plans]
        self.tokens = torch.empty_like(places.slots)
        embedded, self.features = self._embedded, self._given
        with Recorder(arena) as recorder:
            for i, plan in enumerate(self._plans):
                plans: dict[int | None, AttentionPlan] = {places.window: plan}
                own = replace(batch, slots=places.slots[i])
                inputs = (embedded, places.cos[i], places.sin[i], self.features)
                said = stack.head(*stack.layers(inputs, own, plans, kv, arena.next_generation))
                embedded = likeliest(said.logits, to_model, stack.weights.embedding, self.tokens[i])
                self.features = said.hidden
        self._recording = Recording(recorder)

    def replay(self, batch: Batch, places: _Places, features: Tensor) -> None:
        """The same for other sequences."""
        self._given.copy_(features)  # first: it may lie in the arena
        torch.index_select(self._stack.weights.embedding, 0, batch.token_ids, out=self._embedded)
        for kept, new in zip(
            (self._places.slots, self._places.cos, self._places.sin),
            (places.slots, places.cos, places.sin),
            strict=True,
        ):
            kept.copy_(new)
        self._latest = places  # kept: the launches read its plans' arrays
        for recorded, plan in zip(self._plans, places.plans, strict=True):
            recorded.redirect(plan)
        self._recording.replay()
