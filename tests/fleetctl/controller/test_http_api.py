"""The controller's HTTP API over loopback, asked by its own client and by strangers."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest

from fleetctl.cli.get import Listing
from fleetctl.cli.kinds import Kind
from fleetctl.cli.selector import parse_selector
from fleetctl.client import ControllerClient
from fleetctl.controller import http_pages
from fleetctl.controller.app import serve
from fleetctl.kit.errors import BadInputError, FleetctlError, RefusedError, UnreachableError
from fleetctl.kit.tls import NO_TLS
from fleetctl.priority_class import PriorityClass
from fleetctl.providers.local import LocalProvider
from fleetctl.traffic_rule import RerouteSpec, ShedSpec, TrafficRuleRequest
from fleetctl.wire.diagnosis import DiagnoseRequest
from fleetctl.wire.freeze import FreezeRequest
from fleetctl.wire.group import GroupBy
from fleetctl.wire.node import NodePhase
from fleetctl.wire.routing import RouteState
from fleetctl.wire.run import ActionRequest, ApprovalRequest, RunRequest, RunStatus
from tests.fixtures.controller import TOKEN, make_config, make_provider, make_spec, serving, stop_all, until

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def url(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """One controller with three small nodes for the whole file; tests leave the nodes serving."""
    state_dir = tmp_path_factory.mktemp("controller")
    try:
        async with serving(make_config(state_dir, nodes=3)) as url:
            async with ControllerClient(url) as client:

                async def all_ready() -> bool:
                    status = await client.status()
                    return status.nodes_ready == status.nodes_total == 3

                await until(all_ready, "three nodes are ready")
            yield url
    finally:
        stop_all(state_dir)


@pytest.fixture
async def client(url: str) -> AsyncIterator[ControllerClient]:
    async with ControllerClient(url, TOKEN) as client:
        yield client


async def test_status_tells_nodes_and_the_age_of_every_loop(client: ControllerClient) -> None:
    status = await client.status()
    assert (status.nodes_ready, status.nodes_total, status.policy) == (3, 3, "ask")
    assert status.epoch >= 1
    assert {"fleet", "scrape", "alerts", "diagnosis", "remediation", "closing"} <= status.loops.keys()


async def test_nodes_show_what_was_seen_and_unknown_signals_as_unknown(client: ControllerClient) -> None:
    nodes = await client.nodes()
    assert [node.name for node in nodes] == ["node-1", "node-2", "node-3"]
    assert all(node.phase is NodePhase.READY and node.instance and node.url for node in nodes)
    assert all(node.ttft_s.value is None for node in nodes)
    assert (await client.node("node-2")).name == "node-2"


async def test_a_fleet_is_a_pool_of_one_revision_which_nodes_and_routes_carry(client: ControllerClient) -> None:
    (pool,) = await client.pools()
    (revision,) = await client.revisions()
    assert (pool.name, pool.model, pool.wanted, pool.nodes, pool.ready, pool.unknown) == ("default", "demo", 3, 3, 3, 0)
    assert (pool.revision, pool.revisions, pool.owner) == (revision.id, {revision.id: 3}, "person")
    assert pool.held_by is None
    assert (revision.model_dir, revision.nodes, revision.pools) == ("none", ["node-1", "node-2", "node-3"], ["default"])
    assert {node.revision for node in await client.nodes()} == {revision.id}
    table = await client.routing()
    assert table is not None
    assert {(route.pool, route.revision) for route in table.routes} == {("default", revision.id)}
    assert (await client.pool("default")).wanted == 3
    assert await client.revision(revision.id) == revision
    for missing in (client.pool("decode"), client.revision("rev-0")):
        with pytest.raises(BadInputError, match="there is no"):
            await missing


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/runs", {"runbook": "drain-node"}),
        ("POST", "/v1/runs/x/approval", {"decision": "approve", "by": "mallory"}),
        ("POST", "/v1/runs/x/cancel", {"by": "mallory"}),
        ("POST", "/v1/actions", {"command": "drain node-1"}),
        ("POST", "/v1/diagnose", {}),
        ("POST", "/v1/silences", {}),
        ("DELETE", "/v1/silences/x", {}),
        ("POST", "/v1/traffic-rules", {}),
        ("DELETE", "/v1/traffic-rules/x", {}),
        ("POST", "/v1/incidents/x/acknowledgement", {}),
        ("POST", "/v1/incidents/x/verdict", {"cause": "slow_node"}),
        ("POST", "/v1/freezes", {}),
        ("DELETE", "/v1/freezes", {}),
    ],
)
@pytest.mark.parametrize("header", [None, "Bearer wrong", "Bearer", "Basic x", TOKEN, f"Bearer {TOKEN}x"])
async def test_changes_without_the_token_are_refused(
    url: str, method: str, path: str, body: dict[str, str], header: str | None
) -> None:
    async with httpx.AsyncClient(verify=NO_TLS, trust_env=False) as http:
        headers = {"Authorization": header} if header is not None else {}
        answer = await http.request(method, f"{url}{path}", json=body, headers=headers)
    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert answer.json()["remedy"]


async def test_client_without_token_is_told_where_the_token_is(url: str) -> None:
    async with ControllerClient(url) as client:
        with pytest.raises(FleetctlError, match="token") as caught:
            await client.act(ActionRequest(command="cordon node-1"))
    assert not isinstance(caught.value, BadInputError)
    assert "state" in str(caught.value.remedy)


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/v1/nodes/node-77", 404, "node-1, node-2, node-3"),
        ("/v1/incidents/none", 404, "none"),
        ("/v1/runs/none", 404, "none"),
        ("/v1/runbooks/none", 404, "drain-node"),
        ("/v1/nowhere", 404, "Not Found"),
        ("/v1/incidents?status=broken", 400, "resolved"),
        ("/v1/events?after=-1", 400, "after"),
        ("/v1/events?after=9999999999999999999999", 400, "after"),
        ("/v1/events?wait_s=nan", 400, "wait_s"),
        ("/v1/events?newest=x", 400, "newest"),
        ("/v1/events/stream?after=x", 400, "after"),
        ("/v1/events/nodes?after=x", 400, "after"),
        ("/v1/routing?after=x", 400, "after"),
        ("/v1/query", 400, "expr"),
        ("/v1/query?expr=sum(", 400, ""),
        ("/v1/query?expr=" + "x" * 5000, 400, "expr"),
        ("/v1/nodes/%00%ff", 404, ""),
        ("/v1/alerts/none/explanation", 404, "no rule in force"),
    ],
)
async def test_bad_questions_get_a_problem_with_a_reason(url: str, path: str, status: int, words: str) -> None:
    async with httpx.AsyncClient(verify=NO_TLS, trust_env=False) as http:
        answer = await http.get(f"{url}{path}")
    assert answer.status_code == status
    assert words in answer.json()["error"]


async def test_a_query_that_reads_too_much_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleetctl.controller.api.status_api.MAX_POINTS", -1)
    async with httpx.AsyncClient(verify=NO_TLS, trust_env=False) as http:
        answer = await http.get(f"{url}/v1/query", params={"expr": "sum(up)"})
    assert answer.status_code == 400
    assert "reads more than" in answer.json()["error"]


async def test_a_wrong_path_or_method_is_answered_with_what_there_is(url: str) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with httpx.AsyncClient(verify=NO_TLS, trust_env=False, headers=headers) as http:
        path, method = await http.post(f"{url}/webhook"), await http.get(f"{url}/webhooks/alertmanager")
    assert (path.status_code, method.status_code) == (404, 405)
    assert "/webhooks/alertmanager" in path.json()["remedy"]
    assert method.json()["remedy"] == "this path takes POST"


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"", 400, "command"),
        (b"{", 400, "body"),
        (b"[" * 100_000, 400, "body"),
        (b'{"command": 7}', 400, "command"),
        (b'{"command": "drain node-1", "surprise": 1}', 400, "surprise"),
        (b'{"command": "format disk"}', 400, "format"),
        (b'{"command": "drain node-77"}', 400, "node-77"),
        (b'{"command": "' + b"x" * 300_000 + b'"}', 413, "larger"),
    ],
    ids=["empty", "cut off", "deep", "wrong type", "unknown key", "unknown command", "no such node", "too large"],
)
async def test_bad_actions_are_refused(url: str, body: bytes, status: int, words: str) -> None:
    async with httpx.AsyncClient(verify=NO_TLS, trust_env=False, headers={"Authorization": f"Bearer {TOKEN}"}) as http:
        answer = await http.post(f"{url}/v1/actions", content=body)
    assert answer.status_code == status
    assert words in answer.json()["error"]


async def test_routing_answers_at_once_when_it_differs_and_later_when_it_changes(client: ControllerClient) -> None:
    table = await client.routing()
    assert table is not None
    assert {route.node: route.state for route in table.routes} == dict.fromkeys(
        ("node-1", "node-2", "node-3"), RouteState.ACTIVE
    )
    assert await client.routing(after=table.version) is None
    assert await client.routing(after=table.version + 1000) == table, "a gateway from another life must learn it too"
    waiting = asyncio.create_task(client.routing(after=table.version, wait_s=20))
    run = await client.act(ActionRequest(command="cordon node-3", requested_by="test"))
    newer = await waiting
    assert newer is not None
    assert newer.version > table.version
    assert {r.node for r in newer.routes if r.state is RouteState.CORDONED} == {"node-3"}
    await _ended(client, run.id)
    await _ended(client, (await client.act(ActionRequest(command="uncordon node-3"))).id)


async def test_an_action_is_a_run_of_one_step_with_its_receipt_and_events(client: ControllerClient) -> None:
    before = (await client.events())[-1].seq
    run = await client.act(ActionRequest(command="cordon node-2", requested_by="test", reason="look"))
    done = await _ended(client, run.id)
    assert done.status is RunStatus.SUCCEEDED
    assert done.steps[0].receipt["node"] == "node-2"
    kinds = [entry.kind for entry in await client.events(after=before) if entry.run_id == run.id]
    assert kinds[0] == "run.approved"
    assert kinds[-1] == "run.succeeded"
    assert (await client.node("node-2")).phase is NodePhase.CORDONED
    await _ended(client, (await client.act(ActionRequest(command="uncordon node-2"))).id)


async def test_events_are_listed_newest_last_and_by_what_they_are_about(client: ControllerClient) -> None:
    run = await _ended(client, (await client.act(ActionRequest(command="cordon node-3"))).id)
    await _ended(client, (await client.act(ActionRequest(command="uncordon node-3"))).id)
    told = await client.events()
    newest = await client.newest_events(3)
    assert newest[-1].seq >= told[-1].seq
    assert [one.seq for one in newest] == [newest[-1].seq - 2, newest[-1].seq - 1, newest[-1].seq]
    selected = Listing(Kind.events, selector=parse_selector([f"run={run.id}", "event!=run.started"]))
    rows, _ = await selected.read(client)
    assert rows == [one for one in told if one.run_id == run.id and one.kind != "run.started"]
    assert {one.kind for one in await client.newest_events(kind="node.ready")} == {"node.ready"}


async def test_the_stream_of_events_goes_on_where_a_client_left_it(client: ControllerClient) -> None:
    known = await client.newest_events(3)
    told = []
    async with asyncio.timeout(120):
        async for entry in client.follow_events(known[0].seq):
            told.append(entry)
            if len(told) == 2:
                await client.act(ActionRequest(command="uncordon node-1"))
            if entry.kind == "run.succeeded" and len(told) > 2:
                break
    assert told[:2] == known[1:]
    assert [one.seq for one in told] == sorted({one.seq for one in told})
    assert {one.run_id for one in told[2:]} != {None}


async def test_the_client_reads_all_pages_of_a_list(client: ControllerClient, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(3):
        await client.act(ActionRequest(command="cordon node-3", dry_run=True))
    runs, events, nodes = await client.runs(), await client.newest_events(5), await client.nodes()
    monkeypatch.setattr(http_pages, "MAX_PAGE", 2)
    monkeypatch.setattr(http_pages, "MAX_ROWS", 2)
    assert [one.id for one in await client.runs()] == [one.id for one in runs]
    assert [one.id for one in await client.runs(limit=3)] == [one.id for one in runs[:3]]
    assert [one.name for one in await client.nodes()] == [one.name for one in nodes]
    assert len(nodes) == 3
    told = await client.newest_events(5)
    assert len(told) == 5
    assert [one.seq for one in told if one.seq <= events[-1].seq] == [one.seq for one in events][-len(told) :]
    since = [one.seq for one in await client.newest_events(100, since=events[1].at)]
    assert since[:4] == [one.seq for one in events[1:]]


async def test_a_list_that_did_not_change_is_not_read_again_by_who_asks_over_and_over(url: str) -> None:
    async with ControllerClient(url, TOKEN, reuses_lists=True) as cockpit, ControllerClient(url, TOKEN) as other:
        first, again = await cockpit.runbooks(), await cockpit.runbooks()
        assert [id(one) for one in first] == [id(one) for one in again]
        assert first is not again
        known = await cockpit.freezes()
        made = await other.make_freeze(FreezeRequest(reason="launch", for_s=60))
        assert await cockpit.freezes() == [*known, made]
        await other.end_freezes(made.id)
        assert await cockpit.freezes() == known
        assert [id(one) for one in await other.runbooks()] != [id(one) for one in await other.runbooks()]


async def test_a_rule_whose_tenants_make_no_id_is_refused_and_asks_for_one(client: ControllerClient) -> None:
    spec = ShedSpec(below=PriorityClass.STANDARD, tenants=(")odd",), share=0.5)
    with pytest.raises(BadInputError, match="no id that can be one"):
        await client.make_traffic_rule(TrafficRuleRequest(spec=spec))
    made = await client.make_traffic_rule(TrafficRuleRequest(id="odd", spec=spec))
    assert (await client.remove_traffic_rule(made.id)).id == "odd"


async def test_a_path_with_a_slash_too_many_is_no_path(url: str) -> None:
    async with httpx.AsyncClient(verify=NO_TLS, trust_env=False) as http:
        for path in ("/v1/runs/", "/v1/nodes/"):
            assert (await http.get(f"{url}{path}")).status_code == 404


async def test_a_text_with_odd_line_ends_is_one_event_of_the_stream(client: ControllerClient) -> None:
    known = await client.newest_events(1)
    reason = "launch\u2028of\u2029two\x85models\x0b\x1c"
    made = await client.make_freeze(FreezeRequest(reason=reason, for_s=60))
    await client.end_freezes(made.id)
    async with asyncio.timeout(120):
        async for entry in client.follow_events(known[0].seq):
            if "launch" in entry.text:
                assert "models" in entry.text
                break


async def test_what_a_node_holds_is_told_or_why_it_is_not_known(client: ControllerClient) -> None:
    held = await client.node_requests("node-1")
    assert (held.requests, held.unknown) == ([], "")
    with pytest.raises(BadInputError, match="no node named nowhere"):
        await client.node_requests("nowhere")


async def test_what_a_kv_cache_is_used_for_is_told_or_why_it_is_not_known(client: ControllerClient) -> None:
    told = await client.node_kv("node-1")
    assert told.num_blocks or told.unknown
    with pytest.raises(BadInputError, match="no node named nowhere"):
        await client.node_kv("nowhere")


async def test_the_same_idempotency_key_gives_the_same_run(client: ControllerClient) -> None:
    request = ActionRequest(command="uncordon node-1", idempotency_key="once")
    first, second = await client.act(request), await client.act(request)
    assert first.id == second.id
    other = ActionRequest(command="cordon node-1", idempotency_key="once")
    with pytest.raises(RefusedError):
        await client.act(other)
    await _ended(client, first.id)


async def test_a_new_nodes_name_is_filled_in_once_per_request(client: ControllerClient) -> None:
    request = RunRequest(runbook="replace-node", inputs={"node": "node-2"}, idempotency_key="replace once")
    first = await client.start_run(request)
    assert first.inputs["replacement"] == "node-2b"
    assert (await client.start_run(request)).id == first.id
    await client.decide(first.id, ApprovalRequest(decision="deny", by="ann"))
    assert (await client.start_run(request)).id == first.id


async def test_the_first_answer_to_a_proposal_wins(client: ControllerClient) -> None:
    run = await client.start_run(RunRequest(runbook="cordon-node", inputs={"node": "node-1"}, requested_by="test"))
    assert run.status is RunStatus.PROPOSED
    assert (await client.decide(run.id, ApprovalRequest(decision="deny", by="ann"))).status is RunStatus.DENIED
    with pytest.raises(RefusedError, match="ann"):
        await client.decide(run.id, ApprovalRequest(decision="approve", by="bob"))
    with pytest.raises(RefusedError):
        await client.cancel(run.id, "bob")


async def test_a_proposal_can_be_cancelled(client: ControllerClient) -> None:
    run = await client.start_run(RunRequest(runbook="cordon-node", inputs={"node": "node-1"}))
    assert (await client.cancel(run.id, "ann")).status is RunStatus.CANCELLED


async def test_the_capacity_floor_holds_over_http(client: ControllerClient) -> None:
    await _ended(client, (await client.act(ActionRequest(command="cordon node-1"))).id)
    with pytest.raises(RefusedError, match="floor"):
        await client.act(ActionRequest(command="drain node-2"))
    await _ended(client, (await client.act(ActionRequest(command="uncordon node-1"))).id)


async def test_a_run_for_an_incident_that_is_not_there_is_refused(client: ControllerClient) -> None:
    with pytest.raises(BadInputError, match="no incident"):
        await client.start_run(RunRequest(runbook="cordon-node", inputs={"node": "node-1"}, incident_id="inc-x"))


async def test_a_dry_run_changes_nothing(client: ControllerClient) -> None:
    table = await client.routing()
    run = await client.act(ActionRequest(command="drain node-1", dry_run=True))
    assert run.dry_run
    assert run.steps[0].receipt["predicted"]
    assert await client.routing() == table


async def test_verbs_are_listed_with_what_they_take(client: ControllerClient) -> None:
    verbs = {verb.name: verb for verb in await client.verbs()}
    assert verbs["drain"].targets == ["node"]
    assert verbs["scale"].targets == ["pool"]
    assert [option.name for option in verbs["scale"].options if option.required] == ["--to"]


async def test_a_pool_is_scaled_out_and_back_by_nodes_that_are_named_before(client: ControllerClient) -> None:
    plan = await client.act(ActionRequest(command="scale default --to +1", dry_run=True))
    assert plan.targets == ["pool/default"]
    assert "starts node-4 like node-3" in plan.steps[0].receipt["predicted"]
    run = await _ended(client, (await client.act(ActionRequest(command="scale default --to +1"))).id)
    assert (run.status, run.error) == (RunStatus.SUCCEEDED, "")
    assert run.verification == "held for 5 s: node-4 of pool default answers"
    table = await client.routing()
    assert table is not None
    assert "node-4" in {route.node for route in table.routes if route.state is RouteState.ACTIVE}
    back = await _ended(client, (await client.act(ActionRequest(command="scale default --to before"))).id)
    assert (back.status, back.error) == (RunStatus.SUCCEEDED, "")
    assert back.steps[0].receipt["stopped"] == {"node-4": "drained"}
    ready = [node.name for node in await client.nodes() if node.phase is NodePhase.READY]
    assert ready == ["node-1", "node-2", "node-3"]


async def test_runbooks_can_be_read(client: ControllerClient) -> None:
    names = {runbook.name for runbook in await client.runbooks()}
    assert "replace-node" in names
    page = await client.runbook("replace-node")
    assert page.page.startswith("---")
    assert "slow_node" in page.causes


async def test_queries_and_diagnoses_are_answered_from_the_series(client: ControllerClient) -> None:
    answer = await until(lambda: _some_samples(client, "up == 1", 3), "three nodes are scraped")
    assert {sample["labels"]["node"] for sample in answer["samples"]} == {"node-1", "node-2", "node-3"}
    diagnosis = await client.diagnose(DiagnoseRequest(tree="latency", scope={"node": "node-1", "pool": "default"}))
    assert diagnosis.evidence
    with pytest.raises(BadInputError, match="astrology") as caught:
        await client.diagnose(DiagnoseRequest(tree="astrology"))
    assert "latency" in str(caught.value.remedy)


async def test_events_wait_for_the_next_one(client: ControllerClient) -> None:
    last = (await client.events())[-1].seq
    assert await client.events(after=last, wait_s=0.05) == []
    waiting = asyncio.create_task(client.events(after=last, wait_s=20))
    run = await client.act(ActionRequest(command="uncordon node-1"))
    assert (await waiting)[0].seq > last
    await _ended(client, run.id)


async def test_own_metrics_are_in_prometheus_format(url: str) -> None:
    async with httpx.AsyncClient(verify=NO_TLS, trust_env=False) as http:
        text = (await http.get(f"{url}/metrics")).text
    for name in (
        'controller_loop_age_seconds{loop="fleet"}',
        "controller_loop_turn_seconds",
        "controller_storage_ok 1.0",
        'fleet_node_process_up{engine="fleetctl",model=',
        'controller_scrapes_total{result="ok"}',
        'controller_runs_total{status="succeeded"}',
        'controller_nodes{phase="ready"} 3.0',
    ):
        assert name in text


async def test_nobody_there_is_unreachable_with_a_remedy() -> None:
    async with ControllerClient("http://127.0.0.1:9", timeout=1) as client:
        with pytest.raises(UnreachableError) as caught:
            await client.status()
    assert "fleetctl up" in str(caught.value.remedy)


async def test_one_that_is_stopped_is_told_from_one_that_is_not_there() -> None:
    """Its kernel takes the connection; `fleetctl up`, which was advised, waits for it and starts nothing beside it."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        async with ControllerClient(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout=0.2) as client:
            with pytest.raises(UnreachableError, match="takes the connection and says nothing") as caught:
                await client.status()
    assert str(caught.value.remedy).startswith("fleetctl logs controller")


