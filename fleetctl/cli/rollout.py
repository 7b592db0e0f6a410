"""`rollout status` and `rollout history`. What changes a rollout are verbs: start, canary, promote, pause, rollback."""

from __future__ import annotations

from typing import Annotated

import typer

from fleetctl.cli.context import call, command_group
from fleetctl.cli.kinds import ago, clock
from fleetctl.cli.output import (
    DATA,
    Column,
    ListOutput,
    ListOutputOption,
    Output,
    OutputOption,
    print_data,
    print_fields,
    print_rows,
    stdout,
)
from fleetctl.kit.errors import BadInputError
from fleetctl.wire import Rollout, RolloutSignal


def register(app: typer.Typer) -> None:
    """Add the commands beside the verbs."""
    group = command_group(app, "rollout")

    @group.command("status", epilog="Example: fleetctl rollout status decode")
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

    @group.command("history", epilog="Example: fleetctl rollout history decode")
    def history(
        pool: Annotated[str, typer.Argument(help="Name of the pool; none: of all.")] = "",
        output: ListOutputOption = ListOutput.table,
    ) -> None:
        """List rollouts, the newest first, and how each ended."""
        found = call(lambda client: client.rollouts(pool or None))
        print_rows(found, HISTORY_COLUMNS, output, empty="no rollout was ever started")


def show_rollout(rollout: Rollout) -> None:
    """Print one rollout for a person."""
    steps = ", ".join(f"[{share:.3g}%]" if i == rollout.step else f"{share:.3g}%" for i, share in _percents(rollout))
    how = [] if rollout.gated else ["no gate"]
    how += ["by hand"] if rollout.by_hand else []
    nodes = ""
    if rollout.new_nodes is not None:
        nodes = f"{rollout.new_ready}/{rollout.new_nodes} of the new revision ready, {rollout.other_nodes} others"
    print_fields(
        f"{rollout.id}  pool {rollout.pool}",
        [
            ("state", state_words(rollout)),
            ("waits for", rollout.waits_for),
            ("from", rollout.from_revision),
            ("to", rollout.to_revision),
            ("back to", rollout.back_to),
            ("steps", steps + (f"  ({', '.join(how)})" if how else "")),
            ("nodes", nodes),
            ("started", f"{clock(rollout.started_at)} by {rollout.started_by}"),
            ("reason", rollout.reason),
            ("override", rollout.override),
            ("why", rollout.why),
        ],
    )
    if rollout.signals:
        stdout().print()
        print_rows(rollout.signals, SIGNAL_COLUMNS, Output.table, empty="")
    stdout().print()
    for change in rollout.history[-8:]:
        line = f"{clock(change.at)}  {change.state.replace('_', ' ')} {change.share:.3g}  {change.by}: {change.why}"
        stdout().print(line.replace(f" {change.share:.3g}  ", f" at {change.share * 100:.3g}%  "), markup=False)


def _percents(rollout: Rollout) -> list[tuple[int, float]]:
    return [(i, share * 100) for i, share in enumerate(rollout.steps)]


def state_words(rollout: Rollout) -> str:
    """The state, with the share while there is one."""
    words = rollout.state.replace("_", " ")
    return words if rollout.is_ended or rollout.back_to else f"{words} at {rollout.share * 100:.3g}%"


def _counted(bad: float, total: float) -> str:
    return "-" if not total else f"{bad / total:.1%} of {total:.0f}"


SIGNAL_COLUMNS = [
    Column("signal", lambda s: s.name),
    Column("new", lambda s: _counted(s.new_bad, s.new_total), right=True),
    Column("stable", lambda s: _counted(s.stable_bad, s.stable_total), right=True),
    Column("verdict", lambda s: s.verdict.replace("_", " ")),
    Column("waits for", lambda s: _short(s)),
]


def _short(signal: RolloutSignal) -> str:
    """What it waits for in few words."""
    if signal.more_requests is not None:
        return f"about {signal.more_requests} more"
    return signal.missing or "-"


STATUS_COLUMNS = [
    Column("pool", lambda r: r.pool),
    Column("state", state_words),
    Column("new", lambda r: "-" if r.new_nodes is None else f"{r.new_ready}/{r.new_nodes}", right=True),
    Column("others", lambda r: "-" if r.other_nodes is None else str(r.other_nodes), right=True),
    Column("to", lambda r: r.back_to or r.to_revision),
    Column("since", lambda r: ago(r.updated_at).removesuffix(" ago"), right=True, is_volatile=True),
    Column("id", lambda r: r.id, wide=True),
    Column("by", lambda r: r.started_by, wide=True),
    Column("waits for", lambda r: r.waits_for, wide=True),
]

HISTORY_COLUMNS = [
    Column("id", lambda r: r.id),
    Column("pool", lambda r: r.pool),
    Column("started", lambda r: ago(r.started_at), right=True, sort_key=lambda r: -r.started_at, is_volatile=True),
    Column("to", lambda r: r.to_revision),
    Column("result", state_words),
    Column("from", lambda r: r.from_revision, wide=True),
    Column("by", lambda r: r.started_by, wide=True),
    Column("why", lambda r: r.why, wide=True),
]
