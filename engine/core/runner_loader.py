"""From a core's configuration to a runner and the limits it works under: lengths, vocabulary, how much KV fits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import structlog

from engine.core.compile_command import compile_beside
from engine.core.fake_runner import FakeRunner
from engine.core.host_tuning import (
    ask_for_short_slices,
    default_num_threads,
    find_triton_cache,
    keep_freed_memory,
    limit_openmp_spin,
)
from engine.core.runner import Runner
from engine.core.scheduler_config import SchedulerConfig
from engine.core.speculation_config import SpeculationConfig
from engine.model.directory import ModelDir, kv_bytes_per_token, open_model, size_kv, step_bytes, weight_bytes
from engine.model.drafter_directory import DrafterDir, bytes_per_token, open_drafter
from engine.model.drafter_directory import weight_bytes as drafter_weight_bytes
from engine.protocol.clock import SystemMonotonicClock
from engine.protocol.core_config import CoreConfig
from engine.text.grammar_compiler import GrammarCompiler
from engine.text.tokenizer import load_tokenizer
from kernels.quantization import is_compensated

Progress = Callable[[str, float], None]

_FAKE_VOCAB_SIZE = 32_000
_FAKE_MAX_MODEL_LEN = 8192
_FAKE_NUM_BLOCKS = 4096
TILE_KEYS = 16  # of a CPU's cache in eight bits, as `kernels.kv_codes` says
_FAKE_KV_BYTES_PER_TOKEN = 2**16
_HOST_MEMORY_SHARE = 0.125  # of free memory, for KV blocks; the machine has other tenants
_DEVICE_MEMORY_SHARE = 0.9  # a GPU has none; the rest is for activations
_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")

log = structlog.get_logger()


class NoKvMemoryError(ValueError):
    """The memory that may be used for KV holds not one block."""


@dataclass(frozen=True, slots=True)
class LoadedRunner:
    """A runner, loaded but cold, and what the scheduler must keep to."""

    runner: Runner
    limits: SchedulerConfig
    device: str
    dtype: str
    grammars: GrammarCompiler
    kv_cache_dtype: str = "auto"
    kv_bytes: int = 0  # of memory that the KV cache may come to; 0: it has none
    rounding: str | None = None  # hex digits of what calibration made of the weights; None: there was none


def load_runner(config: CoreConfig, progress: Progress, progress_memory: memoryview | None = None) -> LoadedRunner:
    """Load what the configuration asks for; `progress` hears of phase and share done.

    `progress_memory` is where a runner that shows progress inside of steps writes when it last did.

    Raises:
        ValueError: the model directory or a limit is bad; the message names it and what to do.
        Exception: whatever loading raises, lack of memory among it.
    """
    if config.runner == "fake":
        return _fake_model(config)
    return _torch_model(config, progress, progress_memory)


def limits_of(
    config: CoreConfig,
    *,
    num_blocks: int,
    num_host_blocks: int = 0,
    max_model_len: int,
    vocab_size: int,
    eos_token_ids: tuple[int, ...],
    window_tokens: int | None = None,
) -> SchedulerConfig:
    """The scheduler's limits; what the configuration says wins over the model's vocabulary and end tokens.

    Raises:
        ValueError: they contradict each other.
    """
    return SchedulerConfig(
        block_size=config.block_size,
        num_blocks=num_blocks,
        max_model_len=max_model_len,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        chunked_prefill=config.chunked_prefill,
        prefill_chunk_tokens=config.prefill_chunk_tokens,
        prefix_caching=config.prefix_caching,
        ageing_s=config.ageing_s,
        num_host_blocks=num_host_blocks,
        eos_token_ids=eos_token_ids if config.eos_token_ids is None else config.eos_token_ids,
        vocab_size=vocab_size if config.vocab_size is None else config.vocab_size,
        speculation=_speculation(config),
        window_tokens=window_tokens,
    )


def _speculation(config: CoreConfig) -> SpeculationConfig | None:
    if config.speculation == "off":
        return None
    return SpeculationConfig(
        method=config.speculation,
        num_speculative_tokens=config.num_speculative_tokens,
        prompt_lookup_min=config.prompt_lookup_min,
        prompt_lookup_max=config.prompt_lookup_max,
        is_adaptive=config.adaptive_speculation,
    )


def _fake_model(config: CoreConfig) -> LoadedRunner:
    vocab_size = config.vocab_size or _FAKE_VOCAB_SIZE
    limits = limits_of(
        config,
        num_blocks=config.num_kv_blocks or _FAKE_NUM_BLOCKS,
        num_host_blocks=_num_host_blocks(config, _FAKE_KV_BYTES_PER_TOKEN * config.block_size),
        max_model_len=config.max_model_len or _FAKE_MAX_MODEL_LEN,
        vocab_size=vocab_size,
        eos_token_ids=(),
    )
    grammars = _grammars(config, limits)
    runner = FakeRunner(
        vocab_size=vocab_size, clock=SystemMonotonicClock(), block_size=config.block_size, grammars=grammars
    )
    return LoadedRunner(runner, limits, device="fake", dtype="none", grammars=grammars)


def _grammars(config: CoreConfig, limits: SchedulerConfig) -> GrammarCompiler:
    directory = Path(config.model_dir)
    return GrammarCompiler(
        lambda: load_tokenizer(directory), vocab_size=limits.vocab_size, eos_token_ids=limits.eos_token_ids
    )


def _torch_model(config: CoreConfig, progress: Progress, progress_memory: memoryview | None) -> LoadedRunner:
    limit_openmp_spin()
    ask_for_short_slices()
    keep_freed_memory()
    from engine.core.torch_runner import ModelRunner, auto_dtype  # torch: seconds to import
    from kernels.cpu.progress import use_progress_memory

    if progress_memory is not None:
        use_progress_memory(progress_memory)

    model = open_model(config.model_dir, progress=progress)
    longest = model.config.max_position_embeddings
    max_model_len = config.max_model_len or longest
    if max_model_len > longest:
        raise ValueError(f"max_model_len: {max_model_len} asked for, the model's positions end at {longest}")
    drafter = _drafter(config, model, progress)
    device = _choose_device(config.device)
    if device.startswith("cuda"):
        find_triton_cache()
    dtype = auto_dtype(model.config.dtype, device) if config.dtype == "auto" else config.dtype
    if device == "cpu" and dtype == "float16" and config.quantization is not None:
        raise ValueError(
            f"--quantization {config.quantization}: on a CPU its kernels are for float32 and bfloat16; "
            "give --dtype bfloat16, or leave it out"
        )
    if device != "cpu" and config.quantization in ("w8a8", "w4a8"):
        instead = "int8" if config.quantization == "w8a8" else "int4"
        raise ValueError(
            f"--quantization {config.quantization}: a GPU rounds no inputs; give {instead}, or leave it out"
        )
    if config.calibration and (device != "cpu" or not is_compensated(config.quantization)):
        raise ValueError("--calibration: it is of --quantization int4 and w4a8 on a CPU; leave it out")
    _check_kv_dtype(config, device, dtype)
    kv_dtype = dtype if config.kv_cache_dtype == "auto" else config.kv_cache_dtype
    limits = limits_of(
        config,
        num_blocks=_num_blocks(config, model, drafter, device, dtype, kv_dtype, max_model_len),
        num_host_blocks=_num_host_blocks(config, kv_bytes_per_token(model.config, kv_dtype) * config.block_size),
        max_model_len=max_model_len,
        vocab_size=model.config.vocab_size,
        eos_token_ids=model.config.eos_token_ids,
        # What proposes tokens may see further, and its KV lies in blocks of the same numbers.
        window_tokens=model.config.widest_window if drafter is None else None,
    )
    if device == "cpu":
        has_experts = any(model.config.has_experts(layer) for layer in range(model.config.num_layers))
        compile_beside(dtype, config.quantization, config.kv_cache_dtype, has_experts=has_experts)
    grammars = _grammars(config, limits)
    runner = ModelRunner(
        model,
        drafter=drafter,
        num_blocks=limits.num_blocks,
        block_size=limits.block_size,
        device=device,
        dtype=dtype,
        quantization=config.quantization,
        calibration=config.calibration,
        kv_cache_dtype=config.kv_cache_dtype,
        enforce_eager=config.enforce_eager,
        num_threads=config.num_threads or default_num_threads(weight_bytes(model.config, dtype)),
        num_host_blocks=limits.num_host_blocks,
        progress=progress,
        grammars=grammars,
        eos_token_ids=limits.eos_token_ids,
    )
    info = runner.info
    kept = info.kv_cache_dtype
    return LoadedRunner(
        runner, limits, info.device, info.dtype, grammars, kept, kv_bytes=info.kv_bytes, rounding=info.rounding
    )


def _check_kv_dtype(config: CoreConfig, device: str, dtype: str) -> None:
    if config.kv_cache_dtype == "auto" or device.startswith("cuda"):
        return
    if dtype == "float16":
        raise ValueError(
            f"--kv-cache-dtype {config.kv_cache_dtype}: on a CPU its kernels are for float32 and bfloat16; "
            "give --dtype bfloat16, or leave it out"
        )
    if config.block_size % TILE_KEYS:
        raise ValueError(
            f"--kv-cache-dtype {config.kv_cache_dtype}: on a CPU blocks are of {TILE_KEYS} tokens or a multiple; "
            f"--block-size is {config.block_size}"
        )


def _drafter(config: CoreConfig, model: ModelDir, progress: Progress) -> DrafterDir | None:
    """What proposes tokens, if it is not the text itself. Raises ValueError: it is for another model."""
    if config.speculation in ("off", "ngram") or config.draft_model_dir is None:
        return None
    return open_drafter(config.speculation, config.draft_model_dir, model, progress=progress)


def _num_blocks(
    config: CoreConfig,
    model: ModelDir,
    drafter: DrafterDir | None,
    device: str,
    dtype: str,
    kv_dtype: str,
    max_model_len: int,
) -> int:
    """KV blocks as told, or as many as a share of the free memory holds and all requests together can use.

    What proposes tokens may keep something of its own in each block.
    """
    if config.num_kv_blocks is not None:
        return config.num_kv_blocks
    num_weight_bytes = _weight_bytes(config, model, device, dtype)
    num_weight_bytes += drafter_weight_bytes(drafter, dtype) if drafter else 0
    if device.startswith("cuda"):
        ahead = 1 if config.speculation == "off" else 1 + config.num_speculative_tokens
        sizes = {"num_tokens": config.max_num_batched_tokens, "num_rows": config.max_num_seqs * ahead}
        num_weight_bytes += step_bytes(model.config, dtype, **sizes)  # KV gets what is left
    budget_bytes = config.kv_cache_bytes
    if budget_bytes is None:
        if config.memory_utilization is not None:
            budget_bytes = share_for_kv(_memory_of(device), config.memory_utilization, num_weight_bytes)
        else:
            budget_bytes = _default_kv_bytes(device, num_weight_bytes)
    own = kv_bytes_per_token(model.config, kv_dtype)
    needed = own + (bytes_per_token(drafter, dtype, kv_dtype) if drafter else 0)
    fits = size_kv(model.config, kv_dtype, block_size=config.block_size, budget_bytes=budget_bytes * own // needed)
    if fits < 1:
        needed *= config.block_size
        option = "kv_cache_bytes" if config.memory_utilization is None else "--gpu-memory-utilization"
        raise NoKvMemoryError(
            f"{option}: {budget_bytes} bytes hold not one KV block of {needed} bytes; give more or free memory"
        )
    if config.kv_cache_bytes is not None and not device.startswith("cuda"):
        _warn_if_too_much(budget_bytes + num_weight_bytes)
    useful = config.max_num_seqs * -(-max_model_len // config.block_size)
    return fits if config.kv_cache_bytes is not None else min(fits, useful)


def _weight_bytes(config: CoreConfig, model: ModelDir, device: str, dtype: str) -> int:
    """Of the most that the model's weights take: on a GPU those of blocks that stay as they lie in their file."""
    if device == "cpu" or config.quantization is not None:
        return weight_bytes(model.config, dtype)
    from engine.core.torch_runner import kept_weight_bytes

    return kept_weight_bytes(model, dtype, device)


