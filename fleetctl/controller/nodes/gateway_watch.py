"""Whether the gateway routes by the table we mean: asked after each change that an effect depends on."""

from __future__ import annotations

from fleetctl.controller.nodes.node_client import NoAnswerError, NodeClient, NotAllowedError
from fleetctl.kit.clock import Clock

POLL_S = 0.1


class GatewayWatch:
    def __init__(self, client: NodeClient, url: str | None, clock: Clock, wait_s: float) -> None:
        self._client = client
        self._url = url
        self._clock = clock
        self._wait_s = wait_s

    async def follow(self, version: int) -> str:
        """Wait until the gateway routes by `version` or a newer one. Returns what was seen, for the receipt.

        A gateway that can't be asked is waited for a few seconds and then not any more: its long poll may work all
        the same, and a node that is drained refuses new requests itself.
        """
        if self._url is None:
            return "no gateway is configured"
        started = self._clock.now()
        while True:
            try:
                seen = await self._client.gateway_table_version(self._url)
            except (NoAnswerError, NotAllowedError) as error:
                problem = f"not known: {error}"
            else:
                if seen >= version:
                    return f"routes by table {seen}"
                problem = f"still routes by table {seen}"
            if self._clock.now() - started > self._wait_s:
                return f"{problem}; went on after {self._wait_s:.0f} s"
            await self._clock.sleep(POLL_S)
