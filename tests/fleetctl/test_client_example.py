"""The example of an automation (docs/client.md) against recorded answers: it acts on what is known, and once."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from fleetctl.wire.base import Problem
from fleetctl.wire.gpu import Gpu
from fleetctl.wire.node import NodePhase
from fleetctl.wire.run import RunStatus
from tests.fixtures import ROOT
from tests.fixtures.cockpit import make_node, make_run
from tests.fixtures.recorded_controller import RecordedController, recorded_controller


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("keep_cool", ROOT / "docs/examples/keep_cool.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def card(throttled: list[str] | None) -> Gpu:
    return Gpu(node="node-1", gpu="0", throttled=throttled)


@pytest.fixture
def controller() -> Iterator[RecordedController]:
    with recorded_controller({"/v1/runs": [], "/v1/actions": make_run()}) as made:
        yield made


def orders(controller: RecordedController, example: ModuleType, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """The exit code, and how many commands were ordered."""
    monkeypatch.setattr("sys.argv", ["keep_cool.py", controller.url])
    code: int = example.main()
    return code, controller.asked.count("POST /v1/actions")


@pytest.mark.parametrize(
    ("phase", "throttled", "is_ours", "ordered"),
    [
        (NodePhase.READY, ["hw_thermal"], False, 1),
        (NodePhase.READY, ["power_cap"], False, 0),
        (NodePhase.READY, None, False, 0),
        (NodePhase.CORDONED, [], True, 1),
        (NodePhase.CORDONED, [], False, 0),
        (NodePhase.CORDONED, None, True, 0),
        (NodePhase.CORDONED, ["hw_thermal"], True, 0),
    ],
)
def test_it_acts_on_known_heat_and_takes_back_what_was_its_own(
    controller: RecordedController,
    example: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    phase: NodePhase,
    throttled: Any,
    is_ours: bool,
    ordered: int,
) -> None:
    controller.answers["/v1/nodes"] = [make_node("node-1", phase=phase, gpus=[card(throttled)])]
    if is_ours:
        own = {"runbook": "action", "title": "cordon node-1", "targets": ["node-1"], "reason": example.WHY}
        controller.answers["/v1/runs"] = [make_run(status=RunStatus.SUCCEEDED, **own)]
    assert orders(controller, example, monkeypatch) == (0, ordered)


def test_the_guards_no_is_its_exit_code(
    controller: RecordedController, example: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller.answers["/v1/nodes"] = [make_node("node-1", gpus=[card(["sw_thermal"])])]
    controller.answers["/v1/actions"] = Problem(error="the floor: 1 node must stay", exit_code=3)
    controller.statuses["/v1/actions"] = 409
    assert orders(controller, example, monkeypatch) == (3, 1)


def test_no_answer_is_exit_code_four(example: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["keep_cool.py", "http://127.0.0.1:9"])
    assert example.main() == 4
