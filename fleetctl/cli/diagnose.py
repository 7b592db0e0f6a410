"""`diagnose`: what is wrong now and why, whether or not there is an incident."""

from __future__ import annotations

from typing import Annotated

import typer

from fleetctl.cli.completion import complete_node
from fleetctl.cli.context import call
from fleetctl.cli.diagnosis_words import confidence_words, verdict_fields
from fleetctl.cli.kinds import EVIDENCE_COLUMNS
from fleetctl.cli.output import DATA, Output, OutputOption, print_data, print_fields, print_rows
from fleetctl.kit.errors import UnreachableError
from fleetctl.wire import DiagnoseRequest, Diagnosis


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def diagnose(
        node: Annotated[
            str | None,
            typer.Argument(help="The node to ask about; without it, the whole pool.", autocompletion=complete_node),
        ] = None,
        pool: Annotated[
            str | None, typer.Option("--pool", help="The pool to ask about; default: the only one.")
        ] = None,
        tree: Annotated[
            str | None, typer.Option("--tree", help="Which decision tree; default: that of the gravest alert there.")
        ] = None,
        output: OutputOption = Output.table,
    ) -> None:
        """Say what is wrong here and why, with the evidence; or that nothing is."""
        scope = ({"pool": pool} if pool else {}) | ({"node": node} if node else {})
        diagnosis: Diagnosis = call(lambda c: c.diagnose(DiagnoseRequest(tree=tree, scope=scope)))
        if output in DATA:
            print_data(diagnosis.model_dump(mode="json"), output)
        else:
            print_fields(
                diagnosis.title or "no cause named",
                [
                    ("cause", diagnosis.cause or ("none" if diagnosis.confidence == "confirmed" else "unknown")),
                    ("confidence", confidence_words(diagnosis)),
                    *verdict_fields(diagnosis),
                    ("not known", _counted(diagnosis)),
                ],
            )
            print_rows(diagnosis.evidence, EVIDENCE_COLUMNS, output, empty="no question could be asked")
        if diagnosis.cause is None and diagnosis.not_known:
            raise UnreachableError("the cause is unknown: some signals could not be read", remedy="fleetctl get nodes")


def _counted(diagnosis: Diagnosis) -> str:
    """How much could not be asked: which questions, and why, is in the table below."""
    unknown, asked = len(diagnosis.not_known), len(diagnosis.evidence)
    return f"{unknown} of {asked} answers" if unknown and asked else ", ".join(diagnosis.not_known)
