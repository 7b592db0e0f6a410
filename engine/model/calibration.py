"""Rounding a model's matrices so that each makes up for its own errors, on text that the model itself writes.

Which errors matter is told by the inputs that a matrix sees (`kernels/compensated.py`). They come from texts that the
model draws, rounded plainly: a text of ours would favour answers like it, and was no help to others. Layer by layer,
each reads what the rounded ones before it make of those texts, so that it answers for their errors, too.

The same directory gives the same bits on every start of a CPU of one kind, whatever threads there are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import structlog
import torch
from torch import Tensor

from engine.model.batch import Batch, make_batch
from engine.model.calibration_cache import (
    calibration_path,
    digest_of,
    from_bytes,
    keep_calibration,
    read_calibration,
    to_bytes,
)
from engine.model.config import ModelConfig
from engine.model.decoder import Decoder
from engine.model.decoder_stack import DecoderStack
from engine.model.directory import ModelDir
from engine.model.sequence import Sequence as SequenceState
from engine.model.weights import DecoderWeights, DenseWeights, LayerWeights
from engine.protocol.step import NewSequence, SamplingParams, Scheduled
from kernels import block_weight
from kernels import compensated as compensation
from kernels.block_weight import GROUP, BlockWeight
from kernels.compensated import compensated, one_thread
from kernels.linear import Weight, pack, pack_blocks, row_linear
from kernels.quantization import CompensatedKind, is_compensated

log = structlog.get_logger()

TEXTS, TEXT_TOKENS = 16, 128  # four times as many: KL a twentieth less, in 1.7 times the time
BLOCK_SIZE = 16
SEED = 1
WRITING_SHARE = 0.2  # of the time, for the progress
_CODE = (Path(block_weight.__file__), Path(compensation.__file__))
Progress = Callable[[str, float], None]


@torch.inference_mode()
def calibrate(model: ModelDir, weights: DecoderWeights, progress: Progress = lambda phase, done: None) -> str | None:
    """Makes blocks of the matrices that four bits are asked for, on a CPU; hex digits of what they are.

    None: nothing was made up for. Matrices that lie in blocks already stay so, and experts' are left to be rounded
    plainly, as each sees few of the tokens. Needs the memory of the rounded model beside the model's own, when it was
    not kept by an earlier start. `progress` is called with ("calibrating", 0 to 1).
    """
    kind, started = weights.quantization, time.perf_counter()
    if not is_compensated(kind) or not any(_matrices(layer) for layer in weights.layers):
        return None
    progress("calibrating", 0.0)
    path = calibration_path(model, weights.embedding.dtype, kind, (Path(__file__), *_CODE))
    data, is_kept = read_calibration(path), True
    if data is not None:
        try:
            with one_thread():  # beside other work two would wait for each other, twenty times as long
                layers = from_bytes(data, kind, len(weights.layers))
        except ValueError as error:
            log.warning("calibration_cache.damaged", path=str(path), reason=str(error), remedy="it is made again")
            data = None
    if data is None:
        found = _compensated(model.config, weights, kind, progress)
        if found is None:
            return None
        layers, data, is_kept = found, to_bytes(found), False
        keep_calibration(path, data)
    weights.layers[:] = [_with(layer, own) for layer, own in zip(weights.layers, layers, strict=True)]
    took = round(time.perf_counter() - started, 1)
    log.info("weights.calibrated", rounding=digest_of(data), kept_from_earlier=is_kept, seconds=took)
    progress("calibrating", 1.0)
    return digest_of(data)


def _compensated(
    config: ModelConfig, weights: DecoderWeights, kind: CompensatedKind, progress: Progress
) -> list[dict[str, BlockWeight]] | None:
    """The matrices of each layer. None: the model's answers are not numbers."""
    plain = replace(weights, layers=[replace(layer, mlp=replace(layer.mlp)) for layer in weights.layers])
    texts = _written(config, plain, progress)
    if texts is None:
        return None
    path, found = _OneLayer(config, weights, texts), []
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        for own, rounded in zip(weights.layers, plain.layers, strict=True):
            seen = {name: _Watched(matrix, is_gated=name == "gate_up") for name, matrix in _matrices(own).items()}
            path.read(_with(rounded, seen))
            with one_thread():
                blocks = pool.map(lambda one: compensated(one.weight, kind, one.inputs), seen.values())
                found.append(dict(zip(seen, blocks, strict=True)))
            dtype = weights.embedding.dtype
            packed = {n: pack_blocks(b, dtype, kind, is_gated=n == "gate_up") for n, b in found[-1].items()}
            path.move_on(_with(rounded, packed))
            progress("calibrating", WRITING_SHARE + (1 - WRITING_SHARE) * len(found) / config.num_layers)
    return found


