"""A whole fleet of real processes for end-to-end tests, in a state folder of its own, stopped at the end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleetctl.providers.local import free_port
from fleetctl.providers.process import ProcessTable


@dataclass(slots=True)
class Fleet:
    """`fleetctl` against one state folder."""

    state_dir: Path
    env: dict[str, str]

    @property
    def processes(self) -> ProcessTable:
        return ProcessTable(self.state_dir / "run")

    def fleetctl(self, *words: str, timeout_s: float = 170.0) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*words), check=False, capture_output=True, text=True, env=self.env, timeout=timeout_s
        )

    def json(self, *words: str) -> Any:
        done = self.fleetctl(*words, "-o", "json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def command(self, *words: str) -> Sequence[str]:
        return [sys.executable, "-m", "fleetctl.cli", "--state-dir", str(self.state_dir), *words]


@contextmanager
def fleet(state_dir: Path, model_dir: Path, **settings: str) -> Iterator[Fleet]:
    env = {key: value for key, value in os.environ.items() if not key.startswith("FLEETCTL_")}
    env |= {
        "FLEETCTL_CONTROLLER__PORT": str(free_port()),
        "FLEETCTL_GATEWAY__PORT": str(free_port()),
        "FLEETCTL_FLEET__MODEL_DIR": str(model_dir),
        **{f"FLEETCTL_{key.upper()}": value for key, value in settings.items()},
    }
    made = Fleet(state_dir, env)
    try:
        yield made
    finally:
        done = made.fleetctl("down")
        left = made.processes.running()
        assert not left, f"down left {left}: {done.stderr}"


def wait_until(condition: Callable[[], bool], timeout_s: float = 90.0) -> None:
    """Return once the condition holds; an AssertionError when it does not in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "condition not met in time"
        time.sleep(0.02)
