"""What our engine can be started with, asked of the engine itself."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from fleetctl.providers.engine_settings import EngineSettings
from fleetctl.providers.provider import NodeSetting


def test_the_real_engine_says_what_it_takes() -> None:
    known = EngineSettings((sys.executable, "-m", "fleetctl.node")).known()
    assert known is not None
    assert known["max-num-seqs"] == NodeSetting("integer", least=1)
    assert known["enable-prefix-caching"].kind == known["no-enable-prefix-caching"].kind == "flag"
    assert known["enable-faults"].kind == "switch"
    assert known["kv-cache-memory"] == known["kv-cache-memory-bytes"]
    assert "int8" in (known["quantization"].choices or ())
    assert known["port"].fixed
    assert not known["max-model-len"].fixed


def test_an_engine_that_does_not_say_is_unknown_and_not_empty() -> None:
    for program in ("import sys; sys.exit(2)", "print('usage: engine')", "print('[{}]')", "print('{\"name\": 1}')"):
        assert EngineSettings((sys.executable, "-c", program)).known() is None
    assert EngineSettings(("/nonexistent/engine",)).known() is None


def test_an_engine_that_was_exchanged_is_asked_again(tmp_path: Path) -> None:
    now = [100.0]
    installed = tmp_path / "engine"
    asked = EngineSettings(("/bin/sh", str(installed)), monotonic=lambda: now[0])
    for name, later_s, known in (("old", 0, "old"), ("new", 10, "old"), ("new", 60, "new")):
        now[0] += later_s
        told = json.dumps([{"name": name, "kind": "text", "least": None, "choices": None}])
        installed.write_text(f"echo '{told}'\n")
        assert asked.known() == {known: NodeSetting()}
