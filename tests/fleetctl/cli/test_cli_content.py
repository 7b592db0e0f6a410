"""`fleetctl content` as it is typed."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from fleetctl.cli.app import run
from tests.fixtures.content import CASE, FILES, PAGE, TREE, put, write_content
from tests.fixtures.controller import TOKEN, make_config, serving, stop_all


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)


def fleetctl(*args: str | Path) -> int:
    return run([str(arg) for arg in args])


def test_check_of_a_sound_folder_runs_its_cases_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_content(tmp_path / "mine")
    assert fleetctl("content", "check", folder) == 0
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "1 folder: 0 errors, 0 warnings, 6 objects, 1 check of cases" in printed.err


def test_check_tells_every_fault_with_its_place_and_is_bad_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = TREE.replace("cause: noisy_neighbour", "cause: noisy_neighbor")
    folder = write_content(tmp_path / "mine", tree=tree, page=PAGE.replace("fleetctl cordon", "fleetctl corden"))
    assert fleetctl("content", "check", folder) == 2
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert f"{folder}/pages/leave-host.md:22: unknown command 'corden'" in lines[0]
    assert lines[1] == (
        f"{folder}/trees/neighbours.yaml:16: verdict neighbour:"
        ' unknown cause "noisy_neighbor", did you mean "noisy_neighbour"?'
    )


def test_check_fails_when_a_case_does_not_hold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_content(tmp_path / "mine", case=CASE.replace("take 0.2 s", "take 0.3 s"))
    assert fleetctl("content", "check", folder) == 2
    assert "NodeStepsSlow at 90s: the annotations differ" in capsys.readouterr().out


def test_check_gives_scripts_objects(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_content(tmp_path / "mine", cause="causes: []")
    assert fleetctl("content", "check", folder, "-o", "json") == 2
    found = json.loads(capsys.readouterr().out)
    assert {(one["severity"], one["file"]) for one in found["problems"]} == {
        ("error", str(folder / "causes/neighbours.yaml"))
    }


def test_check_takes_the_folders_of_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_content(tmp_path / "mine")
    monkeypatch.setenv("FLEETCTL_CONTENT", f"{folder}:{tmp_path / 'nowhere'}")
    assert fleetctl("content", "check") == 2
    assert f"{tmp_path / 'nowhere'}: no such folder" in capsys.readouterr().out


def test_alerts_are_listed_as_they_are_in_force_with_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_content(tmp_path / "mine")
    put(folder / "rules/queue.yaml", FILES["rules/neighbours.yaml"].replace("NodeStepsSlow", "LLMQueueDepth"))
    monkeypatch.setenv("FLEETCTL_CONTENT", str(folder))
    assert fleetctl("alerts", "list", "-o", "json") == 0
    found = [(one["name"], one["file"]) for one in json.loads(capsys.readouterr().out)]
    assert ("NodeStepsSlow", str(folder / "rules/neighbours.yaml")) in found
    assert [file for name, file in found if name == "LLMQueueDepth"] == [str(folder / "rules/queue.yaml")]
    assert ("LLMPreemptions", "rules/capacity.yaml") in found


@pytest.mark.anyio
async def test_list_and_reload_show_sources_and_overrides_within_80_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_content(tmp_path / "content-of-the-operations-team")
    put(folder / "rules/queue.yaml", FILES["rules/neighbours.yaml"].replace("NodeStepsSlow", "LLMQueueDepth"))
    monkeypatch.setenv("FLEETCTL_CONTROLLER__TOKEN", TOKEN)

    async def typed(*words: str) -> tuple[int, str, str]:
        code = await asyncio.to_thread(fleetctl, "--controller", url, "content", *words)
        printed = capsys.readouterr()
        # The controller of this test logs into the same stdout.
        lines = [line for line in printed.out.splitlines(keepends=True) if not line.startswith("20")]
        return code, "".join(lines), printed.err

    try:
        async with serving(make_config(tmp_path / "state", nodes=1, content=[folder])) as url:
            capsys.readouterr()
            code, table, _ = await typed("list")
            assert code == 0
            lines = table.splitlines()
            assert max(map(len, lines)) <= 80
            (line,) = [line for line in lines if line.split()[1:2] == ["LLMQueueDepth"]]
            assert line.split() == ["rule", "LLMQueueDepth", "…the-operations-team", "built-in"]

            code, table, _ = await typed("list", "--own", "--kind", "tree", "-o", "json")
            assert [one["name"] for one in json.loads(table)["objects"]] == ["neighbours"]
            assert (await typed("list", "--kind", "trees"))[0] == 2

            code, told, _ = await typed("reload")
            assert (code, told) == (0, "loaded 7 objects of 1 folder, 1 of them override others\n")

            put(folder / "trees/neighbours.yaml", TREE.replace("cause: noisy_neighbour", "cause: noisy"))
            code, _, error = await typed("reload")
            assert code == 2
            assert 'trees/neighbours.yaml:16: verdict neighbour: unknown cause "noisy"' in error
            code, table, error = await typed("list", "--own")
            assert (code, "neighbours" in table) == (0, True)
            assert "the newest content can't be loaded, older content is in force:" in error
            assert await asyncio.to_thread(fleetctl, "--controller", url, "status") == 0
            told = capsys.readouterr().out
            assert "1 override others; older than what lies there" in told
            assert 'unknown cause "noisy"' in told
    finally:
        stop_all(tmp_path / "state")


def test_a_file_that_no_folder_would_load_as_a_page_is_no_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "drain-node.txt"
    page.write_text("---\nname: drain-node\n---\n")
    assert run(["runbook", "lint", str(page)]) == 2
    assert ".md" in capsys.readouterr().err


def test_two_pages_of_one_name_are_not_checked_as_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [tmp_path / folder / "page.md" for folder in ("a", "b")]
    for file in files:
        file.parent.mkdir()
        file.write_text("no page")
    assert run(["runbook", "lint", *map(str, files)]) == 2
    assert "two pages of one name" in capsys.readouterr().err
