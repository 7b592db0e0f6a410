"""What a node holds: requests in flight, and what its KV cache is used for."""

from __future__ import annotations

from pydantic import ConfigDict, Field

from fleetctl.wire.base import Wire


class HeldRequest(Wire):
    """One request in flight at a node, without its prompt or text."""

    model_config = ConfigDict(extra="ignore", defer_build=True)

    request_id: str
    kind: str = ""  # chat, completion
    state: str = ""  # waiting, running, moving, ending
    tokens_in: int | None = None
    tokens_out: int | None = None
    kv_blocks: int | None = None  # None: the core has not said
    age_s: float | None = None
    priority: int | None = None
    deadline_s: float | None = None


class HeldRequests(Wire):
    """What a node holds, oldest first. `unknown`: why it is not known; the list is no empty one then."""

    requests: list[HeldRequest] = Field(default_factory=list)
    num_arriving: int = 0  # read or tokenised, and not taken in yet
    unknown: str = ""
    is_refused: bool = False  # why it is not known: the node takes no token of the controller's, nor its orders


class KvBlocks(Wire):
    """What a node's KV cache is used for, told by the node itself. `unknown`: why it is not known."""

    model_config = ConfigDict(extra="ignore")

    block_size: int = Field(default=0, ge=0)  # tokens
    num_blocks: int = Field(default=0, ge=0)
    num_held: int = Field(default=0, ge=0)  # by requests
    num_shared: int = Field(default=0, ge=0)  # of those: by several
    num_kept: int = Field(default=0, ge=0)  # for prompts that begin the same; evicted where their space is needed
    num_kept_reused: int = Field(default=0, ge=0)  # of those: found again since, and evicted last
    unknown: str = ""

    @property
    def num_blank(self) -> int:
        """Blocks that nobody holds and that nothing is kept in."""
        return max(0, self.num_blocks - self.num_held - self.num_kept)
