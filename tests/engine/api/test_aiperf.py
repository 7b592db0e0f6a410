"""NVIDIA's benchmark tool completes against a node. It is not among our dependencies: it has an environment of its own.

`AIPERF` names the program; without it and without one on PATH this is skipped.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.fixtures.engine import start_node, tiny_model_dir

PROGRAM = os.environ.get("AIPERF") or shutil.which("aiperf")
REQUESTS, TOKENS = 40, 16


@pytest.mark.e2e
@pytest.mark.serial
@pytest.mark.skipif(PROGRAM is None, reason="no aiperf on PATH or in AIPERF; see docs/node-limits.md")
def test_aiperf_completes_with_every_request_answered(tmp_path: Path) -> None:
    assert PROGRAM is not None
    with start_node(tmp_path) as node:
        command = [
            *(PROGRAM, "profile", "--model", "tiny", "--url", node.url, "--endpoint-type", "chat", "--streaming"),
            # `builtin` is downloaded when it is first used, which not every machine may do.
            *("--tokenizer", os.environ.get("AIPERF_TOKENIZER") or str(tiny_model_dir())),
            *("--request-count", str(REQUESTS), "--concurrency", "4", "--isl", "50", "--osl", str(TOKENS)),
            *("--extra-inputs", "ignore_eos:true", "--use-server-token-count"),
            *("--ui", "none", "--artifact-dir", str(tmp_path / "aiperf")),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=170, cwd=tmp_path)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        report = json.loads((tmp_path / "aiperf" / "profile_export_aiperf.json").read_text())
        assert report["request_count"]["avg"] == REQUESTS
        assert node.metric("engine_requests_total", state="finished") == REQUESTS
        assert node.metric("vllm:generation_tokens_total") == REQUESTS * TOKENS
