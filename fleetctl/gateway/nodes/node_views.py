"""What the controller's scraper saw of nodes lately, for the choice: free KV, cache size, adapters. Old is unknown."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from fleetctl.wire.routing import RouteSignals

STALE_AFTER_S = 15.0


class NodeView(NamedTuple):
    """One node as it was seen. None: its engine does not say. `adapters`: those that are loaded."""

    kv_free_tokens: int | None = None
    cache_tokens: int | None = None
    max_model_len: int | None = None
    adapters: frozenset[str] | None = None


UNKNOWN = NodeView()


class NodeViews:
    """The views by node. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._views: dict[str, tuple[NodeView, float]] = {}  # with when it was seen

    def replace_all(self, signals: Iterable[RouteSignals], now: float) -> None:
        """Use these from now on."""
        self._views = {one.node: (_view(one), now - one.age_s) for one in signals if one.age_s is not None}

    def of(self, node: str, now: float) -> NodeView:
        """What is known of the node now."""
        found = self._views.get(node)
        if found is None or now - found[1] > STALE_AFTER_S:
            # A cache does not change its size while nobody looks; what it holds does.
            return UNKNOWN if found is None else UNKNOWN._replace(cache_tokens=found[0].cache_tokens)
        return found[0]

    @property
    def is_empty(self) -> bool:
        """Whether nothing was ever seen."""
        return not self._views

    def cache_sizes(self) -> dict[str, int]:
        """Tokens that each node's KV cache holds, where it is known."""
        return {node: view.cache_tokens for node, (view, _) in self._views.items() if view.cache_tokens}


def _view(signals: RouteSignals) -> NodeView:
    free = None
    if signals.cache_tokens is not None and signals.kv_ratio is not None:
        free = int(signals.cache_tokens * max(0.0, 1.0 - signals.kv_ratio))
    adapters = None if signals.adapters is None else frozenset(signals.adapters)
    return NodeView(free, signals.cache_tokens, signals.max_model_len, adapters)
