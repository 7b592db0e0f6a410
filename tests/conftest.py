"""Shared by all tests: asyncio for async tests, one torch thread, small helpers to wait for conditions."""

from __future__ import annotations

import os

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before any torch import: two test workers share two cores


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
