"""The command line against a running fleet: what a person types, what a script gets, and the exit codes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import httpx
import pytest
import yaml

from fleetctl.kit.tls import NO_TLS
from tests.fixtures.fleet import Fleet, end_of_stream, fleet

pytestmark = [pytest.mark.e2e, pytest.mark.waits, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Iterator[Fleet]:
    state = tmp_path_factory.mktemp("cli") / "state"
    with fleet(state, model_dir, fleet__nodes="3", fleet__node_options='{"runner": "fake"}') as made:
        up = made.fleetctl("up")
        assert up.returncode == 0, up.stderr
        yield made


def test_lists_are_plain_in_a_pipe_and_data_for_scripts(running: Fleet) -> None:
    plain = running.fleetctl("get", "nodes").stdout
    assert "\x1b[" not in plain
    lines = plain.splitlines()
    assert lines[0].split()[:3] == ["NAME", "PHASE", "POOL"]
    assert max(len(line) for line in lines) <= 80
    assert [node["name"] for node in json.loads(running.fleetctl("get", "nodes", "-o", "json").stdout)] == [
        "node-1",
        "node-2",
        "node-3",
    ]
    assert len(yaml.safe_load(running.fleetctl("get", "nodes", "-o", "yaml").stdout)) == 3
    assert "REVISION" in running.fleetctl("get", "nodes", "-o", "wide").stdout


def test_empty_lists_say_so_on_stderr(running: Fleet) -> None:
    done = running.fleetctl("get", "incidents")
    assert (done.returncode, done.stdout, done.stderr.strip()) == (0, "", "no incidents")


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("describe", "node", "node-9"), 2, "node-9"),
        (("drain", "node-9", "--yes"), 2, "node-9"),
        (("drain", "node-1"), 2, "add --yes"),
        (("drain", "node-1", "--deadline", "soon", "--yes"), 2, "soon"),
        (("runbook", "show", "nope"), 2, "nope"),
        (("runbook", "run", "replace-node", "nod=1", "--yes"), 2, "nod"),
        (("get", "things"), 2, "things"),
        (("top",), 2, "terminal"),
        (("node", "logs", "nobody"), 2, "node-1"),
        (("--controller", "http://127.0.0.1:9", "get", "nodes"), 4, "127.0.0.1:9"),
    ],
)
def test_bad_input_is_one_line_and_an_exit_code(running: Fleet, words: tuple[str, ...], code: int, says: str) -> None:
    done = running.fleetctl(*words)
    assert done.returncode == code, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_drain_gives_a_receipt_and_the_guard_keeps_the_floor(running: Fleet) -> None:
    dry = running.fleetctl("drain", "node-1", "--dry-run")
    assert dry.returncode == 0
    assert "guard: yes" in dry.stdout
    assert {node["phase"] for node in running.json("get", "nodes")} == {"ready"}, "a dry run changes nothing"
    drained = running.json("drain", "node-1", "--yes")
    receipt = drained["steps"][0]["receipt"]
    assert receipt["in_flight"] == receipt["finished"] + receipt["moved"] + receipt["aborted"]
    refused = running.fleetctl("drain", "node-2", "--yes")
    assert refused.returncode == 3
    assert "floor" in refused.stderr
    restored = running.fleetctl("uncordon", "node-1", "--yes")
    assert restored.returncode == 0, restored.stderr
    assert running.json("describe", "node", "node-1")["phase"] == "ready"


def test_changes_need_the_token(running: Fleet) -> None:
    running.env["FLEETCTL_CONTROLLER__TOKEN"] = "wrong-token-wrong-token"
    try:
        done = running.fleetctl("drain", "node-1", "--yes")
    finally:
        del running.env["FLEETCTL_CONTROLLER__TOKEN"]
    assert done.returncode == 1
    assert "token" in done.stderr
    assert "wrong-token" not in done.stderr


def test_runbook_page_is_printed_as_it_is_written(running: Fleet) -> None:
    page = running.fleetctl("runbook", "show", "replace-node").stdout
    assert "```fleetctl" in page
    dry = running.fleetctl("runbook", "run", "replace-node", "node=node-3", "--dry-run")
    assert dry.returncode == 0, dry.stderr
    assert "would: fleetctl drain node-3" in dry.stdout


def test_diagnose_without_traffic_names_no_cause(running: Fleet) -> None:
    done = running.fleetctl("diagnose", "node-1", "-o", "json")
    diagnosis = json.loads(done.stdout)
    assert diagnosis["cause"] is None
    if done.returncode == 4:  # the first signals are not there yet
        assert diagnosis["not_known"]
    else:
        assert done.returncode == 1
        assert diagnosis["title"].startswith("Nothing is wrong with node-1")
        assert diagnosis["evidence"]


def test_a_pool_is_scaled_out_and_in_under_traffic_and_no_answer_is_lost(running: Fleet) -> None:
    """3 nodes, 4 and 3 again, while two clients stream without a break."""
    url = running.processes.spec("gateway")["url"]
    over = Event()

    def stream_until_over(client: int) -> list[str]:
        """How each of this client's answers ended."""
        ends = []
        with httpx.Client(verify=NO_TLS, base_url=url, timeout=60, trust_env=False) as http:
            while not over.is_set():
                prompt = {"model": "demo", "prompt": f"{client} {len(ends)}", "max_tokens": 30, "stream": True}
                answer = http.post("/v1/completions", json={**prompt, "ignore_eos": True})
                ends.append(end_of_stream(answer))
        return ends

    with ThreadPoolExecutor(2) as clients:
        streams = [clients.submit(stream_until_over, number) for number in range(2)]
        try:
            out = running.fleetctl("scale", "default", "--to", "+1", "--yes")
            (larger,) = running.json("get", "pools")
            back = running.fleetctl("scale", "default", "--to", "-1", "--yes")
            (smaller,) = running.json("get", "pools")
        finally:
            over.set()
        ends = [end for stream in streams for end in stream.result()]
    assert (out.returncode, back.returncode) == (0, 0), out.stderr + back.stderr
    for pool, size in ((larger, 4), (smaller, 3)):
        assert (pool["wanted"], pool["nodes"], pool["ready"], pool["state"]) == (size, size, size, "converged")
    assert len(ends) > 8
    assert set(ends) == {"200 length"}
