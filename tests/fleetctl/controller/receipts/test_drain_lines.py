"""What becomes a line of a receipt: the node's word and a gateway's, and what nobody can say."""

from __future__ import annotations

import pytest

from fleetctl.controller.receipts.drain_lines import (
    GatewayFate,
    NodeRequest,
    RequestOutcome,
    gateway_fate_of,
    latest_fate,
    line_of,
    merged,
    moves_of,
    sums_of,
    sums_words,
)

MOVED = GatewayFate("finished", moved_from_node_to="node-3", last_node="node-3", tokens_at_move=5)
Out = RequestOutcome


@pytest.mark.parametrize(
    ("fate", "gateway", "all_answered", "outcome", "why"),
    [
        ("finished", None, True, Out.FINISHED, ""),
        ("aborted", None, True, Out.ABORTED, ""),
        ("refused", None, True, Out.REFUSED, ""),
        ("moved", MOVED, True, Out.MOVED, ""),
        ("moved", GatewayFate("in_flight", "node-3", "node-3"), True, Out.MOVED, ""),
        ("moved", GatewayFate("failed", "node-3", reason="node_lost"), True, Out.LOST, "node_lost"),
        ("moved", None, True, Out.UNKNOWN, "the node gave it away; no gateway knows it"),
        ("moved", None, False, Out.UNKNOWN, "the node gave it away; a gateway did not answer"),
        ("moved", GatewayFate("in_flight", last_node="node-1"), True, Out.UNKNOWN, "still in flight at node-1"),
        ("moved", GatewayFate("in_flight"), True, Out.UNKNOWN, "still in flight at no node"),
        ("moved", GatewayFate("in_flight", last_node="node-3"), True, Out.MOVED, ""),
        ("moved", GatewayFate("finished", last_node="node-3"), True, Out.MOVED, ""),
        ("failed", MOVED, True, Out.MOVED, ""),
        ("failed", GatewayFate("failed", reason="core_dead"), True, Out.LOST, "core_dead"),
        ("failed", GatewayFate("in_flight", last_node="node-3"), True, Out.MOVED, ""),
        (None, GatewayFate("in_flight", last_node="node-3"), True, Out.MOVED, ""),
        (None, GatewayFate("in_flight", last_node="node-1"), True, Out.UNKNOWN, "still in flight at node-1"),
        ("failed", None, True, Out.LOST, "the node ended it with an error; no gateway knows it"),
        ("failed", None, False, Out.UNKNOWN, "the node ended it with an error; a gateway did not answer"),
        (None, None, True, Out.UNKNOWN, "the node did not say; no gateway knows it"),
        (None, GatewayFate("finished", last_node="node-1"), True, Out.FINISHED, ""),
        (None, MOVED, True, Out.MOVED, ""),
        (None, GatewayFate("client_gone"), True, Out.ABORTED, ""),
        (None, GatewayFate("gave_up"), True, Out.LOST, "gave_up"),
    ],
)
def test_outcome_follows_from_both_words_and_is_unknown_where_nobody_can_say(
    fate: str | None, gateway: GatewayFate | None, all_answered: bool, outcome: RequestOutcome, why: str
) -> None:
    line = line_of(NodeRequest("r", fate=fate), "node-1", gateway, all_answered=all_answered)
    assert (line.outcome, line.why) == (outcome, why)


def test_line_of_a_move_says_to_whom_and_how_many_tokens_it_had() -> None:
    answer = {
        "fate": "in_flight",
        "nodes": ["node-1", "node-3"],
        "moves": [{"from": "node-1", "to": "node-3", "tokens": 5}, {"from": "node-2", "to": "node-9", "tokens": 8}],
    }
    gateway = gateway_fate_of(answer, "node-1")
    line = line_of(NodeRequest("r", 7, 3, 4, "moved"), "node-1", gateway, all_answered=True)
    assert (line.moved_to, line.tokens_in, line.tokens_before, line.tokens_after) == ("node-3", 7, 3, 5)
    # A plain answer's node is in `nodes` once it has answered; several prompts count in the node's tokens alone.
    waits = gateway_fate_of({"fate": "in_flight", "nodes": [], "node": "node-3"}, "node-1")
    line = line_of(NodeRequest("r", 7, 3, 40, "moved"), "node-1", waits, all_answered=True)
    assert (line.outcome, line.moved_to, line.tokens_after) == (Out.MOVED, "node-3", 40)
    assert gateway_fate_of({"error": "not remembered"}, "node-1") is None


def test_request_that_came_again_by_another_gateway_has_the_fate_of_its_last_attempt() -> None:
    died = GatewayFate("failed", last_node="node-1", reason="worker_died", started_at=10.0)
    answered_before = GatewayFate("finished", last_node="node-1", started_at=20.0)
    again = GatewayFate("in_flight", last_node="node-3", started_at=15.0)
    ended = GatewayFate("finished", moved_from_node_to="node-3", last_node="node-3", started_at=30.0)
    assert latest_fate([died, answered_before, again]) == again
    assert latest_fate([died, ended, answered_before]) == ended
    assert latest_fate([]) is None
    told = gateway_fate_of({"fate": "finished", "node": "node-3", "started_at": 30.5}, "node-1")
    assert told is not None
    assert told.started_at == 30.5


def test_sums_name_every_outcome_and_who_went_on() -> None:
    requests = [NodeRequest("a", fate="finished"), NodeRequest("b", fate="moved"), NodeRequest("c", fate="refused")]
    lines = [line_of(one, "node-1", MOVED if one.fate == "moved" else None, all_answered=True) for one in requests]
    assert sums_words(sums_of(lines), moves_of(lines)) == "finished 1, moved 1 to node-3, refused 1, aborted 0, lost 0"
    unknown = sums_of([line_of(NodeRequest("d"), "node-1", None, all_answered=True)])
    assert sums_words(unknown, {}, is_held_known=False) == "unknown 1; what else it held is not known"
    assert sums_words(sums_of([]), {}, is_held_known=False) == "what it held is not known"


def test_what_was_held_keeps_its_line_when_the_node_does_not_name_it_any_more() -> None:
    held = [NodeRequest("a", 7, 3), NodeRequest("b", 7, 3)]
    told = [NodeRequest("b", 7, 3, 9, "finished"), NodeRequest("c", fate="refused")]
    assert [(one.request_id, one.fate) for one in merged(held, told)] == [
        ("a", None),
        ("b", "finished"),
        ("c", "refused"),
    ]
