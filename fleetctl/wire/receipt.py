"""What became of each request that a drain met."""

from __future__ import annotations

from pydantic import Field

from fleetctl.wire.base import Wire


class DrainedRequest(Wire):
    """One line of a receipt. Tokens are output tokens but for `tokens_in`; None: not known."""

    request_id: str  # as its client knows it
    outcome: str  # finished, moved, refused, aborted, lost or unknown
    moved_to: str = ""  # the node where it went on
    tokens_in: int | None = None  # of its prompt
    tokens_before: int | None = None  # when the drain began
    tokens_after: int | None = None  # when it ended on this node
    why: str = ""  # of the outcome
    said_by: str = ""  # node or gateway


class DrainReceipt(Wire):
    """What became of each request that a node held when its drain began, or was sent since."""

    id: str  # unique
    version: int = 1  # of its form
    node: str  # that was drained
    instance: str = ""  # of it, which a restart changes
    state: str  # drained; gone or unreachable: it did not say
    begun_at: float  # when the drain began
    ended_at: float  # when it ended
    sums: dict[str, int]  # outcome to how many
    moved_to: dict[str, int] = Field(default_factory=dict)  # node to how many
    summary: str  # in a line
    is_complete: bool  # nothing in it is unknown
    notes: list[str] = Field(default_factory=list)  # what is to be known beside it
    lines: list[DrainedRequest] = Field(default_factory=list)  # one for each request
    key_id: str = ""  # of the key that signed it
    signature: str = ""  # empty: unsigned
