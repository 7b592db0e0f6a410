"""`alerts backtest`: what rules would have said about a recorded past."""

from __future__ import annotations

import dataclasses
import datetime as dt
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fleetctl.cli import output as out
from fleetctl.cli.context import current
from fleetctl.cli.file_input import read_or_refuse
from fleetctl.cli.output import Output, OutputOption, print_data, print_table
from fleetctl.cli.past_series import duration_s, moment, prometheus_store, recorded_store, server_of
from fleetctl.kit.errors import BadInputError

if TYPE_CHECKING:
    from alerts.evaluation.rules import RuleGroup
    from alerts.history.backtest import Backtest
    from fleetctl.controller.content.content import Content

POINTS_PER_WINDOW = 4  # a rate over fewer is luck


def register_backtest(alerts: typer.Typer) -> None:
    """Add the command to the group of alerts."""

    @alerts.command()
    def backtest(
        rules: Annotated[list[Path] | None, typer.Argument(help="Rule files; without them those in force.")] = None,
        recording: Annotated[
            list[Path] | None,
            typer.Option("--from", help="OpenMetrics text with times (.gz too), or a black box. Repeatable."),
        ] = None,
        prometheus: Annotated[
            str | None, typer.Option("--prometheus", help="URL of a Prometheus to read from.")
        ] = None,
        since: Annotated[str, typer.Option("--since", help="How far back, from Prometheus.")] = "7d",
        step: Annotated[str, typer.Option("--step", help="Time between evaluations.")] = "15s",
        incident: Annotated[
            str | None, typer.Option("--incident", help="START..END (RFC 3339 or Unix seconds) of a known incident.")
        ] = None,
        token_file: Annotated[Path | None, typer.Option("--token-file", help="Bearer token for Prometheus.")] = None,
        ca_file: Annotated[Path | None, typer.Option("--ca-file", help="CA certificates for Prometheus.")] = None,
        timeout: Annotated[str, typer.Option("--timeout", help="Of each request to Prometheus.")] = "30s",
        output: OutputOption = Output.table,
    ) -> None:
        """Replay a recording: when each alert would have fired, pages per week, lead time before an incident."""
        from alerts.history.backtest import run_backtest, widened

        if bool(recording) == bool(prometheus):
            raise BadInputError("give one of --from and --prometheus", remedy="fleetctl alerts backtest --help")
        marked = _window(incident) if incident else None
        groups = _groups(rules)
        step_s = duration_s(step, "--step")
        if prometheus:
            server = server_of(prometheus, token_file, ca_file, duration_s(timeout, "--timeout"))
            store, start, end = prometheus_store(server, groups, duration_s(since, "--since"))
        else:
            store, start, end = recorded_store(recording or [], groups)
        spacing_s = store.typical_spacing_s() or step_s
        groups = widened(groups, POINTS_PER_WINDOW * spacing_s)
        began = time.monotonic()
        result = read_or_refuse(lambda: run_backtest(groups, store, start, end, step_s=step_s, incident=marked))
        took_s = time.monotonic() - began
        if output in (Output.json, Output.yaml):
            print_data(dataclasses.asdict(result), output)
        else:
            _print(result, marked, wide=output is Output.wide)
            out.stderr().print(
                f"{_time(start)} to {_time(end)}, {store.num_series} series, points every {out.seconds(spacing_s)}, "
                f"evaluated in {out.seconds(took_s)}",
                markup=False,
            )


def _groups(rules: list[Path] | None) -> list[RuleGroup]:
    """The rules to try, else those in force; the signals in force come first when one that no file records is read."""
    from alerts.evaluation.rules import load_rule_files
    from alerts.history.backtest import in_order, needs_order
    from alerts.promql.nodes import metric_names
    from fleetctl.controller.content.load import load_content

    def in_force() -> Content:
        return load_content(current().settings().content)

    groups = read_or_refuse(lambda: load_rule_files(rules)) if rules else list(in_force().rules)
    recorded = {rule.name for group in groups for rule in group.rules if rule.kind == "record"}
    read = {name for group in groups for rule in group.rules for name in metric_names(rule.query.root)}
    if any(name.startswith("llm:") for name in read - recorded):
        groups = [*in_force().signals, *groups]
    groups = in_order(groups)
    late = needs_order(groups)
    if late:
        raise BadInputError(
            f"{', '.join(late)}: reads what only a later rule (or itself, or ALERTS) gives, so no stretch of"
            " time can be evaluated at once",
            remedy="put recording rules before the rules that read them",
        )
    return groups


def _window(text: str) -> tuple[float, float]:
    start, sign, end = text.partition("..")
    try:
        found = moment(start), moment(end)
    except ValueError:
        found = (1.0, 0.0)
    if not sign or not found[0] <= found[1] < math.inf:
        raise BadInputError(
            f"--incident {text!r}: not START..END", remedy="e.g. 2026-11-20T10:00:00Z..2026-11-20T10:20:00Z"
        )
    return found


def _print(result: Backtest, marked: tuple[float, float] | None, *, wide: bool) -> None:
    lead = ["lead"] if marked else []
    print_table(
        ["alert", "severity", "fired", "per week", *lead],
        [
            [
                report.alert,
                report.severity or "-",
                str(report.num_firings),
                f"{report.pages_per_week:.3g}",
                *([_lead(report.lead_s)] if marked else []),
            ]
            for report in result.alerts
        ],
        empty="no alert rules in these files",
    )
    if result.firings:
        out.stdout().print()
    print_table(
        ["fired", "lasted", "alert", "severity", "where", "summary"],
        [
            [
                _time(f.fired_at),
                out.seconds(f.resolved_at - f.fired_at) if f.resolved_at else "to the end",
                f.alert,
                f.severity or "-",
                f.labels.get("node") or f.labels.get("instance") or f.labels.get("pool") or "fleet",
                f.summary,
            ]
            for f in (result.firings if wide else result.firings[:50])
        ],
        empty="no alert would have fired",
    )
    if not wide and len(result.firings) > 50:
        out.stderr().print(f"and {len(result.firings) - 50} more: -o wide")
    for rule, error in result.errors.items():
        out.stderr().print(f"{rule}: failed at some moments: {error}", markup=False)


def _lead(lead_s: float | None) -> str:
    if lead_s is None:
        return "silent"
    return f"{out.seconds(lead_s)} before" if lead_s > 0 else f"{out.seconds(-lead_s)} after"


def _time(at: float) -> str:
    return dt.datetime.fromtimestamp(at, dt.UTC).strftime("%Y-%m-%d %H:%M:%SZ")
