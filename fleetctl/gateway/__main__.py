"""`python -m fleetctl.gateway`: a gateway in the foreground until SIGTERM.

What `fleetctl gateway run` becomes: the supervisor, without the command line's libraries. Exit codes as in
`fleetctl.kit.errors`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from fleetctl.gateway.workers.launch import Launch
from fleetctl.gateway.workers.supervisor import Supervisor
from fleetctl.gateway.workers.taken_address import take_address
from fleetctl.kit.errors import FleetctlError
from fleetctl.kit.log import configure_logging
from fleetctl.settings.load import load_settings
from fleetctl.settings.tree import Settings

PRIVATE_UMASK = 0o077


def main(argv: Sequence[str]) -> int:
    """Run the gateway until SIGTERM. Returns the exit code."""
    args = _parser().parse_args(argv)
    os.umask(PRIVATE_UMASK)  # what workers write is the owner's alone
    try:
        flags = {"state_dir": args.state_dir, "controller": {"url": args.controller}, "log": {"level": args.log_level}}
        settings = load_settings(args.config, flags)
        if args.print_launch:
            sys.stdout.write(Launch.from_settings(settings).model_dump_json())
            return 0
        _run(settings, [sys.executable, "-m", "fleetctl.gateway", *argv, "--print-launch"])
    except FleetctlError as error:
        if error.message:
            sys.stderr.write(f"error: {error.message}\n" + (f"  try: {error.remedy}\n" if error.remedy else ""))
        return error.exit_code
    return 0


def _run(settings: Settings, reread: Sequence[str]) -> None:
    configure_logging(settings.log.level, settings.log.format)
    run_dir = settings.run_dir / "gateway"
    address = take_address(settings.gateway.host, settings.gateway.port, run_dir)
    asyncio.run(Supervisor(Launch.from_settings(settings), address, run_dir, reread).run_until_stopped())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m fleetctl.gateway", description="A gateway process.")
    parser.add_argument("--config", type=Path, help="settings file (YAML)")
    parser.add_argument("--state-dir", type=Path, help="where state and logs live")
    parser.add_argument("--controller", metavar="URL", help="where the controller is")
    parser.add_argument("--log-level", help="debug, info, warning or error")
    parser.add_argument("--print-launch", action="store_true", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
