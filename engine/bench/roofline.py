"""What this machine could do at best, measured beside the engines: bytes over bandwidth, FLOPs over the units' rate."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from engine.bench.workload import PREFIX_TOKENS, BenchRequest
from engine.model.config import ModelConfig
from engine.model.directory import kv_bytes_per_token, weight_bytes

READ_BYTES = 512 << 20  # more than caches hold
GEMM_SIDE = 1536
ROUNDS = 5
PEAK_CHUNKS, PEAK_ROUNDS = 8, 1_000  # of a thread: some 20 ms
BYTES_OF = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class MachineRates:
    """Rates of all threads together, or of the GPU, the best of some rounds."""

    read_bytes_per_s: float
    flops_per_s: float  # in the dtype that was asked for
    num_threads: int
    device: str | None = None  # the GPU's name


def measure_machine(dtype: str, num_threads: int) -> MachineRates:
    """Memory bandwidth and rate of products of `num_threads` threads, the best of `ROUNDS` each; a GPU's where one is.

    Products: torch's GEMM, or the vector registers' on operands in the first cache where those are faster.
    """
    import torch

    if torch.cuda.is_available():
        from kernels.bench import measure_ceilings

        ceilings = measure_ceilings(getattr(torch, dtype))
        name = torch.cuda.get_device_name()
        return MachineRates(ceilings.copy_bytes_per_s, ceilings.gemm_flops_per_s, num_threads, name)

    from kernels.cpu.peak import multiply_in_cache

    torch.set_num_threads(num_threads)
    values = torch.ones(READ_BYTES // 4)
    read_s = _best(lambda: values.sum())
    matrix = torch.randn((GEMM_SIDE, GEMM_SIDE)).to(getattr(torch, dtype))
    gemm_rate = 2 * GEMM_SIDE**3 / _best(lambda: matrix @ matrix)
    chunks = {"chunks": num_threads * PEAK_CHUNKS, "rounds": PEAK_ROUNDS}
    peak_rate = multiply_in_cache(matrix.dtype, **chunks) / _best(lambda: multiply_in_cache(matrix.dtype, **chunks))
    return MachineRates(values.nbytes / read_s, max(gemm_rate, peak_rate), num_threads)


def roofline_tokens_per_s(
    config: ModelConfig, dtype: str, requests: Sequence[BenchRequest], concurrency: int, machine: MachineRates
) -> float:
    """Output tokens per second that no engine can pass on this machine with this many requests at once.

    Each prompt token is multiplied once (a shared prefix once in all), in the last layer with what makes its key and
    value alone, but for each prompt's last one; each decode step reads all weights and the keys and values of its
    requests, and takes that time or its FLOPs', whichever is longer. Embeddings are not read.
    """
    element = BYTES_OF[dtype]
    embedding = config.vocab_size * config.hidden_size
    head_flops = 2 * embedding
    read_weights = weight_bytes(config, dtype) - (0 if config.tied_embeddings else embedding * element)
    layer_flops = 2 * read_weights / element - head_flops
    key_value_flops = 2 * config.hidden_size * 2 * config.num_kv_heads * config.head_dim
    before_last_flops = layer_flops * (config.num_layers - 1) / config.num_layers + key_value_flops
    output = sum(r.output_tokens for r in requests)
    shared = [r for r in requests if r.has_prefix]
    prompt = sum(len(r.prompt) for r in requests) - PREFIX_TOKENS * max(len(shared) - 1, 0)
    last = len(requests)
    prefill_flops = (prompt - last) * before_last_flops + last * (layer_flops + head_flops)
    prefill_s = prefill_flops / machine.flops_per_s
    context = sum((len(r.prompt) + r.output_tokens / 2) * r.output_tokens for r in requests) / output
    at_once = min(concurrency, len(requests))
    step_bytes = read_weights + at_once * context * kv_bytes_per_token(config, dtype)
    step_flops = at_once * (layer_flops + head_flops)
    step_s = max(step_bytes / machine.read_bytes_per_s, step_flops / machine.flops_per_s)
    return output / (prefill_s + output / at_once * step_s)


def _best(work: Callable[[], Any]) -> float:
    taken = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        work()
        taken.append(time.perf_counter() - started)
    return min(taken)
