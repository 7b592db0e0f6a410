"""`python -m fleetctl.controller`: the controller in the foreground until SIGTERM.

What `fleetctl up` and `fleetctl controller run` start: without the command line's libraries, which a process that runs
for months never uses. Exit codes as in `fleetctl.kit.errors`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from fleetctl.kit.errors import FleetctlError
from fleetctl.kit.hidden_imports import hidden_imports

PRIVATE_UMASK = 0o077


def main(argv: Sequence[str]) -> int:
    """Run the controller until SIGTERM. Returns the exit code."""
    args = _parser().parse_args(argv)
    os.umask(PRIVATE_UMASK)  # state, logs and incidents are the owner's alone; nodes that are started inherit it
    try:
        _run(args)
    except FleetctlError as error:
        sys.stderr.write(f"error: {error.message}\n" + (f"  try: {error.remedy}\n" if error.remedy else ""))
        return error.exit_code
    return 0


def _run(args: argparse.Namespace) -> None:
    with hidden_imports("rich", "pygments"):
        import uvloop

        from fleetctl.controller.app import serve
        from fleetctl.controller.config import controller_config
        from fleetctl.kit.log import configure_logging
        from fleetctl.settings.load import load_settings

    flags = {"state_dir": args.state_dir, "controller": {"url": args.controller}, "log": {"level": args.log_level}}
    settings = load_settings(args.config, flags)
    configure_logging(settings.log.level, settings.log.format)
    uvloop.run(serve(controller_config(settings, start_nodes=args.start_nodes)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m fleetctl.controller", description="The controller process.")
    parser.add_argument("--config", type=Path, help="settings file (YAML)")
    parser.add_argument("--state-dir", type=Path, help="where state, logs and incidents live")
    parser.add_argument("--controller", metavar="URL", help="where others reach this controller")
    parser.add_argument("--log-level", help="debug, info, warning or error")
    parser.add_argument(
        "--start-nodes",
        action="store_true",
        help="start the fleet of the settings where there is none, and nodes that should run and do not",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
