"""`python -m engine.soak`: mixed traffic and disturbances against a real node, which must be left as it was.

Exit codes: 0 nothing leaked and every request has one end, 1 something did or has not (the report says what),
2 bad arguments, 130 and 143 interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from engine.model.make import make_model
from engine.soak.node_process import ALL_ON, NodeError, NodeProcess
from engine.soak.report import progress_reporter, render, report_of
from engine.soak.soak import Soak, SoakPlan, SoakResult

SHORTEST_ROUND_S = 4.0
LONGEST_ROUND_S = 30.0
# With everything on: proposals that counted, and KV that went to host memory and came back.
USED = ("vllm:spec_decode_num_accepted_tokens_total", "engine_swapped_blocks_total")


def main(argv: Sequence[str]) -> int:
    """Soak one node as the arguments say; returns the exit code."""
    args = _parser().parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the node is stopped on the way out
    seconds = args.minutes * 60
    plan = SoakPlan(seconds, min(LONGEST_ROUND_S, max(SHORTEST_ROUND_S, seconds / 10)), args.seed)
    with tempfile.TemporaryDirectory(prefix="engine-soak-") as scratch:
        directory = Path(scratch)
        model = Path(args.model) if args.model else make_model(directory / "model")
        try:
            runner, options = ("torch", ALL_ON) if args.all_on else (args.runner, ())
            with NodeProcess(model, directory, runner, options) as node, progress_reporter() as report_progress:
                node.wait_ready()
                soak = Soak(node, plan, report_progress, USED if args.all_on else ())
                result = asyncio.run(soak.run_soak())
        except NodeError as error:
            result, soak = SoakResult(problems=[str(error)]), None
        except KeyboardInterrupt:
            return 130
        if args.keep_log:
            Path(args.keep_log).write_bytes((directory / "node.log").read_bytes())
    report = report_of(result, None if soak is None else soak.accounting, plan)
    sys.stdout.write(json.dumps(report, indent=2) + "\n" if args.output == "json" else render(report))
    return 1 if result.problems else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m engine.soak", description=__doc__)
    parser.add_argument("--minutes", type=_minutes, default=30.0, metavar="N", help="%(default)s")
    parser.add_argument("--seed", type=int, default=0, help="of requests and disturbances (%(default)s)")
    parser.add_argument("--runner", default="fake", choices=("fake", "torch"), help="%(default)s")
    parser.add_argument(
        "--all-on",
        action="store_true",
        help="the torch runner with tokens ahead, weights and KV in eight bits, and swap space, all at once",
    )
    parser.add_argument("--model", metavar="DIR", help="default: a small one is made")
    parser.add_argument("-o", "--output", default="text", choices=("text", "json"), help="of the report (%(default)s)")
    parser.add_argument("--keep-log", metavar="FILE", help="where the node's log is left")
    return parser


def _minutes(text: str) -> float:
    value = float(text)
    if not (math.isfinite(value) and 0 < value <= 10_000):
        raise argparse.ArgumentTypeError("must be a number of minutes above 0")
    return value


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
