"""`python -m engine.bench`: our node and its peers on one machine, in one run, beside what the machine could do.

Prints a Markdown table; `--output` writes it to a file as well. Exit codes: 0 done, 1 our own node failed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

from engine.bench.drive import AnswerError, drive
from engine.bench.floor import Machine, floor_tokens_per_s, measure_machine
from engine.bench.gguf_file import write_gguf
from engine.bench.model import bench_model
from engine.bench.report import Row, describe_machine, render
from engine.bench.servers import MODEL_NAME, Server, ServerError, llama_server, our_node, running, vllm_server
from engine.bench.transformers_peer import METHODS, missing, run_transformers
from engine.bench.workload import BenchRequest, make_workload
from engine.cpu_threads import spin_little
from engine.model_dir import open_model

DTYPES = ("bfloat16", "float32")
CONCURRENCIES = (1, 8, 32)
PEERS = ("vllm", "llama.cpp", "transformers")


def main(argv: Sequence[str]) -> int:
    args = _parser().parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers are stopped on the way out
    state = Path(os.environ.get("FLEETCTL_STATE_DIR") or ".fleetctl")
    model = bench_model(Path(args.cache or state / "cache" / "bench"))
    spin_little()
    threads = args.num_threads or len(os.sched_getaffinity(0))
    rows: list[Row] = []
    skipped: list[str] = []
    machines: dict[str, Machine] = {}
    try:
        for dtype in args.dtypes:
            machines[dtype] = _machine(dtype, threads)
            # One concurrency after the other, so that engines are measured side by side on a machine with neighbours.
            for concurrency in args.concurrency:
                for row in _engines(args, model, dtype, threads, concurrency, skipped):
                    speed = f"{row.figures.output_tokens_per_s:.1f} tokens/s"
                    _say(f"  {row.engine} {row.dtype} x{row.concurrency}: {speed}")
                    rows.append(row)
    except (AnswerError, ServerError) as error:
        _say(f"error: {error}")
        return 1
    floors = {
        (dtype, c): floor_tokens_per_s(open_model(model).config, dtype, _requests(args, c), c, machine)
        for dtype, machine in machines.items()
        for c in args.concurrency
    }
    table = render(rows, floors, skipped, describe_machine(machines), num_requests=args.requests)
    sys.stdout.write(table)
    if args.output:
        Path(args.output).write_text(table, encoding="utf-8")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m engine.bench", description="Compare engines on this machine.")
    parser.add_argument("--quick", action="store_true", help="8 requests of at most 48 output tokens, ours alone")
    parser.add_argument("--requests", type=int, default=64, metavar="N")
    parser.add_argument("--concurrency", type=int, nargs="+", default=list(CONCURRENCIES), metavar="N")
    parser.add_argument("--dtypes", nargs="+", default=list(DTYPES), choices=DTYPES)
    parser.add_argument("--peers", nargs="*", default=None, choices=PEERS, help="default: all that are installed")
    parser.add_argument("--num-threads", type=int, metavar="N", help="of every engine; default: all CPUs")
    parser.add_argument("--max-output-tokens", type=int, default=256, metavar="N")
    parser.add_argument("--cache", metavar="DIR", help="where the model is kept; default: under FLEETCTL_STATE_DIR")
    parser.add_argument("--output", metavar="FILE", help="write the table here as well")
    return parser


def _requests(args: argparse.Namespace, concurrency: int) -> tuple[BenchRequest, ...]:
    if args.quick:
        return make_workload(max(8, min(concurrency, args.requests)), max_output_tokens=min(48, args.max_output_tokens))
    return make_workload(args.requests, max_output_tokens=args.max_output_tokens)


def _machine(dtype: str, threads: int) -> Machine:
    machine = measure_machine(dtype, threads)
    _say(
        f"{dtype}: reads {machine.read_bytes_per_s / 1e9:.1f} GB/s, multiplies {machine.gemm_flops_per_s / 1e9:.0f} "
        f"GFLOP/s with {threads} threads"
    )
    return machine


def _engines(
    args: argparse.Namespace, model: Path, dtype: str, threads: int, concurrency: int, skipped: list[str]
) -> Iterator[Row]:
    peers = (() if args.quick else PEERS) if args.peers is None else args.peers
    yield _over_http(args, our_node(model, dtype, threads, version("llm-fleetctl")), dtype, concurrency)
    for name in ("vllm", "llama.cpp"):
        if name not in peers:
            continue
        server = vllm_server(model, dtype) if name == "vllm" else _llama(model, dtype, threads)
        if isinstance(server, str):
            _skip(skipped, server)
            continue
        try:
            yield _over_http(args, server, dtype, concurrency)
        except (AnswerError, ServerError) as error:
            _skip(skipped, f"{name} {dtype}: {str(error).splitlines()[0][:200]}")
    if "transformers" in peers:
        yield from _transformers(args, model, dtype, threads, concurrency, skipped)


def _over_http(args: argparse.Namespace, server: Server, dtype: str, concurrency: int) -> Row:
    # A fresh process each: what one run leaves in a prefix cache must not help the next.
    with running(server) as url:
        asyncio.run(drive(url, MODEL_NAME, make_workload(2, max_output_tokens=8, seed=1), 2))  # first-request costs
        figures = asyncio.run(drive(url, MODEL_NAME, _requests(args, concurrency), concurrency))
    return Row(server.name, server.version, dtype, concurrency, figures)


def _llama(model: Path, dtype: str, threads: int) -> Server | str:
    gguf = model / f"{dtype}.gguf"
    server = llama_server(gguf, threads)
    return server if isinstance(server, str) else write_gguf(model, gguf, dtype) or server


def _transformers(
    args: argparse.Namespace, model: Path, dtype: str, threads: int, concurrency: int, skipped: list[str]
) -> Iterator[Row]:
    if (why := missing()) is not None:
        _skip(skipped, why)
        return
    for method in METHODS:
        try:
            figures = run_transformers(model, dtype, method, _requests(args, concurrency), concurrency, threads)
        except Exception as error:  # noqa: BLE001 - a peer that fails is a line in the report
            _skip(skipped, f"transformers {method} {dtype} x{concurrency}: {type(error).__name__}: {error}"[:200])
            continue
        yield Row(f"transformers {method}", version("transformers"), dtype, concurrency, figures)


def _skip(skipped: list[str], why: str) -> None:
    if why not in skipped:
        skipped.append(why)
        _say(f"  left out: {why}")


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
