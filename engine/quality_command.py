"""`fleetctl-node quality`: a model as it would be served beside the one that it stands for, as a table and a gate."""

from __future__ import annotations

import argparse
import sys
from importlib.resources import files
from pathlib import Path

from engine.config import BadConfigError
from kernels.quantization import QUANTIZATIONS, is_compensated

EXIT_GATE = 3  # it was compared, and is outside of a limit
MAX_TOKENS = 4096


def add_quality_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `quality`."""
    parser.add_argument("model", metavar="DIR", help="directory or GGUF file that would be served")
    parser.add_argument("--quantization", choices=QUANTIZATIONS, help="as it would be served with")
    parser.add_argument("--calibration", action="store_true", help="as it would be served with")
    parser.add_argument(
        "--kv-cache-dtype", default="auto", choices=("auto", "int8", "fp8"), help="as it would be served with"
    )
    parser.add_argument("--dtype", default="auto", choices=("auto", "float32", "bfloat16"), help="as `serve` has it")
    parser.add_argument("--reference", metavar="DIR", help="what it is compared with; default: DIR, not quantised")
    parser.add_argument("--text", metavar="FILE", help="that both read; default: some pages of our own")
    parser.add_argument(
        "--tasks",
        metavar="FILE",
        help='JSON lines of {"prompt", "right", "wrong": [...]}; default: 48 of common knowledge, grammar and code',
    )
    parser.add_argument("--max-tokens", metavar="N", type=int, default=MAX_TOKENS, help="of the text (%(default)s)")
    parser.add_argument("--max-kl", metavar="NATS", type=float, help=f"mean KL above it: exit {EXIT_GATE}")
    parser.add_argument("--min-agreement", metavar="SHARE", type=float, help=f"agreement below it: exit {EXIT_GATE}")
    parser.add_argument(
        "--min-tasks-kept",
        metavar="SHARE",
        type=float,
        help=f"of the tasks that the reference solves: exit {EXIT_GATE}",
    )


def quality(args: argparse.Namespace) -> int:
    """Prints the table; 0, or EXIT_GATE. Raises BadConfigError, BadModelError, BadTokenizerError."""
    from engine.model.golden_tasks import BadTasksError, read_tasks
    from engine.model.quality import Candidate, QualityLimits, compare

    own = Path(args.model)
    if args.reference is None and args.quantization is None and args.kv_cache_dtype == "auto":
        raise BadConfigError("nothing to compare: give --quantization, --kv-cache-dtype or --reference")
    if args.calibration and not is_compensated(args.quantization):
        raise BadConfigError("--calibration: it is of --quantization int4 and w4a8; leave it out")
    try:
        found = compare(
            Candidate(own, args.dtype, args.quantization, args.kv_cache_dtype, args.calibration),
            Candidate(own if args.reference is None else Path(args.reference), args.dtype),
            _text("--text", args.text, "corpus.txt"),
            max_tokens=args.max_tokens,
            tasks=read_tasks(_text("--tasks", args.tasks, "golden_tasks.jsonl")),
        )
    except BadTasksError as exc:
        raise BadConfigError(f"--tasks {args.tasks}: {exc}") from exc
    tasks = found.tasks
    assert tasks is not None, "there are some"
    rows = {
        "tokens": str(found.tokens),
        "perplexity": f"{found.perplexity:.4f} (reference {found.reference_perplexity:.4f})",
        "agreement": f"{found.agreement:.2%} of tokens",
        "mean KL": f"{found.mean_kl:.5f} nats a token",
        "p99 KL": f"{found.p99_kl:.5f}",
        "tasks": f"{tasks.solved} of {tasks.count} (reference {tasks.reference_solved}, both {tasks.kept})",
    }
    sys.stdout.write("".join(f"{name:<10}  {value}\n" for name, value in rows.items()))
    broken = QualityLimits(args.max_kl, args.min_agreement, args.min_tasks_kept).broken(found)
    sys.stderr.write("".join(f"error: {line}\n" for line in broken))
    return EXIT_GATE if broken else 0


def _text(option: str, path: str | None, own: str) -> str:
    """Of the file, or of our own one. Raises BadConfigError."""
    if path is None:
        return files("engine").joinpath(f"data/{own}").read_text(encoding="utf-8")
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise BadConfigError(f"{option} {path}: {exc}") from exc
