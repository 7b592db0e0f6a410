"""`freeze` and `unfreeze`: a time in which automation does not act, and a person only with `--override`."""

from __future__ import annotations

from typing import Annotated

import typer

from fleetctl.cli.context import call, whoami
from fleetctl.cli.duration_option import duration_s
from fleetctl.cli.fleet_columns import freeze_words
from fleetctl.cli.kinds import NEWEST, VIEWS, Kind
from fleetctl.cli.output import DATA, Output, OutputOption, print_data, stdout
from fleetctl.wire.freeze import FreezeRequest
from fleetctl.wire.run import Run


def register(app: typer.Typer) -> None:
    """Add the commands."""

    @app.command()
    def freeze(
        reason: Annotated[str, typer.Option("--reason", help="Why; others will read it.")],
        lifetime: Annotated[
            str | None, typer.Option("--for", help="How long, e.g. 2h; without it until `unfreeze`.")
        ] = None,
        pool: Annotated[str | None, typer.Option("--pool", help="Only this pool; default: the whole fleet.")] = None,
        output: OutputOption = Output.table,
    ) -> None:
        """Let no automation act, and people only with --override REASON. What is under way goes on to its end."""
        request = FreezeRequest(
            reason=reason.strip()[:2000] or "-",
            made_by=whoami(),
            pool=pool,
            for_s=None if lifetime is None else duration_s("--for", lifetime, "a freeze"),
        )
        made = call(lambda client: client.make_freeze(request))
        if output in DATA:
            print_data(made.model_dump(mode="json"), output)
            return
        stdout().print(f"{made.id}: {freeze_words(made)}", markup=False)
        for run in call(lambda client: client.runs(limit=NEWEST)):
            if _is_under_way(run):
                stdout().print(
                    f"  {run.id} is under way and goes on: {run.title}; to stop it: fleetctl runbook cancel {run.id}",
                    markup=False,
                )

    @app.command()
    def unfreeze(
        freeze_id: Annotated[
            str | None, typer.Argument(help="Its id; `fleetctl get freezes` lists them. Default: all of them.")
        ] = None,
        output: OutputOption = Output.table,
    ) -> None:
        """End a freeze, or all of them, now. What automation would have run starts, where its cause still stands."""
        ended = call(lambda client: client.end_freezes(freeze_id, whoami()))
        if output in DATA:
            print_data([one.model_dump(mode="json") for one in ended], output)
            return
        for one in ended:
            stdout().print(f"{one.id} ended: {one.reason}", markup=False)
        if not ended:
            stdout().print(VIEWS[Kind.freezes].empty, markup=False)


def _is_under_way(run: Run) -> bool:
    return not run.dry_run and not run.status.is_terminal and run.status.value != "proposed"
