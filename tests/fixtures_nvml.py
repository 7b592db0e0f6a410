"""A driver library that tests make and steer: the real binding loads it as `libnvidia-ml.so.1`."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent / "fake_nvml" / "nvml.c"
HEALTHY = {
    "field.82": 70,
    "field.29": 0,
    "field.30": 0,
    "field.31": 0,
    "field.230": 0,
}  # memory temperature, retired pages, recovery action


class FakeNvml:
    """The library in a folder of its own, and the control file that says what it answers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.control = folder / "control"
        self.set(**{})

    def set(self, **changes: int) -> None:
        """The healthy answers with these changes; dots in keys are written as two underscores."""
        answers = HEALTHY | {key.replace("__", "."): value for key, value in changes.items()}
        draft = self.control.with_suffix(".tmp")
        draft.write_text("".join(f"{key} {value}\n" for key, value in answers.items()))
        draft.replace(self.control)

    def use(self, patch: pytest.MonkeyPatch) -> None:
        """Processes started from now on find this library."""
        patch.setenv("LD_LIBRARY_PATH", str(self.folder))
        patch.setenv("FAKE_NVML_CONTROL", str(self.control))
        patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def build_fake_nvml(folder: Path) -> FakeNvml:
    """Compiles the library; skips the test where there is no C compiler, and fails in CI."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        message = "no C compiler: apt-get install gcc"
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
    target = folder / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", str(target), str(SOURCE)], check=True, timeout=60)
    return FakeNvml(folder)
