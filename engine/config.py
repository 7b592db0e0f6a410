"""The settings of one node, and the command line they come from.

Options carry vLLM's names where the meaning is the same. Files are read and numbers are checked here, so that a bad
value is one line on stderr before anything starts.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from engine.gguf.header import is_gguf
from engine.protocol.core_config import MAX_SPECULATIVE_TOKENS
from engine.text.tool_formats import PARSERS, ToolFormatName
from engine.trace_config import BadEndpointError, trace_endpoint
from kernels.cpu import instructions
from kernels.quantization import QUANTIZATIONS, Quantization

NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
MIN_TOKEN_CHARS = 8
MAX_API_KEYS = 1000


class BadConfigError(ValueError):
    """An option can't be used; the message names it and says what would do."""


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """Everything one node is started with. None means: work it out from the model and the machine."""

    model_dir: Path
    served_model_names: tuple[str, ...]
    node_name: str
    host: str = "127.0.0.1"
    port: int = 8000
    pool: str = ""
    zone: str = ""
    revision: str = ""
    admin_token: str | None = field(default=None, repr=False)
    enable_faults: bool = False
    drain_timeout_s: float = 30.0
    runner: Literal["torch", "fake"] = "torch"
    dtype: str = "auto"
    quantization: Quantization | None = None
    calibration: bool = False
    kv_cache_dtype: Literal["auto", "int8", "fp8"] = "auto"
    enforce_eager: bool = False
    num_threads: int | None = None
    max_model_len: int | None = None
    generation_config: Literal["auto", "vllm"] = "auto"
    task: Literal["generate", "embed", "classify"] | None = None  # None: what the architecture is for
    pooling_type: Literal["last", "mean"] | None = None  # None: as the directory says
    block_size: int = 16
    num_kv_blocks: int | None = None
    kv_cache_memory_bytes: int | None = None
    memory_utilization: float | None = None
    swap_space_gib: float = 0.0  # of host memory, for the KV of preempted requests; 0: it is computed again
    prefix_caching: bool = True
    chunked_prefill: bool = True
    prefill_chunk_tokens: int = 512
    speculation: Literal["off", "ngram", "draft", "medusa", "eagle3"] = "off"
    draft_model_dir: Path | None = None
    num_speculative_tokens: int = 8
    prompt_lookup_min: int = 2
    prompt_lookup_max: int = 5
    adaptive_speculation: bool = True
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    max_num_queued_reqs: int = 1024
    max_num_queued_tokens: int | None = None
    max_queue_wait_s: float = 600.0  # 0: for ever
    max_body_bytes: int = 16 * 2**20
    body_timeout_s: float = 60.0
    max_output_tokens: int | None = None
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    golden_file: Path | None = None
    golden_interval_s: float = 60.0
    stuck_core_kill_after_s: float = 60.0  # 0: never
    gpu_poll_s: float = 5.0
    tool_call_parser: ToolFormatName | None = None  # None: as the chat template shows calls
    traces_endpoint: str | None = None  # the whole URL; None: spans go nowhere
    log_level: str = "INFO"

    @property
    def model_name(self) -> str:
        """The first served name: in answers and metrics."""
        return self.served_model_names[0]


