"""Receipts of drains: begun before a node is asked to drain, closed and signed at its end, kept within limits."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa
import structlog

from fleetctl.controller.receipts.drain_lines import (
    NodeRequest,
    ReceiptLine,
    line_document,
    moves_of,
    sums_of,
    sums_words,
)
from fleetctl.controller.records import Records
from fleetctl.controller.tables import receipts
from fleetctl.kit.errors import BadInputError
from fleetctl.kit.signed_document import SigningKey
from fleetctl.wire.receipt import DrainReceipt

log = structlog.get_logger()

MAX_RECEIPTS = 2000
VERSION = 1


@dataclass(frozen=True, slots=True)
class OpenReceipt:
    """A drain that is under way. `held` is None where the node did not say what it holds."""

    id: str
    node: str
    instance: str | None
    begun_at: float
    held: tuple[NodeRequest, ...] | None


class Receipts:
    """Owner of the table, and of the key that signs."""

    def __init__(self, records: Records, key_file: Path, keep_for_s: float) -> None:
        """The key is made at the first start. Without the library for it receipts are kept unsigned, and say so."""
        self._records = records
        self._keep_for_s = keep_for_s
        try:
            self._key: SigningKey | None = SigningKey.opened(key_file)
        except BadInputError as error:
            log.error("receipts.unsigned", error=error.message, remedy=error.remedy)
            self._key = None

    @property
    def public_key(self) -> str:
        """PEM. Raises BadInputError when nothing is signed here."""
        if self._key is None:
            raise BadInputError("receipts are not signed here", remedy="the controller's log says why")
        return self._key.public_pem

    async def begin(self, node: str, instance: str | None, held: Sequence[NodeRequest] | None) -> OpenReceipt:
        """A receipt for a drain that begins now. Another open one of this node is of a drain that did not end."""
        now = self._records.clock.now()
        made = OpenReceipt(f"drain-{secrets.token_hex(5)}", node, instance, now, None if held is None else tuple(held))

        def work(connection: sa.Connection) -> OpenReceipt:
            connection.execute(sa.delete(receipts).where(receipts.c.node == node, receipts.c.ended_at.is_(None)))
            begun = {"held": None if held is None else [asdict(one) for one in held]}
            row = {"id": made.id, "node": node, "instance": instance, "begun_at": now, "document": begun}
            connection.execute(sa.insert(receipts).values(**row, ended_at=None))
            return made

        return await self._records.database.write(work)

    async def find_open(self, node: str, instance: str | None) -> OpenReceipt | None:
        """The drain of this node and instance that is under way."""
        return await self._records.database.read(lambda c: _open_receipt(c, node, instance))

    async def last_of(self, node: str, instance: str | None) -> DrainReceipt | None:
        """The receipt that was closed last for this node and instance."""
        query = (
            sa.select(receipts.c.document)
            .where(receipts.c.node == node, receipts.c.instance == instance, receipts.c.ended_at.is_not(None))
            .order_by(receipts.c.ended_at.desc())
            .limit(1)
        )
        found = await self._records.database.read(lambda c: c.execute(query).scalar())
        return None if found is None else DrainReceipt.model_validate(found)

    async def close(
        self,
        drain: OpenReceipt,
        lines: Sequence[ReceiptLine],
        *,
        state: str,
        notes: Sequence[str] = (),
        uncounted_refusals: int = 0,
    ) -> DrainReceipt:
        """The signed receipt, stored.

        `uncounted_refusals`: arrivals that the node refused without naming them; a note tells of sums that lines lack.
        """
        now = self._records.clock.now()
        sums, moved_to = sums_of(lines), moves_of(lines)
        if uncounted_refusals:
            sums["refused"] += uncounted_refusals
            notes = [*notes, f"{uncounted_refusals} refused without a line: the node did not name them"]
        is_held_known = drain.held is not None
        document = {
            "version": VERSION,
            "id": drain.id,
            "node": drain.node,
            "instance": drain.instance or "",
            "state": state,
            "begun_at": round(drain.begun_at, 3),
            "ended_at": round(now, 3),
            "sums": sums,
            "moved_to": moved_to,
            "summary": sums_words(sums, moved_to, is_held_known=is_held_known),
            "is_complete": is_held_known and not sums["unknown"],
            "notes": list(notes),
            "lines": [line_document(line) for line in lines],
        }
        signed = document if self._key is None else self._key.sign(document)

        def work(connection: sa.Connection) -> None:
            ended = sa.update(receipts).where(receipts.c.id == drain.id)
            connection.execute(ended.values(ended_at=now, document=signed))
            _prune(connection, now - self._keep_for_s)

        await self._records.database.write(work)
        for outcome, count in sums.items():
            self._records.metrics.drained_requests.labels(outcome=outcome).inc(count)
        text = f"{drain.node} drained: {document['summary']}"
        data = {"receipt": drain.id, "sums": sums, "moved_to": moved_to}
        await self._records.timeline.append("drain.receipt", text, node=drain.node, data=data)
        return DrainReceipt.model_validate(signed)

    async def listing(self, limit: int = 200, before: str | None = None) -> list[DrainReceipt]:
        """Closed receipts, the newest first, without their lines; `before`: those that come after that one."""
        query = (
            sa.select(receipts.c.document)
            .where(receipts.c.ended_at.is_not(None))
            .order_by(receipts.c.ended_at.desc(), receipts.c.id.desc())
            .limit(limit)
        )
        if before is not None:  # one that was removed since has none behind it: the oldest go first
            ended_at = sa.select(receipts.c.ended_at).where(receipts.c.id == before).scalar_subquery()
            same_time = (receipts.c.ended_at == ended_at) & (receipts.c.id < before)
            query = query.where((receipts.c.ended_at < ended_at) | same_time)
        found = await self._records.database.read(lambda c: c.execute(query).scalars().all())
        return [DrainReceipt.model_validate({**document, "lines": []}) for document in found]

    async def document(self, receipt_id: str) -> Mapping[str, Any] | None:
        """The signed document as it was stored; None when there is none, or its drain goes on."""
        query = sa.select(receipts.c.document).where(receipts.c.id == receipt_id, receipts.c.ended_at.is_not(None))
        found: Mapping[str, Any] | None = await self._records.database.read(lambda c: c.execute(query).scalar())
        return found


def _open_receipt(connection: sa.Connection, node: str, instance: str | None) -> OpenReceipt | None:
    query = (
        sa.select(receipts)
        .where(receipts.c.node == node, receipts.c.ended_at.is_(None))
        .order_by(receipts.c.begun_at.desc())
        .limit(1)
    )
    row = connection.execute(query).mappings().first()
    if row is None or (instance is not None and row["instance"] != instance):
        return None
    held = row["document"].get("held")
    requests = None if held is None else tuple(NodeRequest(**one) for one in held)
    return OpenReceipt(row["id"], node, row["instance"], row["begun_at"], requests)


def _prune(connection: sa.Connection, before: float) -> None:
    connection.execute(sa.delete(receipts).where(receipts.c.begun_at < before))
    surplus = sa.select(receipts.c.id).order_by(receipts.c.begun_at.desc()).offset(MAX_RECEIPTS).limit(1000)
    gone = list(connection.execute(surplus).scalars())
    if gone:
        connection.execute(sa.delete(receipts).where(receipts.c.id.in_(gone)))
