"""`python -m fleetctl.bench.controller_side`: a whole controller, as `fleetctl up` starts one, over nodes that are
there already: those of one server by number, or whatever a file of targets lists.

Prints its URL once it answers. Everything else is seen from outside.
"""

from __future__ import annotations

import argparse
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path

from fleetctl.kit.hidden_imports import hidden_imports

with hidden_imports("rich", "pygments"):  # as the controller starts
    import uvloop

    from fleetctl.bench.workload import ENGINE_OF, NUM_KINDS
    from fleetctl.controller.app import serve
    from fleetctl.controller.config import ControllerConfig
    from fleetctl.kit.log import configure_logging
    from fleetctl.providers.provider import LogChunk, ObservedInstance, ProviderAct
    from fleetctl.providers.spec import NodeSpec
    from fleetctl.settings.tree import Settings


_TOKEN = secrets.token_hex(8)  # nothing is changed here


class ServedNodes:
    """A provider whose nodes all run, at paths of one server."""

    def __init__(self, port: int) -> None:
        self._port = port

    def why_not(self, act: ProviderAct, spec: NodeSpec) -> str:
        """All can be done."""
        return ""

    def list_instances(self) -> Sequence[ObservedInstance]:
        """None that nobody wants."""
        return ()

    def attach(self, spec: NodeSpec) -> ObservedInstance:
        """It runs."""
        return self.observe(spec.name)

    def forget(self, name: str) -> None:
        """Nothing is kept."""

    def ensure_started(self, spec: NodeSpec) -> None:
        """It runs."""

    def stop(self, name: str, grace_s: float) -> None:
        """Nothing is stopped here."""

    def observe(self, name: str) -> ObservedInstance:
        """It runs, where its number says."""
        number = name.removeprefix("node-")
        return ObservedInstance(name, True, f"instance-{number}", f"http://127.0.0.1:{self._port}/{number}")

    def read_logs(self, name: str, *, lines: int, after: str | None = None) -> LogChunk:
        """They write none."""
        return LogChunk((), "")


def spec_of(number: int) -> NodeSpec:
    """One node of the fleet: of eight pools and three zones."""
    return NodeSpec(
        name=f"node-{number}",
        pool=f"pool-{number % 8}",
        model="demo",
        zone=f"zone-{number % 3}",
        engine=ENGINE_OF[number % NUM_KINDS % len(ENGINE_OF)],
        revision="r1",
    )


def main(argv: Sequence[str]) -> int:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m fleetctl.bench.controller_side")
    parser.add_argument("--port", type=int, default=0, help="of the nodes' server")
    parser.add_argument("--nodes", type=int, default=0)
    parser.add_argument("--targets", type=Path, help="a file of targets, read anew when it changes")
    parser.add_argument("--state-dir", type=Path, required=True)
    parser.add_argument("--probe-interval", type=float, required=True)
    parser.add_argument("--scrape-interval", type=float, required=True)
    args = parser.parse_args(argv)
    configure_logging()
    limits = {"port": 0, "probe_interval_s": args.probe_interval, "scrape_interval_s": args.scrape_interval}
    files = [] if args.targets is None else [{"files": [str(args.targets)], "refresh_interval": "1s"}]
    fleet = {"nodes": 0, "targets": [{"name": "bench", "file_sd_configs": files}]} if files else {}
    settings = Settings(state_dir=args.state_dir, controller=limits, fleet=fleet)
    specs = tuple(spec_of(number) for number in range(args.nodes))
    config = ControllerConfig(settings, token=_TOKEN, node_token=_TOKEN, node_specs=specs, start_nodes=True)
    uvloop.run(serve(config, _tell, provider=None if files else ServedNodes(args.port)))
    return 0


def _tell(url: str) -> None:
    sys.stdout.write(f"{url}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
