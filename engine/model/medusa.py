"""Medusa heads: small layers on a model's last hidden state that say what comes after the next token.

Cai et al. 2024, arXiv:2401.10774. Head i reads the state that a token was drawn from and says which one comes i + 1
after it. The most likely one of each head is proposed, as a chain. They have no KV and remember nothing: proposing
costs one product with the vocabulary for each token, and a sequence that was never proposed for is no further behind.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import torch
from safetensors import safe_open
from torch import Tensor

from engine.model.directory import BadModelError
from engine.model.drafter import Wanted
from engine.model.layer_features import LayerFeatures
from engine.model.medusa_directory import MAP, MedusaDir
from engine.model.weights import DecoderWeights
from kernels.kv_cache import Pairs
from kernels.linear import Weight, pack, row_linear


class MedusaHeads:
    """A `Drafter`. `target`: the weights of the model, for heads that share its product with the vocabulary."""

    features: LayerFeatures | None = None

    def __init__(self, heads: MedusaDir, target: DecoderWeights, *, dtype: torch.dtype, device: torch.device) -> None:
        """Loads them. Raises BadModelError."""
        self._dir, self._target = heads, target
        self._dtype, self._device = dtype, device
        self._token_map = self._read_token_map() if heads.has_token_map else None
        self._layers = [[self._read_layer(i, j) for j in range(heads.num_layers)] for i in range(heads.num_heads)]
        self._vocab: dict[str, Weight] = {name: self._read_head(name) for name in dict.fromkeys(heads.head_names)}

    def prepare(self) -> None:
        """Packs the weights, on a CPU."""
        if self._device.type != "cpu":
            return
        for layers in self._layers:
            layers[:] = [(pack(weight) if isinstance(weight, Tensor) else weight, bias) for weight, bias in layers]
        for name, weight in self._vocab.items():
            self._vocab[name] = pack(weight) if isinstance(weight, Tensor) else weight

    def sleep(self) -> int:
        """Nothing: the weights stay, as a CPU's do."""
        return 0

    def wake(self) -> None:
        """Nothing was given up."""

    def forget(self, seq_id: str) -> None:
        """Nothing is known of a sequence."""

    def move(self, swap_out: Pairs, swap_in: Pairs, copies: Pairs) -> None:
        """Nothing lies in blocks."""

    @torch.inference_mode()
    def propose(self, wanted: Sequence[Wanted], hidden: Tensor) -> dict[str, tuple[int, ...]]:
        """By sequence id a token of each head that is asked for."""
        # those that want most come first: the rows of each head are the first ones
        ordered = sorted(wanted, key=lambda one: -one.num_tokens)
        x = hidden[torch.tensor([one.sample_row for one in ordered], device=hidden.device)]
        counts = [sum(one.num_tokens > head for one in ordered) for head in range(self._dir.num_heads)]
        states = [self._state(head, x[:count]) for head, count in enumerate(counts) if count]
        found = iter(self._most_likely(states))
        by_head = [list(islice(found, len(state))) for state in states]
        return {
            one.seq_id: tuple(tokens[row] for tokens in by_head if row < len(tokens)) for row, one in enumerate(ordered)
        }

    def _state(self, head: int, x: Tensor) -> Tensor:
        for weight, bias in self._layers[head]:
            x = x + torch.nn.functional.silu(row_linear(x, weight, bias))
        return x

    def _most_likely(self, states: Sequence[Tensor]) -> list[int]:
        """The token of each row, head by head. A product that heads share is computed once for all of them."""
        if len(self._vocab) < 2:
            shared = next(iter(self._vocab.values()), self._target.head)
            best = row_linear(torch.cat(list(states)), shared).argmax(-1)
        else:
            names = self._dir.head_names
            own = [row_linear(x, self._vocab[name]).argmax(-1) for x, name in zip(states, names, strict=False)]
            best = torch.cat(own)
        return (best if self._token_map is None else self._token_map[best]).tolist()

    def _read(self, name: str) -> Tensor:
        with safe_open(self._dir.files[name], framework="pt") as file:
            return file.get_tensor(self._dir.stored_names[name]).to(self._device)

    def _read_layer(self, head: int, layer: int) -> tuple[Weight, Tensor | None]:
        name = f"blocks.{head}.layers.{layer}"
        bias = self._read(f"{name}.bias").to(self._dtype) if self._dir.has_bias else None
        return self._read(f"{name}.weight").to(self._dtype), bias

    def _read_head(self, name: str) -> Tensor:
        weight = self._read(name).to(self._dtype)
        is_whole = weight.shape[0] > self._dir.draft_vocab_size
        return weight[self._token_map].contiguous() if is_whole and self._token_map is not None else weight

    def _read_token_map(self) -> Tensor:
        token_map = self._read(MAP).long()
        if int(token_map.min()) < 0 or int(token_map.max()) >= self._dir.vocab_size:
            raise BadModelError(
                self._dir.files[MAP],
                f"tensor {MAP} names tokens outside of the model's {self._dir.vocab_size}",
                "heads must be made for the model that is served",
            )
        return token_map
