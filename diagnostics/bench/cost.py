"""What a verdict costs on a large fleet: one pool in memory, asked as the controller asks.

python -m diagnostics.bench.cost --nodes 1000            CPU seconds per verdict
python -m diagnostics.bench.cost --nodes 300 --profile   and where they go
"""

from __future__ import annotations

import argparse
import cProfile
import platform
import pstats
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from alerts.evaluation.builtin import builtin_rule_files, builtin_signal_files
from alerts.evaluation.rules import load_rule_files
from diagnostics.bench.case import HERE, Case, load_case
from diagnostics.bench.engine_under_test import Under
from diagnostics.bench.recording import ONSET, record
from diagnostics.diagnosis import Diagnosis
from diagnostics.evidence.calm import look_around
from diagnostics.evidence.judge import diagnose
from diagnostics.retrospect import Retrospect

BEFORE_S = 2400.0  # 40 minutes: as much as a controller keeps of a fleet of this size
AFTER_S = 300.0
STEP_S = 15.0
ACTIVE_S = 20.0  # the alert of the case begins so long after the onset


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a line for each kind of question."""
    parser = argparse.ArgumentParser(prog="python -m diagnostics.bench.cost", description="CPU of a verdict")
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--case", default="overload-own", help="what happens to the pool: a case of the benchmark")
    parser.add_argument("--profile", action="store_true", help="print where the CPU of the calm pool's verdict goes")
    options = parser.parse_args(arguments)
    case = enlarged(load_case(HERE / "cases" / f"{options.case}.yaml"), options.nodes)
    recorded = record(case)
    under = Under()
    groups = load_rule_files([*builtin_signal_files(), *builtin_rule_files()])
    store, now = recorded.store, ONSET + AFTER_S - 10
    Retrospect(store, groups, recorded.nodes, ONSET - BEFORE_S, ONSET + AFTER_S, kinds=under.kinds, step_s=STEP_S)
    sys.stdout.write(f"{options.nodes} nodes, {store.num_series:,} series, {_processor()}\n")
    trees = [under.trees["capacity"], under.trees["latency"]]
    pool = {"pool": case.nodes[0].pool, "model": case.nodes[0].model}
    node = {**pool, "node": case.nodes[6].name}

    def asked(scope: Mapping[str, str]) -> Diagnosis:
        return diagnose(under.knowledge, trees, scope, store, now, ONSET + ACTIVE_S)

    _print("of the pool, the first", lambda: asked(pool))
    _print("of the pool", lambda: asked(pool))
    _print("of a node", lambda: asked(node))
    _print("of the fleet", lambda: asked({}))

    def calm() -> Diagnosis:
        return look_around(under.knowledge, under.trees, pool, store, now)

    _print("of the pool, where no alert fires", calm)
    if options.profile:
        profile = cProfile.Profile()
        profile.runcall(calm)
        pstats.Stats(profile).sort_stats("tottime").print_stats(30)
    return 0


def enlarged(case: Case, nodes: int) -> Case:
    """The same case on so many nodes, each with the same load."""
    grown = tuple(case.nodes[0].model_copy(update={"name": f"node-{index}"}) for index in range(1, nodes + 1))
    return case.model_copy(update={"nodes": grown, "before": BEFORE_S, "after": AFTER_S, "step_s": STEP_S})


def _print(what: str, ask: Callable[[], Diagnosis]) -> None:
    began = time.process_time()
    found = ask()
    took_s = time.process_time() - began
    sys.stdout.write(f"{took_s:6.2f} s  {what}: {found.cause or found.title} ({found.confidence})\n")
    sys.stdout.flush()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.processor())


if __name__ == "__main__":
    sys.exit(main())
