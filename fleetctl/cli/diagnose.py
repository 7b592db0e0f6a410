"""`diagnose`: what is wrong and why, whether or not there is an incident; now, or over a past of any fleet."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fleetctl.cli.completion import complete_node
from fleetctl.cli.context import call
from fleetctl.cli.diagnose_past import PastOptions, diagnose_past, exit_code, print_diagnosis
from fleetctl.cli.output import DATA, Output, OutputOption, print_data
from fleetctl.kit.errors import BadInputError
from fleetctl.wire.diagnosis import DiagnoseRequest, Diagnosis


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def diagnose(
        node: Annotated[
            str | None,
            typer.Argument(help="The node to ask about; without it, the whole pool.", autocompletion=complete_node),
        ] = None,
        node_option: Annotated[str | None, typer.Option("--node", help="The same as the argument.")] = None,
        pool: Annotated[
            str | None, typer.Option("--pool", help="The pool to ask about; default: the only one.")
        ] = None,
        model: Annotated[str | None, typer.Option("--model", help="The model to ask about.")] = None,
        zone: Annotated[str | None, typer.Option("--zone", help="The zone to ask about.")] = None,
        revision: Annotated[str | None, typer.Option("--revision", help="The revision to ask about.")] = None,
        tree: Annotated[
            str | None, typer.Option("--tree", help="Which decision tree; default: that of the gravest alert there.")
        ] = None,
        prometheus: Annotated[
            str | None,
            typer.Option("--prometheus", help="URL of a Prometheus that scrapes a fleet of any engine; no controller."),
        ] = None,
        recording: Annotated[
            list[Path] | None,
            typer.Option("--from", help="OpenMetrics text with times, or a black box, instead. Repeatable."),
        ] = None,
        at: Annotated[
            str | None,
            typer.Option("--at", help="Of the past: when to ask (RFC 3339 or Unix seconds); default: its end."),
        ] = None,
        last: Annotated[
            str, typer.Option("--last", help="Of the past: how long alerts are followed up to then.")
        ] = "2h",
        only: Annotated[
            str, typer.Option("--only", help='Of a Prometheus: matchers that each series must meet, as job="vllm".')
        ] = "",
        label: Annotated[
            list[str] | None,
            typer.Option("--label", help="Of the past: a place's label, as node='$pod' or pool=chat. Repeatable."),
        ] = None,
        token_file: Annotated[Path | None, typer.Option("--token-file", help="Bearer token for Prometheus.")] = None,
        ca_file: Annotated[Path | None, typer.Option("--ca-file", help="CA certificates for Prometheus.")] = None,
        timeout: Annotated[str, typer.Option("--timeout", help="Of each request to Prometheus.")] = "30s",
        output: OutputOption = Output.table,
    ) -> None:
        """Say what is wrong here and why, with the evidence; or that nothing is.

        Exit code 0 when a cause is named, 1 when nothing is wrong, 4 when it is not known.
        """
        if node and node_option and node != node_option:
            raise BadInputError("two nodes are named", remedy="fleetctl diagnose NODE")
        places = {"node": node or node_option, "pool": pool, "model": model, "zone": zone, "revision": revision}
        scope = {name: value for name, value in places.items() if value}
        if prometheus or recording:
            options = PastOptions(
                prometheus, recording or [], at, last, only, label or [], token_file, ca_file, timeout
            )
            raise typer.Exit(diagnose_past(options, scope, output))
        if at is not None:
            raise BadInputError("--at is of a past", remedy="give --prometheus URL or --from FILE with it")
        diagnosis: Diagnosis = call(lambda c: c.diagnose(DiagnoseRequest(tree=tree, scope=scope)))
        if output in DATA:
            print_data(diagnosis.model_dump(mode="json"), output)
        else:
            print_diagnosis(diagnosis, output)
        if code := exit_code([diagnosis]):
            raise typer.Exit(code)
