"""A driver library that answers as a fault says: nodes that are started beside it see a GPU each."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from fleetctl import bundled
from fleetctl.kit.errors import FleetctlError
from fleetctl.kit.whole_file import write_whole

SOURCE = Path("tests/fixtures/fake_nvml/nvml.c")  # of a checkout
LIBRARY, CONTROL = "libnvidia-ml.so.1", "control"
# Memory temperature, retired pages, recovery action.
HEALTHY = {"field.82": 70, "field.29": 0, "field.30": 0, "field.31": 0, "field.230": 0}
FOLDER_VARIABLE, CONTROL_VARIABLE, VISIBLE_VARIABLE = "LD_LIBRARY_PATH", "FAKE_NVML_CONTROL", "CUDA_VISIBLE_DEVICES"


class FakeDriver:
    """The library in a folder of its own, and the files that say what it answers to whom."""

    def __init__(self, folder: Path) -> None:
        """Compiles it. Raises FleetctlError where that can't be done."""
        source, compiler = bundled.FOLDER / SOURCE, shutil.which("gcc") or shutil.which("cc")
        if compiler is None or not source.exists():
            raise FleetctlError(f"{source}: no fake GPU driver", remedy="run it in a checkout, with a C compiler")
        folder.mkdir(parents=True, exist_ok=True)
        command = [compiler, "-O1", "-shared", "-fPIC", "-o", str(folder / LIBRARY), str(source)]
        subprocess.run(command, check=True, timeout=60)
        self._folder = folder
        self.answer("", {})

    def answer(self, node: str, changes: Mapping[str, int]) -> None:
        """From now on the node reads a healthy card with these changes; "" is every other node.

        Dots in keys are written as two underscores.
        """
        answers = HEALTHY | {key.replace("__", "."): value for key, value in changes.items()}
        path = self._folder / (f"{CONTROL}.{node}" if node else CONTROL)
        write_whole(path, "".join(f"{key} {value}\n" for key, value in answers.items()))

    @property
    def environment(self) -> dict[str, str]:
        """What a process is started with to find the library; `VISIBLE_VARIABLE` must not be set beside it."""
        return {FOLDER_VARIABLE: str(self._folder), CONTROL_VARIABLE: str(self._folder / CONTROL)}

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Processes that are started meanwhile, and theirs, find the library."""
        names = (FOLDER_VARIABLE, CONTROL_VARIABLE, VISIBLE_VARIABLE)
        before = {name: os.environ.get(name) for name in names}
        os.environ |= self.environment
        os.environ.pop(VISIBLE_VARIABLE, None)
        try:
            yield
        finally:
            for name, value in before.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value
