"""Asks a drained node and the gateways what became of each request, for the drain's receipt."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from fleetctl.controller.nodes.gateways import Gateways
from fleetctl.controller.nodes.node_answers import NoAnswerError, NotAllowedError
from fleetctl.controller.nodes.node_client import NodeClient
from fleetctl.controller.receipts.drain_lines import (
    GatewayFate,
    NodeRequest,
    ReceiptLine,
    gateway_fate_of,
    is_settled,
    latest_fate,
    line_of,
    merged,
    needs_gateway,
    requests_held,
    requests_of_drain,
)
from fleetctl.controller.receipts.receipts import OpenReceipt, Receipts
from fleetctl.kit.clock import Clock
from fleetctl.wire.receipt import DrainReceipt
from runbooks.ports import Receipt

log = structlog.get_logger()

ASKED_AT_ONCE = 8
MAX_ASKED = 2000  # requests whose fate gateways are asked for
COUNTED = ("finished", "moved", "refused", "aborted")
SETTLE_S = 2.0  # a gateway learns of a move after the node that gives it away
SETTLE_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class DrainAccount:
    """One for all drains. It never makes a drain fail: what could not be learned is unknown in the receipt."""

    receipts: Receipts
    client: NodeClient
    gateways: Gateways
    clock: Clock

    async def begin(self, node: str, url: str | None, instance: str | None, *, is_new: bool) -> OpenReceipt:
        """Before the node is asked to drain: what it holds, or that it does not say. `is_new`: it serves still, so what
        was begun earlier is of a drain that never was; else that one goes on."""
        open_receipt = None if is_new else await self.receipts.find_open(node, instance)
        if open_receipt is not None:
            return open_receipt
        held = None
        if url is not None:
            try:
                held = requests_held(await self.client.held_requests(url))
            except (NoAnswerError, NotAllowedError) as error:
                log.warning("receipt.held_unknown", node=node, error=str(error))
        return await self.receipts.begin(node, instance, held)

    async def close_drained(self, drain: OpenReceipt, url: str, refused: int) -> Receipt:
        """The receipt of a node that says it is drained; `refused`: arrivals that it counted."""
        told: list[NodeRequest] = []
        notes: list[str] = []
        try:
            told = requests_of_drain(await self.client.drained_requests(url))
        except (NoAnswerError, NotAllowedError) as error:
            notes.append(f"the node did not name its requests: {error}")
        named = sum(one.fate == "refused" for one in told)
        lines, silent = await self._lines(drain, told)
        return _step_receipt(
            await self.receipts.close(
                drain, lines, state="drained", notes=[*notes, *silent], uncounted_refusals=max(0, refused - named)
            )
        )

    async def close_silent(self, drain: OpenReceipt, state: str, note: str) -> Receipt:
        """The receipt of a node that is gone or gives no answer: by the gateways' word alone."""
        lines, silent = await self._lines(drain, [])
        return _step_receipt(await self.receipts.close(drain, lines, state=state, notes=[note, *silent]))

    async def repeated(self, node: str, instance: str | None) -> Receipt:
        """Of a drain that ended before a crash: what its receipt says."""
        last = await self.receipts.last_of(node, instance)
        return {} if last is None else _step_receipt(last)

    async def _lines(self, drain: OpenReceipt, told: Sequence[NodeRequest]) -> tuple[list[ReceiptLine], list[str]]:
        """Each request's line, and what could not be asked."""
        requests = merged(drain.held or (), told)
        lines = {one.request_id: line_of(one, drain.node, None, all_answered=True) for one in requests}
        open_ones = [one for one in requests if needs_gateway(one)]
        notes = []
        if len(open_ones) > MAX_ASKED:
            notes.append(f"gateways were asked for {MAX_ASKED} of {len(open_ones)} requests")
        urls, silent, began = self.gateways.urls, set[str](), self.clock.now()
        while open_ones:
            asked = open_ones[:MAX_ASKED]
            fates = await self._fates(asked, drain.node, urls, silent)
            for one, fate in zip(asked, fates, strict=True):
                lines[one.request_id] = line_of(one, drain.node, fate, all_answered=not silent)
            open_ones = [one for one in asked if not is_settled(lines[one.request_id])]
            if self.clock.now() - began >= SETTLE_S or not set(urls) - silent:
                break
            if open_ones:
                await self.clock.sleep(SETTLE_POLL_S)
        return list(lines.values()), [*notes, *(f"gateway {url} did not answer" for url in sorted(silent))]

    async def _fates(
        self, requests: Sequence[NodeRequest], node: str, urls: Sequence[str], silent: set[str]
    ) -> list[GatewayFate | None]:
        """Each request's fate by the word of all gateways: it may be known to several."""
        slots = asyncio.Semaphore(ASKED_AT_ONCE)

        async def fate_of(request: NodeRequest) -> GatewayFate | None:
            async with slots:
                words = []
                for url in urls:
                    if url in silent:
                        continue
                    try:
                        answer = await self.client.request_fate(url, request.request_id)
                    except (NoAnswerError, NotAllowedError):
                        silent.add(url)
                        continue
                    if answer is not None and (fate := gateway_fate_of(answer, node)) is not None:
                        words.append(fate)
                return latest_fate(words)

        return list(await asyncio.gather(*(fate_of(request) for request in requests)))


def _step_receipt(receipt: DrainReceipt) -> Receipt:
    """What the step of a run keeps of it. Where nothing in it is unknown its counts too, in place of the node's own:
    one whose core was killed meanwhile calls aborted what another node goes on with."""
    counts = COUNTED if receipt.is_complete else ()
    return {
        **{outcome: receipt.sums[outcome] for outcome in counts},
        "receipt": receipt.id,
        "summary": receipt.summary,
        "lost": receipt.sums["lost"],
        "unknown": receipt.sums["unknown"],
    }
