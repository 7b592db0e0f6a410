"""Predictions held to reality: four real nodes under traffic, three actions, TTFT as its users see it.

Not in CI: p95 is decided by few long prompts, so that it takes minutes of traffic to tell (`make bench-predictions`).
"""

from __future__ import annotations

import json
import random
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from fleetctl.kit.tls import NO_TLS
from tests.fixtures.fleet import Fleet, fleet, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.bench, pytest.mark.timeout(600)]

SLOW_STEPS = 5.0  # what a node does beside its steps is little then, on a busy machine too
RATE = 12.0
LONG_SHARE = 0.15  # p95 lies among the long prompts, whose prefill alone takes half a second
LONG_TOKENS, SHORT_TOKENS = 4000, 200
WATCHED_S, MEASURED_S = 40.0, 40.0  # 72 long prompts in each
TOLERANCE = 0.3


class Users:
    """Requests at random times, each a prompt of its own. TTFT by the time of sending."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._rng = random.Random(3)
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self.ttft_s: list[tuple[float, float]] = []
        self.failed: list[str] = []

    @contextmanager
    def asking(self) -> Iterator[None]:
        with (
            ThreadPoolExecutor(200) as pool,
            httpx.Client(verify=NO_TLS, timeout=60.0, limits=httpx.Limits(max_connections=None)) as http,
        ):
            arrivals = threading.Thread(target=self._arrive, args=(pool, http))
            arrivals.start()
            try:
                yield
            finally:
                self._stopping.set()
                arrivals.join()

    def p95_s(self, since: float, until: float) -> float:
        with self._lock:
            found = sorted(ttft for at, ttft in self.ttft_s if since <= at < until)
        assert len(found) > 60
        return found[int(0.95 * len(found))]

    def _arrive(self, pool: ThreadPoolExecutor, http: httpx.Client) -> None:
        due = time.monotonic()
        while not self._stopping.is_set():
            due += self._rng.expovariate(RATE)
            self._stopping.wait(max(0.0, due - time.monotonic()))
            length = LONG_TOKENS if self._rng.random() < LONG_SHARE else SHORT_TOKENS
            prompt = [self._rng.randrange(5, 250) for _ in range(length)]
            pool.submit(self._ask, http, prompt)

    def _ask(self, http: httpx.Client, prompt: list[int]) -> None:
        body = {"model": "demo", "prompt": prompt, "max_tokens": 8, "stream": True, "ignore_eos": True}
        began = time.monotonic()
        with http.stream("POST", f"{self._url}/v1/completions", json=body) as answer:
            if answer.status_code != 200:
                self.failed.append(f"{answer.status_code}: {answer.read()[:200]!r}")
                return
            has_begun = False
            for line in answer.iter_lines():  # to its end: who leaves after the first token frees the seat
                if not has_begun and line.startswith("data: {"):
                    has_begun = True
                    with self._lock:
                        self.ttft_s.append((began, time.monotonic() - began))


def slow_down(made: Fleet) -> None:
    token = (made.state_dir / "node.token").read_text().strip()
    for node in made.json("get", "nodes"):
        headers = {"Authorization": f"Bearer {token}"}
        httpx.post(
            f"{node['url']}/admin/faults", verify=NO_TLS, json={"slow_steps": SLOW_STEPS}, headers=headers
        ).raise_for_status()


def predicted_s(made: Fleet, *words: str) -> float:
    run = made.json(*words, "--dry-run")
    found = re.match(r"predicted p95 TTFT ([\d.]+) s \(now [\d.]+ s\), queue \d+, KV \d+ %", run["prediction"])
    assert found is not None, run["prediction"]
    return float(found[1])


def checked(made: Fleet) -> list[dict[str, Any]]:
    """Earlier predictions that the controller held against what came."""
    return [event for event in made.json("get", "events") if event["kind"] == "prediction.checked"]


def test_drain_scale_and_reroute_come_out_as_predicted(tmp_path: Path, model_dir: Path) -> None:
    options = {"runner": "fake", "max_num_seqs": 8, "num_kv_blocks": 4096, "max_num_batched_tokens": 1024}
    settings = {
        "fleet__nodes": "4",
        "fleet__node_options": json.dumps(options),
        "fleet__enable_faults": "true",
        "controller__scrape_interval_s": "1",
        "controller__capacity_floor_ratio": "0.25",
    }
    with fleet(tmp_path / "state", model_dir, **settings) as made:
        up = made.fleetctl("up")
        assert up.returncode == 0, up.stderr
        slow_down(made)
        users = Users(f"http://127.0.0.1:{made.env['FLEETCTL_GATEWAY__PORT']}")
        with users.asking():
            began = time.monotonic()
            wait_until(lambda: time.monotonic() - began > WATCHED_S)
            reroute = ("reroute", "long-context", "--over", "2000", "--share", "0.5", "--for", "10m")
            scale = ("scale", "default", "--to", "2")
            drain = ("drain", "node-4", "--deadline", "5s")
            predicted = {words[0]: predicted_s(made, *words) for words in (reroute, drain, scale)}
            measured = {}
            for words, undo in (
                (reroute, ("reroute", "remove", "long-context")),
                (drain, ("uncordon", "node-4")),
                (scale, ()),
            ):
                done = made.fleetctl(*words, "--yes")
                assert done.returncode == 0, done.stderr
                since = time.monotonic() + 1.0
                wait_until(lambda since=since: time.monotonic() - since > MEASURED_S + 1.0, 90.0)  # type: ignore[misc]
                measured[words[0]] = users.p95_s(since, since + MEASURED_S)
                if undo:
                    assert made.fleetctl(*undo, "--yes").returncode == 0
            wait_until(lambda: any("scale" in one["text"] for one in checked(made)), 120.0)
            for one in checked(made):
                print(one["text"])
    assert users.failed == []
    for action, p95_s in measured.items():
        off = predicted[action] / p95_s - 1
        print(f"{action}: p95 TTFT {predicted[action]:.2f} s predicted, {p95_s:.2f} s measured, {off:+.0%}")
    assert predicted == pytest.approx(measured, rel=TOLERANCE)