def _num_host_blocks(config: CoreConfig, block_bytes: int) -> int:
    """Blocks in host memory, as told or as many as the swap space holds."""
    if config.num_host_blocks is not None:
        return config.num_host_blocks
    if 0 < config.swap_space_bytes < block_bytes:
        raise NoKvMemoryError(
            f"--swap-space: {config.swap_space_bytes} bytes hold not one KV block of {block_bytes}; give more, or 0"
        )
    return config.swap_space_bytes // block_bytes


def _left_in_container() -> int | None:
    """What a container's limit leaves; None without one."""
    try:
        limit, used = ((_CGROUP / f"memory.{name}").read_text(encoding="ascii") for name in ("max", "current"))
        return max(int(limit) - int(used), 0)
    except (OSError, ValueError):  # no such file, or "max"
        return None


def _choose_device(wanted: str) -> str:
    if wanted != "auto":
        return wanted
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _default_kv_bytes(device: str, weight_bytes: int) -> int:
    """A share of what is free once the weights are loaded."""
    if device.startswith("cuda"):
        import torch

        free_bytes: int = torch.cuda.mem_get_info(device)[0]
        return int((free_bytes - weight_bytes) * _DEVICE_MEMORY_SHARE)
    return int((_free_memory_bytes() - weight_bytes) * _HOST_MEMORY_SHARE)


