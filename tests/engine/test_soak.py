"""`python -m engine.soak`: a node comes through it, and what would leak or be lost is found."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.soak.accounting import RequestAccounting, compare_metrics
from engine.soak.client import Outcome
from engine.soak.leak_check import MIB, IdleReading, find_growth
from engine.soak.node_process import ProcessUsage
from engine.soak.request import draw_request, known_requests


def line(request_id: str, state: str = "finished", **facts: Any) -> dict[str, Any]:
    common = {"continued": False, "tokens_out": 5, "choices": 1, "finish_reasons": ["length"]}
    return {"request_id": request_id, "state": state, **common, **facts}


def accounting_of(outcomes: list[Outcome], lines: list[dict[str, Any]]) -> RequestAccounting:
    accounting = RequestAccounting()
    for outcome in outcomes:
        accounting.record_outcome(outcome)
    for each in lines:
        accounting.record_log_line(each)
    return accounting


FINISHED = Outcome("soak-1", "chat", "finished", 200, 5)


@pytest.mark.parametrize(
    ("outcome", "lines", "told"),
    [
        (FINISHED, [line("soak-1")], None),
        (FINISHED, [], "0 terminal states"),
        (FINISHED, [line("soak-1"), line("soak-1")], "2 terminal states"),
        (FINISHED, [line("soak-1", "aborted")], "finished for its client, aborted in the log"),
        (FINISHED, [line("soak-1", tokens_out=6)], "5 tokens in its usage, 6 in the log"),
        (replace(FINISHED, ending="cut", detail="no end"), [line("soak-1")], "cut: no end"),
        (Outcome("soak-1", "given-up", "given_up"), [], None),
        (Outcome("soak-1", "given-up", "given_up"), [line("soak-1", "aborted")], None),
        (Outcome("soak-1", "given-up", "given_up", 200), [], "0 terminal states"),
        (FINISHED, [line("soak-1"), line("soak-2")], "that nobody sent"),
    ],
    ids=[
        *("agreed", "no-line", "two-lines", "other-state", "other-tokens", "cut", "never-came", "hung-up"),
        *("came-and-vanished", "from-nowhere"),
    ],
)
def test_each_request_has_one_end_that_all_tell_alike(
    outcome: Outcome, lines: list[dict[str, Any]], told: str | None
) -> None:
    problems = accounting_of([outcome], lines).reconcile()
    assert len(problems) == (0 if told is None else 1)
    assert told is None or told in problems[0]


def test_a_request_that_moved_and_came_back_is_counted_once() -> None:
    moved = line("soak-1", "moved", tokens_out=3, choices=2, finish_reasons=["stop", None])
    rest = line("soak-1", continued=True, tokens_out=9, choices=2, finish_reasons=["stop", "length"])
    accounting = accounting_of([], [moved, rest])
    assert (accounting.tokens, accounting.choices) == (9, 2)


def exposition(**changes: float) -> str:
    values = {
        'engine_requests_total{state="finished"}': 1,
        'engine_requests_total{state="refused"}': 0,
        "engine_admission_rejected_total": 0,
        'vllm:request_success_total{finished_reason="length"}': 1,
        "vllm:e2e_request_latency_seconds_count": 1,
        "vllm:request_generation_tokens_count": 1,
        "vllm:generation_tokens_total": 5,
        "vllm:kv_cache_usage_perc": 0,
    }
    return "".join(f"{name} {changes.get(name, value)}\n" for name, value in values.items())


def test_metrics_that_agree_with_the_log_are_no_problem() -> None:
    assert compare_metrics(accounting_of([], [line("soak-1")]), exposition()) == []


@pytest.mark.parametrize("name", ["vllm:generation_tokens_total", "vllm:kv_cache_usage_perc"])
def test_metrics_that_disagree_with_the_log_are_told(name: str) -> None:
    (problem,) = compare_metrics(accounting_of([], [line("soak-1")]), exposition(**{name: 0.5}))
    assert problem.startswith(f"{name} is 0.5, the log has ")


IDLE = IdleReading(10.0, 100, ProcessUsage(1, 80 * MIB, 16, 8), ProcessUsage(2, 50 * MIB, 8, 2), 7)


@pytest.mark.parametrize(
    ("last", "told"),
    [
        (IDLE, None),
        (replace(IDLE, tasks=8), "asyncio tasks: 7 at 10 s, 8 at 20 s"),
        (replace(IDLE, node=ProcessUsage(1, 80 * MIB, 17, 8)), "open files"),
        (replace(IDLE, node=ProcessUsage(1, 80 * MIB, 16, 40)), "threads"),
        (replace(IDLE, node=ProcessUsage(1, 85 * MIB, 16, 8)), None),
        (replace(IDLE, node=ProcessUsage(1, 90 * MIB, 16, 8)), "the node grew from 80.0 MiB"),
        (replace(IDLE, core=ProcessUsage(2, 70 * MIB, 8, 2)), "the core grew from 50.0 MiB"),
        (replace(IDLE, core=ProcessUsage(2, 50 * MIB, 9, 2)), "the core holds open files: 8 at first, 9 now"),
        (replace(IDLE, core=ProcessUsage(3, 70 * MIB, 8, 2)), None),  # another core
    ],
)
def test_what_a_node_keeps_at_rest_is_told(last: IdleReading, told: str | None) -> None:
    problems = find_growth([IDLE, IDLE, replace(last, at_s=20.0)])
    assert len(problems) == (0 if told is None else 1)
    assert told is None or told in problems[0]


def test_the_same_seed_draws_the_same_requests_of_all_kinds() -> None:
    first, second = ([draw_request(rng) for _ in range(400)] for rng in (random.Random(3), random.Random(3)))
    assert first == second
    assert {"given-up", "bad", "oversize", "deadline", "several-choices"} <= {request.kind for request in first}


@pytest.mark.parametrize("args", [("--minutes", "0"), ("--minutes", "nan"), ("--runner", "none")])
def test_bad_arguments_exit_with_2(args: tuple[str, str]) -> None:
    done = subprocess.run([sys.executable, "-m", "engine.soak", *args], capture_output=True, text=True, timeout=150)
    assert done.returncode == 2


def test_a_known_request_is_the_same_however_it_is_sent() -> None:
    rng = random.Random(5)
    drawn = [request for request in (draw_request(rng) for _ in range(2000)) if request.answer is not None]
    alone = {request.answer: json.loads(request.body) for request in known_requests()}
    assert {request.answer for request in drawn} == set(alone)
    assert {request.stream for request in drawn} == {True, False}
    for request in drawn:
        body = json.loads(request.body)
        body = {name: value for name, value in body.items() if name not in ("stream", "stream_options")}
        assert body == alone[request.answer]
    assert {body["temperature"] == 0.0 for body in alone.values()} == {True, False}  # greedy and sampled


def test_an_answer_with_other_tokens_than_alone_is_told() -> None:
    accounting = RequestAccounting()
    alone = replace(FINISHED, kind="known", said=(5, 6, 7))
    accounting.compare_answer("known-1", alone)
    accounting.compare_answer("known-1", replace(alone, request_id="soak-2"))
    accounting.compare_answer("known-1", replace(alone, request_id="soak-3", ending="failed", said=(5,)))
    assert accounting.reconcile() == []
    assert accounting.known_answers == 2
    accounting.compare_answer("known-1", replace(alone, request_id="soak-4", said=(5, 9, 7)))
    accounting.compare_answer("known-2", replace(alone, request_id="soak-5", said=()))
    first, second = accounting.reconcile()
    assert first.startswith("soak-4 (known): not the answer of known-1 alone: 3 tokens, 3 wanted, token 1 is the first")
    assert second.startswith("soak-5 (known): not the answer of known-2 alone: 0 tokens")


def soak(tmp_path: Path, *options: str) -> dict[str, Any]:
    log = tmp_path / "node.log"
    command = [sys.executable, "-m", "engine.soak", *options, "-o", "json", "--keep-log", str(log)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=580)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "\x1b" not in done.stderr  # plain lines in a pipe
    assert re.match(r"\d+% \d+ requests, 0 problems\n", done.stderr), done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert report["ok"]
    assert report["problems"] == []
    assert report["leak_on_purpose_detected"] is True
    assert len(report["readings"]) >= 2
    assert report["states"]["finished"] > 20
    # One of seven or so, however few a busy machine answers in all.
    assert report["known_answers"] > report["states"]["finished"] / 20
    return report


@pytest.mark.e2e
@pytest.mark.waits
@pytest.mark.timeout(600)
def test_half_a_minute_of_traffic_and_disturbances_leaves_nothing_behind(tmp_path: Path) -> None:
    report = soak(tmp_path, "--minutes", "1")
    assert {"finished", "aborted", "invalid"} <= set(report["states"])


@pytest.mark.e2e
@pytest.mark.waits
@pytest.mark.timeout(600)  # its kernels are compiled first, on a busy machine in two minutes
def test_answers_stay_those_of_each_request_alone_with_everything_on(tmp_path: Path) -> None:
    """Tokens ahead, weights and KV in eight bits, swap space: beside others, preempted, moved, after a killed core."""
    soak(tmp_path, "--minutes", "1", "--all-on")