@pytest.mark.parametrize("url", ["", "nonsense", "ftp://host", "http://[::1"])
def test_a_client_needs_an_http_url(url: str) -> None:
    with pytest.raises(BadInputError):
        ControllerClient(url)


async def test_a_port_in_use_is_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(BadInputError, match=f"port {port} on 127.0.0.1 is in use"):
            await serve(make_config(tmp_path, port=port), provider=make_provider(tmp_path))


async def test_a_long_poll_does_not_hold_up_the_end(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        async with serving(make_config(tmp_path, nodes=0)) as url:
            client = await stack.enter_async_context(ControllerClient(url))
            last = (await client.events())[-1].seq
            waiting = asyncio.create_task(client.events(after=last, wait_s=30))
            await client.status()
            began = time.monotonic()
        assert time.monotonic() - began < 20
        assert await waiting == []


async def test_no_table_yet_is_not_an_empty_table(tmp_path: Path) -> None:
    async with serving(make_config(tmp_path, nodes=0)) as url, ControllerClient(url) as client:
        assert await client.routing() is None


async def _ended(client: ControllerClient, run_id: str):  # type: ignore[no-untyped-def]
    async def ended() -> object:
        run = await client.get_run(run_id)
        return run if run.status.is_terminal else None

    return await until(ended, f"{run_id} ends")


async def _some_samples(client: ControllerClient, expression: str, count: int) -> dict[str, object] | None:
    answer = await client.query(expression)
    return answer if len(json.loads(json.dumps(answer))["samples"]) == count else None


async def test_logs_of_a_node_are_told_and_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config(tmp_path, nodes=0, node_specs=[make_spec("node-1", "--fail-at-start")])
    try:
        async with serving(config) as url, ControllerClient(url, TOKEN) as client:

            async def written() -> bool:
                return bool(await client.node_logs("node-1", 5))

            await until(written, "the node wrote why it can't start", pause_s=0.1)
            assert "no such model directory" in (await client.node_logs("node-1", 1))[0]
            followed = client.follow_node_logs("node-1", 1)
            assert "no such model directory" in await anext(followed)
            log_file = tmp_path / "run" / "node-1" / "log"
            with log_file.open("a") as file:
                file.write("one more\n")
            assert await anext(followed) == "one more"
            await followed.aclose()
            with pytest.raises(BadInputError, match="node-7"):
                await client.node_logs("node-7", 5)
            with pytest.raises(BadInputError, match="node-7"):
                await anext(client.follow_node_logs("node-7", 5))
            monkeypatch.setattr(LocalProvider, "why_not", lambda *_: "its log lies where it runs")
            with pytest.raises(RefusedError, match="node-1: its log lies where it runs"):
                await client.node_logs("node-1", 5)  # not an empty log
            with pytest.raises(RefusedError, match="where it runs"):
                await anext(client.follow_node_logs("node-1", 5))
    finally:
        stop_all(tmp_path)


async def test_a_reader_that_follows_does_not_hold_up_the_end(tmp_path: Path) -> None:
    config = make_config(tmp_path, nodes=0, node_specs=[make_spec("node-1", "--fail-at-start")])
    stopping = asyncio.Event()
    url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    served = asyncio.create_task(serve(config, url.set_result, provider=make_provider(tmp_path), stopping=stopping))
    try:
        async with ControllerClient(await url, TOKEN) as client:

            async def written() -> bool:
                return bool(await client.node_logs("node-1", 5))

            await until(written, "the node wrote why it can't start", pause_s=0.1)
            followed = client.follow_node_logs("node-1", 1)
            await anext(followed)
            stopping.set()
            assert [line async for line in followed] == []
        await served
    finally:
        stop_all(tmp_path)


async def test_freeze_refuses_commands_without_an_override_until_it_is_ended(
    client: ControllerClient, url: str
) -> None:
    before = (await client.newest_events(1))[-1].seq
    with pytest.raises(BadInputError, match="there is no pool nowhere; pools: default"):
        await client.make_freeze(FreezeRequest(reason="launch", pool="nowhere"))
    made = await client.make_freeze(FreezeRequest(reason="launch", made_by="ann", pool="default", for_s=3600))
    assert (await client.status()).freezes == await client.freezes() == [made]
    with pytest.raises(RefusedError, match=f"pool default is frozen until .* by admin .says ann. .{made.id}.: launch"):
        await client.act(ActionRequest(command="cordon node-1"))
    proposed = await client.start_run(RunRequest(runbook="cordon-node", inputs={"node": "node-1"}))
    assert "pool default is frozen" in (await client.get_run(proposed.id)).held
    assert (await client.cancel(proposed.id, "ann")).held == ""
    run = await client.act(ActionRequest(command="uncordon node-1", override="node-1 is needed"))
    assert run.override == "node-1 is needed"
    async with httpx.AsyncClient(verify=NO_TLS, trust_env=False) as http:
        assert "controller_freezes 1.0" in (await http.get(f"{url}/metrics")).text
    with pytest.raises(BadInputError, match=f"there is no freeze 'none'; freezes: {made.id}"):
        await client.end_freezes("none")
    assert await client.end_freezes(made.id, "ann") == [made]
    assert await client.freezes() == []
    told = await client.audit(limit=5000)
    rows = {(row.who, row.via, row.what, row.target) for row in told}
    assert {
        ("admin (says ann)", "controller.token", "freeze.made", "pool/default"),
        ("admin (says ann)", "controller.token", "freeze.ended", made.id),
        ("executor", "controller.token", "run.refused", "node-1"),
        ("admin", "controller.token", "run.override", "node-1"),
        ("admin (says ann)", "controller.token", "run.cancel_requested", "node-1"),
    } <= rows
    assert [row.what for row in told if made.id in row.outcome] == ["run.refused"], "one refusal, told once"
    assert (await client.verify_audit()).intact
    assert [entry.kind for entry in await client.events(before) if entry.kind.startswith("freeze.")] == [
        "freeze.made",
        "freeze.ended",
    ]


async def test_traffic_rules_are_made_listed_published_and_removed(client: ControllerClient) -> None:
    spec = RerouteSpec(over_tokens=32_768, share=0.5)
    made = await client.make_traffic_rule(TrafficRuleRequest(spec=spec, for_s=60, made_by="ann"))
    assert await client.traffic_rules() == [made]
    table = await client.routing()
    assert table is not None
    assert table.rules == [made]
    assert await client.remove_traffic_rule(made.id, "ann") == made
    with pytest.raises(BadInputError, match="no traffic rule"):
        await client.remove_traffic_rule(made.id)
    run = await client.act(ActionRequest(command="reroute long-context --over 5s --share 0.5 --for 10m"))
    while not run.status.is_terminal:
        await asyncio.sleep(0.05)
        run = await client.get_run(run.id)
    assert run.status is RunStatus.SUCCEEDED, run.error
    (rule,) = await client.traffic_rules()
    assert (rule.id, rule.made_by, rule.spec) == ("long-context", "admin", RerouteSpec(over_prefill_s=5, share=0.5))
    await client.remove_traffic_rule(rule.id)


async def test_groups_count_their_nodes_and_what_nobody_tells_is_not_known(client: ControllerClient) -> None:
    for by, name in ((GroupBy.POOL, "default"), (GroupBy.MODEL, "demo"), (GroupBy.ZONE, "local")):
        (group,) = await client.groups(by)
        assert (group.by, group.name, group.nodes, group.ready) == (by, name, 3, 3)
        assert group.load.itl_s.value is None
    (pool,) = await client.pools()
    assert pool.load.ttft_p95_s.value is None
    assert await client.gpus() == []
