"""`incident`: what happened, why, what was done, and what people say about it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fleetctl.cli.completion import complete_incident
from fleetctl.cli.context import call, whoami
from fleetctl.cli.describe import describe_incident
from fleetctl.cli.duration_option import duration_s
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
from fleetctl.wire.incident import (
    AssignRequest,
    Incident,
    IncidentNote,
    IncidentSilenceRequest,
    SeverityRequest,
    VerdictRequest,
)

SUFFIX = ".blackbox.jsonl.gz"
Comment = Annotated[str, typer.Option("--comment", "-c", help="Why, or what you saw; others will read it.")]
IncidentId = Annotated[
    str,
    typer.Argument(help="Id of the incident; `fleetctl incident list` lists them.", autocompletion=complete_incident),
]


HtmlOption = Annotated[Path | None, typer.Option("--html", help="Write it there as one HTML page with charts.")]


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
    def show(incident_id: IncidentId, html: HtmlOption = None, output: OutputOption = Output.table) -> None:
        """Show an incident: cause, evidence, runs, timeline; or write it all as a page to share."""
        if html is not None:
            _write_page(incident_id, html)
            return
        incident = call(lambda c: c.incident(incident_id))
        if output in DATA:
            print_data(incident.model_dump(mode="json"), output)
        else:
            describe_incident(incident, output)

    _register_words(group)

    @group.command("postmortem")
    def postmortem(
        incident_id: IncidentId,
        html: HtmlOption = None,
        output: OutputOption = Output.table,
    ) -> None:
        """Print the post-mortem that the timeline wrote, as Markdown; of an open incident what is known so far."""
        if html is not None:
            _write_page(incident_id, html)
            return
        text = call(lambda c: c.postmortem(incident_id))
        if output in DATA:
            incident = call(lambda c: c.incident(incident_id))
            print_data({"incident": incident.id, "path": incident.postmortem, "markdown": text}, output)
        else:
            stdout().print(text, markup=False)

    @group.command("export")
    def export(
        incident_id: IncidentId,
        file: Annotated[Path | None, typer.Argument(help="Default: ID.blackbox.jsonl.gz, here.")] = None,
    ) -> None:
        """Write the incident's file: series, alerts, evidence, events, runs, what became of the requests."""
        target = file or Path(f"{incident_id}{SUFFIX}")
        if target.exists():
            raise BadInputError(f"{target} is there already", remedy="name another file")
        packed = call(lambda c: c.blackbox(incident_id))
        write_file(target, packed)
        stdout().print(f"{target}  ({len(packed) / 1024:,.0f} KiB); fleetctl replay {target}", markup=False)

    @group.command("import")
    def import_file(
        file: Annotated[Path, typer.Argument(help="An incident's file, of this fleet or another.")],
        output: OutputOption = Output.table,
    ) -> None:
        """Take an incident's file in as a record: to look at and to write up. Nothing acts on it."""
        try:
            packed = file.read_bytes()
        except OSError as error:
            raise BadInputError(f"{file}: {error.strerror or error}") from error
        incident = call(lambda c: c.import_incident(packed, whoami()))
        if output in DATA:
            print_data(incident.model_dump(mode="json"), output)
        else:
            stdout().print(f"{incident.id}: {incident.title}; fleetctl incident show {incident.id}", markup=False)


def _write_page(incident_id: str, path: Path) -> None:
    """One HTML page that needs nothing from anywhere. Raises BadInputError naming the path."""
    write_file(path, call(lambda c: c.postmortem(incident_id, "html")).encode())
    stdout().print(str(path), markup=False)


def write_file(path: Path, content: bytes) -> None:
    """Raises BadInputError naming the path."""
    try:
        path.write_bytes(content)
    except OSError as error:
        raise BadInputError(f"{path}: {error.strerror or error}") from error


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
        """Say that the verdict was wrong, and what it was: kept, and offered as a regression case."""
        request = VerdictRequest(cause=cause[:64] or "-", comment=comment, by=whoami())
        _show_handled(call(lambda c: c.correct_verdict(incident_id, request)), output)
        if output not in DATA:
            file = f"{incident_id}{SUFFIX}"
            stdout().print(f"  a regression case: fleetctl incident export {incident_id} {file}", markup=False)
            stdout().print(f"  and any time then: fleetctl replay {file} --expect recorded", markup=False)


def _show_handled(incident: Incident, output: Output) -> None:
    if output in DATA:
        print_data(incident.model_dump(mode="json"), output)
        return
    said = incident.timeline[-1].text if incident.timeline else ""
    stdout().print(f"{incident.id}: {said}", markup=False)
