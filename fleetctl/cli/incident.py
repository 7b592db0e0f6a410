"""`incident`: what happened, why, and what was done."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fleetctl.cli.completion import complete_incident
from fleetctl.cli.context import call
from fleetctl.cli.describe import describe_incident
from fleetctl.cli.kinds import VIEWS, Kind
from fleetctl.cli.output import (
    DATA,
    ListOutput,
    ListOutputOption,
    Output,
    OutputOption,
    print_data,
    print_rows,
    stdout,
)
from fleetctl.kit.errors import BadInputError

IncidentId = Annotated[
    str,
    typer.Argument(help="Id of the incident; `fleetctl incident list` lists them.", autocompletion=complete_incident),
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(help="Incidents: evidence, actions, timeline, post-mortem.", no_args_is_help=True)
    app.add_typer(group, name="incident")

    @group.command("list")
    def list_incidents(output: ListOutputOption = ListOutput.table) -> None:
        """List incidents, newest first."""
        view = VIEWS[Kind.incidents]
        print_rows(call(lambda c: c.incidents()), view.columns, output, empty=view.empty)

    @group.command("show")
    def show(incident_id: IncidentId, output: OutputOption = Output.table) -> None:
        """Show an incident: cause, evidence, runs, timeline."""
        incident = call(lambda c: c.incident(incident_id))
        if output in DATA:
            print_data(incident.model_dump(mode="json"), output)
        else:
            describe_incident(incident)

    @group.command("postmortem")
    def postmortem(incident_id: IncidentId, output: OutputOption = Output.table) -> None:
        """Print the post-mortem that the timeline wrote, as Markdown."""
        incident = call(lambda c: c.incident(incident_id))
        if incident.postmortem is None:
            raise BadInputError(
                f"{incident_id}: no post-mortem yet, the incident is {incident.status}",
                remedy=f"fleetctl incident show {incident_id}",
            )
        try:
            text = Path(incident.postmortem).read_text()
        except OSError as error:
            raise BadInputError(
                f"{incident.postmortem}: {error.strerror or error}",
                remedy="read it on the controller's machine",
            ) from error
        if output in DATA:
            print_data({"incident": incident.id, "path": incident.postmortem, "markdown": text}, output)
        else:
            stdout().print(text, markup=False)
