"""Rollouts of real nodes under traffic: a bad revision is caught and taken back, a good one gets to the end."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import pytest

from fleetctl.kit.tls import NO_TLS
from tests.fixtures.fleet import Fleet, end_of_stream, fleet, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.waits, pytest.mark.timeout(600)]

QUICK = {
    "rollouts__step_min_s": "0",
    "rollouts__judge_every_s": "0.5",
    "rollouts__error_margin_ratio": "0.2",
    "rollouts__slow_margin_ratio": "0.3",
}
NUM_CLIENTS = 2
PAUSE_S = 0.02  # of a client, so that it leaves time to the rest of a small machine


@pytest.fixture
def running(tmp_path: Path, model_dir: Path) -> Iterator[Fleet]:
    options = '{"runner": "fake"}'
    with fleet(tmp_path / "state", model_dir, fleet__nodes="1", fleet__node_options=options, **QUICK) as made:
        up = made.fleetctl("up")
        assert up.returncode == 0, up.stderr
        yield made


def read(running: Fleet, path: str) -> Any:
    """What the controller answers: quicker than a command line for each look."""
    url = f"http://127.0.0.1:{running.env['FLEETCTL_CONTROLLER__PORT']}/v1/{path}"
    return httpx.get(url, verify=NO_TLS, timeout=20, trust_env=False).raise_for_status().json()


def ask(running: Fleet, command: str, *, dry_run: bool = False) -> httpx.Response:
    token = (running.state_dir / "controller.token").read_text().strip()
    url = f"http://127.0.0.1:{running.env['FLEETCTL_CONTROLLER__PORT']}/v1/actions"
    told = {"Authorization": f"Bearer {token}"}
    body = {"command": command, "dry_run": dry_run}
    return httpx.post(url, verify=NO_TLS, json=body, headers=told, timeout=20, trust_env=False)


def order(running: Fleet, command: str) -> None:
    ask(running, command).raise_for_status()


def end_of_rollout(running: Fleet, command: str) -> dict[str, Any]:
    """How the rollout ended that this command began."""
    known = len(read(running, "rollouts"))
    order(running, f"rollout {command}")
    wait_until(lambda: len(read(running, "rollouts")) > known, 100)
    return end_of_newest(running)


def end_of_newest(running: Fleet) -> dict[str, Any]:
    wait_until(lambda: read(running, "rollouts")[0]["state"] in ("done", "rolled_back", "failed"), 100)
    newest: dict[str, Any] = read(running, "rollouts")[0]
    return newest


def rolled_back_by_hand(running: Fleet, command: str) -> dict[str, Any]:
    """How the rollout ended that this command began, and that a person took back once its canary had answered users."""
    order(running, f"rollout {command}")

    def has_answered() -> bool:
        newest = read(running, "rollouts")[0]
        done = read(running, f"query?expr=sum(vllm:request_success_total{{revision='{newest['to_revision']}'}})")
        return newest["state"] == "canary" and any(one["value"] >= 3 for one in done["samples"])

    wait_until(has_answered, 100)
    order(running, "rollout rollback default")
    return end_of_newest(running)


def test_a_setting_that_the_engine_does_not_have_is_refused_by_the_dry_run_and_nothing_is_stored(
    running: Fleet,
) -> None:
    stored = read(running, "revisions")
    for dry_run in (True, False):
        answer = ask(running, "rollout start default --set max-num-seq=4", dry_run=dry_run)
        problem = answer.json()
        assert (answer.status_code, problem["exit_code"]) == (400, 2)
        assert problem["error"] == "--set max-num-seq=4: a node has no setting max-num-seq"
        assert problem["remedy"].startswith("did you mean max-num-seqs? fleetctl rollout start default --set ")
    assert read(running, "rollouts") == []
    assert read(running, "revisions") == stored


def test_bad_revision_is_taken_back_and_good_one_promoted_under_traffic_and_no_answer_is_lost(running: Fleet) -> None:
    url = running.processes.spec("gateway")["url"]
    over = Event()

    def stream_until_over(client: int) -> list[str]:
        ends = []
        with httpx.Client(verify=NO_TLS, base_url=url, timeout=60, trust_env=False) as http:
            while not over.is_set():
                prompt = f"{client} {len(ends)} " + "word " * 150
                body = {"model": "demo", "prompt": prompt, "max_tokens": 8, "stream": True, "ignore_eos": True}
                body["temperature"] = 0  # only then the answer to a copy says something of the revision
                ends.append(end_of_stream(http.post("/v1/completions", json=body)))
                over.wait(PAUSE_S)
        return ends

    (before,) = read(running, "pools")
    with ThreadPoolExecutor(NUM_CLIENTS) as clients:
        streams = [clients.submit(stream_until_over, number) for number in range(NUM_CLIENTS)]
        try:
            # Prompts in parts of eight tokens: first tokens come many steps later.
            bad = "start default --set max-num-seqs=4,max-num-batched-tokens=8 --steps 30%"
            slow = end_of_rollout(running, bad)
            by_hand = rolled_back_by_hand(running, f"{bad} --by-hand --no-gate")
            (restored,) = read(running, "pools")
            good = end_of_rollout(running, "start default --set max-num-seqs=32 --steps 50% --shadow 50%")
            (promoted,) = read(running, "pools")
            back = end_of_rollout(running, "rollback default")
            (after,) = read(running, "pools")
        finally:
            over.set()
        ends = [end for stream in streams for end in stream.result()]
    assert (slow["state"], slow["history"][-2]["share"]) == ("rolled_back", 0.3)
    assert "worse by more than" in slow["why"]
    assert (by_hand["state"], by_hand["history"][-2]["by"]) == ("rolled_back", "admin")
    assert restored["revisions"] == before["revisions"]
    assert (good["state"], promoted["revisions"]) == ("done", {good["to_revision"]: 1})
    assert "not worse by" in good["history"][1]["why"]
    assert "agreement: 0.0% of" in good["history"][1]["why"]
    assert (back["state"], after["revisions"]) == ("done", before["revisions"])
    assert len(ends) > 50
    assert set(ends) == {"200 length"}
