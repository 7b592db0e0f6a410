"""A user's rule, tree, cause, page and policy on a real controller: from a scraped signal to a run, and exchanged."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from fleetctl.controller.app import serve
from fleetctl.controller.content.content import BadContentError, alert_names
from fleetctl.controller.controller import Controller, open_controller
from fleetctl.kit.errors import BadInputError
from fleetctl.kit.tls import NO_TLS
from runbooks.run import Run, RunStatus
from tests.fixtures.content import PAGE, RULE, TREE, put, write_content
from tests.fixtures.controller import TOKEN, make_config, make_provider, serving, stop_all, until
from tests.fixtures.driven import DrivenClock, Traffic, drive

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def opened(state_dir: Path, clock: DrivenClock, content: Path) -> AsyncIterator[Controller]:
    config = make_config(state_dir, nodes=3, content=[content])
    try:
        async with open_controller(config, make_provider(state_dir), clock) as controller:
            carrying = asyncio.create_task(controller.executor.run_forever())
            try:
                yield controller
            finally:
                controller.executor.stop()
                clock.move(1.0)
                await carrying
    finally:
        stop_all(state_dir)


async def healthy(controller: Controller, clock: DrivenClock, traffic: Traffic) -> None:
    await drive(controller, clock, traffic, lambda: sum(s.is_serving for s in controller.fleet.nodes.values()) == 3)
    start = clock.now()
    await drive(controller, clock, traffic, lambda: clock.now() - start >= 40)
    assert controller.book.open_incidents() == []


def runs(controller: Controller) -> list[Run]:
    return list(controller.journal.list())


def states(controller: Controller) -> dict[str, str]:
    return {alert.name: alert.state for alert in controller.alerting.alerts()}


async def kinds(controller: Controller) -> list[str]:
    return [entry.kind for entry in await controller.timeline.read()]


async def looked_twice(controller: Controller) -> None:
    """What is read is what two looks in a row found."""
    for _ in range(2):
        await controller.loops.run_turn("content")


async def test_a_users_alert_fires_is_diagnosed_by_the_users_tree_and_the_users_page_runs(tmp_path: Path) -> None:
    folder = write_content(tmp_path / "content")
    clock, traffic = DrivenClock(), Traffic()
    async with opened(tmp_path / "state", clock, folder) as controller:
        await healthy(controller, clock, traffic)
        traffic.step_s["node-2"] = 0.03  # slow for the user, not for our rules
        await drive(controller, clock, traffic, lambda: bool(runs(controller)))

        (incident,) = controller.book.open_incidents()
        assert "NodeStepsSlow" in {alert.name for alert in incident.alerts}
        assert incident.diagnosis is not None
        assert (incident.diagnosis.tree, incident.diagnosis.cause) == ("neighbours", "noisy_neighbour")
        assert incident.diagnosis.confidence == "confirmed"
        (run,) = runs(controller)
        assert (run.runbook, run.decided_by) == ("leave-host", "policy:noisy_neighbour")
        await drive(controller, clock, traffic, lambda: runs(controller)[0].status is RunStatus.SUCCEEDED)

        # The rule is edited: what fires goes on, the other rules know nothing of it.
        assert states(controller)["NodeStepsSlow"] == "firing"
        put(folder / "rules/neighbours.yaml", RULE.replace("NodeStepsSlow", "NodeStepsVerySlow"))
        put(folder / "trees/neighbours.yaml", TREE.replace("NodeStepsSlow", "NodeStepsVerySlow"))
        others = {name: state for name, state in states(controller).items() if name != "NodeStepsSlow"}
        await drive(controller, clock, traffic, lambda: has_alert(controller, "NodeStepsVerySlow"), limit_s=10)
        assert "NodeStepsSlow" not in states(controller)
        assert others.items() <= states(controller).items()
        standing = controller.book.get(incident.id)
        assert standing is not None
        assert standing.diagnosis == incident.diagnosis
        await drive(controller, clock, traffic, lambda: states(controller).get("NodeStepsVerySlow") == "firing")
        told = [entry for entry in await controller.timeline.read() if entry.kind == "alert.resolved"]
        assert any(entry.text.startswith("NodeStepsSlow resolved") for entry in told)
        assert set(controller.loops.failures().values()) == {0}


def has_alert(controller: Controller, name: str) -> bool:
    return name in alert_names(controller.content.current.rules)


async def test_bad_content_changes_nothing_and_is_shown_until_it_is_mended(tmp_path: Path) -> None:
    folder = write_content(tmp_path / "content")
    clock = DrivenClock()
    async with opened(tmp_path / "state", clock, folder) as controller:
        before = controller.content.current
        put(folder / "rules/neighbours.yaml", RULE.replace("for: 5s", "for: 7s"))
        put(folder / "trees/neighbours.yaml", TREE.replace("cause: noisy_neighbour", "cause: noisy"))
        clock.move(5.0)
        await controller.loops.run_turn("content")
        put(folder / "pages/other.md", "half of a pa")  # still being written
        await controller.loops.run_turn("content")
        assert controller.content.state().failed_at is None
        (folder / "pages/other.md").unlink()
        await looked_twice(controller)

        assert controller.content.current is before
        state = controller.content.state()
        assert state.failed_at == clock.now()
        assert 'unknown cause "noisy"' in state.error
        assert b"fleetctl_content_load_failed 1.0" in controller.exposition()
        (entry,) = [one for one in await controller.timeline.read() if one.kind == "content.load_failed"]
        assert "trees/neighbours.yaml:16" in entry.text
        await looked_twice(controller)
        assert (await kinds(controller)).count("content.load_failed") == 1
        with pytest.raises(BadContentError):
            await controller.content.reload("once more")

        put(folder / "trees/neighbours.yaml", TREE)
        await looked_twice(controller)
        assert controller.content.state().failed_at is None
        assert b"fleetctl_content_load_failed 0.0" in controller.exposition()
        (rule,) = [r for g in controller.content.current.rules for r in g.rules if r.name == "NodeStepsSlow"]
        assert rule.kind == "alert"
        assert rule.for_s == 7.0
        assert set(controller.loops.failures().values()) == {0}


async def test_a_run_keeps_the_steps_of_the_page_that_it_was_proposed_with(tmp_path: Path) -> None:
    folder = write_content(tmp_path / "content")
    clock, traffic = DrivenClock(), Traffic()
    async with opened(tmp_path / "state", clock, folder) as controller:
        await healthy(controller, clock, traffic)
        run = await controller.executor.propose("leave-host", {"node": "node-1"}, reason="", requested_by="ann")
        put(folder / "pages/leave-host.md", PAGE.replace("fleetctl cordon {{node}}", "fleetctl drain {{node}}"))
        await controller.content.reload("a test")

        assert controller.content.pages["leave-host"].steps[0].command == "drain {{node}}"
        await controller.executor.decide(run.id, "approve", "ann")
        await drive(controller, clock, traffic, lambda: runs(controller)[0].status.is_terminal)
        (run,) = runs(controller)
        assert run.status is RunStatus.SUCCEEDED, run.error
        assert [step.command for step in run.steps] == ["cordon node-1"]


async def test_a_controller_with_bad_content_does_not_start(tmp_path: Path) -> None:
    folder = write_content(tmp_path / "content", tree=TREE.replace("cause: noisy_neighbour", "cause: noisy"))
    config = make_config(tmp_path / "state", content=[folder])
    with pytest.raises(BadInputError) as refused:
        await serve(config, provider=make_provider(tmp_path / "state"))
    assert refused.value.exit_code == 2
    assert "trees/neighbours.yaml:16: verdict neighbour: unknown cause" in refused.value.message
    assert not (tmp_path / "state" / "controller.sqlite").exists()


async def test_content_is_listed_and_reloaded_over_http_and_on_a_hangup(tmp_path: Path) -> None:
    folder = write_content(tmp_path / "content")
    config = make_config(tmp_path / "state", nodes=1, content=[folder])
    try:
        async with serving(config) as url, httpx.AsyncClient(verify=NO_TLS, trust_env=False, base_url=url) as http:
            listing = (await http.get("/v1/content")).json()
            (tree,) = [one for one in listing["objects"] if (one["kind"], one["name"]) == ("tree", "neighbours")]
            assert (tree["source"], tree["overrides"]) == (str(folder), [])
            assert (await http.get("/v1/status")).json()["content"]["own_objects"] == 6

            assert (await http.post("/v1/content/reload")).status_code == 401
            reloaded = await http.post("/v1/content/reload", headers={"Authorization": f"Bearer {TOKEN}"})
            assert reloaded.json()["state"]["loaded_at"] > listing["state"]["loaded_at"]

            put(folder / "pages/leave-host.md", "no front matter\n")
            refused = await http.post("/v1/content/reload", headers={"Authorization": f"Bearer {TOKEN}"})
            assert refused.status_code == 400
            assert "pages/leave-host.md:1: no front matter" in refused.json()["error"]
            assert (await http.get("/v1/runbooks/leave-host")).status_code == 200

            write_content(folder)

            async def is_well() -> bool:
                signal.raise_signal(signal.SIGHUP)
                return (await http.get("/v1/content")).json()["state"]["failed_at"] is None

            await until(is_well, "the content is loaded again", pause_s=0.5)
    finally:
        stop_all(tmp_path / "state")
