"""What became of each request of a drain: the node's word and the gateways', put together. Pure.

What nobody can say is UNKNOWN, never finished. A request is lost when a gateway says that its client got no answer, or
when the node ended it with an error and no gateway says that another node went on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

MAX_LINES = 10_000


class RequestOutcome(StrEnum):
    """How one request of a drain went."""

    FINISHED = "finished"
    MOVED = "moved"  # another node goes on, or went on, with it
    REFUSED = "refused"  # before anything was done: the gateway may send it elsewhere
    ABORTED = "aborted"  # its client hung up
    LOST = "lost"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class NodeRequest:
    """A request as the node tells it. `fate` is its own word, None while it holds the request or before."""

    request_id: str
    tokens_in: int | None = None
    tokens_before: int | None = None  # output tokens when the drain began
    tokens_after: int | None = None  # and when it ended there
    fate: str | None = None


@dataclass(frozen=True, slots=True)
class GatewayFate:
    """What a gateway says of a request."""

    fate: str  # in_flight, finished, refused, failed, gave_up or client_gone
    moved_from_node_to: str = ""  # who went on when it left the drained node; empty: it did not leave
    last_node: str = ""
    tokens_at_move: int | None = None
    reason: str = ""
    started_at: float = 0.0  # when this attempt reached the gateway, in Unix seconds


@dataclass(frozen=True, slots=True)
class ReceiptLine:
    """One request. `said_by`: whose word the outcome is."""

    request_id: str
    outcome: RequestOutcome
    moved_to: str = ""
    tokens_in: int | None = None
    tokens_before: int | None = None
    tokens_after: int | None = None
    why: str = ""
    said_by: str = ""


def needs_gateway(request: NodeRequest) -> bool:
    """Whether the node's word alone does not settle what became of it."""
    return request.fate not in ("finished", "aborted")


def line_of(request: NodeRequest, node: str, gateway: GatewayFate | None, *, all_answered: bool) -> ReceiptLine:
    """The request's line. `gateway`: the word of the one that knows it; `all_answered`: none of them was silent."""
    outcome, why, said_by = _outcome(request, node, gateway, all_answered=all_answered)
    tokens_after = request.tokens_after
    moved_to = ""
    if gateway is not None and outcome in (RequestOutcome.MOVED, RequestOutcome.LOST):
        moved_to = gateway.moved_from_node_to or (gateway.last_node if gateway.last_node != node else "")
        told = gateway.tokens_at_move  # of several prompts that of one: less than the node had is not all of it
        if told is not None and told >= (request.tokens_before or 0):
            tokens_after = told
    if gateway is not None and outcome is RequestOutcome.REFUSED and gateway.last_node != node:
        moved_to = gateway.last_node
    return ReceiptLine(
        request.request_id,
        outcome,
        moved_to,
        request.tokens_in,
        request.tokens_before,
        tokens_after,
        why,
        said_by,
    )


def _outcome(
    request: NodeRequest, node: str, gateway: GatewayFate | None, *, all_answered: bool
) -> tuple[RequestOutcome, str, str]:
    match request.fate:
        case "finished":
            return RequestOutcome.FINISHED, "", "node"
        case "aborted":
            return RequestOutcome.ABORTED, "", "node"
        case "refused":
            return RequestOutcome.REFUSED, "", "node"
    if gateway is None:
        nobody = "no gateway knows it" if all_answered else "a gateway did not answer"
        if request.fate == "moved":
            return RequestOutcome.UNKNOWN, f"the node gave it away; {nobody}", "node"
        if request.fate == "failed":
            outcome = RequestOutcome.LOST if all_answered else RequestOutcome.UNKNOWN
            return outcome, f"the node ended it with an error; {nobody}", "node"
        return RequestOutcome.UNKNOWN, f"the node did not say; {nobody}", ""
    if gateway.fate in ("failed", "gave_up"):
        return RequestOutcome.LOST, gateway.reason or gateway.fate, "gateway"
    if gateway.fate == "client_gone":
        return RequestOutcome.ABORTED, "", "gateway"
    # A plain request's move is told once the other node has answered it: until then it is there, in flight. So is
    # one that the node's core died with, and one that its client sent again through another gateway.
    is_elsewhere = gateway.last_node not in ("", node) and gateway.fate in ("in_flight", "finished")
    if gateway.moved_from_node_to or is_elsewhere:
        return RequestOutcome.MOVED, "", "gateway"
    if gateway.fate == "finished" and request.fate is None:
        return RequestOutcome.FINISHED, "", "gateway"
    if gateway.fate == "refused":
        return RequestOutcome.REFUSED, gateway.reason, "gateway"
    if gateway.fate == "in_flight":
        return RequestOutcome.UNKNOWN, f"still in flight at {gateway.last_node or 'no node'}", "gateway"
    return RequestOutcome.UNKNOWN, f"the node said {request.fate}, a gateway {gateway.fate} without a move", "gateway"


