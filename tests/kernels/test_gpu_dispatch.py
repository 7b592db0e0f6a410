"""Public kernels go to Triton for CUDA tensors, and need no Triton for others."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType, SimpleNamespace
from typing import Any, Literal

import pytest
import torch

from kernels.block_weight import quantised
from kernels.kv_cache import store_kv, swap_blocks
from kernels.layer_ops import apply_rope, rms_norm, silu_mul
from kernels.linear import pack_blocks
from kernels.paged_attention import attend_plainly, paged_attention, plan_attention
from kernels.sampling import sample

ON_GPU = SimpleNamespace(is_cuda=True, is_pinned=lambda: False)
CACHE = SimpleNamespace(dtype=torch.bfloat16)
PINNED = SimpleNamespace(is_cuda=False, is_pinned=lambda: True)
CALLS = {
    "rms_norm": (rms_norm, (ON_GPU, "weight", 1e-5, "residual"), {}),
    "rope": (apply_rope, (ON_GPU, "k", "cos", "sin"), {}),
    "silu_mul": (silu_mul, (ON_GPU,), {}),
    "kv_store": (store_kv, (ON_GPU, "v", CACHE, CACHE, "slots"), {}),
    "block_copy": (swap_blocks, (ON_GPU, PINNED, [(0, 1)]), {}),
    "paged_attention": (
        paged_attention,
        (ON_GPU, "k_cache", "v_cache", "tables", "lens", "starts"),
        {"scale": 0.5, "sliding_window": 7, "plan": "plan"},
    ),
    "sampling": (sample, (ON_GPU, ["row"]), {}),
    "attention_plan": (
        plan_attention,
        ("tables", "lens", "starts"),
        {"num_heads": 4, "num_kv_heads": 2, "sliding_window": 7, "device": "cuda"},
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_cuda_tensors_go_to_triton_with_the_same_arguments(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    public, args, kwargs = CALLS[name]
    seen: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    package, module = ModuleType("kernels.gpu"), ModuleType(f"kernels.gpu.{name}")
    setattr(module, public.__name__, lambda *a, **k: seen.append((a, k)))
    setattr(package, name, module)
    monkeypatch.setitem(sys.modules, "kernels.gpu", package)
    monkeypatch.setitem(sys.modules, f"kernels.gpu.{name}", module)
    public(*args, **kwargs)
    assert seen == [(args, kwargs)]


@pytest.mark.parametrize(("kind", "wanted"), [(None, "int8"), ("int4", "int4")])
def test_a_gpu_gets_blocks_and_not_their_numbers(
    kind: Literal["int4"] | None, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[Any, ...]] = []
    module = ModuleType("kernels.gpu.block_matrix")
    module.GpuBlockMatrix = lambda weight, *a, is_gated: seen.append((weight.kind, *a, is_gated))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "kernels.gpu.block_matrix", module)
    weight = torch.randn(4, 64).half()
    pack_blocks(quantised(weight, "int8") if kind is None else weight, weight.dtype, kind, is_gated=True, device="cuda")
    assert seen == [(wanted, torch.float16, torch.device("cuda"), True)]


def test_cpu_needs_no_triton() -> None:
    program = """
import sys, torch
sys.modules["triton"] = None
from kernels import kv_cache, layer_ops, linear, paged_attention, sample_row, sampling
x = torch.ones(2, 4)
layer_ops.rms_norm(x, x[0], 1e-5, x)
layer_ops.silu_mul(x)
kv_cache.copy_blocks(torch.zeros(1, 2, 3, 1), [(0, 1)])
assert sampling.sample(x, [sample_row.SampleRow(), sample_row.SampleRow()])[0].token_id is not None
assert not any(name.startswith("kernels.gpu") for name in sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_bench_without_a_gpu_says_so_in_one_line() -> None:
    if torch.cuda.is_available():
        pytest.skip("a GPU is here")
    done = subprocess.run([sys.executable, "-m", "kernels.bench"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: kernels.bench: no CUDA GPU is usable here")
    assert done.stderr.count("\n") == 1


@pytest.mark.gpu
def test_public_attention_on_a_gpu_uses_the_gpu_plan() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA GPU here")
    from kernels.gpu.attention_plan import GpuAttentionPlan

    lens, starts = torch.tensor([5], dtype=torch.int32), torch.tensor([0, 5], dtype=torch.int32)
    tables = torch.zeros((1, 1), dtype=torch.int32)
    q, k_cache, v_cache = torch.randn(5, 4, 32), torch.randn(1, 16, 2, 32), torch.randn(1, 16, 2, 32)
    sizes = {"num_heads": 4, "num_kv_heads": 2, "sliding_window": None}
    plan = plan_attention(tables, lens, starts, **sizes, device="cuda")
    assert isinstance(plan, GpuAttentionPlan)
    rest = (tables, lens, starts)
    found = paged_attention(q.cuda(), k_cache.cuda(), v_cache.cuda(), *rest, scale=0.2, plan=plan)
    expected = attend_plainly(q, k_cache, v_cache, *rest, scale=0.2)  # a CPU's own kernels read caches in tiles
    torch.testing.assert_close(found.cpu(), expected, atol=1e-4, rtol=1e-4)
