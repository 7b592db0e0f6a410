"""The autoscaler's loop over a small real node: what it says, what it may do, and what it keeps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fleetctl.controller.autoscaler.autoscaling import is_news
from fleetctl.controller.autoscaler.judgement import Direction
from fleetctl.controller.controller import Controller, open_controller
from fleetctl.kit.errors import BadInputError
from fleetctl.wire.autoscaler import AutoscalerPool, AutoscalerRequest
from fleetctl.wire.freeze import FreezeRequest
from runbooks.run import RunStatus
from tests.fixtures.controller import NoProvider, make_config, running_fleet, stop_all, tell_node, until

pytestmark = pytest.mark.anyio

FULL = """\
vllm:kv_cache_usage_perc{model_name="demo"} 0.9
vllm:num_requests_running{model_name="demo"} 3
vllm:num_requests_waiting{model_name="demo"} 0
engine_limit{limit="max_num_seqs"} 4
"""


@pytest.fixture
def state_dir(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    stop_all(tmp_path)


async def judged(controller: Controller) -> AutoscalerPool:
    for loop in ("fleet", "scrape", "alerts", "autoscaler"):
        await controller.loops.run_turn(loop)
    (view,) = await controller.autoscaling.views()
    return view


async def told(controller: Controller, kind: str) -> list[str]:
    return [entry.text for entry in await controller.timeline.read(0) if entry.kind == kind]


def test_an_advice_that_goes_to_and_fro_with_the_queue_is_told_a_few_times_only() -> None:
    """The sizes that an overload of two and a half minutes brought, judged each five seconds."""
    told: list[int] = []
    before: tuple[Direction, int] | None = None
    for size in (10, 8, 7, 8, 7, 8, 7, 6, 4, 3, 3):
        if is_news(before, advice := (Direction.OUT, size)):
            before = advice
            told.append(size)
    assert told == [10, 7, 4, 3]
    assert is_news((Direction.OUT, 8), (Direction.IN, 8))


async def test_full_pool_is_advised_until_it_is_handed_over_and_then_scaled_by_a_guarded_run(state_dir: Path) -> None:
    config = make_config(state_dir, nodes=1, out_for_s=0.0)
    async with running_fleet(config) as controller:
        await tell_node(controller, "node-1", metrics=FULL)

        async def is_full() -> AutoscalerPool | None:
            view = await judged(controller)
            return view if view.kv_ratio is not None else None

        view = await until(is_full, "the node's load is known")
        assert (view.kv_ratio, view.seat_ratio, view.direction, view.size) == (0.9, 0.75, "out", 2)
        await judged(controller)
        advised = await told(controller, "autoscaler.advised")
        assert advised == [
            "pool default: would scale from 1 to 2: KV 90% for 0 s, the limit is 70% for 0 s;"
            " it only advises: fleetctl scale default --to 2"
        ]
        assert controller.autoscaling.words_of("default").startswith("only advises 2 nodes: KV 90%")

        view = await controller.autoscaling.configure("default", AutoscalerRequest(mode="act", max=3, by="ann"))
        assert not view.acts
        await judged(controller)
        assert await controller.database.call(controller.journal.list) == ()

        run = await controller.executor.act("pool owner default --to autoscaler", reason="", requested_by="ann")
        await controller.executor.drive(run.id)
        await controller.freezes.make(FreezeRequest(reason="launch", made_by="ann"))
        await judged(controller)
        (refused,) = await told(controller, "autoscaler.refused")
        assert "launch" in refused

        # What is done about a pool that grows and shrinks by turns: a person owns its size, and it only advises again.
        await controller.freezes.end(None, by="ann")
        stopping = await controller.executor.propose(
            "stop-scaling", {"pool": "default"}, reason="to and fro", requested_by="ann", approve=True
        )
        done = await controller.executor.drive(stopping.id)
        assert done.status is RunStatus.SUCCEEDED, done.error
        assert not (await judged(controller)).acts


async def test_what_people_set_is_kept_and_the_run_is_the_autoscalers(state_dir: Path) -> None:
    config = make_config(state_dir, nodes=1, out_for_s=0.0)
    async with running_fleet(config) as controller:
        await controller.autoscaling.configure("default", AutoscalerRequest(mode="act", max=3, by="ann"))
        run = await controller.executor.act("pool owner default --to autoscaler", reason="", requested_by="ann")
        await controller.executor.drive(run.id)
        await tell_node(controller, "node-1", metrics=FULL)

        async def is_scaled() -> list[str]:
            await judged(controller)
            return await told(controller, "autoscaler.scaled")

        (words,) = await until(is_scaled, "it was scaled")
        assert words.startswith("pool default: scales from 1 to 2: KV 90%")
        runs = await controller.database.call(controller.journal.list)
        assert [run.requested_by for run in runs if run.title.startswith("scale")] == ["autoscaler"]
        exposition = controller.exposition().decode()
        assert 'controller_autoscaler_runs_total{direction="out",pool="default"} 1.0' in exposition
        assert 'controller_autoscaler_size{pool="default"} 2.0' in exposition
    async with open_controller(config, NoProvider()) as controller:
        (view,) = await controller.autoscaling.views()
        assert (view.mode, view.min, view.max) == ("act", 1, 3)
        assert view.last_out_at is not None


async def test_bounds_that_contradict_and_a_pool_that_is_not_there_are_bad_input(state_dir: Path) -> None:
    async with open_controller(make_config(state_dir, nodes=1), NoProvider()) as controller:
        with pytest.raises(BadInputError, match="--min 5 is more than --max 2"):
            await controller.autoscaling.configure("default", AutoscalerRequest(min=5, max=2))
        with pytest.raises(BadInputError, match="there is no pool chat"):
            await controller.autoscaling.configure("chat", AutoscalerRequest(min=5))
