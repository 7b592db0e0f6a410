"""`diagnose`: walk a decision tree now, whether or not an alert fired."""

from __future__ import annotations

from typing import Annotated

import typer

from fleetctl.cli.context import call
from fleetctl.cli.kinds import EVIDENCE_COLUMNS
from fleetctl.cli.output import Output, OutputOption, print_data, print_fields, print_rows
from fleetctl.kit.errors import UnreachableError
from fleetctl.wire import DiagnoseRequest, Diagnosis


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def diagnose(
        node: Annotated[str | None, typer.Argument(help="The node to ask about; without it, its whole pool.")] = None,
        pool: Annotated[str, typer.Option("--pool", help="The pool it is compared with.")] = "default",
        tree: Annotated[str | None, typer.Option("--tree", help="Which decision tree; default: latency.")] = None,
        output: OutputOption = Output.table,
    ) -> None:
        """Name the most likely cause, with its evidence and what was ruled out."""
        scope = {"pool": pool} | ({"node": node} if node else {})
        diagnosis: Diagnosis = call(lambda c: c.diagnose(DiagnoseRequest(tree=tree, scope=scope)))
        if output in (Output.json, Output.yaml):
            print_data(diagnosis.model_dump(mode="json"), output)
        else:
            print_fields(
                diagnosis.title or "no cause named",
                [
                    ("cause", diagnosis.cause or "unknown"),
                    ("confidence", diagnosis.confidence),
                    ("ruled out", ", ".join(diagnosis.ruled_out)),
                    ("not known", ", ".join(diagnosis.not_known)),
                ],
            )
            print_rows(diagnosis.evidence, EVIDENCE_COLUMNS, output, empty="no question could be asked")
        if diagnosis.cause is None and diagnosis.not_known:
            raise UnreachableError("the cause is unknown: some signals could not be read", remedy="fleetctl get nodes")
