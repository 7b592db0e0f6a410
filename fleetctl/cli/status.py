"""`status`: is the controller well, and does it reach whom it must tell?"""

from __future__ import annotations

import typer

from fleetctl.cli.context import call
from fleetctl.cli.fleet_columns import freeze_words
from fleetctl.cli.moment import ago, clock
from fleetctl.cli.output import Column, Output, OutputOption, print_data, print_fields, print_rows, seconds, stdout
from fleetctl.traffic_rule import TrafficRule
from fleetctl.wire.status import Status

MAX_PROBLEMS = 5
COLUMNS = [
    Column("alertmanager", lambda a: a.url),
    Column("sent", lambda a: str(a.sent), right=True),
    Column("failed", lambda a: str(a.failed), right=True),
    Column("dropped", lambda a: str(a.dropped), right=True),
    Column("queued", lambda a: str(a.queued), right=True),
    Column("last success", lambda a: ago(a.last_success_at), right=True),
    Column("error", lambda a: a.last_error),
]


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def status(output: OutputOption = Output.table) -> None:
        """Show the controller's state: its loops, and what it sends to and gets from Alertmanager."""
        found = call(lambda client: client.status())
        if output in (Output.json, Output.yaml):
            print_data(found.model_dump(mode="json"), output)
        else:
            _describe(found)


def _describe(status: Status) -> None:
    webhook, silences, content = status.webhook, status.silences, status.content
    print_fields(
        f"fleetctl {status.version}",
        [
            ("started", clock(status.started_at)),
            ("epoch", str(status.epoch)),
            ("controllers", _controllers(status)),
            ("policy", status.policy),
            ("nodes ready", f"{status.nodes_ready} of {status.nodes_total}"),
            *_discovery(status),
            ("gateways", _gateways(status)),
            ("alerts firing", str(status.firing)),
            ("open incidents", str(status.open_incidents)),
            ("storage", status.storage_error),
            ("audit", status.audit_error),
            ("loops", _loops(status)),
            ("automation", status.breaker),
            *(("frozen", freeze_words(freeze)) for freeze in status.freezes),
            *(("traffic rule", rule_line(rule)) for rule in status.traffic_rules),
            ("content", _content(status)),
            ("content's error", f"{ago(content.failed_at)}: {content.error}" if content.failed_at else ""),
            ("webhook", f"{webhook.accepted} accepted, {webhook.refused} refused, {webhook.deferred} deferred"),
            ("webhook's last", ago(webhook.last_at) if webhook.last_at is not None else ""),
            ("webhook's error", webhook.last_error),
            ("silences", _silences(status)),
            ("silences' error", silences.last_error),
        ],
    )
    if status.alertmanagers:
        stdout().print()
        print_rows(status.alertmanagers, COLUMNS, Output.table, empty="")


def _discovery(status: Status) -> list[tuple[str, str]]:
    """Nothing where no source is named."""
    found = status.discovery
    if found is None:
        return []
    dropped = f", {found.dropped} targets dropped by relabelling" if found.dropped else ""
    problems = [("discovery's problem", text) for text in list(found.problems.values())[:MAX_PROBLEMS]]
    more = len(found.problems) - MAX_PROBLEMS
    return [
        ("discovered", f"{found.found} node{'' if found.found == 1 else 's'}{dropped}"),
        *problems,
        *([("", f"and {more} more; see fleetctl logs controller")] if more > 0 else []),
    ]


def _controllers(status: Status) -> str:
    """Who leads; nothing where the state is a file of one machine."""
    seen = status.leadership
    if not seen.shared:
        return ""
    led = f"{seen.url} leads since {clock(seen.since)} ({seen.takeover})"
    if not seen.is_certain:
        led = f"{seen.url} does not know whether it still leads, and acts on nothing"
    there = f"standby {', '.join(seen.standbys)}" if seen.standbys else "no standby"
    return "; ".join([led, there, *(f"missing: {url}" for url in seen.missing)])


def _loops(status: Status) -> str:
    """Ages are told of late ones only: one of an hour's interval is not stuck because its last turn was minutes ago."""
    late = [f"{name} (last turn {seconds(status.loops[name])} ago)" for name in status.late_loops]
    return f"late: {', '.join(late)}; see fleetctl logs controller" if late else f"{len(status.loops)} on time"


def _gateways(status: Status) -> str:
    if not status.gateways_total:
        return "none known"
    return "; ".join(
        [f"{status.gateways_ready} of {status.gateways_total} ready", *status.gateways_down, *status.gateways_impaired]
    )


def rule_line(rule: TrafficRule) -> str:
    """What a rule orders, since when, by whom, until when and why."""
    until = "until it is removed" if rule.expires_at is None else f"until {clock(rule.expires_at)}"
    since = f"since {clock(rule.made_at)}" + (f" by {rule.made_by}" if rule.made_by else "")
    return f"{rule.id}: {rule.spec.words}, {since}, {until}" + (f" ({rule.reason})" if rule.reason else "")


def _content(status: Status) -> str:
    content = status.content
    if not content.folders:
        return "built-in"
    told = f"built-in, {content.own_objects} of {', '.join(content.folders)}, {content.overrides} override others"
    return told if content.failed_at is None else f"{told}; older than what lies there"


def _silences(status: Status) -> str:
    if not status.alertmanagers:
        return "no Alertmanager"
    if not status.silences.known:
        return f"unknown, read {ago(status.silences.read_at)}"
    return f"{status.silences.active} in force, read {ago(status.silences.read_at)}"