class DeviceMemory(NamedTuple):
    """In bytes; what others use of it is their difference."""

    total: int
    free: int


def share_for_kv(memory: DeviceMemory, share: float, weight_bytes: int) -> int:
    """What is left for KV of a share of all memory, as vLLM reckons: others use theirs, the weights come out of it."""
    used_by_others = memory.total - memory.free
    return max(0, int(memory.total * share) - used_by_others - weight_bytes)


def _memory_of(device: str) -> DeviceMemory:
    if device.startswith("cuda"):
        import torch

        free, total = torch.cuda.mem_get_info(device)
        return DeviceMemory(total, free)
    total = _meminfo("MemTotal")
    return DeviceMemory(min(total, _container_limit() or total), _free_memory_bytes())


def _container_limit() -> int | None:
    try:
        return int((_CGROUP / "memory.max").read_text(encoding="ascii"))
    except (OSError, ValueError):  # no such file, or "max"
        return None


def _warn_if_too_much(num_bytes: int) -> None:
    """Memory is taken as blocks are first written to: what is not there is missed under load, long after the start."""
    free = _free_memory_bytes()
    if num_bytes > free:
        remedy = "lower --kv-cache-memory: the system ends processes that take more than there is"
        log.warning("kv_cache.exceeds_free_memory", needed_bytes=num_bytes, free_bytes=free, remedy=remedy)


def _free_memory_bytes() -> int:
    """Memory that can be had without swapping, on this machine and in this container."""
    free, left = _meminfo("MemAvailable"), _left_in_container()
    return free if left is None else min(free, left)


def _meminfo(wanted: str) -> int:
    """Bytes by one line of the kernel's account. Raises NoKvMemoryError."""
    for line in _MEMINFO.read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name == wanted:
            return int(value.split()[0]) * 1024
    raise NoKvMemoryError(f"{_MEMINFO}: no {wanted} line; give kv_cache_bytes or num_kv_blocks")
