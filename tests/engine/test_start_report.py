"""What a person at a terminal sees of a start, and what a pipe gets."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from engine.config import NodeConfig
from engine.protocol.messages import CoreReady
from engine.start_report import start_lines, what_limits
from tests.fixtures.engine import tiny_model_dir


def config_of(**changes: object) -> NodeConfig:
    return NodeConfig(Path("m"), ("tiny",), "n1", **changes)  # type: ignore[arg-type]


def ready_of(num_blocks: int, max_model_len: int = 8192) -> CoreReady:
    return CoreReady(num_blocks, 16, max_model_len, "cpu", "float32", 1.0, 1.0)


@pytest.mark.parametrize(
    ("config", "ready", "expected"),
    [
        (config_of(max_num_seqs=64), ready_of(64 * 512), "--max-num-seqs 64: KV cache for all of them"),
        (config_of(max_num_seqs=64), ready_of(31 * 512), "free memory for cpu: 31 of 64 requests can"),
        (config_of(num_kv_blocks=512), ready_of(512), "--num-kv-blocks: 1 of 64 requests can"),
        (config_of(kv_cache_memory_bytes=9), ready_of(100), "--kv-cache-memory: the longest sequence is 1,600"),
    ],
)
def test_what_limits_a_node_is_named(config: NodeConfig, ready: CoreReady, expected: str) -> None:
    assert what_limits(config, ready).startswith(expected)


def test_the_lines_fit_a_terminal_of_80_columns() -> None:
    for blocks in (100, 31 * 512, 64 * 512, 512 * 512):
        lines = start_lines(config_of(max_num_seqs=256), ready_of(blocks), "http://127.0.0.1:8000")
        assert max(map(len, lines.splitlines())) <= 80, lines


def test_tokens_ahead_are_told_when_they_are_on() -> None:
    off, on = (
        start_lines(config_of(speculation=mode), ready_of(512), "http://127.0.0.1:8000") for mode in ("off", "ngram")
    )
    assert on.splitlines()[-1].split() == ["tokens", "ahead", "ngram,", "up", "to", "8,", "as", "much", "as", "pays"]
    assert "ahead" not in off


@pytest.mark.e2e
def test_a_terminal_gets_a_bar_and_the_facts_at_the_end() -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "engine", "serve", "--model", str(tiny_model_dir()), "--runner", "fake"]
    node = subprocess.Popen(
        [*command, "--port", "0"], stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, "COLUMNS": "80"}
    )
    os.close(theirs)
    shown, deadline = "", time.monotonic() + 120
    try:
        while "limited by" not in shown and time.monotonic() < deadline:
            shown += os.read(ours, 4096).decode(errors="replace")
    finally:
        node.terminate()
        while node.poll() is None:
            try:
                os.read(ours, 4096)
            except OSError:
                break
        node.wait(timeout=60)
        os.close(ours)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    assert "starting" in plain, "the bar"
    assert re.search(r"ready at http://127\.0\.0\.1:\d+", plain)
    assert re.search(r"KV cache +65,536 tokens", plain)


def test_an_error_at_a_terminal_never_shows_local_variables() -> None:
    """Prompts and tokens are among them."""
    code = (
        "from engine.log import configure_logging\n"
        "import structlog\n"
        "configure_logging(pretty=True)\n"
        "def fail():\n"
        "    token = 'very' + 'secret'\n"
        "    raise ValueError('broken')\n"
        "try:\n"
        "    fail()\n"
        "except ValueError as error:\n"
        "    structlog.get_logger().error('it.failed', exc_info=error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=150)
    assert "ValueError: broken" in done.stderr
    assert "verysecret" not in done.stderr
