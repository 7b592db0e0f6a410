"""A foreign server that wants a key is found, scraped, deep-checked and served; the key is nowhere shown."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from fleetctl.kit.reserved_port import reserve_port
from tests.fixtures.fleet import fleet, wait_until
from tests.fixtures.llama_server import llama_server, make_gguf

pytestmark = [pytest.mark.e2e, pytest.mark.waits, pytest.mark.timeout(600)]

KEY = "sk-of-the-keyed-server"


def test_a_server_that_wants_a_key_is_watched_and_served_and_the_key_is_nowhere_shown(tmp_path: Path) -> None:
    key_file = tmp_path / "key"
    key_file.write_text(f"{KEY}\n")
    with llama_server(make_gguf(tmp_path), reserve_port(), "--api-key", KEY) as keyed:
        assert httpx.get(f"{keyed.url}/metrics").status_code == 401, "it wants one"
        group = {"static_configs": [{"targets": [keyed.address], "labels": {"node": "keyed"}}], "api_key": "chat"}
        settings = {
            "fleet__targets": json.dumps([group]),
            "fleet__api_keys": json.dumps({"chat": {"file": str(key_file)}}),
            "controller__deep_check_interval_s": "1",
        }
        with fleet(tmp_path / "state", tmp_path, **settings) as ours:
            (listed,) = ours.json("discover")["nodes"]
            assert (listed["engine"], listed["model"]) == ("llamacpp", "demo")
            done = ours.fleetctl("up")
            assert done.returncode == 0, done.stderr

            def is_known() -> bool:
                node = ours.json("describe", "node", "keyed")
                return node["deep_check"]["result"] == "passed" and node["running"]["value"] is not None

            wait_until(is_known)
            gateway = f"http://127.0.0.1:{ours.env['FLEETCTL_GATEWAY__PORT']}"
            body = {"model": "demo", "prompt": "Once", "max_tokens": 4}
            answer = httpx.post(f"{gateway}/v1/completions", json=body, headers={"Authorization": "Bearer of-a-client"})
            assert answer.status_code == 200, answer.text
            shown = "".join(
                ours.fleetctl(*words).stdout
                for words in (("get", "nodes", "-o", "json"), ("describe", "node", "keyed"), ("get", "events"))
            )

            key_file.write_text("another-key\n")  # it is read again while all parts run

            def is_refused() -> bool:
                return httpx.post(f"{gateway}/v1/completions", json=body).status_code == 503

            wait_until(is_refused)
    assert KEY not in shown
    written = [path for path in (tmp_path / "state").rglob("*") if path.is_file()]
    assert written
    assert not [path for path in written if KEY.encode() in path.read_bytes()], "neither in logs nor in stored state"
