"""The built-in pages, and the borders that other packages rely on."""

from __future__ import annotations

import promql_parser
import pytest

from alerts.promql import evaluate
from alerts.series.store import SeriesStore
from fleetctl.wire.run import TERMINAL_RUN_STATUSES, Run, StepRecord
from fleetctl.wire.run import RunStatus as WireRunStatus
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


@pytest.mark.parametrize(
    ("steps_s", "holds"),
    [
        ({"node-3": 0.02, "node-4": 0.03, "new": 0.025}, True),
        ({"node-3": 0.02, "node-4": 0.03, "new": 0.09}, False),
        ({"node-3": 0.0001, "new": 0.004}, True),  # below 5 ms timers decide
        ({"new": 0.09}, True),  # no node of its engine beside it
    ],
)
def test_a_replacement_is_held_to_the_steps_of_its_own_engine(steps_s: dict[str, float], holds: bool) -> None:
    """A pool of two engines: the others' steps are a tenth of ours."""
    plan = plan_page(LIBRARY["replace-node"], {"node": "old", "replacement": "new", "pool": "default"}, library=LIBRARY)
    assert plan.verify is not None
    store = SeriesStore()
    told = [("vllm", name, value) for name, value in (steps_s | {"old": 0.9}).items()]
    for engine, node, value in [*told, *(("llamacpp", f"llama-{i}", 0.002) for i in range(4))]:
        labels = {"node": node, "pool": "default", "model": "m", "engine": engine}
        store.append({"__name__": "llm:step_seconds:mean", **labels}, 100.0, value)
        store.append({"__name__": "llm:up", **labels}, 100.0, 1.0)
    (found,) = evaluate(plan.verify.expect, store, 101.0)
    assert bool(found.value) is holds


def test_statuses_are_those_of_the_wire() -> None:
    assert {s.name: s.value for s in RunStatus} == {s.name: s.value for s in WireRunStatus}
    assert {s.name for s in RunStatus if s.is_terminal} == {s.name for s in TERMINAL_RUN_STATUSES}


@pytest.mark.anyio
async def test_a_run_is_a_run_on_the_wire(world: World) -> None:
    controller = world.start()
    run = await controller.executor.drive((await propose(controller, approve=True)).id)
    sent = Run.model_validate(run.to_dict())
    assert set(Run.model_fields) - {"held", "prediction"} == set(run.to_dict()), (
        "what holds it is judged when somebody asks"
    )
    assert set(StepRecord.model_fields) == set(run.to_dict()["steps"][0])
    assert sent.status == WireRunStatus.SUCCEEDED
    assert [step.receipt for step in sent.steps] == [step.receipt for step in run.steps]
