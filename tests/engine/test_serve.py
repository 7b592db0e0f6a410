"""Starting and stopping a node: one clear line for bad input, nothing left behind, drain on SIGTERM."""

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest

from fleetctl.kit.tls import NO_TLS
from tests.fixtures.engine import CoreGate, read_stream, start_node, tiny_model_dir, wait_for

LONG = {"prompt": "hello", "max_tokens": 4000, "ignore_eos": True, "stream": True, "seed": 1}


def run_engine(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "engine", *args], capture_output=True, text=True, timeout=150)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def broken_model(tmp_path: Path) -> Path:
    directory = tmp_path / "broken"
    directory.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        (directory / name).write_bytes((tiny_model_dir() / name).read_bytes())
    return directory


@pytest.mark.parametrize(
    ("make_args", "expected"),
    [
        (lambda p: ("--model", str(p / "nowhere")), "nowhere: no such directory"),
        (lambda p: ("--model", str(p)), "tokenizer.json: missing"),
        (lambda p: ("--model", str(broken_model(p))), "model.safetensors: missing"),
        (lambda p: ("--model", str(tiny_model_dir()), "--max-num-seqs", "0"), "--max-num-seqs 0: must be at least 1"),
        (lambda p: ("--model", str(tiny_model_dir()), "--max-model-len", "99999"), "--max-model-len 99999"),
        (lambda p: ("--model", str(tiny_model_dir()), "--admin-token-file", str(p / "none")), "--admin-token-file"),
        (lambda p: ("--model", str(tiny_model_dir()), "--node-name", "a b"), "--node-name 'a b'"),
        (lambda p: ("--model", str(tiny_model_dir()), "--port", "70000"), "--port 70000"),
    ],
    ids=["no-dir", "no-tokenizer", "no-weights", "bad-number", "too-long", "no-token-file", "bad-name", "bad-port"],
)
def test_bad_input_is_one_line_and_exit_code_2(tmp_path: Path, make_args: object, expected: str) -> None:
    done = run_engine("serve", *make_args(tmp_path))  # type: ignore[operator]
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: ")
    assert expected in done.stderr


def test_instructions_that_nobody_knows_are_one_line_and_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEETCTL_CPU_KERNELS", "fast")
    done = run_engine("serve", "--model", str(tmp_path))
    assert done.returncode == 2
    assert done.stderr.strip() == "error: FLEETCTL_CPU_KERNELS=fast: it takes avx2, vectors, dot, amx"


def test_a_port_in_use_is_one_line_and_starts_nothing(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = run_engine("serve", "--model", str(tiny_model_dir()), "--runner", "fake", "--port", str(port))
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        f"error: can't listen on 127.0.0.1:{port}: Address already in use; choose another --port"
    ]


def test_a_core_that_can_not_start_ends_the_node_with_its_reason(tmp_path: Path) -> None:
    done = run_engine(
        *("serve", "--model", str(tiny_model_dir()), "--runner", "fake", "--port", "0"),
        *("--max-num-seqs", "64", "--max-num-batched-tokens", "8"),
    )
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: the engine core can't start: max_num_batched_tokens")
    assert "Traceback" not in last


def test_help_groups_options() -> None:
    done = run_engine("serve", "--help")
    assert done.returncode == 0
    for group in ("model:", "KV cache:", "scheduler:", "admission:", "server:", "fleet:"):
        assert f"\n{group}\n" in done.stdout


def test_make_model_says_whether_it_was_there(tmp_path: Path) -> None:
    first, second = (run_engine("make-model", str(tmp_path / "m")) for _ in range(2))
    assert (first.returncode, second.returncode) == (0, 0)
    assert first.stdout.endswith(": made\n")
    assert second.stdout.endswith(": already there\n")
    assert "\x1b" not in first.stderr


def test_check_sizes_a_directory_and_names_what_is_wrong(tmp_path: Path) -> None:
    good, bad = run_engine("check", str(tiny_model_dir())), run_engine("check", str(broken_model(tmp_path)))
    assert good.returncode == 0
    assert "bytes a token" in good.stdout
    assert bad.returncode == 2
    assert "model.safetensors: missing" in bad.stderr


def test_a_ready_node_says_where_it_is_and_what_it_holds(tmp_path: Path) -> None:
    with start_node(tmp_path, extra_args=("--num-kv-blocks", "100", "--max-model-len", "800")) as node:
        ready = wait_for(lambda: node.events("node.ready"), "the ready event")[0]
        assert ready["url"] == node.url
        assert ready["kv_capacity_tokens"] == 1600
        assert ready["max_concurrency_at_max_len"] == 2.0


def test_the_api_process_never_imports_torch() -> None:
    code = "import engine.serve, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=150).returncode == 0


def test_sigterm_of_an_idle_node_exits_0_and_leaves_no_process(tmp_path: Path) -> None:
    with start_node(tmp_path) as node:
        core = node.core_pid()
        os.killpg(node.proc.pid, signal.SIGTERM)  # as a provider does: to the whole group
        assert node.proc.wait(timeout=60) == 0
        wait_for(lambda: not is_alive(core), "the core to be gone")
        assert node.events("node.stopped")
        assert not node.events("core.killed")


