"""`python -m engine.bench`: our node and its peers on one machine, in one run, beside what the machine could do.

Prints a Markdown table at the end, or what there is of it when it is interrupted; the same table is in a file from the
first row on. Exit codes: 0 done, 1 our own node failed, 2 bad arguments, 130 and 143 interrupted.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from engine.bench.bench_model import SHAPES, bench_model, walking_model
from engine.bench.comparison import PEERS, Comparison, ComparisonPlan
from engine.bench.http_load import IncompleteAnswerError
from engine.bench.long_prompt import LongPromptComparison
from engine.bench.neighbour import NICE, NeighbourComparison
from engine.bench.neighbour import ROUNDS as NEIGHBOUR_ROUNDS
from engine.bench.report import describe_machine, render
from engine.bench.servers import PEERS as SERVERS
from engine.bench.servers import ServerError
from engine.bench.speculation import METHODS, ROUNDS, SHARES, SpeculationComparison
from engine.bench.workload import make_workload
from engine.core.host_tuning import limit_openmp_spin
from kernels.quantization import QUANTIZATIONS

DTYPES = ("bfloat16", "float32")
CONCURRENCIES = (1, 8, 32)
QUICK_REQUESTS = 8
QUICK_OUTPUT_TOKENS = 48
# Five engines, two dtypes and three concurrencies then take less than 40 minutes, also on slow machines.
LIMIT_S = 50.0
STARTED_AT = time.monotonic()


def main(argv: Sequence[str]) -> int:
    """Compare the engines that the arguments name; returns the exit code."""
    args = _parser().parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers are stopped on the way out
    state = Path(os.environ.get("FLEETCTL_STATE_DIR") or ".fleetctl")
    target = Path(args.output or state / "bench" / "engine.md")
    limit_openmp_spin()
    if args.speculation:
        return _compare_speculation(args, state, Path(args.output or state / "bench" / "speculation.md"))
    if args.neighbour is not None:
        return _compare_neighbour(args, state, Path(args.output or state / "bench" / "neighbour.md"))
    if args.long_prompts:
        return _compare_long_prompts(args, state, Path(args.output or state / "bench" / "long-prompts.md"))
    comparison = Comparison(_plan(args, _bench_model(args, state)), _say)
    code, note = 0, ""
    try:
        for _row in comparison.measure_rows():
            _write(target, _table(comparison, "This run is not finished."))
    except (IncompleteAnswerError, ServerError) as error:
        code, note = 1, f"Our own node failed: {str(error).splitlines()[0]}"
        _say(f"error: {error}")
    except (KeyboardInterrupt, SystemExit) as stop:
        code = stop.code if isinstance(stop, SystemExit) and isinstance(stop.code, int) else 130
        note = "This run was interrupted."
    table = _table(comparison, note)
    _write(target, table)
    sys.stdout.write(table)
    _say(f"written to {target}")
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m engine.bench", description="Compare engines on this machine.")
    parser.add_argument(
        "--quick", action="store_true", help="8 requests (or as many as are at once) of at most 48 tokens, ours alone"
    )
    parser.add_argument("--model", default="110m", choices=SHAPES, help="default: %(default)s")
    parser.add_argument("--requests", type=_count, default=64, metavar="N")
    parser.add_argument("--concurrency", type=_count, nargs="+", default=list(CONCURRENCIES), metavar="N")
    parser.add_argument("--dtypes", nargs="+", default=list(DTYPES), choices=DTYPES)
    parser.add_argument("--peers", nargs="*", default=None, choices=PEERS, help="default: all that are installed")
    parser.add_argument(
        "--quantization",
        nargs="*",
        default=[],
        choices=QUANTIZATIONS,
        help="our node once more with each of these, and llama.cpp with Q8_0 and Q4_0 beside int8 and int4",
    )
    parser.add_argument("--num-threads", type=_count, metavar="N", help="of every engine; default: all CPUs")
    parser.add_argument("--max-output-tokens", type=_count, default=256, metavar="N")
    parser.add_argument(
        "--limit-s",
        type=_seconds,
        default=LIMIT_S,
        metavar="S",
        help="send an engine no further request after so long at one concurrency; default: 50",
    )
    parser.add_argument(
        "--speculation",
        action="store_true",
        help="instead: our node with tokens ahead beside itself without, on texts that repeat their prompt and others",
    )
    parser.add_argument(
        "--methods", nargs="+", default=list(METHODS), choices=METHODS, help="with --speculation; default: all of them"
    )
    parser.add_argument(
        "--known",
        type=_share,
        nargs="+",
        default=list(SHARES),
        metavar="SHARE",
        help="with --speculation: the share of words that drafters are made to know; default: 1 0.6 0",
    )
    parser.add_argument(
        "--neighbour",
        type=_count,
        nargs="?",
        const=NICE,
        metavar="NICE",
        help="instead: our node (and vLLM) alone and beside one busy loop, so much nicer than this; default: 10",
    )
    parser.add_argument(
        "--long-prompts",
        type=_count,
        nargs="+",
        metavar="TOKENS",
        help="instead: one prompt of so many tokens beside 8 short streams, our node, vLLM and llama.cpp",
    )
    parser.add_argument(
        "--rounds", type=_count, metavar="N", help=f"with --speculation ({ROUNDS}) or --neighbour ({NEIGHBOUR_ROUNDS})"
    )
    parser.add_argument("--cache", metavar="DIR", help="where the model is kept; default: under FLEETCTL_STATE_DIR")
    parser.add_argument("--output", metavar="FILE", help="default: bench/engine.md under FLEETCTL_STATE_DIR")
    return parser


def _compare_speculation(args: argparse.Namespace, state: Path, target: Path) -> int:
    cache = Path(args.cache or state / "cache" / "bench")
    comparison = SpeculationComparison(
        model=walking_model(cache),
        drafters=cache,
        methods=args.methods,
        shares=args.known,
        concurrencies=tuple(args.concurrency),
        dtype=args.dtypes[0],
        num_threads=args.num_threads or len(os.sched_getaffinity(0)),
        num_rounds=1 if args.quick else args.rounds or ROUNDS,
        output_tokens=args.max_output_tokens,
        report_progress=_say,
    )
    return _print_measured(comparison.measure, target)


def _bench_model(args: argparse.Namespace, state: Path) -> Path:
    return bench_model(Path(args.cache or state / "cache" / "bench"), args.model)


def _compare_long_prompts(args: argparse.Namespace, state: Path, target: Path) -> int:
    comparison = LongPromptComparison(
        model=_bench_model(args, state),
        prompt_tokens=args.long_prompts,
        dtypes=args.dtypes,
        num_threads=args.num_threads or len(os.sched_getaffinity(0)),
        peers=[name for name in SERVERS if args.peers is None or name in args.peers],
        report_progress=_say,
    )
    return _print_measured(comparison.measure, target)


def _compare_neighbour(args: argparse.Namespace, state: Path, target: Path) -> int:
    comparison = NeighbourComparison(
        model=_bench_model(args, state),
        concurrencies=tuple(args.concurrency),
        dtypes=args.dtypes,
        num_threads=args.num_threads or len(os.sched_getaffinity(0)),
        num_rounds=1 if args.quick else args.rounds or NEIGHBOUR_ROUNDS,
        output_tokens=args.max_output_tokens,
        nice=args.neighbour,
        peers=[name for name in SERVERS[:1] if args.peers is None or name in args.peers],
        report_progress=_say,
    )
    return _print_measured(comparison.measure, target)


def _print_measured(measure: Callable[[], str], target: Path) -> int:
    try:
        table = measure()
    except (IncompleteAnswerError, ServerError) as error:
        _say(f"error: {error}")
        return 1
    _write(target, table)
    sys.stdout.write(table)
    _say(f"written to {target}")
    return 0


def _plan(args: argparse.Namespace, model: Path) -> ComparisonPlan:
    num_requests, output_tokens = args.requests, args.max_output_tokens
    if args.quick:
        num_requests = max(QUICK_REQUESTS, min(max(args.concurrency), num_requests))
        output_tokens = min(QUICK_OUTPUT_TOKENS, output_tokens)
    peers = (() if args.quick else PEERS) if args.peers is None else tuple(args.peers)
    return ComparisonPlan(
        model=model,
        requests=make_workload(num_requests, max_output_tokens=output_tokens),
        concurrencies=tuple(args.concurrency),
        dtypes=tuple(args.dtypes),
        peers=peers,
        quantizations=tuple(args.quantization),
        num_threads=args.num_threads or len(os.sched_getaffinity(0)),
        limit_s=args.limit_s,
    )


def _table(comparison: Comparison, note: str) -> str:
    plan = comparison.plan
    rooflines = {
        (d, c): comparison.roofline_tokens_per_s(d, c) for d in comparison.machines for c in plan.concurrencies
    }
    return render(
        comparison.rows,
        rooflines,
        comparison.left_out,
        describe_machine(comparison.machines),
        num_requests=len(plan.requests),
        limit_s=plan.limit_s,
        note=note,
    )


def _write(target: Path, table: str) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = target.with_name(target.name + ".part")
    scratch.write_text(table, encoding="utf-8")
    scratch.replace(target)


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def _share(text: str) -> float:
    value = float(text)
    if not 0.0 <= value <= 1.0:
        raise argparse.ArgumentTypeError("must be from 0 to 1")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError("must be a number of seconds above 0")
    return value


def _say(line: str) -> None:
    minutes, seconds = divmod(int(time.monotonic() - STARTED_AT), 60)
    sys.stderr.write(f"{minutes:02}:{seconds:02} {line}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
