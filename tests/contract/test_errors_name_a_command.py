"""Every error of the command line ends with what to type next, and that can be typed."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleetctl.cli.app import run
from fleetctl.cli.examples import EXAMPLES
from fleetctl.cli.remedy import names_command, with_command
from fleetctl.wire.base import Problem
from runbooks.verbs import VERBS
from tests.contract.test_named_commands import IN_PROSE, why_not
from tests.fixtures.cockpit import make_node
from tests.fixtures.recorded_controller import RecordedController, recorded_controller


@pytest.fixture(scope="module")
def controller() -> Iterator[RecordedController]:
    """Knows two nodes, and of all else that it is not there, as a controller says it: with no remedy."""
    gone = {
        f"/v1/{kind}s/x": Problem(error=f"there is no {kind} named x", exit_code=2)
        for kind in ("node", "pool", "revision", "rollout", "gateway", "incident", "run", "receipt", "runbook")
    }
    refused = Problem(error="the floor: 1 node must stay", exit_code=3)
    answers = {
        "/v1/nodes": [make_node("node-1"), make_node("node-2")],
        "/v1/nodes/x/logs": gone["/v1/nodes/x"],
        "/v1/diagnose": Problem(error='unknown node "x"', remedy="there are none", exit_code=2),
        "/v1/actions": refused,
        "/v1/status": Problem(error="the controller failed; its log says why", exit_code=1),
    }
    with recorded_controller({**answers, **gone}) as made:
        made.statuses |= {"/v1/actions": 409, "/v1/status": 500}
        yield made


WRONG = {
    "get nodse": "fleetctl get nodes",
    "get audit": "fleetctl audit",
    "get routing": "fleetctl get routes",
    "get qqq": "fleetctl get --help",
    "top pool": None,
    "describe nodse x": "fleetctl get nodes",
    "explain incidnets": "fleetctl explain incidents",
    "explain nodes.nonsense": "fleetctl explain --help",
    "get nodes --sort-by nonsense": "fleetctl get --help",
    "get nodes -l nonsense=1": "fleetctl get --help",
    "get nodes x": "fleetctl get nodes",
    "get nodes --since 1h": None,
    "get nodes -o jsonpath=$[": "fleetctl get --help",
    "get events --since nonsense": "fleetctl get --help",
    "describe node x": "fleetctl get nodes",
    "describe pool x": "fleetctl get pools",
    "describe incident x": "fleetctl get incidents",
    "describe run x": "fleetctl get runs",
    "incident show x": "fleetctl get incidents",
    "logs x": "fleetctl get nodes",
    "diagnose x": "fleetctl get nodes",
    "drain node-1 --yes": "fleetctl events --since 10m",
    "drain node-1": "fleetctl drain --help",
    "drain node-1 --frob": "fleetctl drain --help",
    "scale default --to many --yes": None,
    "frobnicate": "fleetctl --help",
    "silence add ==== --comment x": "fleetctl silence add --help",
    "silence add LLMNodeDown --comment x --duration ever": "fleetctl silence add --help",
    "drill inject nonsense node-1 --yes": "fleetctl drill inject --help",
    "load http://127.0.0.1:9 --for 1s": None,
    "runbook show x": "fleetctl get runbooks",
    "alerts explain Nonsense": None,
    "alerts explain LLMNodeSlo": "fleetctl alerts explain LLMNodeSlow",
    "tree show nonsense": None,
    "config explain nonsense": None,
    "config explain contoller.port": "fleetctl config explain controller.port",
    "gateway tenants check": "name it, or set gateway.tenants_file; fleetctl gateway tenants check --help",
    "replay nowhere.gz": None,
    "top --theme nonsense": None,
    "status": "fleetctl doctor",
    "alerts backtest": None,
    "autoscale backtest nowhere": None,
}
"""What is typed, to the command that the error ends with; None: one that its own remedy has."""


@pytest.mark.parametrize("text", WRONG)
def test_an_error_ends_with_a_command_that_can_be_typed(
    text: str, controller: RecordedController, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code = run(["--controller", controller.url, "--state-dir", str(tmp_path), *shlex.split(text)])
    told = capsys.readouterr().err
    if code == 0:
        pytest.fail(f"it went well: {told}")
    remedy = told.rpartition("  try: ")[2].strip()
    assert names_command(remedy), told
    assert remedy.endswith(WRONG[text] or ""), told
    for match in IN_PROSE.finditer(remedy.replace("`", "")):
        assert why_not(match[1].strip().rstrip(".")) is None, told


@pytest.mark.parametrize("code", [1, 2, 3, 4])
def test_whatever_command_fails_what_is_put_behind_its_remedy_can_be_typed(code: int) -> None:
    for name in (*EXAMPLES, *VERBS, "frobnicate", ""):
        told = with_command("it went wrong", "say it otherwise", code, [*name.split(), "x"])
        assert told.startswith("say it otherwise; fleetctl ")
        assert why_not(told.removeprefix("say it otherwise; fleetctl ")) is None, told


@pytest.mark.parametrize("remedy", ["wait 3 s", "use the same version of fleetctl as the controller", "one of a, b"])
def test_words_that_cannot_be_typed_are_no_command(remedy: str) -> None:
    assert not names_command(remedy)


def test_a_script_reads_the_same_remedy(controller: RecordedController, capsys: pytest.CaptureFixture[str]) -> None:
    run(["--controller", controller.url, "describe", "node", "x", "-o", "json"])
    assert json.loads(capsys.readouterr().out)["remedy"] == "fleetctl get nodes"
