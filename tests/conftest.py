"""Shared by all tests: asyncio for async tests, one torch thread, small helpers to wait for conditions."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before any torch import: two test workers share two cores
sys.path.insert(0, str(Path(__file__).parent))  # tests import fixtures_* modules by name


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
