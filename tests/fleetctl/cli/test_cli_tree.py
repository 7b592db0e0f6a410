"""`fleetctl tree` as it is typed, over the built-in content."""

from __future__ import annotations

import json

import pytest

from fleetctl.cli.app import run


def test_trees_are_listed_shown_by_their_name_or_an_alerts_and_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tree", "list", "-o", "json"]) == 0
    trees = json.loads(capsys.readouterr().out)
    latency = next(one for one in trees if one["name"] == "latency")
    assert latency["alerts"]
    assert latency["asks"]
    assert run(["tree", "show", latency["alerts"][0]]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("latency: ")
    assert all(name in shown for name in latency["asks"])
    assert run(["tree", "show", "latency", "--mermaid"]) == 0
    assert capsys.readouterr().out.startswith("flowchart ")
    assert run(["tree", "lint", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == [], "also no limit without a reason, and no question that nobody asks"
    assert run(["tree", "show", "latencyy"]) == 2
    assert "latency" in capsys.readouterr().err
