"""Speed of the GPU kernels against what this GPU can do, measured in the same run: `python -m kernels.bench`.

Two ceilings first: the rate of a large copy, and of a large bf16 matrix product. Then each operation at sizes of real
models, with torch's own way, and flashinfer where it is installed, beside it. Times are medians with a cold L2 cache,
of CUDA graphs but for what waits for the device. Without a GPU it says so and exits with 2.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import torch

from kernels.bench_attention import DTYPE, Case, attention_cases
from kernels.bench_blocks import block_cases

NO_GPU = 2  # exit status
COPY_BYTES = 2 << 30
GEMM_SIZE = 8192


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What this GPU can do at best."""

    copy_bytes_per_s: float
    gemm_flops_per_s: float


def why_not() -> str | None:
    """Why nothing can be measured here, or None."""
    if not torch.cuda.is_available():
        return f"no CUDA GPU is usable here (torch {torch.__version__}); run it on a machine with a GPU and its driver"
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed; install the [engine] extra"
    return None


def measure_ceilings(dtype: torch.dtype = DTYPE) -> Ceilings:
    """By a copy of `COPY_BYTES` and a product of two `GEMM_SIZE` squares."""
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    copy_s = seconds(partial(target.copy_, source))
    del source, target
    a, b = (torch.randn(GEMM_SIZE, GEMM_SIZE, dtype=dtype, device="cuda") for _ in range(2))
    return Ceilings(2 * COPY_BYTES / copy_s, 2 * GEMM_SIZE**3 / seconds(lambda: a @ b))


def seconds(work: Callable[[], object], *, is_captured: bool = True) -> float:
    """Median time of the work on the device, in seconds; captured as a CUDA graph where it can be, as in a step.

    Launched by Python a small kernel's time is Python's: 12 us a launch on a virtual machine, where the kernel takes 2.
    """
    from triton.testing import do_bench

    if is_captured:
        work()  # compiles, and takes the libraries' memory
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        work = graph.replay
    return do_bench(work, warmup=25, rep=100, return_mode="median") / 1e3


def cases(op: str = "") -> Iterator[Case]:
    """Those of operations whose name begins with `op`, made one at a time: each holds its tensors."""
    makers: list[tuple[str, Callable[[], Iterable[Case]]]] = []
    for num_tokens in (1, 64, 8192):
        makers += [(name, partial(make, num_tokens)) for name, make in LAYERS.items()]
    makers.append(("copy_blocks", lambda: [_block_copy_case()]))
    makers += [("sample", partial(_sampling_cases, num_seqs, 128_256)) for num_seqs in (1, 64)]
    makers.append(("block_product", block_cases))
    makers.append(("attention", attention_cases))
    for name, make in makers:
        if name.startswith(op):
            yield from make()


def _rms_norm_cases(num_tokens: int, width: int = 4096) -> Iterator[Case]:
    from kernels.gpu.rms_norm import rms_norm

    x, residual, weight = _random(num_tokens, width), _random(num_tokens, width), _random(width)

    def by_torch() -> object:
        h = x + residual
        return torch.nn.functional.rms_norm(h, weight.shape, weight, 1e-5), h

    providers = {"triton": lambda: rms_norm(x, weight, 1e-5, residual), "torch": by_torch}
    yield Case("rms_norm", f"tokens={num_tokens} width={width}", 4 * x.nbytes + weight.nbytes, None, providers)


