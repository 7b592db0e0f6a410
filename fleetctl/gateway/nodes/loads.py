"""What each node holds for us right now, and which nodes failed a moment ago.

Suspicion is passive health: a node that refused a connection is tried last for a few seconds. Then one request probes
it while the others still avoid it; a success clears it, a failure starts the time again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from fleetctl.gateway.nodes.table import Endpoint
from fleetctl.gateway.routing.pick import Candidate

SUSPECT_S = 3.0
REFUSED_S = 1.0  # a node that says draining, not ready or overloaded is not broken: ask again soon


class Loads:
    """Requests and estimated tokens in flight by node. Times are `monotonic()` seconds, given by `clock`."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._requests: dict[str, int] = {}
        self._tokens: dict[str, int] = {}
        self._suspect_until: dict[str, float] = {}

    def begin_request(self, node: str, tokens: int) -> None:
        """Count a request that is sent to a node, and its estimated tokens. `end_request` is owed once."""
        self._requests[node] = self._requests.get(node, 0) + 1
        self._tokens[node] = self._tokens.get(node, 0) + tokens
        until = self._suspect_until.get(node)
        if until is not None and until <= self._clock():
            self._suspect_until[node] = self._clock() + SUSPECT_S  # this request is the probe

    def end_request(self, node: str, tokens: int) -> None:
        """The node holds the request no longer; `tokens` as given at its begin."""
        self._requests[node] -= 1
        self._tokens[node] -= tokens
        if self._requests[node] == 0:
            del self._requests[node], self._tokens[node]

    def suspect(self, node: str, for_s: float = SUSPECT_S) -> None:
        """The node failed or refused just now: try it last for `for_s` seconds."""
        self._suspect_until[node] = self._clock() + for_s

    def trust(self, node: str) -> None:
        """The node answered: clear its suspicion."""
        if self._suspect_until:
            self._suspect_until.pop(node, None)

    def is_suspect(self, node: str) -> bool:
        """Whether the node is to be tried last now."""
        until = self._suspect_until.get(node)
        return until is not None and until > self._clock()

    def candidates(self, endpoints: Sequence[Endpoint]) -> list[Candidate]:
        """The endpoints, in their order, with load and suspicion of now."""
        tokens, suspects = self._tokens, self._suspect_until
        if not suspects:
            return [Candidate(e.node, tokens.get(e.node, 0)) for e in endpoints]
        return [Candidate(e.node, tokens.get(e.node, 0), self.is_suspect(e.node)) for e in endpoints]

    def inflight_requests(self) -> dict[str, int]:
        """In-flight requests of each node that has any."""
        return dict(self._requests)

    def keep_only(self, nodes: Iterable[str]) -> None:
        """Forget suspicions of nodes that are gone, so that a fleet that renews itself does not fill memory."""
        known = set(nodes)
        for node in [n for n in self._suspect_until if n not in known]:
            del self._suspect_until[node]

    def check_integrity(self) -> None:
        """Raises AssertionError when a count does not add up."""
        assert self._requests.keys() == self._tokens.keys()
        assert all(count > 0 for count in self._requests.values())
        assert all(count >= 0 for count in self._tokens.values())
