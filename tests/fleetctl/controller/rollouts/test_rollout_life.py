"""A rollout in simulated time under made-up traffic: caught by the gate, passed, and taken back in an incident."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from pathlib import Path

import pytest

from diagnostics.diagnosis import Diagnosis
from diagnostics.incident import with_diagnosis
from fleetctl.controller.controller import Controller
from fleetctl.controller.rollouts.rollout import Rollout
from fleetctl.controller.rollouts.rollout_row import list_rollouts
from runbooks.run import RunStatus
from tests.fixtures.controller import stop_all
from tests.fixtures.driven import HEALTHY_STEP_S, DrivenClock, Traffic, drive
from tests.fleetctl.controller.incidents.test_incident_life import healthy, opened, runs

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600)]  # minutes of simulated time: on a busy machine as many

REQUESTS_PER_S = 40  # of a node: the gate has enough of them within a minute
SLOW_EVERY = 11
JUDGING = ("alerts", "diagnosis", "remediation", "closing")  # loops that a rollout does not need


class ComparedTraffic(Traffic):
    """Traffic with the histograms that the gate reads; one request in a few is slow everywhere, and more where told."""

    def __init__(self) -> None:
        super().__init__()
        self.slow_every: dict[str, int] = defaultdict(lambda: SLOW_EVERY)
        self._num: dict[str, int] = defaultdict(int)
        self._num_slow: dict[str, int] = defaultdict(int)

    def exposition(self, node: str) -> str:
        for _ in range(REQUESTS_PER_S):
            self._num[node] += 1
            self._num_slow[node] += self._num[node] % self.slow_every[node] == 0
        num, slow = self._num[node], self._num_slow[node]
        lines = [super().exposition(node)]
        for metric in ("vllm:time_to_first_token_seconds", "vllm:request_time_per_output_token_seconds"):
            lines += [f'{metric}_bucket{{le="0.5"}} {num - slow}', f'{metric}_bucket{{le="+Inf"}} {num}']
        lines += [f"vllm:request_time_per_output_token_seconds_count {num}"]
        lines = "\n".join(lines).replace("vllm:time_to_first_token_seconds_count", "unread:count").splitlines()
        lines += [f"vllm:time_to_first_token_seconds_count {num}"]
        return "\n".join([*lines, ""])


def newest(controller: Controller) -> Rollout:
    with controller.database.engine.connect() as connection:
        return list_rollouts(connection)[0]


def has_ended(controller: Controller) -> bool:
    with controller.database.engine.connect() as connection:
        return any(one.state.is_end for one in list_rollouts(connection))


async def start(controller: Controller, options: str) -> None:
    await controller.executor.act(f"rollout start default {options}", reason="a test", requested_by="ann")


async def test_slow_revision_is_caught_at_the_canary_and_rolled_back_by_itself(tmp_path: Path) -> None:
    clock, traffic = DrivenClock(), ComparedTraffic()
    traffic.slow_every["node-4"] = 2
    try:
        async with opened(tmp_path, clock, judge_every_s=2.0) as controller:
            await healthy(controller, clock, traffic)
            before = (await controller.pools.views())[0].revision
            await start(controller, "--set load-s=0.05")
            await drive(controller, clock, traffic, lambda: has_ended(controller), without=JUDGING)
            rollout = newest(controller)
            assert rollout.state == "rolled_back"
            assert rollout.history[-2].share == 0.05, "the canary's share"
            assert "TTFT: " in rollout.why
            assert "worse by more than the 10 points allowed" in rollout.why
            (pool,) = await controller.pools.views()
            assert pool.revisions == {before: 3}
    finally:
        stop_all(tmp_path)


def is_withdrawn(controller: Controller, run_id: str) -> bool:
    (run,) = [one for one in runs(controller) if one.id == run_id]
    return run.status is RunStatus.CANCELLED


@pytest.mark.parametrize("is_the_clients", [False, True])
async def test_healthy_revision_is_passed_by_the_gate_and_taken_back_when_an_incident_begins_with_it(
    tmp_path: Path, is_the_clients: bool
) -> None:
    """Not when it turns out that clients send longer prompts: the proposal goes with the verdict."""
    clock, traffic = DrivenClock(), ComparedTraffic()
    try:
        async with opened(tmp_path, clock, judge_every_s=2.0, step_min_s=5.0) as controller:
            await healthy(controller, clock, traffic)
            before = (await controller.pools.views())[0].revision
            await start(controller, "--set load-s=0.05 --steps 25%")
            await drive(controller, clock, traffic, lambda: has_ended(controller), without=JUDGING)
            done = newest(controller)
            assert done.state == "done"
            assert "not worse by" in done.history[1].why
            (node, *_) = sorted(controller.fleet.nodes.keys() - {"node-1", "node-2", "node-3"})
            traffic.step_s[node] = 10 * HEALTHY_STEP_S

            def proposed() -> bool:
                return any(run.status is RunStatus.PROPOSED for run in runs(controller))

            await drive(controller, clock, traffic, proposed)
            (run,) = [run for run in runs(controller) if run.status is RunStatus.PROPOSED]
            assert (run.runbook, dict(run.inputs)) == ("rollback-pool", {"pool": "default"})
            assert run.reason.startswith(f"it began with {done.id}, {before} to {done.to_revision}: ")
            if is_the_clients:
                name = run.incident_id or ""
                is_over = partial(is_withdrawn, controller, run.id)
                found = Diagnosis("latency", "long_prompts", "Prompts are longer", "confirmed", (), (), (), clock.now())
                await controller.book.change_incident(name, partial(with_diagnosis, diagnosis=found))
                await drive(controller, clock, traffic, is_over, without=("diagnosis",))
                return
            await controller.executor.decide(run.id, "approve", "ann")
            await drive(controller, clock, traffic, lambda: newest(controller).is_return)
            assert (newest(controller).to_revision, newest(controller).started_by) == (before, "ann")
    finally:
        stop_all(tmp_path)
