"""`python -m fleetctl.bench`: what signals cost, ours beside a real Prometheus on the same nodes with the same rules.

Prints a Markdown table; the same and the figures as JSON are in files. Exit codes: 0 done, 1 a process failed,
2 bad arguments, 130 and 143 interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from fleetctl.bench.contest import BenchPlan, BenchRow, run
from fleetctl.bench.measured import BenchError
from fleetctl.bench.report import describe_machine, render

_WARM_S = 55.0  # rules of one minute have mostly been evaluated twice by then


def main(argv: Sequence[str]) -> int:
    """Run the contest that the arguments describe, and write the table."""
    args = _parser().parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the processes are stopped on the way out
    prometheus = args.prometheus or shutil.which("prometheus") or "/usr/bin/prometheus"
    if not Path(prometheus).exists():
        sys.stderr.write(f"error: no Prometheus at {prometheus}: apt-get install prometheus, or --prometheus PATH\n")
        return 2
    plan = BenchPlan(tuple(args.nodes), args.warm, args.measure, args.full, prometheus, args.rules_every)
    target = Path(args.output or Path(os.environ.get("FLEETCTL_STATE_DIR") or ".fleetctl") / "bench" / "signals.md")
    target.parent.mkdir(parents=True, exist_ok=True)
    rows: list[BenchRow] = []
    code, note = 0, ""
    try:
        for row in run(plan, _say):
            rows.append(row)
            _write(target, plan, rows, "This run is not finished.")
    except BenchError as error:
        code, note = 1, f"A process failed: {error}"
    except (KeyboardInterrupt, SystemExit) as stop:
        code = stop.code if isinstance(stop, SystemExit) and isinstance(stop.code, int) else 130
        note = "This run was interrupted."
    sys.stdout.write(_write(target, plan, rows, note))
    _say(f"written to {target} and {target.with_suffix('.json')}")
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m fleetctl.bench", description=__doc__)
    parser.add_argument("--nodes", type=_sizes, default=(100, 1000, 5000), help="sizes, e.g. 100,1000")
    parser.add_argument("--warm", type=_seconds, default=_WARM_S, help="seconds before measuring, at least")
    parser.add_argument("--measure", type=_seconds, default=30.0, help="seconds measured, at least")
    parser.add_argument(
        "--rules-every", type=_interval, help="shortest interval of rules; default: 5 s, beyond 2000 nodes 30 s"
    )
    parser.add_argument("--full", action="store_true", help="whole expositions (330 to 395 samples), not about 130")
    parser.add_argument("--prometheus", help="its program; default: the one in PATH")
    parser.add_argument("--output", help="the Markdown file; JSON goes beside it")
    return parser


def _sizes(text: str) -> tuple[int, ...]:
    sizes = tuple(int(part) for part in text.split(","))
    if not all(0 < size <= 20_000 for size in sizes):
        raise argparse.ArgumentTypeError("sizes are 1 to 20000")
    return sizes


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 10 <= seconds <= 3600:
        raise argparse.ArgumentTypeError("10 to 3600 seconds")
    return seconds


def _interval(text: str) -> float:
    seconds = float(text)
    if not 5 <= seconds <= 300 or seconds % 5:
        raise argparse.ArgumentTypeError("5 to 300 seconds, in fives")
    return seconds


def _write(target: Path, plan: BenchPlan, rows: Sequence[BenchRow], note: str) -> str:
    table = render(plan, rows, note)
    target.write_text(table)
    figures = {"machine": describe_machine(), "rows": [row.to_json() for row in rows], "note": note}
    target.with_suffix(".json").write_text(json.dumps(figures, indent=1) + "\n")
    return table


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
