"""Small tasks with one right answer among others: what is left of a model's knowledge once it is rounded.

A file of them is JSON lines: `{"prompt": "The sun rises in the", "right": " east", "wrong": [" west", " north"]}`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import msgspec
import torch
from torch import Tensor


class BadTasksError(ValueError):
    """A line is no task; the message says which and why."""


class GoldenTask(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A beginning and how it may go on: once right, else wrong."""

    prompt: str
    right: str
    wrong: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.prompt or not self.right or not self.wrong or not all(self.wrong):
            raise ValueError("a prompt, what is right, and something wrong are needed, none of them empty")


@dataclass(frozen=True, slots=True)
class TaskScores:
    """How many tasks two models solve; `kept` are those that both do."""

    count: int
    solved: int
    reference_solved: int
    kept: int

    @property
    def kept_ratio(self) -> float | None:
        """Of the tasks that the reference solves, the share that is kept; None where it solves none."""
        return self.kept / self.reference_solved if self.reference_solved else None


def read_tasks(text: str) -> tuple[GoldenTask, ...]:
    """Of a file's lines. Raises BadTasksError."""
    tasks = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            tasks.append(msgspec.convert(json.loads(line), GoldenTask))
        except ValueError as exc:
            raise BadTasksError(f"line {number}: {exc}") from exc
    if not tasks:
        raise BadTasksError("holds no task")
    return tuple(tasks)


def solved(
    tasks: Iterable[GoldenTask],
    encode: Callable[[str], Sequence[int]],
    logits: Callable[[tuple[int, ...]], Tensor],
    *,
    max_tokens: int,
) -> list[bool]:
    """Whether the right answer is likelier, a token, than every wrong one. Raises BadTasksError: a task is too long.

    Shapes: logits of so many tokens are [num_tokens, vocab].
    """
    found = []
    for number, task in enumerate(tasks, start=1):
        prompt = tuple(encode(task.prompt))
        likelihoods = []
        for choice in (task.right, *task.wrong):
            tokens = tuple(encode(task.prompt + choice))
            if len(tokens) > max_tokens:
                raise BadTasksError(f"task {number}: {len(tokens)} tokens; {max_tokens} are the most")
            likelihoods.append(_mean_logprob(tokens, _common(prompt, tokens), logits))
        found.append(all(likelihoods[0] > other for other in likelihoods[1:]))
    return found


def _common(prompt: tuple[int, ...], tokens: tuple[int, ...]) -> int:
    """How many tokens both begin with, but at least the first, which has no likelihood, and not the last."""
    same = next((i for i, pair in enumerate(zip(prompt, tokens, strict=False)) if pair[0] != pair[1]), len(prompt))
    return max(min(same, len(tokens) - 1), 1)


def _mean_logprob(tokens: tuple[int, ...], begin: int, logits: Callable[[tuple[int, ...]], Tensor]) -> float:
    logs = torch.log_softmax(logits(tokens)[begin - 1 : -1].float(), dim=-1)
    return float(logs.gather(1, torch.tensor(tokens[begin:])[:, None]).mean())
