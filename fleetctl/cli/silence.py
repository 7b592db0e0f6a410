"""`silence`: mute alerts for a time, in Alertmanager or here. What is silenced opens no incident and starts nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated

import typer

from alerts.errors import BadExpressionError
from alerts.matcher import Matcher
from fleetctl.cli.context import call, command_group, whoami
from fleetctl.cli.duration_option import duration_s
from fleetctl.cli.moment import clock
from fleetctl.cli.output import DATA, Output, OutputOption, print_data, print_rows, stdout
from fleetctl.cli.record_columns import SILENCE_COLUMNS
from fleetctl.kit.errors import BadInputError, FleetctlError
from fleetctl.wire.alert import Alert, AlertState
from fleetctl.wire.silence import Silence, SilenceMatcher, SilenceRequest

_MATCHER = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*(=~|!~|!=|=)\s*(?:"((?:[^"\\]|\\.)*)"|([^"]*))\s*', re.DOTALL)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = command_group(app, "silence", help="Mute alerts for a time, in Alertmanager or here.")

    @group.command("add")
    def add(
        matchers: Annotated[
            list[str],
            typer.Argument(
                help="Labels of the alerts: alertname=LLMNodeDown node=~'node-[12]'; a bare word is a name."
            ),
        ],
        comment: Annotated[str, typer.Option("--comment", "-c", help="Why; others will read it.")],
        duration: Annotated[str, typer.Option("--duration", "-d", help="How long, e.g. 30m, 2h, 1d12h.")] = "1h",
        local: Annotated[
            bool, typer.Option("--local", help="Here alone, although there is an Alertmanager: it goes on paging.")
        ] = False,
        created_by: Annotated[str | None, typer.Option("--by", help="Who; default: your login name.")] = None,
        output: OutputOption = Output.table,
    ) -> None:
        """Make a silence from now on. All its matchers must fit."""
        if not comment.strip():
            raise BadInputError("--comment: say why")
        request = SilenceRequest(
            matchers=[parse_matcher(text) for text in matchers],
            duration_s=duration_s("--duration", duration, "a silence"),
            comment=comment.strip()[:2000],
            created_by=(created_by or whoami())[:200],
            local=local,
        )

        made = call(lambda client: client.add_silence(request))
        _show(made, output)
        if output not in DATA:
            with suppress(FleetctlError):  # it is made: that nobody says what it mutes is no failure
                stdout().print(f"  {muted_now(made, call(lambda client: client.alerts()))}", markup=False)

    @group.command("list")
    def list_silences(
        every: Annotated[bool, typer.Option("--all", "-a", help="Expired ones too.")] = False,
        output: OutputOption = Output.table,
    ) -> None:
        """List silences in force and to come, as Alertmanager has them now, and those that are kept here."""
        found = call(lambda client: client.silences())
        shown = [one for one in found if every or one.state != "expired"]
        print_rows(shown, SILENCE_COLUMNS, output, empty="no silences")

    @group.command("expire")
    def expire(
        silence_id: Annotated[str, typer.Argument(help="Its id; `fleetctl silence list` lists them.")],
        output: OutputOption = Output.table,
    ) -> None:
        """End a silence now."""
        _show(call(lambda client: client.expire_silence(silence_id)), output)


def parse_matcher(text: str) -> SilenceMatcher:
    """`name=value`, `name!=value`, `name=~pattern` or `name!~pattern`, the value quoted or not; `Name` alone is an
    alert's name. Raises BadInputError."""
    if re.fullmatch(r"[a-zA-Z_:][a-zA-Z0-9_:]*", text):
        return SilenceMatcher(name="alertname", op="=", value=text)
    match = _MATCHER.fullmatch(text)
    if match is None:
        raise BadInputError(f"{text[:100]!r} is no matcher", remedy="write it like node=node-2 or alertname=~'LLM.*'")
    name, op, quoted, plain = match.groups()
    value = re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL) if quoted is not None else plain.strip()
    if len(value) > 4096 or len(name) > 500:
        raise BadInputError(f"{name[:100]}: longer than 4096 characters")
    return SilenceMatcher(name=name, op=op, value=value)


def muted_now(silence: Silence, alerts: Sequence[Alert]) -> str:
    """How many alerts it mutes now: a misspelt name makes a silence, too, of nothing."""
    standing = [one for one in alerts if one.state not in (AlertState.INACTIVE, AlertState.RESOLVED)]
    if not standing:
        return "no alert stands now"
    num_muted = sum(_fits(silence, one) for one in standing)
    return f"mutes {num_muted or 'none'} of the alerts that stand now ({len(standing)}): fleetctl get alerts"


def _fits(silence: Silence, alert: Alert) -> bool:
    labels = {**alert.labels, "alertname": alert.name}
    try:
        return all(Matcher(one.name, one.op, one.value).accepts(labels.get(one.name, "")) for one in silence.matchers)
    except BadExpressionError:
        return False


def _show(silence: Silence, output: Output) -> None:
    if output in DATA:
        print_data(silence.model_dump(mode="json"), output)
    else:
        stdout().print(f"silence {silence.id} {silence.state}, ends {clock(silence.ends_at)}", markup=False)
