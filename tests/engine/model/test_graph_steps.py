"""Steps as CUDA graphs: the tokens of steps that are launched one by one."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from engine.core.torch_runner import ModelRunner
from engine.model.batch import make_batch
from engine.model.decoder_stack import Said
from engine.model.make import make_model
from engine.model.sequence import Sequence
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

    def add(self, seq_id: str, length: int, room: int = 64, *, chunk: int | None = None, **sampling: object) -> None:
        """Prefills a prompt, in chunks beside the others' next tokens where `chunk` says how large."""
        prompt = tuple((hash_of(seq_id) + 7 * i) % 1000 for i in range(length))
        count = -(-(length + room) // BLOCK_SIZE)
        blocks = tuple(self._free.pop() for _ in range(count))
        params = SamplingParams(max_tokens=room, **{"temperature": 0.8, "seed": length, **sampling})  # type: ignore[arg-type]
        new: tuple[NewSequence, ...] = (NewSequence(seq_id, prompt, length, params),)
        for start in range(0, length, chunk or length):
            end = min(start + (chunk or length), length)
            own = Scheduled(seq_id, start, end - start, blocks, samples=end == length)
            others = self._next_tokens() if chunk else []
            if end == length:
                self.tokens[seq_id], self._blocks[seq_id] = list(prompt), blocks
            self._take(StepPlan(0, (*others, own), new=new))
            new = ()

    def drop(self, seq_id: str) -> None:
        self.runner.run_step(StepPlan(0, (), forgotten=(seq_id,)))
        self._free += self._blocks.pop(seq_id)
        del self.tokens[seq_id]

    def decode(self, drafts: dict[str, tuple[int, ...]] | None = None) -> None:
        self._take(StepPlan(0, tuple(self._next_tokens(drafts))))

    def _next_tokens(self, drafts: dict[str, tuple[int, ...]] | None = None) -> list[Scheduled]:
        scheduled = []
        for seq_id, tokens in self.tokens.items():
            draft = (drafts or {}).get(seq_id, ())
            at = len(tokens) - 1
            scheduled.append(Scheduled(seq_id, at, 1 + len(draft), self._blocks[seq_id], samples=True, draft=draft))
        return scheduled

    def _take(self, plan: StepPlan) -> None:
        result = self.runner.run_step(plan)
        assert not result.failed, result.failed
        for seq_id, drawn in result.token_ids.items():
            self.tokens[seq_id] += drawn


def hash_of(text: str) -> int:
    return sum(map(ord, text))


def test_batches_are_padded_to_few_sizes_and_by_little() -> None:
    from engine.model.graph_steps import MAX_SAMPLES, padded

    sizes = [padded(rows) for rows in range(1, MAX_SAMPLES + 1)]
    assert all(size >= rows for rows, size in enumerate(sizes, 1))
    assert all(size - rows < max(8, rows // 4) for rows, size in enumerate(sizes, 1))
    assert sizes == sorted(sizes)
    assert (len(set(sizes)), max(sizes)) == (19, MAX_SAMPLES)


def test_steps_with_prompts_are_padded_to_few_sizes_and_by_little() -> None:
    from engine.model.graph_steps import MAX_TOKENS, padded_chunks

    sizes = [padded_chunks(tokens) for tokens in range(1, MAX_TOKENS + 1)]
    assert all(0 <= size - tokens < max(64, tokens // 4) for tokens, size in enumerate(sizes, 1))
    assert sizes == sorted(sizes)
    assert (len(set(sizes)), max(sizes)) == (24, MAX_TOKENS)


HEADS = {"num_heads": 8, "num_kv_heads": 2}
# By sequence: tokens with keys before this step, tokens of it, and whether it samples.
WORK = [(20, 1, True), (0, 90, False), (700, 1, True), (16, 33, True)]


def batch_of(work: list[tuple[int, int, bool]]) -> object:
    """Of sequences whose tokens are all 7, in blocks of their own."""
    scheduled, states = [], {}
    for index, (start, count, samples) in enumerate(work):
        new = NewSequence(str(index), (7,) * (start + count), start + count, SamplingParams(max_tokens=1))
        states[str(index)] = Sequence(new)
        need = -(-(start + count) // BLOCK_SIZE)
        blocks = tuple(100 * index + block for block in range(need))
        scheduled.append(Scheduled(str(index), start, count, blocks, samples=samples))
    return make_batch(scheduled, states, block_size=BLOCK_SIZE)


def plan_of(batch: object) -> object:
    from kernels.gpu.attention_plan import plan_on_host

    return plan_on_host(batch.block_tables, batch.seq_lens, batch.query_starts, **HEADS)


class EchoStack:
    """Says what it is given."""

    windows = (None,)

    def said(self, batch: object, plans: dict, kv: torch.Tensor, sample_rows: torch.Tensor | None) -> Said:
        rows = torch.stack([batch.token_ids, batch.positions, batch.slots])
        return Said(rows, rows[:, sample_rows] if sample_rows is not None else rows)


@pytest.mark.parametrize("before", [WORK, [(9, 1, True), (0, 100, True), (0, 60, False)]], ids=["same", "larger"])
def test_a_step_gets_the_batch_that_it_was_filled_with_last_and_padding_that_writes_nowhere(before: list) -> None:
    from engine.model.graph_steps import PaddedStep, size_of

    first, batch = batch_of(before), batch_of(WORK)
    size = size_of(first, {None: plan_of(first)})
    step = PaddedStep(EchoStack(), first, torch.empty(0), size._replace(tokens=192))
    for one in (first, batch):
        step.fill(one, {None: plan_of(one)})
    rows, sampled = step.computed()[:2]
    count = 1 + 90 + 1 + 33
    assert rows[:, :count].tolist() == [batch.token_ids.tolist(), batch.positions.tolist(), batch.slots.tolist()]
    assert rows[:, count:].unique(dim=1).tolist() == [[0], [0], [-1]]
    # Two tokens of decoding and the last one of the last prompt; behind them the first row again.
    assert sampled[1, :3].tolist() == [20, 700, 48]
    assert sampled[1, 3:].tolist() == [20] * (32 - 3)


def test_batches_take_the_sizes_of_their_kind() -> None:
    from engine.model.graph_steps import batches_ahead, size_of

    decoding = [(20 * index, 1, True) for index in range(1, 7)]
    prompt = [(0, 600, False)]
    found = [size_of(batch, {None: plan_of(batch)}) for batch in map(batch_of, (decoding, WORK, prompt))]
    assert [(size.tokens, size.samples) for size in found] == [(8, None), (128, 32), (640, 0)]
    assert None not in {size_of(batch, {None: plan_of(batch)}) for batch in batches_ahead()}
    large = batch_of([(0, 2000, True), (0, 49, True)])
    assert size_of(large, {None: plan_of(large)}) is None


def test_usual_traffic_takes_sizes_that_were_captured_before_it() -> None:
    from engine.model.graph_steps import batches_ahead, size_of

    ahead = {size_of(batch, {None: plan_of(batch)}) for batch in batches_ahead()}
    assert len(ahead) == 38
    draw = random.Random(5)
    for _ in range(200):
        rows = [(draw.randrange(1, 1000), 1, True) for _ in range(draw.randrange(30))]
        num_prompts = draw.randrange(3) if rows else 1
        prompts = [(draw.randrange(500), draw.randrange(20, 512), True) for _ in range(num_prompts)]
        batch = batch_of(rows + prompts)
        assert size_of(batch, {None: plan_of(batch)}) in ahead


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
    assert _num_captured(batches[0]) > 0
    assert _num_captured(batches[1]) == 0


@pytest.mark.gpu
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_prompts_beside_others_give_the_tokens_of_steps_launched_one_by_one(model: Path, temperature: float) -> None:
    batches = [Batch(model, enforce_eager=eager) for eager in (False, True)]
    for batch in batches:
        for index, (length, chunk) in enumerate(
            [(30, None), (600, 256), (90, 64), (530, 520), (40, 40), (1030, 512), (300, 200), (7, 7), (500, 490)]
        ):
            batch.add(f"s{index}", length, 96, chunk=chunk, temperature=temperature)
            batch.decode()
    assert batches[0].tokens == batches[1].tokens
    assert _num_captured(batches[0]) > 0


@pytest.mark.gpu
@pytest.mark.parametrize(
    "work", [WORK, [(0, 300, True)], [(0, 300, False)], [(40, 1, True), (600, 1, True)]], ids=lambda work: str(work)
)
def test_a_captured_step_gives_the_bits_of_its_launches(model: Path, work: list[tuple[int, int, bool]]) -> None:
    runner = Batch(model, enforce_eager=False).runner
    runner._decoder.drop_recordings()  # of the start
    batch, kv = batch_of(work), runner._kv
    kv.normal_()
    launched = runner._decoder.forward(batch, kv).clone()
    hidden = runner._decoder.last_hidden.clone()
    assert torch.equal(runner._decoder.forward(batch, kv), launched)
    assert torch.equal(runner._decoder.last_hidden, hidden)
    assert len(launched) == sum(samples for _, _, samples in work)
    assert runner._decoder.likeliest()[: len(launched)] == launched.argmax(-1).tolist()


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
