"""One rollout as a person reads it: its step, what it waits for, the gate's numbers, how it came so far."""

from __future__ import annotations

from fleetctl.cli.moment import clock
from fleetctl.cli.output import Column, Output, print_fields, print_rows, stdout
from fleetctl.cli.record_columns import rollout_state
from fleetctl.wire.rollout import Rollout, RolloutSignal


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
            ("state", rollout_state(rollout)),
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