def _matrices(layer: LayerWeights) -> dict[str, Tensor]:
    """Those of a layer that are not in blocks yet, and can be."""
    found = {"qkv": layer.qkv, "output": layer.output}
    if isinstance(layer.mlp, DenseWeights):
        found |= {"gate_up": layer.mlp.gate_up, "down": layer.mlp.down}
    return {name: m for name, m in found.items() if isinstance(m, Tensor) and m.shape[1] % GROUP == 0}


def _with(layer: LayerWeights, matrices: Mapping[str, Weight | BlockWeight]) -> LayerWeights:
    """The layer with these in place of its own."""
    of_mlp = {name: matrix for name, matrix in matrices.items() if name in ("gate_up", "down")}
    own = {name: matrix for name, matrix in matrices.items() if name not in of_mlp}
    return replace(layer, mlp=replace(layer.mlp, **of_mlp), **own)


class _Watched:
    """A matrix that keeps what it is multiplied with."""

    def __init__(self, weight: Tensor, *, is_gated: bool) -> None:
        self.weight, self.shape = weight, weight.shape
        self.inputs = torch.empty(0, weight.shape[1])
        self._packed = pack(weight, is_gated=is_gated)

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        self.inputs = x
        return row_linear(x, self._packed, bias)

    def tensors(self) -> list[Tensor]:
        return [self.weight]


class _OneLayer:
    """The texts on their way through the layers, one after the other."""

    def __init__(self, config: ModelConfig, weights: DecoderWeights, texts: Sequence[list[int]]) -> None:
        self._stack = DecoderStack(config, weights, num_positions=TEXT_TOKENS).first(1)
        self._batch = _batch(texts, [0] * len(texts))
        self._residual, *self._angles = self._stack.embed(self._batch)
        self._plans = self._stack.plans(self._batch)
        self._kv = _kv(self._stack.config, weights.embedding.dtype, len(texts))

    def read(self, layer: LayerWeights) -> tuple[Tensor, Tensor]:
        """What a layer adds to the texts, and to what."""
        self._stack.weights = replace(self._stack.weights, layers=[layer])
        return self._stack.layers((self._residual, *self._angles), self._batch, self._plans, self._kv)

    def move_on(self, layer: LayerWeights) -> None:
        """The next layer reads what this one makes of the texts."""
        x, residual = self.read(layer)
        self._residual = residual + x


def _written(config: ModelConfig, weights: DecoderWeights, progress: Progress) -> list[list[int]] | None:
    """Texts that the rounded model draws, each from a token at random on. None: its answers are not numbers."""
    decoder = Decoder(config, weights, num_positions=TEXT_TOKENS)
    decoder.prepare()
    drawn = torch.Generator().manual_seed(SEED)
    texts = torch.randint(config.vocab_size, (TEXTS, 1), generator=drawn).tolist()
    kv = _kv(config, weights.embedding.dtype, TEXTS)
    length = min(TEXT_TOKENS, config.max_position_embeddings)
    for count in range(1, length):
        logits = decoder.forward(_batch(texts, [count - 1] * TEXTS), kv).float()
        if not bool(logits.isfinite().all()):
            return None
        for text, token in zip(texts, torch.multinomial(logits.softmax(-1), 1, generator=drawn), strict=True):
            text.append(int(token))
        progress("calibrating", WRITING_SHARE * count / length)
    decoder.drop_recordings()
    return texts


def _kv(config: ModelConfig, dtype: torch.dtype, texts: int) -> Tensor:
    blocks = texts * TEXT_TOKENS // BLOCK_SIZE
    return torch.zeros((config.num_layers, 2, blocks, BLOCK_SIZE, config.num_kv_heads, config.head_dim), dtype=dtype)


def _batch(texts: Sequence[list[int]], starts: Sequence[int]) -> Batch:
    """The texts from these tokens on, each in blocks of its own."""
    each = TEXT_TOKENS // BLOCK_SIZE
    states, scheduled = {}, []
    for index, (text, start) in enumerate(zip(texts, starts, strict=True)):
        states[index] = SequenceState(NewSequence(index, tuple(text), len(text), SamplingParams(max_tokens=1)))
        blocks = tuple(range(index * each, index * each - (-len(text) // BLOCK_SIZE)))
        scheduled.append(Scheduled(index, start, len(text) - start, blocks, samples=True))
    return make_batch(scheduled, states, block_size=BLOCK_SIZE)
