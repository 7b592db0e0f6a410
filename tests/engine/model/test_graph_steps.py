"""Decoding steps as CUDA graphs: the tokens of steps that are launched one by one."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from engine.core.torch_runner import ModelRunner
from engine.model.make import make_model
from engine.protocol.step import NewSequence, SamplingParams, Scheduled, StepPlan

pytest.importorskip("triton", reason="needs Triton")
BLOCK_SIZE, NUM_BLOCKS = 16, 400


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For tests on a GPU."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA GPU here")
    return make_model(tmp_path_factory.mktemp("model") / "model")


class Batch:
    """Sequences that grow together on one runner."""

    def __init__(self, model: Path, *, enforce_eager: bool, **options: object) -> None:
        self.runner = ModelRunner(
            model,
            num_blocks=NUM_BLOCKS,
            block_size=BLOCK_SIZE,
            device="cuda",
            dtype="float32",
            enforce_eager=enforce_eager,
            **options,  # type: ignore[arg-type]
        )
        self.runner.warm_up()
        self.tokens: dict[str, list[int]] = {}
        self._blocks: dict[str, tuple[int, ...]] = {}
        self._free = list(range(NUM_BLOCKS))

    def add(self, seq_id: str, length: int, room: int = 64) -> None:
        """Prefills a prompt."""
        prompt = tuple((hash_of(seq_id) + 7 * i) % 1000 for i in range(length))
        count = -(-(length + room) // BLOCK_SIZE)
        self._blocks[seq_id] = tuple(self._free.pop() for _ in range(count))
        new = NewSequence(seq_id, prompt, length, SamplingParams(max_tokens=room, temperature=0.8, seed=length))
        one = Scheduled(seq_id, 0, length, self._blocks[seq_id], samples=True)
        self.tokens[seq_id] = list(prompt)
        self._take(StepPlan(0, (one,), new=(new,)))

    def drop(self, seq_id: str) -> None:
        self.runner.run_step(StepPlan(0, (), forgotten=(seq_id,)))
        self._free += self._blocks.pop(seq_id)
        del self.tokens[seq_id]

    def decode(self, drafts: dict[str, tuple[int, ...]] | None = None) -> None:
        scheduled = []
        for seq_id, tokens in self.tokens.items():
            draft = (drafts or {}).get(seq_id, ())
            at = len(tokens) - 1
            scheduled.append(Scheduled(seq_id, at, 1 + len(draft), self._blocks[seq_id], samples=True, draft=draft))
        self._take(StepPlan(0, tuple(scheduled)))

    def _take(self, plan: StepPlan) -> None:
        result = self.runner.run_step(plan)
        assert not result.failed, result.failed
        for seq_id, drawn in result.token_ids.items():
            self.tokens[seq_id] += drawn


def hash_of(text: str) -> int:
    return sum(map(ord, text))


def test_batches_are_padded_to_few_sizes_and_by_little() -> None:
    from engine.model.graph_steps import MAX_ROWS, padded

    sizes = [padded(rows) for rows in range(1, MAX_ROWS + 1)]
    assert all(size >= rows for rows, size in enumerate(sizes, 1))
    assert all(size - rows < max(8, rows // 4) for rows, size in enumerate(sizes, 1))
    assert sizes == sorted(sizes)
    assert (len(set(sizes)), max(sizes)) == (19, MAX_ROWS)


@pytest.mark.gpu
def test_tokens_are_those_of_steps_launched_one_by_one(model: Path) -> None:
    # 500 crosses the border behind which keys are split; the batch grows and shrinks through several sizes.
    batches = [Batch(model, enforce_eager=eager) for eager in (False, True)]
    for batch in batches:
        draw = random.Random(1)
        for index, length in enumerate((3, 500, 40, 1030, 17, 5, 64, 90, 33)):
            batch.add(f"s{index}", length)
            for _ in range(4):
                batch.decode()
        for index in draw.sample(range(9), 6):
            batch.drop(f"s{index}")
            for _ in range(5):
                batch.decode()
    assert batches[0].tokens == batches[1].tokens
    assert _num_captured(batches[0]) >= 6
    assert _num_captured(batches[1]) == 0


@pytest.mark.gpu
def test_tokens_ahead_are_judged_as_by_steps_launched_one_by_one(model: Path) -> None:
    batches = [Batch(model, enforce_eager=eager) for eager in (False, True)]
    for batch in batches:
        batch.add("a", 30)
        batch.add("b", 600)
        for step in range(12):
            batch.decode({"a": (5, 6), "b": (step,)} if step % 3 else {"b": (9, 9, 9)})
    assert batches[0].tokens == batches[1].tokens


@pytest.mark.gpu
def test_a_woken_node_captures_anew(model: Path) -> None:
    batch = Batch(model, enforce_eager=False)
    batch.add("a", 20)
    for _ in range(10):
        batch.decode()
    before = list(batch.tokens["a"])
    batch.runner.sleep()
    held = torch.empty(2**26, device="cuda")  # what comes back lies elsewhere
    batch.runner.wake()
    batch.tokens.clear()
    batch._free = list(range(NUM_BLOCKS))
    batch.add("a", 20)
    for _ in range(10):
        batch.decode()
    assert batch.tokens["a"] == before
    assert held.is_cuda


@pytest.mark.gpu
def test_eight_bit_keys_and_values_are_captured_too(model: Path) -> None:
    batches = [Batch(model, enforce_eager=eager, kv_cache_dtype="int8") for eager in (False, True)]
    for batch in batches:
        batch.add("a", 700)
        batch.add("b", 12)
        for _ in range(12):
            batch.decode()
    assert batches[0].tokens == batches[1].tokens


def _num_captured(batch: Batch) -> int:
    recorded = batch.runner._decoder._recorded
    return 0 if recorded is None else len(recorded._steps)
