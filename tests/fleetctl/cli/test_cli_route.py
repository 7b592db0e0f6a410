"""`route explain` asks a real gateway; verbs that are groups of commands ask for their options by themselves."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from fleetctl.cli.app import run
from tests.fixtures.gateway import small_fleet, until

pytestmark = pytest.mark.anyio


async def test_explain_says_who_would_get_a_prompt_what_each_costs_and_who_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("Why is the first token late? " * 20)
    words = ["route", "explain", "--prompt-file", str(prompt), "--model", "demo"]
    async with small_fleet(tmp_path, "a", "b", "c") as (served, nodes, _):
        served.gateway.loads.suspect("c", 60)
        await until(lambda: served.gateway.routing.controller_is_reachable)
        capsys.readouterr()  # the gateway runs in this process, and logs here too
        assert await asyncio.to_thread(run, [*words, "--gateway", served.url]) == 0
        out = capsys.readouterr().out
        assert await asyncio.to_thread(run, [*words, "--gateway", served.url, "-o", "json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert all(node.seen == [] for node in nodes), "nothing is sent on"
    assert out.splitlines()[0] == f"{told['node']} ({told['reason']})"
    assert {one["node"] for one in told["candidates"]} == {"a", "b"}
    assert "left out: c: suspect" in out
    assert all(len(line) <= 80 for line in out.splitlines())


def test_explain_without_a_gateway_is_unreachable_with_its_address(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("hello")
    assert run(["route", "explain", "--prompt-file", str(prompt), "--gateway", "http://127.0.0.1:1"]) == 4
    assert "http://127.0.0.1:1/gateway/route/explain" in capsys.readouterr().err


def test_a_file_that_is_not_there_is_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["route", "explain", "--prompt-file", str(tmp_path / "none")]) == 2
    assert str(tmp_path / "none") in capsys.readouterr().err


def test_a_verb_with_verbs_below_it_asks_for_its_options_before_anybody_is_asked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["--controller", "http://127.0.0.1:1", "shed", "--for", "5m", "--yes"]) == 2
    told = capsys.readouterr().err
    assert "shed: --below is missing" in told
    assert "fleetctl shed --below standard --for 15m" in told
