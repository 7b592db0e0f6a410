"""Log events of the core are captured: rendering a failed step's traceback takes longer than the step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import structlog


@pytest.fixture(autouse=True)
def log_events() -> Iterator[list[Any]]:
    """The events logged during one test, as dictionaries."""
    with structlog.testing.capture_logs() as events:
        yield events
