"""The audit in the database: what is in it, what is found when it was edited, what is left when it gets too long."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from fleetctl.cli.audit import verify_file
from fleetctl.controller.audit import Audit, append_run
from fleetctl.controller.database import Database
from fleetctl.controller.metrics import ControllerMetrics
from fleetctl.controller.tables import audit as table
from fleetctl.controller.timeline import Timeline
from fleetctl.settings.controller import AuditSettings
from runbooks.journal import Journal
from runbooks.run import RunStatus
from tests.fixtures.driven import DrivenClock
from tests.fixtures.runbooks import make_run

pytestmark = pytest.mark.anyio


class Opened:
    def __init__(self, url: str, path: Path, **limits: Any) -> None:
        self.clock = DrivenClock()
        self.database = Database(url)
        self.folder = path / "audit"
        self.metrics = ControllerMetrics()
        timeline = Timeline(self.database, self.clock)
        self.audit = Audit(self.database, timeline, self.metrics, self.clock, AuditSettings(**limits), self.folder)

    async def record(self, count: int) -> None:
        for number in range(count):
            await self.audit.record("freeze.made", who="ann", target=f"pool/p{number}", why=f"reason {number}")

    async def edit(self, statement: sa.Executable) -> None:
        await self.database.write(lambda connection: connection.execute(statement))


@pytest.fixture
async def opened(any_database_url: str, tmp_path: Path) -> AsyncIterator[Opened]:
    made = Opened(any_database_url, tmp_path, max_rows=100)
    yield made
    made.database.close()


async def test_rows_tell_who_what_why_and_can_be_asked_for(opened: Opened) -> None:
    await opened.record(3)
    opened.clock.move(60.0)
    await opened.audit.record("silence.added", who="bob", target="node-2, pool/p1", why="noise")
    rows = await opened.audit.read()
    assert [row.seq for row in rows] == [1, 2, 3, 4]
    assert (rows[-1].who, rows[-1].via, rows[-1].what, rows[-1].outcome) == (
        "bob",
        "automation",
        "silence.added",
        "done",
    )
    assert [row.seq for row in await opened.audit.read(who="ann", limit=2)] == [2, 3]
    assert [row.seq for row in await opened.audit.read(target="pool/p1")] == [2, 4]
    assert await opened.audit.read(target="pool/p") == []
    assert [row.seq for row in await opened.audit.read(since=opened.clock.now() - 1)] == [4]


async def test_untouched_audit_is_intact_also_with_odd_texts(opened: Opened) -> None:
    for text in ("", "é\u2028\N{SNOWMAN}", "a\x00b", "\ud800", "x" * 9000):
        await opened.audit.record("freeze.made", who=text, why=text)
    found = await opened.audit.verify()
    assert (found.intact, found.rows, found.head_seq) == (True, 5, 5)


@pytest.mark.parametrize(
    ("statement", "seq"),
    [
        (sa.update(table).where(table.c.seq == 2).values(who="nobody"), 2),
        (sa.update(table).where(table.c.seq == 3).values(at=0.0), 3),
        (sa.delete(table).where(table.c.seq == 2), 2),
        (sa.delete(table).where(table.c.seq == 1), 1),
        (sa.delete(table).where(table.c.seq >= 3), 3),
        (sa.delete(table), 1),
        (sa.update(table).where(table.c.seq == 3).values(seq=9), 3),
    ],
    ids=["edited", "redated", "removed", "first removed", "cut off", "emptied", "renumbered"],
)
async def test_first_row_that_was_tampered_with_is_named(opened: Opened, statement: sa.Executable, seq: int) -> None:
    await opened.record(4)
    await opened.edit(statement)
    found = await opened.audit.verify()
    assert (found.intact, found.broken_seq) == (False, seq)
    assert str(seq) in found.why
    assert b"controller_audit_intact 0.0" in opened.metrics.exposition()


async def test_what_is_too_much_is_exported_and_the_chain_goes_on(opened: Opened, tmp_path: Path) -> None:
    await opened.record(130)
    assert await opened.audit.prune() == 30
    assert await opened.audit.prune() == 0
    found = await opened.audit.verify()
    assert (found.intact, found.first_seq, found.rows) == (True, 31, 100)
    await opened.record(1)
    assert (await opened.audit.verify()).intact
    assert await opened.audit.prune() == 1
    first, second = sorted(opened.folder.iterdir(), key=lambda file: file.stat().st_mtime_ns)
    assert (first.name, second.name) == ("audit-1-30.jsonl", "audit-31-31.jsonl")
    assert verify_file(first).intact
    assert verify_file(second).intact
    lines = first.read_text().splitlines()
    lines[7] = json.dumps({**json.loads(lines[7]), "who": "nobody"})
    forged = tmp_path / "forged.jsonl"
    forged.write_text("\n".join(lines))
    assert verify_file(forged).broken_seq == 7


async def test_run_has_its_rows_in_the_transactions_that_move_it(opened: Opened) -> None:
    points: list[str] = []

    def die_once(point: str) -> None:
        points.append(point)
        if points == ["run_created.before_commit"]:
            raise RuntimeError("killed")

    journal = Journal(opened.database.engine, at_fault_point=die_once, on_audit=append_run)
    journal.claim_epoch()
    run = make_run(requested_by="ann", reason="slow")
    with pytest.raises(RuntimeError, match="killed"):
        journal.create(run)
    assert await opened.audit.read() == []
    journal.create(run)
    journal.create(make_run(RunStatus.SUCCEEDED, requested_by="ann", dry_run=True))
    journal.decide(run.id, "approve", "bob", "go", run.created_at)
    journal.move(run.id, RunStatus.RUNNING, run.created_at)
    journal.move(run.id, RunStatus.FAILED, run.created_at, error="it burnt")
    rows = await opened.audit.read(target=run.id)
    assert [(row.who, row.what, row.why, row.outcome) for row in rows] == [
        ("ann", "run.requested", f"{run.title}: slow", ""),
        ("bob", "run.approved", "go", ""),
        ("executor", "run.failed", f"{run.title}: slow", "it burnt"),
    ]
    assert [row.seq for row in await opened.audit.read(target="node-2")] == [1, 2, 3]
    assert (await opened.audit.verify()).intact
