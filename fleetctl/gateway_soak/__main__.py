"""`python -m fleetctl.gateway_soak`: users on a fleet of real processes that are killed, stopped, drained and slowed.

Exit codes: 0 nothing lost, changed or without an end; 1 something was (the report says what); 2 bad arguments.
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
from fleetctl.gateway_soak.soak import SoakPlan, run_soak
from fleetctl.kit.errors import FleetctlError
from fleetctl.kit.log import configure_logging
from fleetctl.settings.load import load_settings, with_flags
from fleetctl.stack import prepare_model


def main(argv: Sequence[str]) -> int:
    """Soak as the arguments say; returns the exit code."""
    args = _parser().parse_args(argv)
    bundled.pass_to_children()
    configure_logging("error")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the fleet is stopped on the way out
    plan = SoakPlan(
        seconds=args.minutes * 60,
        num_nodes=args.nodes,
        num_gateways=args.gateways,
        at_once=args.at_once,
        runner=args.runner,
        seed=args.seed,
    )
    try:
        settings = load_settings(flags={"state_dir": args.state_dir} if args.state_dir else None)
        settings = with_flags(settings, fleet={"model_dir": prepare_model(settings, lambda _: None)})
        result = asyncio.run(run_soak(settings, plan, lambda news: sys.stderr.write(f"{news}\n")))
    except FleetctlError as error:
        sys.stderr.write(f"error: {error}\n" + (f"  try: {error.remedy}\n" if error.remedy else ""))
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    sys.stdout.write(json.dumps(result.to_json(), indent=2) + "\n")
    return 0 if result.is_right else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m fleetctl.gateway_soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, metavar="N", help="%(default)s")
    parser.add_argument("--nodes", type=int, default=4, help="%(default)s")
    parser.add_argument("--gateways", type=int, default=1, choices=(1, 2), help="two: one is killed at times")
    parser.add_argument("--at-once", type=int, default=24, help="requests in flight (%(default)s)")
    parser.add_argument("--runner", default="fake", choices=("fake", "torch"), help="of the nodes (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of requests and disturbances (%(default)s)")
    parser.add_argument("--state-dir", type=Path, help="default: that of fleetctl's settings")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
