"""`python -m fleetctl.gateway_soak`: users on a fleet of real processes that are killed, stopped, drained and slowed.

With `--drains N`: so many drains, and whether their receipts add up. With `--storm`: what short prompts wait while long
ones storm in. Exit codes: 0 nothing lost, changed or without an end, 1 something was (the report says what), 2 bad
arguments, 130 and 143 interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from fleetctl import bundled
from fleetctl.gateway_soak.soak import PAUSE_S, SoakPlan, run_soak
from fleetctl.gateway_soak.storm import StormPlan, run_storm
from fleetctl.kit.errors import FleetctlError
from fleetctl.kit.log import configure_logging
from fleetctl.load.client import CalibrationError
from fleetctl.settings.load import load_settings, with_flags
from fleetctl.settings.tree import Settings
from fleetctl.stack import prepare_model

SOAK_MINUTES = 10.0
STORM_MINUTES = 1.5  # of a phase
DRAIN_PAUSE_S = 0.2
SOAK_NODES = 4
STORM_NODES = 3


def main(argv: Sequence[str]) -> int:
    """Soak or storm as the arguments say; returns the exit code."""
    args = _parser().parse_args(argv)
    bundled.pass_to_children()
    configure_logging("error")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the fleet is stopped on the way out
    try:
        settings = load_settings(flags={"state_dir": args.state_dir} if args.state_dir else None)
        settings = with_flags(settings, fleet={"model_dir": prepare_model(settings, lambda _: None)})
        return _storm(settings, args) if args.storm else _soak(settings, args)
    except FleetctlError as error:
        sys.stderr.write(f"error: {error}\n" + (f"  try: {error.remedy}\n" if error.remedy else ""))
        return error.exit_code
    except CalibrationError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 130


def _soak(settings: Settings, args: argparse.Namespace) -> int:
    minutes = args.minutes if args.minutes is not None else 0.0 if args.drains else SOAK_MINUTES
    plan = SoakPlan(
        seconds=60 * minutes,
        num_nodes=args.nodes or SOAK_NODES,
        num_gateways=args.gateways,
        min_disturbances=args.min_disturbances,
        num_drains=args.drains,
        pause_s=DRAIN_PAUSE_S if args.drains else PAUSE_S,
        at_once=args.at_once,
        runner=args.runner,
        seed=args.seed,
    )
    result = asyncio.run(run_soak(settings, plan, _tell))
    sys.stdout.write(json.dumps(result.to_json(), indent=2) + "\n")
    return 0 if result.is_right else 1


def _storm(settings: Settings, args: argparse.Namespace) -> int:
    plan = StormPlan(
        seconds=60 * (STORM_MINUTES if args.minutes is None else args.minutes),
        num_nodes=args.nodes or STORM_NODES,
        runner=args.runner,
        seed=args.seed,
    )
    result = asyncio.run(run_storm(settings, plan, _tell))
    sys.stdout.write(json.dumps(result.to_json(), indent=2) + "\n" if args.output == "json" else result.table())
    return 0 if result.is_served else 1


def _tell(news: str) -> None:
    sys.stderr.write(f"{news}\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m fleetctl.gateway_soak", description=__doc__)
    parser.add_argument(
        "--minutes",
        type=float,
        metavar="N",
        help="default: 10; of a storm's phase 1.5; of drains, as long as they take",
    )
    parser.add_argument("--nodes", type=int, help="default: 4; of a storm 3")
    parser.add_argument("--runner", default="torch", choices=("fake", "torch"), help="of the nodes (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of requests and disturbances (%(default)s)")
    parser.add_argument("--state-dir", type=Path, help="default: that of fleetctl's settings")
    soak = parser.add_argument_group("soak")
    soak.add_argument("--gateways", type=int, default=1, choices=(1, 2), help="two: one is killed at times")
    soak.add_argument("--at-once", type=int, default=24, help="requests in flight (%(default)s)")
    soak.add_argument(
        "--min-disturbances", type=int, default=0, metavar="N", help="go on until there were so many (%(default)s)"
    )
    soak.add_argument(
        "--drains",
        type=int,
        default=0,
        metavar="N",
        help="N drains, with kills in the middle of some, and nothing else",
    )
    storm = parser.add_argument_group("storm")
    storm.add_argument("--storm", action="store_true", help="long prompts, instead of a soak")
    storm.add_argument("-o", "--output", default="table", choices=("table", "json"), help="of a storm (%(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
