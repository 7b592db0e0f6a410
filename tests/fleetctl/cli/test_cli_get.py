"""`get` and `describe` over recorded answers: what is listed, in which form, and what a refusal looks like."""

from __future__ import annotations

import json
import re
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from typing import Any, cast
from urllib.parse import quote

import pytest

from fleetctl.cli.app import run
from fleetctl.cli.get import Changes, Listing
from fleetctl.cli.incident_columns import ALERT_COLUMNS
from fleetctl.cli.kinds import TOP_VIEWS, VIEWS, Kind
from fleetctl.cli.output import ListOutput
from fleetctl.cli.selector import parse_selector
from fleetctl.client import ControllerClient
from fleetctl.kit.errors import BadInputError
from fleetctl.told_node import KnownNodes
from fleetctl.traffic_rule import RerouteSpec, TrafficRule
from fleetctl.wire.alert import Alert, AlertState
from fleetctl.wire.diagnosis import Diagnosis
from fleetctl.wire.failure import Failure, FailureKind
from fleetctl.wire.freeze import Freeze
from fleetctl.wire.gateway import Gateway, GatewayPhase, GatewayWorkers
from fleetctl.wire.gpu import Gpu
from fleetctl.wire.group import GroupBy, GroupGpus, GroupLoad, GroupSignal, NodeGroup
from fleetctl.wire.identity import TokenInfo, TokenRole
from fleetctl.wire.node import Node, NodePhase, Signal
from fleetctl.wire.notification import Notification, NotificationState
from fleetctl.wire.pool import Pool, Revision
from fleetctl.wire.receipt import DrainReceipt
from fleetctl.wire.rollout import Rollout
from fleetctl.wire.routing import Route, RouteState, RoutingTable
from fleetctl.wire.run import RunStatus
from fleetctl.wire.runbook import RunbookInfo
from fleetctl.wire.silence import Silence, SilenceMatcher
from fleetctl.wire.tenant import TenantUse
from fleetctl.wire.timeline import TimelineEntry
from tests.fixtures.cockpit import make_incident, make_node, make_run
from tests.fixtures.recorded_controller import RecordedController, recorded_controller

PAGE = "---\nname: replace-node\nrisk: medium\n---\n\n# Replace a node\n\nText.\n"
GATEWAY = Gateway(
    name="10.20.30.40:7800",
    url="http://10.20.30.40:7800",
    phase=GatewayPhase.UNREACHABLE,
    out={"node-1": "ejected: slow"},
    lost=12_345,
    table_version=123_456,
    workers=GatewayWorkers(
        generation=12,
        wanted=16,
        serving=15,
        retiring=14,
        deaths=3,
        reload_error="gateway.max_resends: a whole number, please",
    ),
)


def of(value: float | None, known: int = 12, asked: int = 12, **more: Any) -> GroupSignal:
    return GroupSignal(value=value, known=known, of=asked, **more)


GROUP = NodeGroup(
    by=GroupBy.POOL,
    name="long-context",
    nodes=12,
    ready=11,
    load=GroupLoad(
        running=of(480),
        waiting=of(120),
        kv_ratio=of(0.87),
        tokens_per_s=of(12_345.0, 11),
        ttft_p95_s=of(5.0, 5, 6, at_least=True),
        itl_s=of(0.0312),
        prefix_hit_ratio=of(0.64, 11),
        preemption_ratio=of(0.051),
        gpus=GroupGpus(
            cards=88,
            nodes_known=11,
            nodes=12,
            hottest_c=87.0,
            throttled={"hw_thermal": 3},
            throttle_known=88,
            xids=[79],
        ),
    ),
)
CARDS = [
    Gpu(
        node="long-context-12",
        gpu="0",
        card="NVIDIA H100 80GB HBM3",
        temperature_c=91.0,
        sm_clock_hz=1.2e9,
        power_w=698.0,
        utilization_ratio=1.0,
        memory_ratio=0.93,
        throttled=["hw_thermal"],
        faults=[],
        ecc_uncorrected=2.0,
        xids=[48, 79],
        critical_xids_5m=1.0,
    ),
    Gpu(node="long-context-12", gpu="1"),
]
RUNBOOK = RunbookInfo(
    name="replace-node", title="Replace {{node}}", risk="medium", causes=["slow_node"], inputs={"node": "it"}, page=PAGE
)

