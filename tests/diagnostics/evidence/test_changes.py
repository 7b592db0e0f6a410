"""What changed just before is told nearest first, with its place and its time."""

from __future__ import annotations

from alerts.sample import Sample
from diagnostics.evidence.changes import recent_changes, starts_untold
from diagnostics.evidence.onset import Onset
from diagnostics.value_format import came_after

ONSET = Onset(10_000.0, 9_970.0, 10_020.0, "a test")
CHAT = {"pool": "chat"}


def _change(kind: str, at: float, **labels: str) -> Sample:
    return Sample({"kind": kind, **labels}, at, 10_050.0)


def test_rollout_three_minutes_before_is_first_and_old_or_strange_changes_are_left_out() -> None:
    told = recent_changes(
        [
            _change("scale", 8_500, pool="chat"),
            _change("rollout", 9_810, pool="chat"),
            _change("limits", 7_000, pool="chat"),
            _change("rollout", 9_990, pool="batch"),
            _change("config", 10_200),
        ],
        CHAT,
        ONSET,
    )
    assert told == (
        "rollout of pool chat, 3 min 10 s before it began",
        "a node more or less in pool chat, 25 min 00 s before it began",
    )


def test_same_change_of_many_nodes_is_one_line() -> None:
    told = recent_changes([_change("deploy", 9_900 + i, pool="chat", node=f"n{i}") for i in range(5)], CHAT, ONSET)
    assert told == ("deploy of n0, n1, n2 and 2 more, 96 s before it began",)


def test_change_of_the_node_itself_comes_before_that_of_its_peer() -> None:
    changes = [_change("restart", 9_950, pool="chat", node="n2"), _change("limits", 9_700, pool="chat", node="n1")]
    assert recent_changes(changes, {"pool": "chat", "node": "n1"}, ONSET)[0].startswith("limits of n1")


def test_a_restart_of_no_node_is_the_gateways_and_not_the_fleets() -> None:
    assert recent_changes([_change("restart", 9_900)], CHAT, ONSET) == (
        "restart of the gateway, 100 s before it began",
    )


def test_processes_that_started_are_a_change_where_nobody_tells_of_one() -> None:
    starts = [Sample({"node": f"n{i}", "pool": "chat"}, 9_840.0 + 15 * i, 10_050.0) for i in range(3)]
    assert recent_changes(starts_untold(starts, []), CHAT, ONSET) == (
        "start of n0, n1, n2, 2 min 10 s before it began",
    )
    deploy = [_change("deploy", 9_790.0, pool="chat", node="n0"), _change("rollout", 4_000.0, pool="chat")]
    assert [one.labels["node"] for one in starts_untold(starts, deploy)] == ["n1", "n2"]
    assert starts_untold(starts, [_change("rollout", 9_700.0, pool="chat")]) == []
    assert len(starts_untold(starts, [_change("rollout", 9_700.0, pool="batch")])) == 3


def test_what_changed_after_it_began_comes_behind_what_changed_before_and_is_told_as_that() -> None:
    changes = [_change("limits", 10_040, pool="chat"), _change("config", 9_100, pool="chat")]
    before, after = recent_changes(changes, CHAT, ONSET)
    assert before.startswith("config of")
    assert not came_after(before)
    assert after == "limits of pool chat, 40 s after it began, by what the signals show"
    assert came_after(after)
