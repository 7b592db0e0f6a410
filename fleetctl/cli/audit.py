"""`audit`: who changed what, when, why and with which outcome; `audit verify`: whether that is what was written."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from fleetctl.cli.context import call
from fleetctl.cli.duration_option import duration_s
from fleetctl.cli.moment import clock
from fleetctl.cli.output import (
    DATA,
    Column,
    ListOutput,
    ListOutputOption,
    Output,
    OutputOption,
    print_data,
    print_rows,
    stdout,
)
from fleetctl.kit.errors import BadInputError, FleetctlError
from fleetctl.kit.hash_chain import BrokenChain, ChainLink, follow_chain
from fleetctl.wire.audit import AuditCheck, AuditRow

COLUMNS = [
    Column("seq", lambda a: str(a.seq), right=True),
    Column("time", lambda a: clock(a.at)),
    Column("who", lambda a: a.who),
    Column("via", lambda a: a.via, wide=True),
    Column("what", lambda a: a.what),
    Column("target", lambda a: a.target or "-"),
    Column("run", lambda a: a.run_id or "-", wide=True),
    Column("outcome", lambda a: a.outcome, wide=True),
    Column("hash", lambda a: a.hash, wide=True),
    Column("why", lambda a: why_words(a)),
]


def why_words(row: AuditRow) -> str:
    """The reason that was given, and that it was refused: a "deny" that nobody took is no denial."""
    if row.why and row.outcome.startswith("refused"):
        return f"{row.why}; {row.outcome}"
    return row.why or row.outcome


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer()
    app.add_typer(group, name="audit")

    @group.callback(invoke_without_command=True)
    def audit(
        context: typer.Context,
        since: Annotated[str | None, typer.Option("--since", help="How far back, e.g. 24h; default: all.")] = None,
        who: Annotated[str | None, typer.Option("--who", help="Only what this one did.")] = None,
        target: Annotated[str | None, typer.Option("--target", help="A node, pool/NAME or a run's id.")] = None,
        limit: Annotated[int, typer.Option("--limit", min=1, max=100_000, help="At most so many, the newest.")] = 200,
        output: ListOutputOption = ListOutput.table,
    ) -> None:
        """List who changed what, when, why and with which outcome, the newest last."""
        if context.invoked_subcommand is not None:
            return
        from_at = None if since is None else time.time() - duration_s("--since", since, "a look back")
        rows = call(lambda client: client.audit(since=from_at, who=who, target=target, limit=limit))
        print_rows(rows, COLUMNS, output, empty="nothing of that was changed")

    @group.command("verify")
    def verify(
        file: Annotated[
            Path | None, typer.Option("--file", "-f", help="A file of exported rows; default: what the controller has.")
        ] = None,
        output: OutputOption = Output.table,
    ) -> None:
        """Say whether all rows are as they were written; exit code 1 with the first one that is not."""
        found = call(lambda client: client.verify_audit()) if file is None else verify_file(file)
        if output in DATA:
            print_data(found.model_dump(mode="json"), output)
        elif found.intact:
            stdout().print(
                f"intact: {found.rows} rows, {found.first_seq} to {found.head_seq}, head {found.head_hash}",
                markup=False,
            )
        if not found.intact:
            raise FleetctlError(
                f"the audit is broken at row {found.broken_seq}: {found.why}",
                remedy="keep the database as it is, and compare with a backup or an exported file",
            )


def verify_file(path: Path) -> AuditCheck:
    """Whether the rows of an exported file hold each other. Raises BadInputError for what is no such file."""
    try:
        first, *lines = path.read_text("utf-8").splitlines()
        after = ChainLink(**json.loads(first)["after"])
        rows: list[dict[str, Any]] = [json.loads(line) for line in lines]
        pairs = [({name: value for name, value in row.items() if name != "hash"}, row["hash"]) for row in rows]
        found = follow_chain(pairs, after)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise BadInputError(f"{path}: no exported audit: {error}", remedy="name a file of audit.dir") from error
    broken = isinstance(found, BrokenChain)
    return AuditCheck(
        intact=not broken,
        rows=len(rows),
        first_seq=after.seq + 1,
        head_seq=after.seq + len(rows),
        head_hash="" if isinstance(found, BrokenChain) else found.hash,
        broken_seq=found.seq if isinstance(found, BrokenChain) else None,
        why=found.why if isinstance(found, BrokenChain) else "",
    )