ROLLOUT = Rollout(
    id="rollout-0123456789",
    pool="long-context",
    state="canary",
    from_revision="rev-1f0c55ad7a10",
    to_revision="rev-9b2e01c4d3aa",
    started_at=time.time(),
    steps=[0.05, 1.0],
    share=0.05,
)


@pytest.fixture(scope="module")
def controller() -> Iterator[RecordedController]:
    now = time.time()
    busy = Signal(value=12, age_s=1.0)
    nodes = [
        make_node("node-1", phase=NodePhase.STOPPED, pool="decode", waiting=Signal(), zone="b"),
        make_node(
            "node-2",
            phase=NodePhase.UNREACHABLE,
            reason="no answer",
            alerts=["LLMNodeDown"],
            signal_problem="answered 404",
        ),
        make_node(
            "node-3",
            waiting=busy,
            prefix_hit_ratio=Signal(value=0.62, age_s=1.0),
            preemption_ratio=Signal(value=0.008, age_s=1.0),
            preemptions_per_s=Signal(value=0.02, age_s=1.0),
            tokens_per_s=Signal(value=910.0, age_s=1.0),
            itl_s=Signal(value=0.02, age_s=1.0),
            ttft_p99_s=Signal(value=0.6, age_s=12.0),
            gpus=[CARDS[0].model_copy(update={"node": "node-3"})],
        ),
    ]
    action = make_run(
        id="run-2", runbook="action", title="cordon node-3", status=RunStatus.SUCCEEDED, targets=["node-3"]
    )
    runs = [
        make_run(targets=["node-4", "node-2"]),
        action,
        action.model_copy(update={"id": "run-3", "dry_run": True}),
        action.model_copy(update={"id": "run-4", "dry_run": True, "status": RunStatus.REFUSED}),
    ]
    unexplained = make_incident(
        id="inc-2",
        opened_at=now - 7200,
        diagnosis=Diagnosis(tree="", cause=None, title="No tree explains LLMWrongOutput: take the node out first"),
    )
    untreated = Diagnosis(tree="node", cause="node_down", title="node-3 is gone", awaits="only its scrapes fail")
    over = make_incident(id="inc-4", status="resolved", resolved_at=now, diagnosis=untreated)
    labels = {"pool": "default", "tenant": "a"}
    alerts = [
        Alert(fingerprint=str(i), name=name, severity="page", state="firing", labels={**labels, "node": f"node-{i}"})
        for i, name in enumerate(["LLMNodeSlow", "LLMNodeSlow", "LLMNodeDown"], 1)
    ]
    entry = TimelineEntry(seq=1, at=now, kind="node.ready", text="node-3: ready", node="node-3")
    spec = RerouteSpec(over_tokens=32 * 1024, pool="long-context")
    rule = TrafficRule(id="long-context", spec=spec, made_by="ann", made_at=now, expires_at=now + 3600)
    answers = {
        "/v1/nodes": nodes,
        **{f"/v1/nodes/{node.name}": node for node in nodes},
        "/v1/runs": runs,
        "/v1/runs/run-3": runs[2],
        "/v1/incidents": [make_incident(opened_at=now - 60), unexplained],
        "/v1/incidents/inc-2": unexplained,
        "/v1/incidents/inc-3": make_incident(id="inc-3", diagnosis=untreated),
        "/v1/incidents/inc-4": over,
        "/v1/incidents/inc-5": make_incident(
            id="inc-5",
            alerts=[make_incident().alerts[0].model_copy(update={"state": AlertState.RESOLVED, "resolved_at": now})],
        ),
        "/v1/alerts": alerts,
        "/v1/events": [entry],
        "/v1/traffic-rules": [rule],
        "/v1/gateways": [GATEWAY],
        f"/v1/gateways/{quote(GATEWAY.name, safe='')}": GATEWAY,
        "/v1/routing": RoutingTable(
            version=7,
            routes=[
                Route(node="node-1", url="http://n1", state=RouteState.ACTIVE, phase=NodePhase.READY, model="demo"),
                Route(node="node-2", url="http://n2", state=RouteState.LEAVING, revision="rev-9b2e01c4d3aa"),
            ],
        ),
        "/v1/freezes": [
            Freeze(id="freeze-0123456789", reason="quarter's end", made_by="someone", made_at=now, pool="long-context")
        ],
        "/v1/notifications": [
            Notification(
                id="ntf-0123456789abcdef",
                receiver="oncall-pager",
                kind="acknowledged",
                state=NotificationState.HELD,
                held_by="quiet_hours",
                incident_id="inc-20231114-221320-ab12",
                subject="[resolved] SEV-2 long-context-12 is slower than its peers",
                text="all of it",
                thread="inc-20231114-221320-ab12",
                created_at=now,
            )
        ],
        "/v1/receipts": [
            DrainReceipt(
                id="receipt-0123456789ab",
                node="long-context-12",
                state="unreachable",
                begun_at=now,
                ended_at=now + 90.0,
                sums={"finished": 120, "moved": 90, "refused": 12, "aborted": 3, "lost": 11, "unknown": 20},
                summary="finished 120, moved 90 to long-context-13, refused 12, aborted 3, lost 11, unknown 20",
                is_complete=False,
            )
        ],
        "/v1/groups": [GROUP],
        "/v1/gpus": CARDS,
        "/v1/failures": [
            Failure(
                id="failure-0123456789abcdef",
                episode="failure-0123456789abcdef",
                kind=FailureKind.WRONG_OUTPUT,
                at=now,
                node="long-context-12",
                host="rack7-host-12",
                reason="deep check",
            )
        ],
        "/v1/pools": [
            Pool(
                name="long-context",
                wanted=128,
                nodes=127,
                ready=120,
                unknown=12,
                revision="rev-1f0c55ad7a10",
                owner="autoscaler",
                held_by="run-0123456789",
            )
        ],
        "/v1/revisions": [
            Revision(
                id="rev-1f0c55ad7a10",
                model="llama-70b-instruct",
                model_dir="/models/llama-70b",
                created_at=now,
                nodes=["node-1"],
                pools=["long-context"],
            )
        ],
        "/v1/tenants": [
            TenantUse(
                tenant="search-team-europe",
                priority="critical",
                running=128,
                tokens={"input": 123_456_789, "output": 12_345_678},
                left={"input": 1_000_000, "output": 250_000, "requests": None},
                admitted=123_456,
                refused={"tenant_input_tokens": 1_234},
                gateways=2,
            )
        ],
        "/v1/runbooks": [RUNBOOK],
        "/v1/runbooks/replace-node": RUNBOOK,
        "/v1/rollouts": [ROLLOUT],
        f"/v1/rollouts/{ROLLOUT.id}": ROLLOUT,
        "/v1/silences": [
            Silence(
                id=f"silence-{state}",
                state=state,
                matchers=[SilenceMatcher(name="node", op="=", value="node-3")],
                starts_at=now,
                ends_at=now + 60,
                created_by="ann",
                comment="works",
            )
            for state in ("active", "expired")
        ],
        "/v1/tokens": [
            TokenInfo(
                name="ann",
                role=TokenRole.OPERATOR,
                id="1f0c55ad7a10",
                is_valid=True,
                created_at=now,
                created_by="admin",
            )
        ],
    }
    with recorded_controller(answers) as made:
        yield made