def _silu_mul_cases(num_tokens: int, width: int = 14_336) -> Iterator[Case]:
    from kernels.gpu.silu_mul import silu_mul

    gate_up = _random(num_tokens, 2 * width)
    providers = {
        "triton": lambda: silu_mul(gate_up),
        "torch": lambda: torch.nn.functional.silu(gate_up[:, :width]) * gate_up[:, width:],
    }
    yield Case("silu_mul", f"tokens={num_tokens} width={width}", gate_up.nbytes * 3 // 2, None, providers)


def _rope_cases(num_tokens: int, heads: int = 32, kv_heads: int = 8, head_dim: int = 128) -> Iterator[Case]:
    from kernels.gpu.rope import apply_rope
    from kernels.layer_ops import full_tables, rotate

    q, k = _random(num_tokens, heads + 2 * kv_heads, head_dim)[:, : heads + kv_heads].split([heads, kv_heads], dim=1)
    cos, sin = full_tables(torch.rand(num_tokens, head_dim // 2, device="cuda"))
    num_bytes = 2 * (q.numel() + k.numel()) * q.element_size() + cos.nbytes + sin.nbytes
    providers = {
        "triton": lambda: apply_rope(q, k, cos, sin),
        "torch": lambda: [rotate(x, cos.unsqueeze(1), sin.unsqueeze(1)) for x in (q, k)],
    }
    yield Case("rope", f"tokens={num_tokens} heads={heads}/{kv_heads}x{head_dim}", num_bytes, None, providers)


def _store_kv_cases(num_tokens: int, kv_heads: int = 8, head_dim: int = 128) -> Iterator[Case]:
    from kernels.gpu.kv_store import store_kv

    k, v = (_random(num_tokens, kv_heads, head_dim) for _ in range(2))
    k_cache, v_cache = (_random(num_tokens // 16 + 64, 16, kv_heads, head_dim) for _ in range(2))
    slots = torch.randperm(k_cache.shape[0] * 16, device="cuda")[:num_tokens]

    def by_torch() -> None:
        k_cache.view(-1, kv_heads, head_dim).index_copy_(0, slots, k)
        v_cache.view(-1, kv_heads, head_dim).index_copy_(0, slots, v)

    providers = {"triton": lambda: store_kv(k, v, k_cache, v_cache, slots), "torch": by_torch}
    size = f"tokens={num_tokens} kv_heads={kv_heads}x{head_dim}"
    yield Case("store_kv", size, 4 * k.nbytes + slots.nbytes, None, providers)


LAYERS = {
    "rms_norm": _rms_norm_cases,
    "silu_mul": _silu_mul_cases,
    "rope": _rope_cases,
    "store_kv": _store_kv_cases,
}


def _block_copy_case(num_pairs: int = 64) -> Case:
    from kernels.gpu.block_copy import copy_blocks

    cache = _random(32, 2, 4 * num_pairs, 16, 8, 128)
    pairs = [(i, 2 * num_pairs + i) for i in range(num_pairs)]
    reads, writes = (torch.tensor(blocks, device="cuda") for blocks in zip(*pairs, strict=True))
    return Case(
        "copy_blocks",
        f"blocks={num_pairs} layers=32 block=16x8x128",
        2 * cache.nbytes // 4,
        None,
        {
            "triton": lambda: copy_blocks(cache, pairs),
            "torch": lambda: cache.index_copy_(2, writes, cache.index_select(2, reads)),
        },
        is_captured=False,
    )


def _sampling_cases(num_seqs: int, vocab: int) -> Iterator[Case]:
    from kernels.gpu.sampling import sample
    from kernels.sample_row import SampleRow

    logits = torch.randn(num_seqs, vocab, device="cuda")

    def torch_plain() -> object:
        return torch.multinomial(logits.softmax(-1), 1).tolist()

    def torch_top_k() -> object:
        values, ids = logits.topk(50)
        return ids.gather(1, torch.multinomial(values.softmax(-1), 1)).tolist()

    def torch_top_p() -> object:
        shares, ids = logits.softmax(-1).sort(descending=True)
        shares[shares.cumsum(-1) - shares > 0.9] = 0
        return ids.gather(1, torch.multinomial(shares, 1)).tolist()

    for name, parameters, by_torch in (
        ("greedy", {"temperature": 0.0}, lambda: logits.argmax(-1).tolist()),
        ("plain", {}, torch_plain),
        ("top-k 50", {"top_k": 50}, torch_top_k),
        ("top-p 0.9", {"top_p": 0.9}, torch_top_p),
    ):
        rows = [SampleRow(seed=i, **parameters) for i in range(num_seqs)]
        providers = {"triton": partial(sample, logits, rows), "torch": by_torch}
        size = f"rows={num_seqs} vocab={vocab} {name}"
        yield Case("sample", size, logits.nbytes, None, providers, is_captured=False)


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=DTYPE, device="cuda")


def rows_of(case: Case, ceilings: Ceilings) -> Iterator[str]:
    """One table row per provider that runs; one that fails says why instead of a time."""
    for provider, work in case.providers.items():
        start = f"| {case.op} | {case.size} | {provider} |"
        try:
            taken_s = seconds(work, is_captured=case.is_captured)
        except (RuntimeError, TypeError, ValueError, NotImplementedError) as exc:
            yield f"{start} failed: {str(exc).splitlines()[0][:80]} | | | | |"
            continue
        bandwidth = case.num_bytes / taken_s
        line = f"{start} {taken_s * 1e6:.1f} | {bandwidth / 1e9:.0f} | {bandwidth / ceilings.copy_bytes_per_s:.0%} |"
        if case.num_flops is None:
            yield f"{line} | |"
        else:
            rate = case.num_flops / taken_s
            yield f"{line} {rate / 1e12:.1f} | {rate / ceilings.gemm_flops_per_s:.0%} |"


def main(argv: list[str] | None = None) -> int:
    """Prints the table; `NO_GPU` where nothing can be measured."""
    parser = argparse.ArgumentParser(prog="python -m kernels.bench", description=__doc__.splitlines()[0])
    parser.add_argument("--op", help="only operations whose name begins with this")
    op = parser.parse_args(argv).op or ""
    if (reason := why_not()) is not None:
        sys.stderr.write(f"error: kernels.bench: {reason}\n")
        return NO_GPU
    import triton

    say = sys.stdout.write
    today = datetime.datetime.now(datetime.UTC).date()
    say(f"{today}, {torch.cuda.get_device_name()}, torch {torch.__version__}, Triton {triton.__version__}, {DTYPE}\n")
    ceilings = measure_ceilings()
    say(f"copy {ceilings.copy_bytes_per_s / 1e9:.0f} GB/s, GEMM {ceilings.gemm_flops_per_s / 1e12:.0f} TFLOP/s\n\n")
    say("| op | size | by | us | GB/s | of copy | TFLOP/s | of GEMM |\n|---|---|---|---|---|---|---|---|\n")
    for case in cases(op):
        for line in rows_of(case, ceilings):
            say(line + "\n")
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
