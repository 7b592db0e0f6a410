"""`rollout status` and `rollout history` over recorded answers."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from fleetctl.cli.app import run
from fleetctl.wire.rollout import Rollout, RolloutChange, RolloutSignal
from tests.fixtures.recorded_controller import RecordedController, recorded_controller

CANARY = Rollout(
    id="rollout-3fa1c2",
    pool="default",
    state="canary",
    from_revision="rev-1f0c55ad7a10",
    to_revision="rev-9b2e01c4d3aa",
    steps=[0.05, 0.5, 1.0],
    share=0.05,
    new_nodes=1,
    new_ready=1,
    other_nodes=3,
    waits_for="not enough yet: errors: 61 requests of the new revision, about 140 more",
    signals=[
        RolloutSignal(
            name="errors",
            verdict="not_enough",
            new_total=61.0,
            stable_total=900.0,
            stable_bad=9.0,
            missing="61 requests of the new revision, about 140 more",
            more_requests=140,
        )
    ],
    started_at=1_700_000_000.0,
    started_by="ann",
    why="more seats",
    history=[RolloutChange(at=1_700_000_000.0, state="canary", share=0.05, by="ann", why="more seats")],
)
DONE = CANARY.model_copy(
    update={"id": "rollout-1", "pool": "code", "state": "done", "new_nodes": None, "waits_for": "", "signals": []}
)


@pytest.fixture(scope="module")
def controller() -> Iterator[RecordedController]:
    with recorded_controller({"/v1/rollouts": [CANARY, DONE]}) as made:
        yield made


def said(controller: RecordedController, *words: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert run(["--controller", controller.url, "rollout", *words]) == 0
    return capsys.readouterr().out


def test_status_names_step_numbers_and_what_it_waits_for(
    controller: RecordedController, capsys: pytest.CaptureFixture[str]
) -> None:
    table = said(controller, "status", capsys=capsys)
    assert max(len(line) for line in table.splitlines()) <= 80
    assert table.splitlines()[1].split()[:5] == ["default", "canary", "at", "5%", "1/1"]
    assert "code" not in table, "it has ended"
    one = said(controller, "status", "default", capsys=capsys)
    assert "waits for  not enough yet: errors: 61 requests of the new revision, about 140 more" in one
    assert "[5%], 50%, 100%" in one
    assert "1.0% of 900" in one
    assert "canary at 5%  ann: more seats" in one


def test_history_tells_how_each_ended(controller: RecordedController, capsys: pytest.CaptureFixture[str]) -> None:
    table = said(controller, "history", capsys=capsys)
    assert max(len(line) for line in table.splitlines()) <= 80
    assert [line.split()[-1] for line in table.splitlines()[1:]] == ["5%", "done"]
    assert [one["id"] for one in json.loads(said(controller, "history", "-o", "json", capsys=capsys))] == [
        "rollout-3fa1c2",
        "rollout-1",
    ]
