"""What each node holds for us right now, and which nodes failed a moment ago.

Prefill and decode are counted apart: a prompt's tokens stand before others only until its first token comes, a request
takes a seat until its end.

Suspicion is passive health: a node that refused a connection is tried last for a few seconds. Then one request probes
it while the others still avoid it; a success clears it, a failure starts the time again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping

SUSPECT_S = 3.0
RECENT_HALF_LIFE_S = 30.0
MIN_PREFILL_TOKENS = 256  # of shorter prompts the time to the first token is not that of their prefill
REFUSED_S = 1.0  # a node that says draining, not ready or overloaded is not broken: ask again soon


class NodeLoad:
    """What one node holds for us. `prefill_tokens`: of prompts whose first token has not come; `kv_tokens`: of all."""

    __slots__ = ("_sent", "_sent_at", "kv_tokens", "num_long", "prefill_tokens", "requests")

    def __init__(self) -> None:
        self._sent = 0.0
        self._sent_at = 0.0
        self.requests = 0
        self.prefill_tokens = 0
        self.kv_tokens = 0
        self.num_long = 0

    def note_sent(self, tokens: int, now: float) -> None:
        """Tokens of work were given to it at `now`."""
        self._sent = self.recent_tokens(now) + tokens
        self._sent_at = now

    def recent_tokens(self, now: float) -> float:
        """Tokens of work that it was given lately; they count half after half a minute."""
        if not self._sent:
            return 0.0
        return self._sent * math.exp2((self._sent_at - now) / RECENT_HALF_LIFE_S)


IDLE = NodeLoad()
_NOBODY: frozenset[str] = frozenset()


class RequestLoad:
    """One request at one node. `end` is owed; calls after it change nothing."""

    __slots__ = ("_began", "_is_long", "_kv_tokens", "_loads", "_prefill_tokens", "node")

    def __init__(self, loads: Loads, node: str, prefill_tokens: int, kv_tokens: int, is_long: bool) -> None:
        self._loads: Loads | None = loads
        self._began = loads.now()
        self.node = node
        self._prefill_tokens = prefill_tokens
        self._kv_tokens = kv_tokens
        self._is_long = is_long

    def end_prefill(self) -> None:
        """The first token came: its prompt stands before nobody any more."""
        if self._prefill_tokens and self._loads is not None:
            self._loads.note_prefill(self._prefill_tokens, self._began)
            self._loads.of(self.node).prefill_tokens -= self._prefill_tokens
            self._prefill_tokens = 0

    def end(self) -> None:
        """The node holds the request no longer."""
        loads = self._loads
        if loads is None:
            return
        loads.of(self.node).prefill_tokens -= self._prefill_tokens
        self._loads = None
        loads.release(self.node, self._kv_tokens, self._is_long)


class Loads:
    """Requests and estimated tokens in flight by node. Times are `monotonic()` seconds, given by `clock`."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._nodes: dict[str, NodeLoad] = {}
        self._suspect_until: dict[str, float] = {}
        self._prefilled_tokens = 0.0  # of all nodes; decayed, as the seconds until their first tokens are
        self._prefill_s = 0.0
        self._prefilled_at = 0.0

    def begin(self, node: str, prefill_tokens: int, output_tokens: int = 0, *, is_long: bool = False) -> RequestLoad:
        """Count a request that is sent to a node: what it must prefill there, and what it may write."""
        load = self._nodes.get(node)
        if load is None:
            load = self._nodes[node] = NodeLoad()
        load.requests += 1
        load.prefill_tokens += prefill_tokens
        load.kv_tokens += prefill_tokens + output_tokens
        load.num_long += is_long
        load.note_sent(prefill_tokens + output_tokens, self._clock())
        if self._suspect_until:
            until = self._suspect_until.get(node)
            if until is not None and until <= self._clock():
                self._suspect_until[node] = self._clock() + SUSPECT_S  # this request is the probe
        return RequestLoad(self, node, prefill_tokens, prefill_tokens + output_tokens, is_long)

    def release(self, node: str, kv_tokens: int, is_long: bool) -> None:
        """A request of the node ended; for `RequestLoad`."""
        load = self._nodes[node]
        load.requests -= 1
        load.kv_tokens -= kv_tokens
        load.num_long -= is_long

    def note_prefill(self, tokens: int, began: float) -> None:
        """So many tokens were prefilled since `began`; for `RequestLoad`."""
        now = self._clock()
        if tokens < MIN_PREFILL_TOKENS or now <= began:
            return
        kept = math.exp2((self._prefilled_at - now) / RECENT_HALF_LIFE_S)
        self._prefilled_at = now
        self._prefilled_tokens = self._prefilled_tokens * kept + tokens
        self._prefill_s = self._prefill_s * kept + now - began

    def prefill_rate(self) -> float | None:
        """Prompt tokens a second until the first token, as streams saw it lately, waiting included; None: not known."""
        return self._prefilled_tokens / self._prefill_s if self._prefill_s else None

    def now(self) -> float:
        """The time by which recent work is judged."""
        return self._clock()

    def of(self, node: str) -> NodeLoad:
        """What the node holds; to be read only."""
        return self._nodes.get(node, IDLE)

    def by_node(self) -> Mapping[str, NodeLoad]:
        """What nodes hold; those that never held anything are missing. To be read only."""
        return self._nodes

    def suspect(self, node: str, for_s: float = SUSPECT_S) -> None:
        """The node failed or refused just now: try it last for `for_s` seconds."""
        self._suspect_until[node] = self._clock() + for_s

    def trust(self, node: str) -> None:
        """The node answered: clear its suspicion."""
        if self._suspect_until:
            self._suspect_until.pop(node, None)

    def is_suspect(self, node: str) -> bool:
        """Whether the node is to be tried last now."""
        if not self._suspect_until:
            return False
        until = self._suspect_until.get(node)
        return until is not None and until > self._clock()

    def suspects(self) -> frozenset[str]:
        """All nodes that are to be tried last now."""
        if not self._suspect_until:
            return _NOBODY
        now = self._clock()
        return frozenset([node for node, until in self._suspect_until.items() if until > now])

    def inflight_requests(self) -> dict[str, int]:
        """In-flight requests of each node that has any."""
        return {node: load.requests for node, load in self._nodes.items() if load.requests}

    def keep_only(self, nodes: Iterable[str]) -> None:
        """Forget nodes that are gone, so that a fleet that renews itself does not fill memory."""
        known = set(nodes)
        for node in [n for n in self._suspect_until if n not in known]:
            del self._suspect_until[node]
        for node in [n for n, load in self._nodes.items() if n not in known and not load.requests]:
            del self._nodes[node]

    def check_integrity(self) -> None:
        """Raises AssertionError when a count does not add up."""
        for load in self._nodes.values():
            assert min(load.requests, load.prefill_tokens, load.kv_tokens, load.num_long) >= 0
