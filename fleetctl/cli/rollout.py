"""`rollout status` and `rollout history`. What changes a rollout are verbs: start, canary, promote, pause, rollback."""

from __future__ import annotations

from typing import Annotated

import typer

from fleetctl.cli.context import call, command_group
from fleetctl.cli.moment import ago
from fleetctl.cli.output import (
    DATA,
    Column,
    ListOutput,
    ListOutputOption,
    Output,
    OutputOption,
    print_data,
    print_rows,
)
from fleetctl.cli.record_columns import ROLLOUT_COLUMNS, rollout_state
from fleetctl.cli.rollout_words import show_rollout
from fleetctl.kit.errors import BadInputError


def register(app: typer.Typer) -> None:
    """Add the commands beside the verbs."""
    group = command_group(app, "rollout")

    @group.command("status")
    def status(
        pool: Annotated[str, typer.Argument(help="Name of the pool; none: every rollout under way.")] = "",
        output: OutputOption = Output.table,
    ) -> None:
        """Show how a pool's rollout stands: its step, what it waits for, and the gate's numbers."""
        found = call(lambda client: client.rollouts(pool or None))
        if not pool:
            under_way = [one for one in found if not one.is_ended]
            print_rows(under_way, STATUS_COLUMNS, output, empty="no rollout is under way")
            return
        if not found:
            raise BadInputError(f"pool {pool} has had no rollout", remedy="fleetctl get pools")
        if output in DATA:
            print_data(found[0].model_dump(mode="json"), output)
        else:
            show_rollout(found[0])

    @group.command("history")
    def history(
        pool: Annotated[str, typer.Argument(help="Name of the pool; none: of all.")] = "",
        output: ListOutputOption = ListOutput.table,
    ) -> None:
        """List rollouts, the newest first, and how each ended."""
        found = call(lambda client: client.rollouts(pool or None))
        print_rows(found, ROLLOUT_COLUMNS, output, empty="no rollout was ever started")


STATUS_COLUMNS = [
    Column("pool", lambda r: r.pool),
    Column("state", rollout_state),
    Column("new", lambda r: "-" if r.new_nodes is None else f"{r.new_ready}/{r.new_nodes}", right=True),
    Column("others", lambda r: "-" if r.other_nodes is None else str(r.other_nodes), right=True),
    Column("to", lambda r: r.back_to or r.to_revision),
    Column("since", lambda r: ago(r.updated_at).removesuffix(" ago"), right=True, is_volatile=True),
    Column("id", lambda r: r.id, wide=True),
    Column("by", lambda r: r.started_by, wide=True),
    Column("waits for", lambda r: r.waits_for, wide=True),
]
