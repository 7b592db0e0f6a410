"""How far a model's answers are from another's: perplexity, agreement and KL divergence over a text, tasks it solves.

Both read the same windows of the text, and each position's distributions are compared: a model that was rounded against
the one it was rounded from, say. A rollout can be held to the numbers (`QualityLimits`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from engine.model.batch import make_batch
from engine.model.calibration import calibrate
from engine.model.decoder import Decoder
from engine.model.directory import BadModelError, ModelDir, open_model
from engine.model.golden_tasks import GoldenTask, TaskScores, solved
from engine.model.sequence import Sequence as SequenceState
from engine.model.weights import load_weights
from engine.protocol.step import NewSequence, SamplingParams, Scheduled
from engine.text.tokenizer import load_tokenizer
from kernels.kv_codes import KvCacheDtype, kv_format
from kernels.quantization import Quantization

BLOCK_SIZE = 16
WINDOW = 256  # tokens that are read together; the first ones of each have little to go by
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
Progress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model as it would be served."""

    path: Path
    dtype: str = "auto"
    quantization: Quantization | None = None
    kv_cache_dtype: KvCacheDtype = "auto"
    calibration: bool = False


@dataclass(frozen=True, slots=True)
class Quality:
    """Over all compared positions. KL is of the candidate from the reference, in nats a token."""

    tokens: int
    perplexity: float
    reference_perplexity: float
    agreement: float  # share of positions where both would say the same token
    mean_kl: float
    p99_kl: float
    tasks: TaskScores | None = None  # None: none were given


@dataclass(frozen=True, slots=True)
class QualityLimits:
    """What a candidate may differ by; None: by anything."""

    max_kl: float | None = None  # of the mean
    min_agreement: float | None = None
    min_tasks_kept: float | None = None  # share of the tasks that the reference solves

    def broken(self, found: Quality) -> list[str]:
        """One line for each limit that was passed. What is not a number has passed every one."""
        lines = []
        if self.max_kl is not None and not found.mean_kl <= self.max_kl:
            lines.append(f"mean KL {found.mean_kl:.4g} is above --max-kl {self.max_kl:g}")
        if self.min_agreement is not None and not found.agreement >= self.min_agreement:
            lines.append(f"agreement {found.agreement:.4g} is below --min-agreement {self.min_agreement:g}")
        if self.min_tasks_kept is not None:
            kept = None if found.tasks is None else found.tasks.kept_ratio
            if kept is None:
                lines.append(
                    "of no task is known that the reference solves it: nothing to hold --min-tasks-kept against"
                )
            elif not kept >= self.min_tasks_kept:
                lines.append(f"{kept:.4g} of the solved tasks is below --min-tasks-kept {self.min_tasks_kept:g}")
        return lines


def compare(
    candidate: Candidate,
    reference: Candidate,
    text: str,
    *,
    max_tokens: int,
    tasks: Sequence[GoldenTask] = (),
    progress: Progress = lambda phase, done: None,
) -> Quality:
    """Reads up to so many tokens of the text with both models, and gives both the tasks.

    Raises BadModelError, BadTokenizerError, BadTasksError.

    Takes the memory of both, and of a window's logits.
    """
    tokenizer = load_tokenizer(reference.path)
    tokens = tokenizer.encode(text, add_special_tokens=False)[:max_tokens]
    if load_tokenizer(candidate.path).encode(text, add_special_tokens=False)[:max_tokens] != tokens:
        raise BadModelError(
            candidate.path, f"has another tokenizer than {reference.path}", "compare models of one kind"
        )
    if len(tokens) < 2:
        raise BadModelError(candidate.path, f"has {len(tokens)} tokens for the text", "give a longer --text")
    models = [_Model(one, progress) for one in (candidate, reference)]
    losses: tuple[list[Tensor], list[Tensor]] = ([], [])
    divergences, agreed = [], []
    for window, done in _windows(tokens):
        found, wanted = (torch.log_softmax(model.logits(window)[:-1].float(), dim=-1) for model in models)
        following = torch.tensor(window[1:])[:, None]
        for into, logs in zip(losses, (found, wanted), strict=True):
            into.append(-logs.gather(1, following).squeeze(1))
        divergences.append((wanted.exp() * (wanted - found)).sum(-1))
        agreed.append(found.argmax(-1) == wanted.argmax(-1))
        progress("comparing", done)
    kl, same = torch.cat(divergences).double(), torch.cat(agreed)
    perplexity, reference_perplexity = (math.exp(float(torch.cat(part).double().mean())) for part in losses)
    return Quality(
        tokens=len(same),
        perplexity=perplexity,
        reference_perplexity=reference_perplexity,
        agreement=float(same.double().mean()),
        mean_kl=float(kl.mean()),
        p99_kl=float(kl.quantile(0.99)),
        tasks=_scores(tasks, partial(tokenizer.encode, add_special_tokens=False), *models) if tasks else None,
    )


def _scores(
    tasks: Sequence[GoldenTask], encode: Callable[[str], Sequence[int]], candidate: _Model, reference: _Model
) -> TaskScores:
    own, wanted = (solved(tasks, encode, model.logits, max_tokens=WINDOW) for model in (candidate, reference))
    kept = sum(both == (True, True) for both in zip(own, wanted, strict=True))
    return TaskScores(len(tasks), sum(own), sum(wanted), kept)


def _windows(tokens: Sequence[int]) -> Iterator[tuple[tuple[int, ...], float]]:
    """Runs of tokens of which each is predicted once, and the share that is done with them."""
    for begin in range(0, len(tokens) - 1, WINDOW - 1):
        window = tuple(tokens[begin : begin + WINDOW])
        yield window, min((begin + len(window)) / len(tokens), 1.0)


class _Model:
    def __init__(self, candidate: Candidate, progress: Progress) -> None:
        model: ModelDir = open_model(candidate.path)
        name = candidate.dtype if candidate.dtype != "auto" else model.config.dtype
        self._dtype = DTYPES.get(name, torch.float32)
        weights = load_weights(
            model, dtype=self._dtype, device="cpu", quantization=candidate.quantization, progress=progress
        )
        if candidate.calibration:
            calibrate(model, weights, progress)
        self._config = model.config
        self._decoder = Decoder(model.config, weights, num_positions=min(WINDOW, model.config.max_position_embeddings))
        self._decoder.prepare()
        blocks = -(-WINDOW // BLOCK_SIZE)
        kv_dtype, row = kv_format(candidate.kv_cache_dtype, self._dtype, self._config.head_dim)
        shape = (self._config.num_layers, 2, blocks, BLOCK_SIZE, self._config.num_kv_heads, row)
        self._kv = torch.zeros(shape, dtype=kv_dtype)

    def logits(self, tokens: tuple[int, ...]) -> Tensor:
        """Of every position: [num_tokens, vocab]."""
        state = SequenceState(NewSequence(0, tokens, len(tokens), SamplingParams(max_tokens=1)))
        blocks = tuple(range(-(-len(tokens) // BLOCK_SIZE)))
        batch = make_batch([Scheduled(0, 0, len(tokens), blocks, samples=True)], {0: state}, block_size=BLOCK_SIZE)
        return self._decoder.logits(self._decoder.hidden(batch, self._kv), torch.arange(len(tokens)))
