"""A server that speaks the API and tells nothing of itself: the unknown is said, and it is watched and served."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from engine.model.make import make_model
from fleetctl.kit.reserved_port import reserve_port
from tests.fixtures.fleet import fleet, wait_until
from tests.fixtures.transformers_server import transformers_server

pytestmark = [pytest.mark.e2e, pytest.mark.waits, pytest.mark.timeout(600)]


def test_a_server_that_tells_nothing_of_itself_is_checked_served_and_drained(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model")
    with transformers_server(model, reserve_port()) as address:
        # It lists what its cache has, and answers to the folder that it was started with: labels say engine and model.
        labels = {"node": "hf", "engine": "openai", "model": str(model)}
        settings = {
            "fleet__targets": json.dumps([{"static_configs": [{"targets": [address], "labels": labels}]}]),
            "controller__deep_check_interval_s": "2",
            "controller__capacity_floor_ratio": "0.1",
        }
        with fleet(tmp_path / "state", tmp_path, **settings) as ours:
            done = ours.fleetctl("up")
            assert done.returncode == 0, done.stderr
            wait_until(lambda: ours.json("describe", "node", "hf")["deep_check"]["result"] == "passed")
            node = ours.json("describe", "node", "hf")
            assert (node["phase"], node["engine"]) == ("ready", "openai")
            signals = ("running", "waiting", "kv_ratio", "ttft_s")
            assert [node[one]["value"] for one in signals] == [None] * len(signals), "unknown, and not 0"
            gateway = f"http://127.0.0.1:{ours.env['FLEETCTL_GATEWAY__PORT']}"
            body = {"model": str(model), "prompt": "Monday, Tuesday,", "max_tokens": 4, "temperature": 0}
            answer = httpx.post(f"{gateway}/v1/completions", json=body, timeout=60.0)
            assert answer.status_code == 200, answer.text
            assert answer.json()["usage"]["completion_tokens"] == 4
            refused = ours.fleetctl("sleep", "hf", "--yes")
            assert refused.returncode == 3, refused.stderr
            assert "which engine it is is not known" in refused.stderr
