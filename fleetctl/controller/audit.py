"""Who changed what, when, why and with which outcome: an append-only table whose rows hold each other by their hashes.

Rows of runs are stored in the journal's own transactions; those of other calls after the change and before its answer.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa
import structlog

from fleetctl.controller.database import Database, GroupCommit, get_meta, put_meta
from fleetctl.controller.metrics import ControllerMetrics
from fleetctl.controller.tables import audit
from fleetctl.controller.timeline import Timeline
from fleetctl.kit.clock import Clock
from fleetctl.kit.hash_chain import BrokenChain, ChainLink, follow_chain, meets_head, next_hash
from fleetctl.kit.whole_file import write_whole
from fleetctl.settings.controller import AuditSettings
from fleetctl.wire.audit import AuditCheck, AuditRow
from runbooks.journal import EXECUTOR, AuditEntry
from runbooks.run import Run

log = structlog.get_logger()

AUTOMATION = "automation"
CALLER: ContextVar[str] = ContextVar("caller", default=AUTOMATION)
"""By which credentials the call that is being answered came; outside of one, automation."""

HEAD, ANCHOR = "audit_head", "audit_anchor"
"""Where the chain ends, and the last link of what was exported and removed."""
PAGE_ROWS = 2000
MAX_PRUNED = 5000  # rows in one file
MAX_CHARS = 2000


@dataclass(frozen=True, slots=True)
class AuditFacts:
    """What is told of one change. `who` is a person's or a part's name, `via` the credentials it came by."""

    at: float
    who: str
    what: str  # noun.past, as on the timeline
    target: str = ""
    why: str = ""
    outcome: str = ""
    run_id: str = ""
    via: str = AUTOMATION


class Audit:
    """Owner of the table. Threading: belongs to one event loop, but for `append_run`."""

    def __init__(
        self,
        database: Database,
        timeline: Timeline,
        metrics: ControllerMetrics,
        clock: Clock,
        settings: AuditSettings,
        folder: Path,
    ) -> None:
        """`folder` gets what is exported before it is removed."""
        self._database = database
        self._timeline = timeline
        self._metrics = metrics
        self._clock = clock
        self._settings = settings
        self._folder = folder
        self._appends = GroupCommit(database, append_rows)
        self._busy = asyncio.Lock()  # verified and pruned one after the other
        self.last_check: AuditCheck | None = None

    async def record(self, what: str, *, who: str, target: str = "", why: str = "", outcome: str = "done") -> None:
        """Append one change that a call made. It is stored when this returns."""
        facts = AuditFacts(self._clock.now(), who, what, target, why, outcome, via=CALLER.get())
        await self._appends.add(facts)

    async def read(
        self,
        *,
        since: float | None = None,
        who: str | None = None,
        target: str | None = None,
        limit: int = 200,
        before: tuple[Any, ...] | None = None,
    ) -> list[AuditRow]:
        """The newest rows that fit, oldest first; `before`: a row's number, and only what is older.

        `who` did it, or is said to have; `target` is one of a row's targets, or its run's id.
        """
        query = sa.select(audit).order_by(audit.c.seq.desc()).limit(limit)
        if before is not None:
            query = query.where(audit.c.seq < before[0])
        if since is not None:
            query = query.where(audit.c.at >= since)
        if who is not None:
            claimed = audit.c.who.endswith(f"(says {who})", autoescape=True)
            query = query.where((audit.c.who == who) | audit.c.who.startswith(f"{who} (", autoescape=True) | claimed)
        if target is not None:
            within = sa.literal(", ") + audit.c.target + sa.literal(", ")
            is_named = within.contains(f", {target}, ", autoescape=True)
            query = query.where(is_named | (audit.c.run_id == target))
        rows = await self._database.read(lambda c: c.execute(query).mappings().all())
        return [AuditRow.model_validate(dict(row)) for row in reversed(rows)]

    async def verify(self) -> AuditCheck:
        """Follow the whole chain that is kept, from what was exported to its head."""
        async with self._busy:
            anchor, head = await self._database.read(lambda c: (_link(c, ANCHOR), _link(c, HEAD)))
            link: ChainLink | BrokenChain = anchor
            while isinstance(link, ChainLink) and link.seq < head.seq:
                before = link
                link = await self._database.read(lambda c, after=before: _follow_page(c, after, head.seq))  # type: ignore[misc]
                if link == before:
                    break
            broken = link if isinstance(link, BrokenChain) else meets_head(link, head)
        found = AuditCheck(
            intact=broken is None,
            rows=head.seq - anchor.seq,
            first_seq=anchor.seq + 1,
            head_seq=head.seq,
            head_hash=head.hash,
            broken_seq=None if broken is None else broken.seq,
            why="" if broken is None else broken.why,
            at=self._clock.now(),
        )
        self._metrics.audit_intact.set(found.intact)
        if broken is not None and (self.last_check is None or self.last_check.intact):
            log.error("audit.broken", seq=broken.seq, why=broken.why)
            await self._timeline.append("audit.broken", f"the audit is not as it was written: {broken.why}")
        self.last_check = found
        return found

    async def verify_in_turn(self) -> None:
        """One turn of a loop."""
        found = await self.verify()
        log.info("audit.verified", intact=found.intact, head_seq=found.head_seq, head_hash=found.head_hash)

    async def prune(self) -> int:
        """Export the oldest rows beyond the limits into a file of their own, then remove them; how many."""
        async with self._busy:
            before = self._clock.now() - self._settings.keep_for_s
            anchor, rows = await self._database.read(lambda c: _surplus(c, before, self._settings.max_rows))
            if not rows:
                return 0
            last = ChainLink(rows[-1]["seq"], rows[-1]["hash"])
            path = self._folder / f"audit-{rows[0]['seq']}-{last.seq}.jsonl"
            lines = [json.dumps({"after": asdict(anchor)}), *(json.dumps(row) for row in rows)]
            await asyncio.to_thread(write_whole, path, "\n".join(lines) + "\n", is_durable=True)

            def remove(connection: sa.Connection) -> None:
                connection.execute(sa.delete(audit).where(audit.c.seq <= last.seq))
                put_meta(connection, ANCHOR, asdict(last))

            await self._database.write(remove)
        log.info("audit.exported", path=str(path), rows=len(rows))
        return len(rows)


def append_run(connection: sa.Connection, run: Run, entry: AuditEntry) -> None:
    """The journal's word on a run, in the journal's transaction. A dry run changes nothing and is left out."""
    if run.dry_run:
        return
    is_end = entry.by == EXECUTOR
    asked = f"{run.title}: {run.reason}" if run.reason else run.title
    facts = AuditFacts(
        at=entry.at,
        who=entry.by,
        what=f"run.{entry.what}",
        target=", ".join(str(target) for target in run.targets),
        why=asked if entry.what == "requested" or is_end else entry.comment,
        outcome=(entry.comment or entry.what) if is_end else "",
        run_id=run.id,
        via=CALLER.get(),
    )
    append_rows(connection, [facts])


def append_rows(connection: sa.Connection, entries: Iterable[AuditFacts]) -> list[int]:
    """Append to the chain; the sequence numbers."""
    head = _link(connection, HEAD)
    seqs = []
    for facts in entries:
        fields = {"seq": head.seq + 1, **{name: _plain(value) for name, value in asdict(facts).items()}}
        head = ChainLink(head.seq + 1, next_hash(head.hash, fields))
        connection.execute(sa.insert(audit).values(**fields, hash=head.hash))
        seqs.append(head.seq)
    put_meta(connection, HEAD, asdict(head))
    return seqs


def _plain(value: Any) -> Any:
    """What every database gives back as it was: no NUL, no lone surrogate, no fraction of a millisecond."""
    if isinstance(value, float):
        return round(value, 3)
    text = str(value).replace("\x00", "\N{REPLACEMENT CHARACTER}")[:MAX_CHARS]
    return text.encode("utf-8", "replace").decode()


def _link(connection: sa.Connection, key: str) -> ChainLink:
    stored = get_meta(connection, key)
    return ChainLink() if stored is None else ChainLink(**stored)


def _fields(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "hash"}


def _follow_page(connection: sa.Connection, after: ChainLink, last: int) -> ChainLink | BrokenChain:
    query = sa.select(audit).where(audit.c.seq > after.seq, audit.c.seq <= last).order_by(audit.c.seq).limit(PAGE_ROWS)
    rows = connection.execute(query).mappings().all()
    return follow_chain(((_fields(dict(row)), row["hash"]) for row in rows), after)


def _surplus(connection: sa.Connection, before: float, max_rows: int) -> tuple[ChainLink, list[dict[str, Any]]]:
    """The link before the oldest row, and the oldest rows that are too old or too many. The newest always stays."""
    head = _link(connection, HEAD)
    rows = connection.execute(sa.select(audit).order_by(audit.c.seq).limit(MAX_PRUNED)).mappings()
    surplus = []
    for row in rows:
        if row["seq"] >= head.seq or (row["at"] >= before and row["seq"] > head.seq - max_rows):
            break
        surplus.append(dict(row))
    return _link(connection, ANCHOR), surplus
