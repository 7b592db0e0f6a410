"""`incident`: what happened, why, what was done, and what people say about it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fleetctl.cli.completion import complete_incident
from fleetctl.cli.context import call, whoami
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
from fleetctl.cli.silence import duration_s
from fleetctl.kit.errors import BadInputError
from fleetctl.wire import (
    AssignRequest,
    Incident,
    IncidentNote,
    IncidentSilenceRequest,
    SeverityRequest,
    VerdictRequest,
)

Comment = Annotated[str, typer.Option("--comment", "-c", help="Why, or what you saw; others will read it.")]
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

    _register_words(group)

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


def _register_words(group: typer.Typer) -> None:
    """Add the commands by which people say something about an incident."""

    @group.command("ack")
    def acknowledge(incident_id: IncidentId, comment: Comment = "", output: OutputOption = Output.table) -> None:
        """Say that you have seen it: it is yours, unless it is somebody's."""
        note = IncidentNote(comment=comment, by=whoami())
        _show_handled(call(lambda c: c.acknowledge_incident(incident_id, note)), output)

    @group.command("assign")
    def assign(
        incident_id: IncidentId,
        to: Annotated[str, typer.Argument(help="Whose it is; '' for nobody's.", metavar="NAME")],
        comment: Comment = "",
        output: OutputOption = Output.table,
    ) -> None:
        """Say whose it is."""
        request = AssignRequest(to=to[:200], comment=comment, by=whoami())
        _show_handled(call(lambda c: c.assign_incident(incident_id, request)), output)

    @group.command("comment")
    def add_comment(
        incident_id: IncidentId,
        text: Annotated[str, typer.Argument(help="One line for its timeline and post-mortem.")],
        output: OutputOption = Output.table,
    ) -> None:
        """Write a line on its timeline."""
        if not text.strip():
            raise BadInputError("say something", remedy=f"fleetctl incident comment {incident_id} 'what you saw'")
        note = IncidentNote(comment=text[:2000], by=whoami())
        _show_handled(call(lambda c: c.comment_incident(incident_id, note)), output)

    @group.command("severity")
    def set_severity(
        incident_id: IncidentId,
        severity: Annotated[
            str, typer.Argument(help="SEV-1 (critical), SEV-2 (page), SEV-3 (warning) or SEV-4 (ticket).")
        ],
        comment: Comment = "",
        output: OutputOption = Output.table,
    ) -> None:
        """Say how grave it is, whatever its alerts say."""
        request = SeverityRequest(severity=severity[:40] or "-", comment=comment, by=whoami())
        _show_handled(call(lambda c: c.set_incident_severity(incident_id, request)), output)

    @group.command("silence")
    def silence(
        incident_id: IncidentId,
        lifetime: Annotated[str, typer.Option("--for", help="How long, e.g. 30m, 2h.")],
        comment: Comment = "",
        local: Annotated[
            bool, typer.Option("--local", help="Here alone, although there is an Alertmanager: it goes on paging.")
        ] = False,
        output: OutputOption = Output.table,
    ) -> None:
        """Silence its alerts where they are: nothing more is started for it, and none like it opens."""
        request = IncidentSilenceRequest(
            for_s=duration_s("--for", lifetime, "a silence"), comment=comment, by=whoami(), local=local
        )
        _show_handled(call(lambda c: c.silence_incident(incident_id, request)), output)

    @group.command("wrong")
    def wrong(
        incident_id: IncidentId,
        cause: Annotated[str, typer.Argument(help="What it was: a cause's name; none: it has no name here.")],
        comment: Comment = "",
        output: OutputOption = Output.table,
    ) -> None:
        """Say that the verdict was wrong, and what it was."""
        request = VerdictRequest(cause=cause[:64] or "-", comment=comment, by=whoami())
        _show_handled(call(lambda c: c.correct_verdict(incident_id, request)), output)


def _show_handled(incident: Incident, output: Output) -> None:
    if output in DATA:
        print_data(incident.model_dump(mode="json"), output)
        return
    said = incident.timeline[-1].text if incident.timeline else ""
    stdout().print(f"{incident.id}: {said}", markup=False)