def latest_fate(words: Sequence[GatewayFate]) -> GatewayFate | None:
    """Of what several gateways say of one id: the attempt that is in flight, else the one that began last.

    A client whose gateway was killed comes again through another one, under the same id; what became of the earlier
    attempt is then no word on the request. None: no gateway knows it.
    """
    return max(words, key=lambda one: (one.fate == "in_flight", one.started_at), default=None)


def is_settled(line: ReceiptLine) -> bool:
    """Whether another look could tell nothing more of it."""
    return line.outcome is not RequestOutcome.UNKNOWN


def sums_of(lines: Iterable[ReceiptLine]) -> dict[str, int]:
    """How many requests had each outcome, all named."""
    counts = Counter(line.outcome for line in lines)
    return {outcome.value: counts[outcome] for outcome in RequestOutcome}


def moves_of(lines: Iterable[ReceiptLine]) -> dict[str, int]:
    """How many requests each node went on with."""
    return dict(sorted(Counter(line.moved_to for line in lines if line.outcome is RequestOutcome.MOVED).items()))


def sums_words(sums: Mapping[str, int], moved_to: Mapping[str, int], *, is_held_known: bool = True) -> str:
    """For people: "finished 12, moved 5 to node-3, refused 2, aborted 0, lost 0".

    Of a node that could not be asked only what happened is counted: none that is known to be lost is not none lost.
    """
    parts = []
    for name, count in sums.items():
        if not count and (name == RequestOutcome.UNKNOWN.value or not is_held_known):
            continue
        to = [f"{num} to {node}" if len(moved_to) > 1 else node for node, num in moved_to.items() if node]
        extra = f" ({', '.join(to)})" if len(to) > 1 else f" to {to[0]}" if to else ""
        parts.append(f"{name} {count}" + (extra if name == RequestOutcome.MOVED.value and count else ""))
    told = ", ".join(parts)
    if is_held_known:
        return told
    return f"{told}; what else it held is not known" if told else "what it held is not known"


def requests_of_drain(rows: object) -> list[NodeRequest]:
    """The rows of a node's `GET /admin/drain?requests=true`; what is no row is left out."""
    return [
        NodeRequest(
            str(row["request_id"]),
            _count(row.get("tokens_in")),
            _count(row.get("tokens_before")),
            _count(row.get("tokens_out")),
            row["fate"] if isinstance(row.get("fate"), str) else None,
        )
        for row in _rows(rows)
    ]


def requests_held(rows: object) -> list[NodeRequest]:
    """The rows of a node's `GET /admin/requests`: what it holds now, tokens as they are."""
    return [
        NodeRequest(str(row["request_id"]), _count(row.get("tokens_in")), _count(row.get("tokens_out")))
        for row in _rows(rows)
    ]


def merged(held: Sequence[NodeRequest], told: Sequence[NodeRequest]) -> list[NodeRequest]:
    """What was held when the drain began, with the node's last word of each, and what came since."""
    known = {one.request_id: one for one in held}
    known |= {one.request_id: one for one in told}
    return list(known.values())[:MAX_LINES]


def gateway_fate_of(answer: Mapping[str, Any], node: str) -> GatewayFate | None:
    """A gateway's `GET /gateway/requests/{id}`, seen from the drained node; None when it says no fate."""
    fate = answer.get("fate")
    if not isinstance(fate, str):
        return None
    moves = [move for move in answer.get("moves") or () if isinstance(move, dict) and move.get("from") == node]
    nodes = [str(name) for name in answer.get("nodes") or ()]
    move = moves[-1] if moves else {}
    return GatewayFate(
        fate,
        moved_from_node_to=str(move.get("to") or ""),
        last_node=str(answer.get("node") or (nodes[-1] if nodes else "")),
        tokens_at_move=_count(move.get("tokens")),
        reason=str(answer.get("reason") or ""),
        started_at=float(started_at) if isinstance(started_at := answer.get("started_at"), int | float) else 0.0,
    )


def line_document(line: ReceiptLine) -> dict[str, Any]:
    """Plain JSON."""
    return {**asdict(line), "outcome": line.outcome.value}


def _rows(rows: object) -> list[dict[str, Any]]:
    found = rows if isinstance(rows, list) else []
    return [row for row in found if isinstance(row, dict) and isinstance(row.get("request_id"), str)]


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
