"""A process that can't have more memory answers right or says that it lacks memory: never with what lay in a buffer."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from engine.core.torch_runner import ModelRunner
from engine.protocol.step import NewSequence, SamplingParams, Scheduled, StepPlan
from kernels.cpu import parallel_region
from kernels.cpu.parallel_region import KernelError
from tests.fixtures.engine import tiny_model_dir

# Loads a model once; each child of it has so many bytes more than it has then, and serves the same prompts.
PROGRAM = """
import json, os, resource, sys
import torch
from engine.core.torch_runner import ModelRunner
from engine.protocol.step import NewSequence, SamplingParams, Scheduled, StepPlan

runner = ModelRunner(sys.argv[1], num_blocks=600, block_size=16, dtype=sys.argv[2], num_threads=1)
runner.warm_up()
margins = json.loads(sys.argv[3])
SAMPLING = SamplingParams(max_tokens=4, temperature=1.0, top_p=0.9, seed=3)
BATCHES = [(5,), (700,), (40, 30, 20, 10), (2000,), (7,) * 24, (300, 3)]


def size():
    return int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()


def requests():
    prepared, number = [], 0
    for lengths in BATCHES:
        ids, rows, new, block = [], [], [], 0
        for length in lengths:
            seq_id, number = f"s{number}", number + 1
            tokens = tuple((7 * i + 13 * number) % 1000 for i in range(length))
            blocks = tuple(range(block, block + length // 16 + 2))
            block = blocks[-1] + 1
            ids.append(seq_id)
            rows.append([length, blocks])
            new.append(NewSequence(seq_id, tokens, length, SAMPLING))
        prepared.append((ids, rows, tuple(new)))
    return prepared


REQUESTS = requests()  # made before memory is short: what is missing is missing to the runner


def serve():
    answers = {}
    for ids, rows, new in REQUESTS:
        found = {seq_id: [] for seq_id in ids}
        at = [0] * len(ids)
        for step in range(4):
            live = [i for i, seq_id in enumerate(ids) if all(isinstance(token, int) for token in found[seq_id])]
            counts = {i: rows[i][0] - at[i] if step == 0 else 1 for i in live}
            scheduled = tuple(Scheduled(ids[i], at[i], counts[i], rows[i][1], samples=True) for i in live)
            try:
                result = runner.run_step(StepPlan(step, scheduled, new=new if step == 0 else ()))
            except Exception as error:
                for i in live:
                    found[ids[i]].append(type(error).__name__)
                continue
            for i in live:
                failure = result.failed.get(ids[i])
                found[ids[i]].extend(result.token_ids[ids[i]] if failure is None else [failure.kind.value])
                at[i] += counts[i]
        answers |= found
        runner.run_step(StepPlan(9, (), forgotten=tuple(ids)))
    return answers


for margin in margins:
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        if margin is not None:
            resource.setrlimit(resource.RLIMIT_AS, (size() + margin, hard))
        answers = serve()
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
        os.write(write, (json.dumps(answers) + "\\n").encode())
        os._exit(0)
    os.close(write)
    sys.stdout.write(os.fdopen(read).readline() or '"died"\\n')
    os.waitpid(child, 0)
"""
LACKS = {"out_of_memory", "MemoryError"}


@pytest.mark.timeout(400)  # on a quarter of a core it takes a minute and a half
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_no_answer_is_wrong_whatever_memory_is_lacking(dtype: str) -> None:
    margins = [None, 0, 1 << 19, 1 << 20, 1 << 21, 1 << 22, 1 << 23]
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tiny_model_dir()), dtype, json.dumps(margins)],
        capture_output=True,
        check=True,
        text=True,
    )
    assert "Exception ignored" not in found.stderr, "compiled code lacked memory"
    wanted, *others = [json.loads(line) for line in found.stdout.splitlines() if line[0] in '{"']
    assert all(len(tokens) == 4 and all(isinstance(token, int) for token in tokens) for tokens in wanted.values())
    num_lacking = 0
    for margin, answers in zip(margins[1:], others, strict=True):
        assert answers != "died", margin
        for seq_id, tokens in answers.items():
            told = [token for token in tokens if not isinstance(token, int)]
            assert set(told) <= LACKS, f"{margin} bytes, {seq_id}: {told}"
            right = wanted[seq_id][: len(tokens) - len(told)]
            assert tokens[: len(right)] == right, f"{margin} bytes, {seq_id}: wrong tokens"
            num_lacking += bool(told)
    assert num_lacking > 0, "the limits were felt"


def test_a_kernel_that_fails_fails_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = ModelRunner(Path(tiny_model_dir()), num_blocks=8, block_size=16, num_threads=1)
    new = NewSequence("a", (1, 2, 3), 3, SamplingParams(max_tokens=2))
    plan = StepPlan(0, (Scheduled("a", 0, 3, (0,), samples=True),), new=(new,))
    runner.warm_up()
    assert "a" in runner.run_step(plan).token_ids
    # As after an exception inside of compiled code: a thread that began and never came to the end.
    encode = parallel_region.encode

    def unfinished(*arguments: object, **options: int) -> object:
        fields = encode(*arguments, **options)  # type: ignore[arg-type]
        fields[1] = 1
        return fields

    monkeypatch.setattr(parallel_region, "encode", unfinished)
    with pytest.raises(KernelError):
        runner.run_step(plan)
    monkeypatch.undo()
    assert np.isfinite(runner.run_step(plan).token_ids["a"])
