"""A user's rule that is true of every healthy node, while two nodes of four fail: no pool gets below its floor."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fleetctl.controller.controller import open_controller
from runbooks.run import RunStatus
from tests.fixtures.content import RULE, TREE, write_content
from tests.fixtures.controller import kill, make_config, make_provider, stop_all
from tests.fixtures.driven import DrivenClock, Traffic, drive

pytestmark = pytest.mark.anyio

NODES = ("node-1", "node-2", "node-3", "node-4")
FLOOR = 3  # of four, at a capacity floor of 60 %


def wrong_content(folder: Path) -> Path:
    """One alert for each node: none is part of a wider incident, of which automation keeps its hands off."""
    head, rule = RULE.split("    rules:\n")
    rules = [
        rule.replace("NodeStepsSlow", f"Wrong{number}").replace(
            "llm:step_seconds:mean > 0.025", f'llm:up{{node="{node}"}} == 1'
        )
        for number, node in enumerate(NODES)
    ]
    tree = TREE.replace("[NodeStepsSlow]", f"[{', '.join(f'Wrong{n}' for n in range(len(NODES)))}]")
    tree = tree.replace("max(llm:step_seconds:mean{{{scope}}})", "max(llm:up{{{scope}}})").replace("0.025", "0.5")
    return write_content(folder, rule=f"{head}    rules:\n{''.join(rules)}", tree=tree)


async def test_two_nodes_that_fail_and_a_rule_true_of_every_healthy_node_take_no_pool_below_its_floor(
    tmp_path: Path,
) -> None:
    clock, traffic = DrivenClock(), Traffic()
    config = make_config(tmp_path, nodes=4, policy="run", content=[wrong_content(tmp_path / "content")])
    serving: list[int] = []
    try:
        async with open_controller(config, make_provider(tmp_path), clock) as controller:
            carrying = asyncio.create_task(controller.executor.run_forever())

            def count() -> int:
                return sum(state.is_serving for state in controller.fleet.nodes.values())

            await drive(controller, clock, traffic, lambda: count() == len(NODES))
            kill(tmp_path, "node-1")
            kill(tmp_path, "node-2")

            def are_refused() -> bool:
                serving.append(count())
                return len(controller.journal.list([RunStatus.REFUSED])) >= 2

            await drive(controller, clock, traffic, are_refused)
            later = clock.now() + 20

            def is_later() -> bool:
                serving.append(count())
                return clock.now() >= later

            await drive(controller, clock, traffic, is_later)
            asked = await controller.executor.act("drain node-3", reason="a test", requested_by="ann")
            refused = controller.journal.list([RunStatus.REFUSED])
            controller.executor.stop()
            clock.move(1.0)
            await carrying
    finally:
        stop_all(tmp_path)
    assert min(serving) == 2, "the two that live serve all the time"
    assert {(run.title, run.requested_by, run.error) for run in refused} == {
        (title, by, f"without {node} only 1 of 2 nodes would serve, the floor is {FLOOR}")
        for title, by, node in (
            ("Take node-3 out of service", "policy:noisy_neighbour", "node-3"),
            ("Take node-4 out of service", "policy:noisy_neighbour", "node-4"),
            ("drain node-3", "ann", "node-3"),
        )
    }
    assert asked.status is RunStatus.REFUSED