def add_serve_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `serve`, in groups; `config_from_args` reads them."""
    model = parser.add_argument_group("model")
    model.add_argument(
        "--model",
        metavar="DIR",
        required=True,
        help="directory in Hugging Face's layout, or a GGUF file or its directory",
    )
    model.add_argument("--served-model-name", metavar="NAME", nargs="+", help="names in the API; default: DIR's name")
    model.add_argument("--revision", default="", help="which version of the model or configuration this node runs")
    model.add_argument(
        "--dtype",
        default="auto",
        choices=("auto", "float32", "bfloat16", "float16"),
        help="of weights and KV cache; auto: as stored, on a CPU float32 in place of float16",
    )
    model.add_argument(
        "--quantization",
        choices=QUANTIZATIONS,
        help="round the matrices to so many bits at load, on a CPU, with a8 what they are multiplied with as well; "
        "default: as stored (a GGUF file's blocks stay so)",
    )
    model.add_argument(
        "--calibration",
        action="store_true",
        help="int4 and w4a8 on a CPU: matrices make up for their rounding errors, on text that the model writes; the "
        "first start takes longer, and what it found is kept",
    )
    model.add_argument(
        "--enforce-eager",
        action="store_true",
        help="on a GPU launch each operation by itself, in place of decoding steps that are captured as CUDA graphs",
    )
    model.add_argument("--max-model-len", metavar="TOKENS", type=int, help="longest sequence; default: the model's")
    model.add_argument(
        "--tool-call-parser",
        choices=PARSERS,
        help="how this model writes tool calls; default: as its chat template shows them",
    )
    model.add_argument(
        "--runner",
        default="torch",
        choices=("torch", "fake"),
        help="fake: repeatable tokens without weights, for tests and laptop fleets; needs DIR's tokenizer only",
    )
    model.add_argument(
        "--generation-config",
        default="auto",
        choices=("auto", "vllm"),
        help="auto: defaults for sampling and ends of text from DIR's generation_config.json; vllm: not from there",
    )

    model.add_argument(
        "--task",
        choices=("generate", "embed", "classify"),
        help="embed: answer with vectors, whatever the model is made for; classify: with the scores of its head; "
        "default: what the architecture is for",
    )
    model.add_argument(
        "--pooling-type",
        type=str.lower,
        choices=("last", "mean"),
        help="with embed: whose hidden states become the vector; default: as DIR says, else the last token's",
    )

    cache = parser.add_argument_group("KV cache")
    cache.add_argument("--block-size", metavar="TOKENS", type=int, default=16, help="tokens in a block (%(default)s)")
    cache.add_argument(
        "--kv-cache-dtype",
        default="auto",
        choices=("auto", "int8", "fp8"),
        help="keys and values in eight bits, whole numbers or E4M3, with a scale for each token and head: twice the "
        "tokens in the same memory; auto: as --dtype",
    )
    cache.add_argument(
        *("--kv-cache-memory", "--kv-cache-memory-bytes"),
        dest="kv_cache_memory_bytes",
        metavar="SIZE",
        type=_size,
        help="memory that KV blocks may come to: bytes, or like 512MiB, 2GiB; default: an eighth of what is free on a "
        "CPU, nine tenths on a GPU, and no more than all requests can use",
    )
    cache.add_argument(
        "--gpu-memory-utilization",
        metavar="SHARE",
        type=float,
        help="of a GPU's memory, or without one of the machine's or container's, that this node and all others may use "
        "together, weights and KV blocks (0 to 1); --kv-cache-memory wins",
    )
    cache.add_argument(
        *("--num-kv-blocks", "--num-gpu-blocks-override"),
        metavar="N",
        type=int,
        help="number of KV blocks; wins over bytes",
    )
    cache.add_argument(
        "--swap-space",
        metavar="GiB",
        type=float,
        default=0.0,
        help="host memory that preempted requests' KV may wait in, where that costs less than to compute it again "
        "(%(default)s: none)",
    )
    cache.add_argument(
        "--enable-prefix-caching",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="keep the KV of prompts for others that begin alike",
    )

    scheduler = parser.add_argument_group("scheduler")
    scheduler.add_argument("--max-num-seqs", metavar="N", type=int, default=64, help="running at once (%(default)s)")
    scheduler.add_argument(
        "--max-num-batched-tokens", metavar="N", type=int, default=2048, help="tokens in one step (%(default)s)"
    )
    scheduler.add_argument(
        "--enable-chunked-prefill",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="long prompts in parts, beside running answers",
    )
    scheduler.add_argument(
        "--prefill-chunk-tokens",
        metavar="N",
        type=int,
        default=512,
        help="of one prompt in one step: fewer keep other answers flowing, more end it sooner (%(default)s)",
    )
    scheduler.add_argument(
        "--num-threads",
        metavar="N",
        type=int,
        help="CPU threads of the runner; default: one a core, 1 for models below 64 MiB",
    )

    ahead = parser.add_argument_group("tokens ahead (speculative decoding: the same answers in fewer steps)")
    ahead.add_argument(
        "--speculation",
        default="off",
        choices=("off", "ngram", "draft", "medusa", "eagle3"),
        help="ngram: what followed the last tokens earlier in prompt or answer is proposed and verified; draft: what a "
        "small model says; medusa, eagle3: what heads, or an EAGLE-3 layer, trained on this model say (%(default)s)",
    )
    ahead.add_argument(
        "--draft-model",
        metavar="DIR",
        help="what proposes: a small model with the same tokenizer, in the same layout as --model; Medusa heads; or an "
        "EAGLE-3 drafter",
    )
    ahead.add_argument(
        "--num-speculative-tokens",
        metavar="N",
        type=int,
        default=8,
        help=f"proposed for a request in one step, at most; up to {MAX_SPECULATIVE_TOKENS} (%(default)s)",
    )
    ahead.add_argument(
        "--prompt-lookup-min",
        metavar="N",
        type=int,
        default=2,
        help="tokens that must be found again for a proposal (%(default)s)",
    )
    ahead.add_argument(
        "--prompt-lookup-max", metavar="N", type=int, default=5, help="tokens that are looked for (%(default)s)"
    )
    ahead.add_argument(
        "--adaptive-speculation",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="propose only where it was measured to pay; else always",
    )

    admission = parser.add_argument_group("admission")
    admission.add_argument(
        "--max-num-queued-reqs", metavar="N", type=int, default=1024, help="waiting requests (%(default)s); then 429"
    )
    admission.add_argument(
        "--max-num-queued-tokens",
        metavar="N",
        type=int,
        help="tokens that waiting requests will need, answers included; default: 4x KV capacity",
    )
    admission.add_argument(
        "--max-queue-wait",
        metavar="S",
        type=float,
        default=600.0,
        help="a request that is not begun for so long ends with 503; 0: never (%(default)s)",
    )
    admission.add_argument(
        "--max-body-bytes", metavar="N", type=int, default=16 * 2**20, help="largest request body (%(default)s)"
    )
    admission.add_argument(
        "--body-timeout", metavar="S", type=float, default=60.0, help="for a request to arrive whole (%(default)s)"
    )
    admission.add_argument(
        "--max-output-tokens", metavar="N", type=int, help="longest answer that may be asked for; default: the context"
    )

    server = parser.add_argument_group("server")
    server.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    server.add_argument("--port", type=int, default=8000, help="0 picks a free one (%(default)s)")
    server.add_argument("--admin-token-file", metavar="F", help="holds the token of /admin and /internal routes")
    server.add_argument(
        "--api-key-file", metavar="F", help="keys of clients, one a line: needed for all but health and metrics"
    )
    server.add_argument(
        "--drain-timeout",
        metavar="S",
        type=float,
        default=30.0,
        help="after SIGTERM, until requests move (%(default)s)",
    )
    server.add_argument(
        "--log-level", default="INFO", choices=("DEBUG", "INFO", "WARNING", "ERROR"), help="from here up (%(default)s)"
    )

    watching = parser.add_argument_group("watching")
    watching.add_argument(
        "--golden-file", metavar="F", help="known answers to the golden prompt; recorded there when it has none"
    )
    watching.add_argument(
        "--golden-interval",
        metavar="S",
        type=float,
        default=60.0,
        help="least time between golden prompts; asked only through /health/deep (%(default)s)",
    )
    watching.add_argument(
        "--stuck-core-kill-after",
        metavar="S",
        type=float,
        default=60.0,
        help="a core reported stuck for so long is killed and started again; 0: never (%(default)s)",
    )
    watching.add_argument(
        "--gpu-poll", metavar="S", type=float, default=5.0, help="between readings of the GPUs (%(default)s)"
    )
    watching.add_argument(
        "--otlp-traces-endpoint",
        metavar="URL",
        help="collector that a span of each request is sent to by OTLP/HTTP, like http://127.0.0.1:4318/v1/traces; "
        "default: OTEL_EXPORTER_OTLP_ENDPOINT of the environment, else none",
    )

    fleet = parser.add_argument_group("fleet")
    fleet.add_argument("--node-name", help="default: the host's name")
    fleet.add_argument("--pool", default="", help="nodes that are interchangeable")
    fleet.add_argument("--zone", default="", help="where this node is")
    fleet.add_argument("--enable-faults", action="store_true", help="open /admin/faults: drills only")


def config_from_args(args: argparse.Namespace) -> NodeConfig:
    """Checks what argparse read. Raises BadConfigError."""
    _check_instructions()
    model_dir = Path(args.model)
    if not model_dir.is_dir() and not is_gguf(model_dir):
        raise BadConfigError(
            f"--model {model_dir}: no such directory or GGUF file; `fleetctl-node make-model DIR` makes a small one"
        )
    for option, lowest in LEAST.items():
        value = getattr(args, option.removeprefix("--").replace("-", "_"))
        if value is not None and not lowest <= value < math.inf:
            raise BadConfigError(f"{option} {value}: must be at least {lowest}")
    share = args.gpu_memory_utilization
    if share is not None and not 0 < share <= 1:
        raise BadConfigError(f"--gpu-memory-utilization {share}: must be above 0, and 1 at most")
    if not 0 <= args.port <= 65535:
        raise BadConfigError(f"--port {args.port}: must be 0 to 65535")
    for option in ("node_name", "pool", "zone", "revision"):
        value = getattr(args, option)
        if value and not NAME.fullmatch(value):
            raise BadConfigError(
                f"--{option.replace('_', '-')} {value!r}: letters, digits, '.', '_' and '-' only, at most 63"
            )
    if (args.speculation not in ("off", "ngram")) != (args.draft_model is not None):
        raise BadConfigError("--speculation draft, medusa or eagle3, and --draft-model DIR: one needs the other")
    if args.draft_model is not None and not Path(args.draft_model).is_dir():
        raise BadConfigError(f"--draft-model {args.draft_model}: no such directory")
    if args.num_speculative_tokens > MAX_SPECULATIVE_TOKENS:
        raise BadConfigError(
            f"--num-speculative-tokens {args.num_speculative_tokens}: must be at most {MAX_SPECULATIVE_TOKENS}"
        )
    if args.prompt_lookup_min > args.prompt_lookup_max:
        raise BadConfigError(
            f"--prompt-lookup-min {args.prompt_lookup_min}: must be at most --prompt-lookup-max "
            f"({args.prompt_lookup_max})"
        )
    return NodeConfig(
        model_dir=model_dir,
        served_model_names=tuple(args.served_model_name or (_name_of(model_dir),)),
        node_name=args.node_name or _host_name(),
        host=args.host,
        port=args.port,
        pool=args.pool,
        zone=args.zone,
        revision=args.revision,
        admin_token=None if args.admin_token_file is None else read_token(args.admin_token_file),
        api_keys=_read_keys(args.api_key_file),
        enable_faults=args.enable_faults,
        drain_timeout_s=args.drain_timeout,
        runner=args.runner,
        dtype=args.dtype,
        quantization=args.quantization,
        calibration=args.calibration,
        kv_cache_dtype=args.kv_cache_dtype,
        enforce_eager=args.enforce_eager,
        num_threads=args.num_threads,
        max_model_len=args.max_model_len,
        generation_config=args.generation_config,
        task=args.task,
        pooling_type=args.pooling_type,
        block_size=args.block_size,
        num_kv_blocks=args.num_kv_blocks,
        kv_cache_memory_bytes=args.kv_cache_memory_bytes,
        memory_utilization=share,
        swap_space_gib=args.swap_space,
        prefix_caching=args.enable_prefix_caching,
        chunked_prefill=args.enable_chunked_prefill,
        prefill_chunk_tokens=args.prefill_chunk_tokens,
        speculation=args.speculation,
        draft_model_dir=None if args.draft_model is None else Path(args.draft_model),
        num_speculative_tokens=args.num_speculative_tokens,
        prompt_lookup_min=args.prompt_lookup_min,
        prompt_lookup_max=args.prompt_lookup_max,
        adaptive_speculation=args.adaptive_speculation,
        max_num_seqs=args.max_num_seqs,
        max_num_batched_tokens=args.max_num_batched_tokens,
        max_num_queued_reqs=args.max_num_queued_reqs,
        max_num_queued_tokens=args.max_num_queued_tokens,
        max_queue_wait_s=args.max_queue_wait,
        max_body_bytes=args.max_body_bytes,
        body_timeout_s=args.body_timeout,
        max_output_tokens=args.max_output_tokens,
        golden_file=None if args.golden_file is None else Path(args.golden_file),
        golden_interval_s=args.golden_interval,
        stuck_core_kill_after_s=args.stuck_core_kill_after,
        gpu_poll_s=args.gpu_poll,
        tool_call_parser=args.tool_call_parser,
        traces_endpoint=_traces_endpoint(args.otlp_traces_endpoint),
        log_level=args.log_level,
    )


def _size(text: str) -> int:
    """Bytes. Raises ArgumentTypeError."""
    found = _SIZE.fullmatch(text.strip())
    num_bytes = 0 if found is None else int(float(found[1]) * _UNITS[(found[2] or "").upper()])
    if num_bytes < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no size: bytes, or a number with KiB, MiB, GiB (or kB, MB, GB)")
    return num_bytes


_UNITS = {"": 1, "B": 1} | {
    name: base**power
    for power, letter in enumerate("KMGT", start=1)
    for name, base in ((letter, 1024), (f"{letter}I", 1024), (f"{letter}IB", 1024), (f"{letter}B", 1000))
}
_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*(|B|[KMGT](?:|i|iB|B))", re.IGNORECASE)

LEAST = {
    "--max-model-len": 2,
    "--block-size": 1,
    "--num-kv-blocks": 1,
    "--swap-space": 0,
    "--max-num-seqs": 1,
    "--max-num-batched-tokens": 1,
    "--prefill-chunk-tokens": 1,
    "--num-speculative-tokens": 1,
    "--prompt-lookup-min": 1,
    "--prompt-lookup-max": 1,
    "--num-threads": 1,
    "--max-num-queued-reqs": 1,
    "--max-num-queued-tokens": 1,
    "--max-queue-wait": 0,
    "--max-body-bytes": 1024,
    "--body-timeout": 0.1,
    "--max-output-tokens": 1,
    "--golden-interval": 0,
    "--stuck-core-kill-after": 0,
    "--gpu-poll": 0.05,
    "--drain-timeout": 0,
}


def _check_instructions() -> None:
    """Here, as the core would end with it."""
    try:
        instructions.read(os.environ.get(instructions.OPTION))
    except ValueError as exc:
        raise BadConfigError(str(exc)) from exc


def _traces_endpoint(option: str | None) -> str | None:
    try:
        return trace_endpoint(option, os.environ)
    except BadEndpointError as exc:
        raise BadConfigError(str(exc)) from exc


def _name_of(model: Path) -> str:
    path = model.resolve()
    return path.stem if is_gguf(path) else path.name


def _host_name() -> str:
    name = socket.gethostname().split(".")[0]
    return name if NAME.fullmatch(name) else "node"


def read_token(path: str) -> str:
    """The admin token. Raises BadConfigError."""
    token = _read_secret("--admin-token-file", path).strip()
    if len(token) < MIN_TOKEN_CHARS:
        raise BadConfigError(f"--admin-token-file {path}: the token needs at least {MIN_TOKEN_CHARS} characters")
    return token


def _read_keys(path: str | None) -> tuple[str, ...]:
    """Empty lines and those that begin with # are no keys."""
    if path is None:
        return ()
    lines = [line.strip() for line in _read_secret("--api-key-file", path).splitlines()]
    keys = tuple(line for line in lines if line and not line.startswith("#"))
    if not keys:
        raise BadConfigError(f"--api-key-file {path}: holds no key")
    if len(keys) > MAX_API_KEYS:
        raise BadConfigError(f"--api-key-file {path}: {len(keys)} keys, at most {MAX_API_KEYS}")
    if any(len(key) < MIN_TOKEN_CHARS for key in keys):
        raise BadConfigError(f"--api-key-file {path}: each key needs at least {MIN_TOKEN_CHARS} characters")
    return keys


def _read_secret(option: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise BadConfigError(f"{option} {path}: {exc}") from exc
