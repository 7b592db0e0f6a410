"""The built-in pages, and the borders that other packages rely on."""

from __future__ import annotations

import promql_parser
import pytest

from fleetctl import wire
from runbooks.plan import plan_page
from runbooks.run import RunStatus
from tests.fixtures.runbooks import LIBRARY, World, propose


def test_has_the_pages_that_the_product_names() -> None:
    assert set(LIBRARY) == {
        "cordon-node",
        "drain-node",
        "end-stuck-drain",
        "even-out-routing",
        "lower-seats",
        "mend-signals",
        "open-overflow",
        "prefix-cache-broken",
        "quality-drop",
        "raise-seats",
        "replace-gpu-node",
        "replace-lying-node",
        "reroute-long-context",
        "replace-node",
        "restart-gateway",
        "restart-node",
        "rollback-pool",
        "scale-pool",
        "shed-load",
        "stop-oom-loop",
        "stop-scaling",
    }
    assert set(LIBRARY["replace-node"].causes) == {
        *("slow_node", "straggler", "gpu_clock", "busy_host", "machine_unhealthy"),
        *("node_down", "core_hung", "crash_loop"),
    }


@pytest.mark.parametrize("name", LIBRARY)
def test_pages_are_written_for_a_person(name: str) -> None:
    page = LIBRARY[name]
    headings = ["## When to use", "## What to check first", "## What can go wrong"]
    for heading in headings if page.is_by_hand else [*headings, "## What it does", "## 1. ", "## Undo"]:
        assert f"\n{heading}" in page.markdown
    assert all(spec.description for spec in page.inputs.values())
    assert "etter than before means" in page.markdown or page.is_by_hand, "undo says what would have been a success"


@pytest.mark.parametrize("name", [name for name, page in LIBRARY.items() if page.verify])
def test_expectations_are_promql(name: str) -> None:
    page = LIBRARY[name]
    plan = plan_page(page, {key: spec.example for key, spec in page.inputs.items()}, library=LIBRARY)
    assert plan.verify is not None
    assert promql_parser.parse(plan.verify.expect)


def test_statuses_are_those_of_the_wire() -> None:
    assert {s.name: s.value for s in RunStatus} == {s.name: s.value for s in wire.RunStatus}
    assert {s.name for s in RunStatus if s.is_terminal} == {s.name for s in wire.TERMINAL_RUN_STATUSES}


@pytest.mark.anyio
async def test_a_run_is_a_run_on_the_wire(world: World) -> None:
    controller = world.start()
    run = await controller.executor.drive((await propose(controller, approve=True)).id)
    sent = wire.Run.model_validate(run.to_dict())
    assert set(wire.Run.model_fields) - {"held", "prediction"} == set(run.to_dict()), (
        "what holds it is judged when somebody asks"
    )
    assert set(wire.StepRecord.model_fields) == set(run.to_dict()["steps"][0])
    assert sent.status == wire.RunStatus.SUCCEEDED
    assert [step.receipt for step in sent.steps] == [step.receipt for step in run.steps]
