"""transformers in this process: `generate` on static batches, and its continuous batching. No stream: tokens/s only."""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from engine.bench.measure import Figures
from engine.bench.workload import BenchRequest

METHODS = ("generate", "continuous")


def missing() -> str | None:
    """Why transformers is left out, or None."""
    return None if find_spec("transformers") else "transformers: not installed"


def run_transformers(
    model_dir: Path, dtype: str, method: str, requests: Sequence[BenchRequest], concurrency: int, num_threads: int
) -> Figures:
    """Output tokens per second of one method. A static batch runs until its longest answer ends; only what was asked
    for counts. Raises RuntimeError when answers are not whole."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(num_threads)
    loaded: Any = AutoModelForCausalLM
    model = loaded.from_pretrained(model_dir, dtype=getattr(torch, dtype), attn_implementation="sdpa").eval()
    run = _static if method == "generate" else _continuous
    run(model, requests[:2], 2)
    started = time.perf_counter()
    run(model, requests, concurrency)
    return Figures(sum(r.output_tokens for r in requests) / (time.perf_counter() - started))


def _static(model: Any, requests: Sequence[BenchRequest], concurrency: int) -> None:
    import torch

    for start in range(0, len(requests), concurrency):
        batch = requests[start : start + concurrency]
        width, wanted = max(len(r.prompt) for r in batch), max(r.output_tokens for r in batch)
        ids = torch.zeros((len(batch), width), dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for i, request in enumerate(batch):
            ids[i, width - len(request.prompt) :] = torch.tensor(request.prompt)
            mask[i, width - len(request.prompt) :] = 1
        done = model.generate(
            input_ids=ids, attention_mask=mask, max_new_tokens=wanted, min_new_tokens=wanted, do_sample=False
        )
        if done.shape[1] != width + wanted:
            raise RuntimeError("transformers generate ended early")


def _continuous(model: Any, requests: Sequence[BenchRequest], concurrency: int) -> None:
    import transformers

    generation_config: Any = transformers.GenerationConfig
    # One length for a whole call: requests of like length go together, as many at once as may be.
    config = generation_config(do_sample=False, eos_token_id=-1, pad_token_id=0, use_cuda_graph=False)
    for start in range(0, len(requests), concurrency):
        batch = requests[start : start + concurrency]
        config.max_new_tokens = max(r.output_tokens for r in batch)
        done = model.generate_batch([list(r.prompt) for r in batch], generation_config=config, progress_bar=False)
        if len(done) != len(batch):
            raise RuntimeError("transformers continuous batching lost a request")