@pytest.fixture
def fleetctl(controller: RecordedController, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run a command: its exit code, stdout and stderr."""

    def run_it(*words: str) -> tuple[int, str, str]:
        code = run(["--controller", controller.url, *words])
        told = capsys.readouterr()
        return code, told.out, told.err

    return run_it


def names(out: str) -> list[str]:
    return [line.split()[0] for line in out.splitlines()[1:]]


Run = Callable[..., tuple[int, str, str]]


def test_a_dry_run_is_never_listed_as_a_run_that_succeeded(fleetctl: Run) -> None:
    code, out, _ = fleetctl("get", "runs")
    assert (code, names(out)) == (0, ["run-1", "run-2"])
    _, out, _ = fleetctl("get", "runs", "--all")
    told = {line.split("  ")[0]: line for line in out.splitlines()}
    assert "dry-run" in told["run-3"]
    assert "dry-run: refused" in told["run-4"]
    assert "succeeded" not in told["run-3"]
    assert "dry-run" in fleetctl("describe", "run", "run-3")[1]
    assert names(fleetctl("get", "runs", "-l", "dry_run=yes")[1]) == ["run-3", "run-4"]
    assert names(fleetctl("get", "run", "run-3")[1]) == ["run-3"], "what is named is shown"


def test_a_run_says_what_it_does_and_to_what(fleetctl: Run) -> None:
    _, out, _ = fleetctl("get", "runs")
    head, first, second = out.splitlines()
    assert "TARGET" in head
    assert "node-4,node-2" in first
    assert "replace-node" in first
    assert "cordon node-3" in second


@pytest.mark.parametrize("kind", ["nodes", "node", "alerts", "alert", "incident", "run", "runbook", "event"])
def test_kinds_are_taken_in_the_plural_and_singular(fleetctl: Run, kind: str) -> None:
    code, out, _ = fleetctl("get", kind, "-o", "json")
    assert code == 0
    assert json.loads(out)


def test_stopped_nodes_come_last(fleetctl: Run) -> None:
    assert names(fleetctl("get", "nodes")[1]) == ["node-2", "node-3", "node-1"]


def test_named_rows_come_in_the_order_of_the_names(fleetctl: Run) -> None:
    assert names(fleetctl("get", "nodes", "node-3", "node-1")[1]) == ["node-3", "node-1"]


def test_a_name_that_there_is_not_is_told_with_the_nearest_one_and_the_rest_is_shown(fleetctl: Run) -> None:
    code, out, err = fleetctl("get", "nodes", "node-3", "node-33")
    assert (code, names(out)) == (2, ["node-3"])
    assert "node-33" in err
    assert "did you mean node-3?" in err


@pytest.mark.parametrize(
    ("kind", "selector", "wanted"),
    [
        ("nodes", "pool=default", ["node-2", "node-3"]),
        ("nodes", "pool!=default", ["node-1"]),
        ("nodes", "pool=default,phase=ready", ["node-3"]),
        ("nodes", "alert=LLMNodeDown", ["node-2"]),
        ("alerts", "node=node-2", ["LLMNodeSlow"]),
        ("alerts", "lacking=x", []),
        ("alerts", "alertname=LLMNodeDown,tenant==a", ["LLMNodeDown"]),
        ("runs", "target=node-2", ["run-1"]),
        ("incidents", "cause=slow_node", ["inc-1"]),
        ("runbooks", "cause=slow_node", ["replace-node"]),
    ],
)
def test_a_selector_keeps_the_rows_that_have_the_label(
    fleetctl: Run, kind: str, selector: str, wanted: list[str]
) -> None:
    code, out, _ = fleetctl("get", kind, "-l", selector, "-o", "name")
    assert (code, out.split()) == (0, wanted)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("nodes", "-l", "pol=x"), "pool"),
        (("nodes", "-l", "pool"), "key=value"),
        (("nodes", "--sort-by", "load"), "wait"),
        (("nods",), "did you mean nodes?"),
        (("events", "inc-1"), "-l incident=ID"),
    ],
)
def test_what_can_not_be_selected_is_refused_with_what_can(fleetctl: Run, words: tuple[str, ...], says: str) -> None:
    code, out, err = fleetctl("get", *words)
    assert (code, out) == (2, "")
    assert says in err


def test_rows_are_sorted_by_value_and_what_is_unknown_comes_last_either_way(fleetctl: Run) -> None:
    assert names(fleetctl("get", "nodes", "--sort-by", "wait")[1]) == ["node-2", "node-3", "node-1"]
    assert names(fleetctl("get", "nodes", "--sort-by", "WAIT", "--reverse")[1]) == ["node-3", "node-2", "node-1"]
    assert names(fleetctl("get", "incidents", "--sort-by", "age", "--reverse")[1]) == ["inc-2", "inc-1"]


def test_a_refusal_is_an_object_for_a_script_and_one_line_for_a_person(fleetctl: Run) -> None:
    for words, code in (
        (("get", "nodes", "node-9", "-o", "json"), 2),
        (("describe", "node", "node-9", "-ojson"), 2),
        (("drain", "node-1", "--output=json"), 2),
        (("get", "--nonsense", "-o", "json"), 2),
        (("--controller", "http://127.0.0.1:9", "get", "nodes", "-o", "json"), 4),
    ):
        got, out, err = fleetctl(*words)
        problem = json.loads(out)
        assert (got, problem["exit_code"]) == (code, code), words
        assert problem["error"] in err.replace("\n", " "), words
    code, out, _ = fleetctl("get", "nodes", "node-3", "node-9", "-o", "json")
    assert (code, [node["name"] for node in json.loads(out)]) == (2, ["node-3"]), "one document, never two"


def test_usage_errors_are_one_line_with_the_help_to_read(fleetctl: Run) -> None:
    code, out, err = fleetctl("get", "nodes", "--nonsense")
    assert (code, out) == (2, "")
    assert err == "error: No such option: --nonsense\n  try: fleetctl get --help\n"


def test_an_incident_without_a_cause_shows_what_to_do_instead(fleetctl: Run) -> None:
    _, out, _ = fleetctl("incident", "show", "inc-2")
    assert "take the node out first" in out


def test_an_incident_whose_alerts_are_clear_says_so_and_what_it_waits_for(fleetctl: Run) -> None:
    """It read "open" for a minute after its node had been mended, and nobody knew what was still to be done."""
    said = {name: "no alert fires since" in fleetctl("incident", "show", name)[1] for name in ("inc-5", "inc-3")}
    assert said == {"inc-5": True, "inc-3": False}


def test_nothing_is_waited_for_in_an_incident_that_is_over(fleetctl: Run) -> None:
    said = {name: "not yet treated" in fleetctl("incident", "show", name)[1] for name in ("inc-3", "inc-4")}
    assert said == {"inc-3": True, "inc-4": False}


def test_a_page_on_a_terminal_has_its_front_matter_as_fields(fleetctl: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "---\nname: replace-node" in fleetctl("runbook", "show", "replace-node")[1], "a pipe gets the file"
    monkeypatch.setenv("FORCE_COLOR", "1")
    for words in (("runbook", "show", "replace-node"), ("describe", "runbook", "replace-node")):
        _, out, _ = fleetctl(*words)
        assert "name: replace-node" not in out
        assert "medium" in out
        assert "Replace a node" in out


def test_a_page_without_front_matter_is_all_body() -> None:
    assert RUNBOOK.body == "# Replace a node\n\nText.\n"
    for page in ("# A\n---\nb\n", "---\nopen", ""):
        assert RUNBOOK.model_copy(update={"page": page}).body == page


@pytest.mark.parametrize(
    ("summary", "value", "shown"),
    [
        ("node-2 is down: its process ended", -1.0, ""),
        ("node-2 does not answer", 0.0, ""),
        ("node-2: its engine core ended and was started again", 1.002, ""),
        ("node-2: 501 requests wait", 501.0, "501"),
        ("node-2: first token after 60.3ms", 0.0603, "60.3ms"),
        ("node-2: 38.5% of requests fail", 0.385, "38.5%"),
        ("node-2: the last scrape is 2m 5s old", 125.0, "2m 5s"),
        ("node-2 is slow: 130ms a decode step", 0.13, "130ms"),
        ("a rule of one's own says why, and not how much", 92.25, "92.25"),
    ],
)
def test_an_alerts_value_is_told_as_its_summary_has_it_and_a_state_has_none(
    summary: str, value: float, shown: str
) -> None:
    labels = {"node": "node-2", "model": "m", "pool": "chat-7b"}
    alert = Alert(
        fingerprint="f", name="A", severity="page", state="firing", labels=labels, summary=summary, value=value
    )
    assert alert.told_value == shown
    column = next(one for one in ALERT_COLUMNS if one.title == "value")
    assert column.read(alert) == (shown or "-")


def test_counts_and_versions_of_a_gateway_have_every_digit(fleetctl: Run) -> None:
    _, out, _ = fleetctl("get", "gateways")
    assert {"12345", "123456"} <= set(out.splitlines()[1].split())


def test_a_gateways_workers_are_told_and_why_a_reload_changed_nothing(fleetctl: Run) -> None:
    _, out, _ = fleetctl("get", "gateways")
    assert "15/16+14" in out.splitlines()[1].split()
    _, out, _ = fleetctl("describe", "gateway", GATEWAY.name)
    told = dict(line.strip().split("  ", 1) for line in out.splitlines()[1:])
    assert told["workers"].strip() == "15 of 16 serve, 14 end what they have; generation 12"
    assert told["reload failed"].strip() == "gateway.max_resends: a whole number, please"
    _, out, _ = fleetctl("get", "gateways", "-o", "json")
    assert json.loads(out)[0]["workers"]["deaths"] == 3


def test_the_routing_table_is_listed_with_what_is_wanted_and_what_was_seen(fleetctl: Run) -> None:
    code, out, _ = fleetctl("get", "routes")
    assert code == 0
    assert [line.split()[:3] for line in out.splitlines()[1:]] == [
        ["node-1", "active", "ready"],
        ["node-2", "leaving", "-"],
    ]
    assert fleetctl("get", "route", "-l", "route=leaving", "-o", "name")[1] == "node-2\n"


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind is not Kind.events])
def test_default_columns_fit_eighty(fleetctl: Run, kind: Kind) -> None:
    _, out, _ = fleetctl("get", kind)
    assert max(len(line) for line in out.splitlines()) <= 80


@pytest.mark.parametrize("kind", TOP_VIEWS)
def test_loads_fit_eighty(fleetctl: Run, kind: Kind) -> None:
    code, out, _ = fleetctl("top", kind)
    assert code == 0
    assert max(len(line) for line in out.splitlines()) <= 80


def test_a_groups_load_says_how_many_of_its_nodes_are_known(fleetctl: Run) -> None:
    _, out, _ = fleetctl("top", "pools")
    titles, row = (line.split() for line in out.splitlines())
    assert titles == ["NAME", "READY", "WAIT", "KV", "TOK/S", "TTFT", "P95", "ITL", "HIT", "PREEMPT", "KNOWN"]
    assert row == ["long-context", "11/12", "120", "87%", "12.3k", ">5s", "31.2ms", "64%", "5.1%", "5/6"]
    _, wide, _ = fleetctl("get", "zones", "-o", "wide")
    for text in ("88 (11/12)", "87C", "hw_thermal 3", "79"):
        assert text in wide
    assert "12.3k (11/12)" not in wide, "the short columns stay as they are, the known one says it"
    _, out, _ = fleetctl("get", "models", "-o", "json")
    assert json.loads(out)[0]["load"]["tokens_per_s"] == {"value": 12345.0, "known": 11, "of": 12, "at_least": False}
    assert fleetctl("get", "zones", "-o", "name")[1] == "long-context\n"


def test_cards_are_listed_with_what_is_wrong_and_a_dash_for_what_was_not_read(fleetctl: Run) -> None:
    _, out, _ = fleetctl("get", "gpus")
    assert [line.split() for line in out.splitlines()[1:]] == [
        ["long-context-12", "0", "91C", "1.20GHz", "698W", "100%", "93%", "2", "48,79", "hw_thermal"],
        ["long-context-12", "1", *"-" * 8],
    ]
    assert fleetctl("get", "gpus", "-l", "throttled=hw_thermal", "-o", "name")[1] == "long-context-12/0\n"


def test_a_node_is_described_with_all_five_signals_and_its_cards(fleetctl: Run) -> None:
    _, out, _ = fleetctl("describe", "node", "node-3")
    for text in ("prefix hit", "62%", "0.8% of requests, 0.02/s", "ITL mean", "TTFT p99", "910 out, - in", "91C"):
        assert text in out
    _, out, _ = fleetctl("top", "nodes", "node-3")
    assert out.splitlines()[1].split()[-3:] == ["62%", "0.8%", "91C!"]
    _, out, _ = fleetctl("get", "nodes", "node-3", "-o", "wide")
    assert "91C hw_thermal ECC 2 XID 48,79" in out


def test_what_has_no_load_is_refused_with_what_has(fleetctl: Run) -> None:
    code, _, err = fleetctl("top", "incidents")
    assert code == 2
    assert "one of nodes, pools, zones, models, revisions, gpus" in err


def test_a_watch_prints_a_row_again_when_it_changed_but_not_because_time_passed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    changes = Changes(VIEWS[Kind.nodes], ListOutput.table)

    def printed(*nodes: Any) -> list[str]:
        changes.print(nodes)
        return capsys.readouterr().out.splitlines()

    first, second = make_node("node-1"), make_node("node-2", phase=NodePhase.STARTING)
    assert len(printed(first, second)) == 3
    assert printed(first.model_copy(update={"signal_age_s": 9.0}), second) == []
    (line,) = printed(first, second.model_copy(update={"phase": NodePhase.READY}))
    assert line.split()[:2] == ["node-2", "ready"]


def test_a_watch_for_scripts_is_one_document_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    changes = Changes(VIEWS[Kind.nodes], ListOutput.json)
    changes.print([make_node("node-1"), make_node("node-2")])
    assert [json.loads(line)["name"] for line in capsys.readouterr().out.splitlines()] == ["node-1", "node-2"]


class Telling:
    """Tells of two nodes, then of one of them again; then it ends, as a controller does."""

    async def follow_nodes(self) -> AsyncGenerator[KnownNodes, None]:
        known = KnownNodes()
        known.nodes = {name: make_node(name) for name in ("node-2", "node-1")}
        yield known
        known.nodes["node-2"] = make_node("node-2", phase=NodePhase.STOPPED)
        yield known


@pytest.mark.anyio
async def test_nodes_are_watched_as_the_controller_tells_of_them() -> None:
    listing = Listing(Kind.nodes, selector=parse_selector(["phase!=starting"]))
    told = [rows async for rows in listing.turns(cast(ControllerClient, Telling()))]
    assert [[(row.name, row.phase) for row in rows] for rows in cast(list[list[Node]], told)] == [
        [("node-1", NodePhase.READY), ("node-2", NodePhase.READY)],
        [("node-1", NodePhase.READY), ("node-2", NodePhase.STOPPED)],
    ]


@pytest.mark.anyio
async def test_nodes_of_a_controller_that_does_not_tell_of_them_are_read_again() -> None:
    class Older:
        async def follow_nodes(self) -> AsyncGenerator[KnownNodes, None]:
            raise BadInputError("Not Found")
            yield

        async def nodes(self) -> list[Node]:
            return [make_node("node-1")]

    async with aclosing(Listing(Kind.nodes).turns(cast(ControllerClient, Older()))) as told:
        assert [row.model_dump()["name"] for row in await anext(told)] == ["node-1"]


def test_version_is_told(fleetctl: Run) -> None:
    code, out, _ = fleetctl("--version")
    assert code == 0
    assert out.startswith("fleetctl ")


def test_a_node_shows_its_phase_as_it_is_and_how_old_it_is(fleetctl: Run) -> None:
    _, out, _ = fleetctl("describe", "node", "node-2")
    assert "unreachable" in out
    assert "no answer" in out
    assert re.search(r"scrape failed +answered 404", out)
    assert re.search(r"last probe +1s ago", out)
    assert "PROBED" in fleetctl("get", "nodes", "-o", "wide")[1]
