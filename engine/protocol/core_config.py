"""What a core process is started with."""

from __future__ import annotations

from typing import Literal

import msgspec

from kernels.quantization import Quantization

MAX_CONFIG_BYTES = 64 * 2**10
MAX_SPECULATIVE_TOKENS = 32  # of one sequence in a step: two such still make one that is recorded on a CPU


class CoreConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Travels as JSON on the core's command line, so it must hold no secret. None: worked out by the core."""

    model_dir: str
    runner: Literal["torch", "fake"] = "torch"
    device: str = "auto"  # auto, cpu, cuda
    dtype: str = "auto"  # the stored one; on a CPU float32 where bfloat16 is slow
    quantization: Quantization | None = None  # what matrices are rounded to at load; None: as stored
    calibration: bool = False  # of int4 and w4a8 on a CPU: errors of rounding are made up for
    kv_cache_dtype: Literal["auto", "int8", "fp8"] = "auto"  # of keys and values; auto: `dtype`
    enforce_eager: bool = False  # on a GPU: no CUDA graphs
    num_threads: int | None = None  # None: one for each physical core, 1 for small models
    block_size: int = 16
    num_kv_blocks: int | None = None  # wins over `kv_cache_bytes`
    kv_cache_bytes: int | None = None
    memory_utilization: float | None = None  # of all memory, weights and KV together; `kv_cache_bytes` wins
    swap_space_bytes: int = 0  # of host memory, for KV blocks of preempted sequences
    num_host_blocks: int | None = None  # wins over `swap_space_bytes`
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    max_model_len: int | None = None  # None: what the model was made for
    vocab_size: int | None = None  # None: the model's
    eos_token_ids: tuple[int, ...] | None = None  # None: the model's
    chunked_prefill: bool = True
    prefill_chunk_tokens: int | None = 512
    prefix_caching: bool = True
    speculation: Literal["off", "ngram", "draft", "medusa", "eagle3"] = "off"
    draft_model_dir: str | None = None  # of what proposes, but for "ngram"; the fake runner proposes without one
    num_speculative_tokens: int = 8
    prompt_lookup_min: int = 2
    prompt_lookup_max: int = 5
    adaptive_speculation: bool = True
    ageing_s: float = 30.0
    enable_faults: bool = False
    log_level: str = "INFO"

    def to_json(self) -> str:
        """For the core's command line; `read_config` reads it back."""
        return msgspec.json.encode(self).decode()


def read_config(text: str) -> CoreConfig:
    """The configuration in a command-line argument.

    Raises:
        ValueError: it is no valid configuration; the message names the field.
    """
    if len(text) > MAX_CONFIG_BYTES:
        raise ValueError(f"--config: {len(text)} bytes, at most {MAX_CONFIG_BYTES} are allowed")
    try:
        return msgspec.json.decode(text, type=CoreConfig)
    except msgspec.DecodeError as error:
        raise ValueError(f"--config: {error}") from error
