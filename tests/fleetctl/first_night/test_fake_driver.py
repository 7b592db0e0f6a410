"""Nodes of one machine see a card each: the driver library answers by the node's name."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fleetctl.first_night.fake_driver import FakeDriver

READ = (
    "import pynvml; pynvml.nvmlInit();"
    "print(pynvml.nvmlDeviceGetTemperature(pynvml.nvmlDeviceGetHandleByIndex(0), pynvml.NVML_TEMPERATURE_GPU))"
)

pytestmark = pytest.mark.skipif(not (shutil.which("gcc") or shutil.which("cc")), reason="no C compiler")


def read_by(node: str) -> int:
    command = [sys.executable, "-c", READ, "--node-name", node]
    return int(subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout)


def test_each_node_reads_its_own_card_and_others_a_healthy_one(tmp_path: Path) -> None:
    driver = FakeDriver(tmp_path / "driver")
    driver.answer("node-2", {"temperature": 93})
    with driver.installed():
        assert (read_by("node-2"), read_by("node-1")) == (93, 61)
        driver.answer("node-2", {})
        assert read_by("node-2") == 61
    assert str(tmp_path) not in os.environ.get("LD_LIBRARY_PATH", "")
