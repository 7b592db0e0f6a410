"""`get pools`, `get revisions`, `describe` and `diff` over recorded answers."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from fleetctl.cli.app import run
from fleetctl.wire.group import GroupLoad, GroupSignal
from fleetctl.wire.pool import Pool, PoolState, Revision
from tests.fixtures.recorded_controller import RecordedController, recorded_controller

OLD = Revision(
    id="rev-1f0c55ad7a10",
    model="llama",
    engine="fleetctl",
    model_dir="/models/llama-8b",
    arguments={"max_num_seqs": "16", "enable_faults": True},
    adapters=["sql=/adapters/sql"],
    nodes=["node-1", "node-2"],
    pools=["default"],
)
NEW = OLD.model_copy(
    update={
        "id": "rev-9b2e01c4d3aa",
        "model_dir": "/models/llama-8b-fp8",
        "arguments": {"max_num_seqs": "32", "enable_faults": True, "max_model_len": "8192"},
        "nodes": ["node-3"],
        "pools": [],
    }
)
POOL = Pool(
    name="default",
    model="llama",
    wanted=4,
    nodes=3,
    ready=2,
    unknown=1,
    revision=OLD.id,
    revisions={OLD.id: 2, NEW.id: 1},
    held_by="run-7",
    state=PoolState.BACKING_OFF,
    reason="node-4 ended before it was ready",
    start_failures=3,
    next_start_at=1_700_000_000.0,
    start_error="error: no such model directory",
    more=0,
    more_why="spare places of pool default: none",
    load=GroupLoad(
        cost_per_hour=GroupSignal(value=98.8, known=2, of=3), cost_per_mtok=GroupSignal(value=0.4321, known=2, of=3)
    ),
)


@pytest.fixture(scope="module")
def controller() -> Iterator[RecordedController]:
    answers = {
        "/v1/pools": [POOL],
        "/v1/pools/default": POOL,
        "/v1/revisions": [NEW, OLD],
        **{f"/v1/revisions/{one.id}": one for one in (OLD, NEW)},
    }
    with recorded_controller(answers) as made:
        yield made


def told(controller: RecordedController, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert run(["--controller", controller.url, *words]) == 0
    return capsys.readouterr().out


def test_a_pool_shows_what_is_wanted_what_is_there_and_what_is_not_known(
    controller: RecordedController, capsys: pytest.CaptureFixture[str]
) -> None:
    row = told(controller, capsys, "get", "pools").splitlines()[1]
    assert row.split()[:3] == ["default", "4", "3"]
    assert "2 (+1?)" in row
    assert "run-7" in told(controller, capsys, "get", "pools", "-o", "wide")
    text = told(controller, capsys, "describe", "pool", "default")
    assert "4 wanted, 3 there, 2 ready, 1 not looked at lately" in text
    assert f"{OLD.id} 2, {NEW.id} 1" in text
    assert "backing_off: node-4 ended before it was ready" in text
    assert "3 in a row, again at 2023-11-14 22:13:20Z" in text
    assert "no such model directory" in text


def test_revisions_are_listed_with_their_nodes_and_described_with_all_arguments(
    controller: RecordedController, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = told(controller, capsys, "get", "revisions", "-l", "pool=default").splitlines()
    assert [line.split()[0] for line in lines[1:]] == [OLD.id]
    assert "--max-num-seqs 16 --enable-faults" in told(controller, capsys, "get", "revisions", "-o", "wide")
    text = told(controller, capsys, "describe", "revision", OLD.id)
    for part in ("/models/llama-8b", "--max-num-seqs", "sql=/adapters/sql", "node-1, node-2", "the model's own"):
        assert part in text


def test_diff_names_what_two_revisions_do_not_have_alike_and_nothing_else(
    controller: RecordedController, capsys: pytest.CaptureFixture[str]
) -> None:
    data = json.loads(told(controller, capsys, "diff", OLD.id, NEW.id, "-o", "json"))
    assert [(one["what"], one["first"], one["second"]) for one in data["differences"]] == [
        ("model dir", "/models/llama-8b", "/models/llama-8b-fp8"),
        ("--max-num-seqs", "16", "32"),
        ("--max-model-len", "-", "8192"),
    ]
    table = told(controller, capsys, "diff", OLD.id, NEW.id).splitlines()
    assert table[0].lower().split() == ["what", OLD.id, NEW.id]
    assert "one revision" in told(controller, capsys, "diff", OLD.id, OLD.id)


def test_a_pool_says_what_it_costs_and_how_many_nodes_can_be_added(
    controller: RecordedController, capsys: pytest.CaptureFixture[str]
) -> None:
    text = told(controller, capsys, "describe", "pool", "default")
    assert "can be added" in text
    assert "0: spare places of pool default: none" in text
    assert "98.80 (2/3)" in text
    titles, row = told(controller, capsys, "get", "pools", "-o", "wide").splitlines()
    assert "CAN ADD" in titles
    assert "0.432 (2/3)" in row
