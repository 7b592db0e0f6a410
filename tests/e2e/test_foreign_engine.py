"""A fleet of a real foreign engine, llama.cpp's own server: found and started by its command, scraped, alerted on,
diagnosed, drained, replaced, and nobody's stream ends early; alone, and beside nodes of ours behind one gateway."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from fleetctl.kit.reserved_port import reserve_port
from tests.fixtures.fleet import Fleet, fleet, wait_until
from tests.fixtures.llama_server import command, llama_server, make_gguf

pytestmark = [pytest.mark.e2e, pytest.mark.waits, pytest.mark.timeout(600)]

MAX_TOKENS = 400


class Users:
    """Some people who ask for completions, one after the other, and count how each ended."""

    def __init__(self, url: str, number: int) -> None:
        self.url = url
        self.ends: Counter[str] = Counter()
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(one,), daemon=True) for one in range(number)]

    def _ask(self, number: int) -> None:
        turn = 0
        with httpx.Client(timeout=60.0) as http:
            while not self._stop.is_set():
                turn += 1
                body = {"model": "demo", "prompt": f"user {number} turn {turn}", "max_tokens": MAX_TOKENS}
                try:
                    answer = http.post(f"{self.url}/v1/completions", json={**body, "stream": True, "temperature": 0})
                    end = how_it_ended(answer)
                except httpx.HTTPError as error:
                    end = type(error).__name__
                self.ends[end] += 1

    @contextmanager
    def asking(self) -> Iterator[None]:
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join(60)


def how_it_ended(answer: httpx.Response) -> str:
    if answer.status_code != 200:
        return f"status {answer.status_code}"
    events = [line[6:] for line in answer.text.split("\n") if line.startswith("data: ")]
    if not events or events[-1] != "[DONE]":
        return "cut"
    reasons = [
        choice["finish_reason"]
        for event in events[:-1]
        for choice in json.loads(event).get("choices", [])
        if choice.get("finish_reason")
    ]
    return reasons[-1] if reasons else "no reason"


def test_a_fleet_of_a_foreign_engine_is_watched_drained_and_mended(tmp_path: Path) -> None:
    model = make_gguf(tmp_path)
    started = {"name": "llama", "engine": "llamacpp", "nodes": 2, "command": command(model)}
    with llama_server(model, reserve_port()) as found:
        targets = [{"static_configs": [{"targets": [found.address], "labels": {"node": "elsewhere", "zone": "eu"}}]}]
        settings = {
            "fleet__commands": json.dumps([started]),
            "fleet__targets": json.dumps(targets),
            "controller__capacity_floor_ratio": "0.5",
        }
        with fleet(tmp_path / "state", tmp_path, **settings) as ours:
            done = ours.fleetctl("up")
            assert done.returncode == 0, done.stderr
            wait_until(lambda: set(phases(ours).values()) == {"ready"} and len(phases(ours)) == 3)
            nodes = {one["name"]: one for one in ours.json("get", "nodes")}
            assert {one["engine"] for one in nodes.values()} == {"llamacpp"}
            assert (nodes["elsewhere"]["provider"], nodes["elsewhere"]["zone"]) == ("found", "eu")

            refused = ours.fleetctl("node", "stop", "elsewhere", "--yes")
            assert refused.returncode == 3
            assert "no provider can stop it" in refused.stderr

            users = Users(f"http://127.0.0.1:{ours.env['FLEETCTL_GATEWAY__PORT']}", 6)
            with users.asking():
                wait_until(lambda: users.ends.total() > 12)
                wait_until(lambda: all(one["running"]["value"] is not None for one in ours.json("get", "nodes")))
                drained = ours.json("drain", "elsewhere", "--deadline", "1s", "--yes")
                assert drained["status"] == "succeeded"
                assert phases(ours)["elsewhere"] == "cordoned"
                assert ours.fleetctl("uncordon", "elsewhere", "--yes").returncode == 0

                pid = ours.processes.observe("llama-1").pid
                assert pid is not None
                os.killpg(pid, signal.SIGSTOP)
                wait_until(lambda: "LLMNodeDown" in alerts_of(ours, "llama-1"))
                wait_until(lambda: cause_of(ours, "llama-1") != "")
                assert cause_of(ours, "llama-1") == "node_down"
                before = users.ends.total()
                replaced = ours.fleetctl("replace", "llama-1", "--yes")
                assert replaced.returncode == 0, replaced.stderr
                wait_until(lambda: users.ends.total() > before + 12)
            assert phases(ours)["llama-1b"] == "ready"
            assert set(users.ends) == {"length"}, users.ends


def test_nodes_of_ours_and_of_a_foreign_engine_serve_one_model_behind_one_gateway(tmp_path: Path) -> None:
    model = make_gguf(tmp_path)
    settings = {
        "fleet__nodes": "2",
        "fleet__node_options": json.dumps({"runner": "fake"}),
        "fleet__commands": json.dumps([{"name": "llama", "engine": "llamacpp", "nodes": 2, "command": command(model)}]),
        "controller__capacity_floor_ratio": "0.5",
    }
    with fleet(tmp_path / "state", tmp_path / "hf", **settings) as ours:
        done = ours.fleetctl("up")
        assert done.returncode == 0, done.stderr
        wait_until(lambda: set(phases(ours).values()) == {"ready"} and len(phases(ours)) == 4)
        users = Users(f"http://127.0.0.1:{ours.env['FLEETCTL_GATEWAY__PORT']}", 8)
        with users.asking():
            wait_until(lambda: all((one["tokens_per_s"]["value"] or 0) > 0 for one in ours.json("get", "nodes")))
            (group,) = ours.json("get", "models")
            assert (group["nodes"], group["load"]["tokens_per_s"]["known"]) == (4, 4)
            pid = ours.processes.observe("node-1").pid
            assert pid is not None
            os.killpg(pid, signal.SIGKILL)
            wait_until(lambda: cause_of(ours, "node-1") == "node_down")
            for node in ("node-1", "llama-1"):
                replaced = ours.fleetctl("replace", node, "--yes")
                assert replaced.returncode == 0, replaced.stderr
            before = users.ends.total()
            wait_until(lambda: users.ends.total() > before + 12)
        assert {name for name, phase in phases(ours).items() if phase == "ready"} >= {"node-1b", "llama-1b"}
        assert set(users.ends) <= {"length", "stop"}, users.ends  # ours may end by the model's own word


def phases(ours: Fleet) -> dict[str, str]:
    return {one["name"]: one["phase"] for one in ours.json("get", "nodes") if one["phase"] != "stopped"}


def alerts_of(ours: Fleet, node: str) -> list[str]:
    found: list[str] = next(one["alerts"] for one in ours.json("get", "nodes") if one["name"] == node)
    return found


def cause_of(ours: Fleet, node: str) -> str:
    """Of the open incident that covers the node; empty while none is named."""
    for one in ours.json("get", "incidents"):
        if one["scope"].get("node") == node and (diagnosis := one.get("diagnosis")):
            return str(diagnosis.get("cause") or "")
    return ""
