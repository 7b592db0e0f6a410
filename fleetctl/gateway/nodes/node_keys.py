"""The key that a node wants of us, in place of whatever its client sent."""

from __future__ import annotations

from fleetctl.gateway.nodes.table import Endpoint
from fleetctl.kit.key_ring import NO_KEYS, KeyRing

Headers = list[tuple[bytes, bytes]]
_AUTHORIZATION = b"authorization"


class NodeKeys:
    """Routes name keys; where each lies, this gateway's own settings say."""

    def __init__(self, ring: KeyRing = NO_KEYS) -> None:
        self._ring = ring

    def headers(self, headers: Headers, endpoint: Endpoint) -> Headers:
        """As they are for a node that wants no key of its own. Else never with the client's key: it is not for it."""
        if not endpoint.api_key:
            return headers
        kept = [header for header in headers if header[0].lower() != _AUTHORIZATION]
        if value := self._ring.header(endpoint.api_key):
            kept.append((_AUTHORIZATION, value.encode()))
        return kept


NO_NODE_KEYS = NodeKeys()
