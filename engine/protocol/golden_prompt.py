"""The golden prompt: fixed tokens whose greedy answer is known, so that silent corruption of the output is found.

The model's first greedy answer (or the one kept in a file for this revision, type, device and rounding) is what every
later answer is held to. Two answers agree when their tokens do; a token may differ only where the model's two best
candidates were nearly tied, and then what follows says nothing.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import msgspec
import structlog

from engine.protocol.messages import AddSequence, GoldenAnswer
from engine.protocol.step import SamplingParams

log = structlog.get_logger()

PROMPT_TOKENS = 24
ANSWER_TOKENS = 8
PRIORITY = 1_000_000  # later than any request of a client, however long it waits
URGENT_PRIORITY = -1_000_000  # sooner than any: it takes one place for some steps
TIE_NATS = 0.1  # two candidates nearer than this may change places with the batch they are computed in
LOGPROB_TOLERANCE = 0.5  # nats; half precision and another batch move a log probability far less
MAX_FILE_BYTES = 2**20
VERSION = 1


class BadGoldenFileError(ValueError):
    """The file of golden answers can't be used; the message names it."""


def golden_sequence(
    vocab_size: int, max_tokens: int, now: float, seq_id: str = "golden", *, is_urgent: bool = False
) -> AddSequence:
    """The prompt for a model with this vocabulary and room for `max_tokens` in all."""
    num_answer = max(1, min(ANSWER_TOKENS, max_tokens - 1))
    num_prompt = max(1, min(PROMPT_TOKENS, max_tokens - num_answer))
    prompt = tuple((7919 * i + 13) % vocab_size for i in range(1, num_prompt + 1))
    sampling = SamplingParams(max_tokens=num_answer, temperature=0.0, ignore_eos=True, num_logprobs=2)
    priority = URGENT_PRIORITY if is_urgent else PRIORITY
    return AddSequence(seq_id, prompt, sampling, arrived_at=now, priority=priority, is_probe=True)


def find_difference(expected: GoldenAnswer, got: GoldenAnswer) -> str | None:
    """How the second answer differs from the first; None when they agree."""
    if len(got.token_ids) != len(expected.token_ids):
        return f"{len(got.token_ids)} tokens, expected {len(expected.token_ids)}"
    for position, (token_id, wanted) in enumerate(zip(got.token_ids, expected.token_ids, strict=True)):
        if token_id != wanted:
            if _is_runner_up(expected, position, token_id):
                return None
            return f"token {position} is {token_id}, expected {wanted}"
        if position < min(len(got.logprobs), len(expected.logprobs)):
            off = abs(got.logprobs[position].chosen - expected.logprobs[position].chosen)
            if not off <= LOGPROB_TOLERANCE:
                return f"token {position}: its log probability is off by {off:.2f}"
    return None


def _is_runner_up(expected: GoldenAnswer, position: int, token_id: int) -> bool:
    """Whether this token was as good as chosen."""
    if position >= len(expected.logprobs):
        return False
    chosen, *others = sorted(expected.logprobs[position].top, key=lambda entry: -entry[1]) or [(0, 0.0)]
    return any(other == token_id and chosen[1] - logprob < TIE_NATS for other, logprob in others)


class _File(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    answers: dict[str, GoldenAnswer]


@dataclass(frozen=True, slots=True)
class GoldenAnswerFile:
    """Known answers by model revision, type, device and rounding, kept over restarts and shared by nodes."""

    path: Path

    def read(self) -> dict[str, GoldenAnswer]:
        """Empty when there is no file yet. Raises BadGoldenFileError."""
        try:
            if self.path.stat().st_size > MAX_FILE_BYTES:
                raise BadGoldenFileError(f"{self.path}: larger than {MAX_FILE_BYTES} bytes")
            content = msgspec.json.decode(self.path.read_bytes(), type=_File)
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError) as error:
            raise BadGoldenFileError(f"{self.path}: {error}; remove it to record anew") from error
        if content.version != VERSION:
            raise BadGoldenFileError(f"{self.path}: version {content.version} is not known; remove it to record anew")
        return content.answers

    def add(self, key: str, answer: GoldenAnswer) -> None:
        """Records one more answer. Raises BadGoldenFileError, OSError."""
        content = _File(VERSION, {**self.read(), key: answer})
        draft = self.path.with_name(f"{self.path.name}.{os.getpid()}.tmp")
        draft.write_bytes(msgspec.json.format(msgspec.json.encode(content)) + b"\n")
        draft.replace(self.path)


def key_of(
    revision: str | None,
    dtype: str,
    device: str,
    kv_cache_dtype: str = "auto",
    quantization: str | None = None,
    rounding: str | None = None,
) -> str:
    """The key of an answer in the file: what the answer depends on. The revision says which model it is.

    `rounding`: what calibration made of the weights. CPUs of two kinds may round otherwise, and are both right.
    """
    rounded = "" if quantization is None else f"/{quantization}"
    rounded += "" if rounding is None else f" {rounding}"
    kept = "" if kv_cache_dtype == "auto" else f"/kv {kv_cache_dtype}"
    return f"{revision or 'none'}/{dtype}/{device}{rounded}{kept}"
