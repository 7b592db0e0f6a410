"""Kernels that were compiled ahead are those that a node needs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures.engine import tiny_model_dir

pytestmark = pytest.mark.e2e

# A model's first start, as far as its kernels go.
START = """
import sys
from numba.core.ccallback import CFunc
from engine.core.torch_runner import ModelRunner

before = CFunc._compile_uncached
def compile_uncached(self):
    print("compiled", self._pyfunc.__module__, self._pyfunc.__name__)
    return before(self)
CFunc._compile_uncached = compile_uncached
ModelRunner(sys.argv[1], num_blocks=64, block_size=16, dtype="float32", num_threads=2).warm_up()
"""


@pytest.mark.timeout(900)
def test_after_compile_a_first_start_compiles_nothing(tmp_path: Path) -> None:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "kernels")}
    command = (sys.executable, "-m", "engine", "compile", "--dtype", "float32", "--jobs", "2")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    folder = Path(done.stdout.rstrip("\n"))
    assert folder.parent == tmp_path / "kernels"
    started = subprocess.run(
        (sys.executable, "-c", START, str(tiny_model_dir())),
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "compiled" not in started.stdout
    again = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "norm" not in again.stderr, "nothing is left to do"
    assert not [path for path in folder.iterdir() if path.suffix == ".lock"]


def test_where_nothing_can_be_kept_compile_says_what_to_set() -> None:
    environment = {**os.environ, "NUMBA_CACHE_DIR": "/proc/nowhere"}
    done = subprocess.run(
        (sys.executable, "-m", "engine", "compile"), env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "NUMBA_CACHE_DIR" in done.stderr
