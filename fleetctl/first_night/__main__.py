"""`python -m fleetctl.first_night`: faults on a real fleet of three under traffic, and whether the night went well.

With `--long-night`: fault after fault on one fleet.

Exit codes: 0 every row is right, 1 something is not (the table says what), 2 bad arguments, 130 and 143 interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fleetctl import bundled  # first: the fleet's processes are started from where this one lies
from fleetctl.first_night.catalogue import FAULTS
from fleetctl.first_night.drill import DrillPlan, run_fault
from fleetctl.first_night.fault import Fault
from fleetctl.first_night.long_night import FOLDER as LONG_NIGHT
from fleetctl.first_night.long_night import SCENES, run_long_night, story
from fleetctl.first_night.outcome import Outcome
from fleetctl.first_night.progress import Step, progress_reporter
from fleetctl.first_night.report import Row, load_results, machine, page, table
from fleetctl.first_night.standing_page import read_page
from fleetctl.first_night.traffic import FateCounts
from fleetctl.kit.errors import BadInputError, FleetctlError
from fleetctl.kit.log import configure_logging
from fleetctl.load.client import CalibrationError
from fleetctl.settings.load import load_settings, with_flags
from fleetctl.settings.tree import Settings
from fleetctl.stack import prepare_model

FOLDER = "first-night"


def main(argv: Sequence[str]) -> int:
    """Pass through the night as the arguments say; returns the exit code."""
    args = _parser().parse_args(argv)
    if args.list:
        sys.stdout.write("".join(f"{fault.name:<20} {fault.title}\n" for fault in FAULTS))
        return 0
    bundled.pass_to_children()
    configure_logging("error")  # what becomes of each request is the report's
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the fleet is stopped on the way out
    try:
        settings = load_settings(flags={"state_dir": args.state_dir} if args.state_dir else None)
        if args.long_night:
            return _long_night(settings, args)
        hold_s = args.hold * 60.0 if args.hold is not None else None
        plan = DrillPlan(args.rate, args.seed, args.runner, args.quick, hold_s)
        folder = settings.state_dir / FOLDER
        results = folder / ("results" if args.hold is None else "held")
        if not args.write_only:
            faults = _chosen(args.fault)
            rows = _run(settings, faults, plan, results)
        else:
            rows = load_results(results)
        if args.write:
            written = Path(args.write)
            standing = read_page(written.read_text(encoding="utf-8") if written.exists() else "")
            written.write_text(
                page(load_results(folder / "results"), standing, load_results(folder / "held")), encoding="utf-8"
            )
    except FleetctlError as error:
        sys.stderr.write(f"error: {error}\n" + (f"  try: {error.remedy}\n" if error.remedy else ""))
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    sys.stdout.write(json.dumps(rows, indent=2) + "\n" if args.output == "json" else table(rows))
    return 0 if all(row["right"] for row in rows) else 1


def _long_night(settings: Settings, args: argparse.Namespace) -> int:
    scenes = [scene for scene in SCENES if scene.name in args.scene or not args.scene]
    with progress_reporter(len(scenes)) as report:
        report(scenes[0].name, 0, "the model")
        settings = with_flags(settings, fleet={"model_dir": prepare_model(settings, lambda _: None)})
        reports = run_long_night(settings, scenes, runner=args.runner, rate_per_s=args.rate, report=report)
    sys.stdout.write(story(reports))
    sys.stderr.write(f"post-mortems: {settings.state_dir / LONG_NIGHT}/incidents\n")
    return 1 if any(one.wrong for one in reports) else 0


def _run(settings: Settings, faults: Sequence[Fault], plan: DrillPlan, results: Path) -> list[Row]:
    rows: list[Row] = []
    with progress_reporter(len(faults)) as report:
        report(faults[0].name, 0, "the model")
        settings = with_flags(settings, fleet={"model_dir": prepare_model(settings, lambda _: None)})
        for done, fault in enumerate(faults):
            outcome = replace(_outcome(settings, fault, plan, done, report), machine=machine())
            row = json.loads(json.dumps(outcome.to_json()))
            results.mkdir(parents=True, exist_ok=True)
            (results / f"{fault.name}.json").write_text(json.dumps(row, indent=1) + "\n", encoding="utf-8")
            rows.append(row)
    return rows


def _outcome(settings: Settings, fault: Fault, plan: DrillPlan, done: int, report: Step) -> Outcome:
    """The fault's outcome; what broke the harness is an outcome too, so that the night goes on."""
    began = time.time()
    try:
        return asyncio.run(run_fault(settings, fault, plan, lambda news: report(fault.name, done, news)))
    except* (FleetctlError, CalibrationError, OSError) as group:
        errors = "; ".join(str(error) or type(error).__name__ for error in group.exceptions)
    return Outcome(fault.name, fault.title, began, (), (), FateCounts(), "person", None, -1, problems=(errors,))


def _chosen(names: Sequence[str]) -> Sequence[Fault]:
    by_name = {fault.name: fault for fault in FAULTS}
    if unknown := [name for name in names if name not in by_name]:
        raise BadInputError(f"{', '.join(unknown)}: no such fault", remedy="make first-night FIRST_NIGHT_ARGS=--list")
    return [by_name[name] for name in names] or FAULTS


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m fleetctl.first_night", description=__doc__)
    parser.add_argument("--fault", action="append", default=[], metavar="NAME", help="only this one; may be repeated")
    parser.add_argument("--list", action="store_true", help="the faults, and nothing else")
    names = [scene.name for scene in SCENES]
    parser.add_argument("--long-night", action="store_true", help="fault after fault on one fleet, for half an hour")
    parser.add_argument("--scene", action="append", default=[], choices=names, help="of the long night, only this one")
    parser.add_argument("--quick", action="store_true", help="shorter windows of the slow alerts, shorter baselines")
    parser.add_argument(
        "--hold",
        type=_minutes,
        metavar="MIN",
        help="nobody approves or ends anything for so long, and all are asked again",
    )
    parser.add_argument("--rate", type=_rate, default=2.0, help="requests a second (%(default)s)")
    parser.add_argument("--runner", default="torch", choices=("torch", "fake"), help="of the nodes (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the traffic (%(default)s)")
    parser.add_argument("-o", "--output", default="table", choices=("table", "json"), help="%(default)s")
    parser.add_argument("--write", metavar="FILE", help="write the page from the last result of every fault")
    parser.add_argument("--write-only", action="store_true", help="run nothing: show the last results")
    parser.add_argument("--state-dir", type=Path, help="default: that of fleetctl's settings")
    return parser


def _minutes(text: str) -> float:
    minutes = float(text)
    if not 1 <= minutes <= 120:
        raise argparse.ArgumentTypeError("1 to 120 minutes")
    return minutes


def _rate(text: str) -> float:
    rate = float(text)
    if not 0.5 <= rate <= 50:
        raise argparse.ArgumentTypeError("0.5 to 50 requests a second")
    return rate


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
