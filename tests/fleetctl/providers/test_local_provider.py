"""What a node's process is given by the provider of this machine, beside what the contract of all providers holds."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fleetctl.providers.local import LocalProvider
from tests.fixtures.controller import make_spec
from tests.fixtures.fleet import wait_until

TELL = "import os; print('cache', os.environ.get('CACHE_DIRECTORY', '-'), flush=True)"


@pytest.mark.parametrize(("home", "expected"), [("writable", "-"), ("a-file", "cache"), (None, "cache")])
def test_compiled_kernels_are_kept_in_the_state_folder_where_the_user_has_no_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: str | None, expected: str
) -> None:
    for name in ("NUMBA_CACHE_DIR", "CACHE_DIRECTORY", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "writable").mkdir()
    (tmp_path / "a-file").write_text("")
    monkeypatch.setenv("HOME", str(tmp_path / home) if home else "~nobody-here")
    token_file = tmp_path / "node.token"
    token_file.write_text("t")
    provider = LocalProvider(tmp_path / "run", node_token_file=token_file, engine_command=(sys.executable, "-c", TELL))
    provider.ensure_started(make_spec("node-1"))
    wait_until(lambda: bool(provider.read_logs("node-1", lines=5).lines))
    told = "-" if expected == "-" else str(tmp_path / expected)
    assert provider.read_logs("node-1", lines=5).lines == (f"cache {told}",)
