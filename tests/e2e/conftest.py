from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small real model directory."""
    directory = tmp_path_factory.mktemp("models") / "small"
    subprocess.run([sys.executable, "-m", "engine", "make-model", str(directory)], check=True, capture_output=True)
    return directory