def test_sigterm_lets_a_request_finish(tmp_path: Path) -> None:
    with start_node(tmp_path, extra_args=("--drain-timeout", "600")) as node:
        node.http.post("/admin/faults", json={"slow_steps": 20})
        body = {**LONG, "max_tokens": 100}

        def stop_early(count: int) -> None:
            if count == 3:
                node.proc.send_signal(signal.SIGTERM)

        answer = read_stream(node, "/v1/completions", body, on_chunk=stop_early)
        assert answer.is_done
        assert answer.finish_reason() == "length"
        assert node.proc.wait(timeout=60) == 0
        assert node.events("request.finished")[-1]["state"] == "finished"


def test_sigterm_ends_what_can_not_move_with_an_error_event_when_time_is_up(tmp_path: Path) -> None:
    with start_node(tmp_path, extra_args=("--drain-timeout", "0.3")) as node:
        node.http.post("/admin/faults", json={"slow_steps": 100})

        def stop_early(count: int) -> None:
            if count == 3:
                node.proc.send_signal(signal.SIGTERM)

        answer = read_stream(node, "/v1/completions", LONG, on_chunk=stop_early)
        assert answer.error is not None
        assert answer.error["code"] == "node_stopping"
        assert not answer.is_done
        assert node.proc.wait(timeout=60) == 0


def test_sigterm_hands_off_what_can_move_when_time_is_up(tmp_path: Path) -> None:
    with start_node(tmp_path, extra_args=("--drain-timeout", "0.3")) as node:
        node.http.post("/admin/faults", json={"slow_steps": 100})

        def stop_early(count: int) -> None:
            if count == 3:
                node.proc.send_signal(signal.SIGTERM)

        headers = {"X-Fleet-Handoff": "accept"}
        answer = read_stream(node, "/v1/completions", LONG, headers=headers, on_chunk=stop_early)
        assert answer.handoff is not None
        assert node.proc.wait(timeout=60) == 0


def test_a_second_signal_exits_at_once(tmp_path: Path) -> None:
    with start_node(tmp_path, extra_args=("--drain-timeout", "600")) as node:
        node.http.post("/admin/faults", json={"slow_steps": 100})
        core = node.core_pid()
        thread = threading.Thread(target=lambda: _read_until_cut(node.url), daemon=True)
        thread.start()
        wait_for(lambda: node.metric("vllm:num_requests_running") == 1, "the request to run")
        node.proc.send_signal(signal.SIGTERM)
        wait_for(lambda: node.events("node.stopping"), "the node to stop")
        node.proc.send_signal(signal.SIGINT)
        assert node.proc.wait(timeout=60) == 128 + signal.SIGINT
        wait_for(lambda: not is_alive(core), "the core to be gone")
        thread.join(timeout=60)


def _read_until_cut(url: str) -> None:
    try:
        with httpx.stream("POST", f"{url}/v1/completions", verify=NO_TLS, json=LONG, timeout=60) as answer:
            answer.read()
    except httpx.TransportError:
        pass


def test_the_core_does_not_outlive_a_killed_node(tmp_path: Path) -> None:
    with start_node(tmp_path) as node:
        core = node.core_pid()
        node.proc.kill()
        node.proc.wait()
        wait_for(lambda: not is_alive(core), "the core to be gone")


def test_a_dead_core_fails_its_requests_aloud_and_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = CoreGate(tmp_path / "gate", monkeypatch)
    with start_node(tmp_path) as node:
        node.http.post("/admin/faults", json={"slow_steps": 100})
        core = node.core_pid()

        def kill_core(count: int) -> None:
            if count == 3:
                gate.close()
                os.kill(core, signal.SIGKILL)

        answer = read_stream(node, "/v1/completions", LONG, on_chunk=kill_core)
        assert answer.error is not None
        assert answer.error["code"] == "core_dead"
        assert not answer.is_done
        health = node.http.get("/health/ready")
        assert (health.status_code, health.json()["reason"]) == (503, "core_dead")
        assert node.http.get("/health/live").status_code == 200
        assert node.metric("engine_core_up") == 0
        refused = node.http.post("/v1/completions", json={"prompt": "x"})
        assert (refused.status_code, refused.headers["X-Fleet-Refused"]) == (503, "not_ready")
        gate.open()
        node.wait_ready()
        assert node.core_pid() != core
        again = node.http.post("/v1/completions", json={"prompt": "hello", "max_tokens": 3, "ignore_eos": True})
        assert again.json()["usage"]["completion_tokens"] == 3
        assert node.metric("engine_requests_total", state="failed") == 1
        assert node.metric("vllm:request_success_total", finished_reason="error") == 1
        assert node.metric("engine_core_restarts_total") == 1


def test_a_core_that_hangs_is_told_from_a_busy_one(tmp_path: Path) -> None:
    with start_node(tmp_path) as node:
        os.kill(node.core_pid(), signal.SIGSTOP)
        reason = wait_for(
            lambda: next(
                (r for r in [node.http.get("/health/ready").json()["reason"]] if r != "ready"),
                None,
            ),
            "the node to notice",
        )
        assert reason == "core_stuck"
        os.kill(node.core_pid(), signal.SIGCONT)
        node.wait_ready()
