"""`alerts`: check, test, explain, backtest and export rule files, with or without a controller.

These commands work on files, so they use the alerts package itself; it is imported when a command runs.
"""

from __future__ import annotations

import dataclasses
import difflib
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from fleetctl.cli import output as out
from fleetctl.cli.alerts_backtest import register_backtest
from fleetctl.cli.alerts_export import register_export
from fleetctl.cli.context import call, current
from fleetctl.cli.file_input import existing_files, read_or_refuse
from fleetctl.cli.output import Output, OutputOption, print_data, print_fields, print_table
from fleetctl.kit.errors import BadInputError, FleetctlError

if TYPE_CHECKING:
    from alerts.review.explain import RuleView
    from fleetctl.wire.alert import Alert

T = TypeVar("T")

Files = Annotated[
    list[Path], typer.Argument(help="Rule files (Prometheus' format), or folders of them.", show_default=False)
]
CaseFiles = Annotated[
    list[Path], typer.Argument(help="Unit-test files (promtool's format), or folders of them.", show_default=False)
]
OptionalFiles = Annotated[
    list[Path] | None,
    typer.Option("--rules", help="Rule files, or a folder of them, instead of the usual ones.", show_default=False),
]


def names_in_force() -> set[str]:
    """Names of the alerts in force here, ours and those of the settings' content folders."""
    return {view.name for view in _views(None) if view.kind == "alert"}


def register(app: typer.Typer) -> None:
    """Add the commands."""
    alerts = typer.Typer(no_args_is_help=True, help="Check, test, explain, backtest and export alert rules.")
    app.add_typer(alerts, name="alerts")

    @alerts.command()
    def check(files: Files, output: OutputOption = Output.table) -> None:
        """Review rule files: what cannot load, can never fire, or misleads.

        Exit code 1 when there is an error, 2 when a file is no rule file at all.
        """
        from alerts.review.lint import UNREADABLE, lint_files

        found = existing_files(files)
        findings = read_or_refuse(lambda: lint_files(found))
        if output in (Output.json, Output.yaml):
            print_data([dataclasses.asdict(finding) for finding in findings], output)
        else:
            for finding in findings:
                out.stdout().print(out.visible(str(finding)), markup=False)
            errors = sum(finding.severity == "error" for finding in findings)
            told = [counted(len(found), "file"), counted(errors, "error"), counted(len(findings) - errors, "warning")]
            out.stderr().print(f"{told[0]}: {told[1]}, {told[2]}")
        if any(finding.severity == "error" for finding in findings):
            raise typer.Exit(2 if any(finding.check == UNREADABLE for finding in findings) else 1)

    @alerts.command()
    def test(
        files: CaseFiles,
        rules: OptionalFiles = None,
        ignore_annotations: Annotated[
            bool, typer.Option("--ignore-annotations", help="Compare labels only: for tests of rules without any.")
        ] = False,
        output: OutputOption = Output.table,
    ) -> None:
        """Run promtool's unit-test files with our own engine. Exit 1 when an expectation does not hold."""
        from alerts.review.casefile import run_case_file

        replaced = existing_files(rules) if rules else None
        run = partial(run_case_file, rule_files=replaced, with_annotations=not ignore_annotations)
        reports = [read_or_refuse(partial(run, path)) for path in existing_files(files)]
        if output in (Output.json, Output.yaml):
            print_data([dataclasses.asdict(report) for report in reports], output)
        else:
            for report in reports:
                for failure in report.failures:
                    out.stdout().print(out.visible(failure), markup=False)
                verdict = "FAILED" if report.failures else "ok"
                out.stdout().print(
                    f"{report.file}: {verdict}, {counted(report.num_checks, 'check')}, {len(report.failures)} failed",
                    markup=False,
                )
        if any(report.failures for report in reports):
            raise typer.Exit(1)

    @alerts.command("list")
    def list_(rules: OptionalFiles = None, output: OutputOption = Output.table) -> None:
        """List alert rules: name, severity, how long they wait, and what they measure."""
        views = [view for view in _views(rules) if view.kind == "alert"]
        if output in (Output.json, Output.yaml):
            print_data([dataclasses.asdict(view) for view in views], output)
            return
        wide = ["file", "expression"] if output is Output.wide else []
        print_table(
            ["alert", "severity", "for", "group", "measures", *wide],
            [
                [
                    view.name,
                    view.severity or "-",
                    out.seconds(view.for_s) if view.for_s else "0s",
                    view.group,
                    _one_line(view.subject),
                    *([view.file, _one_line(view.expr)] if wide else []),
                ]
                for view in views
            ],
            empty="no alert rules in these files",
        )

    @alerts.command()
    def explain(
        name: Annotated[str, typer.Argument(help="Name of an alert or of a recorded signal.")],
        rules: OptionalFiles = None,
        output: OutputOption = Output.table,
    ) -> None:
        """Show a rule: expression, reason, and its current value on each node when a controller answers."""
        views = [view for view in _views(rules) if view.name == name]
        if not views:
            near = difflib.get_close_matches(name, {view.name for view in _views(rules)}, n=1)
            remedy = (
                f"fleetctl alerts explain {near[0]}" if near else "fleetctl alerts list, or fleetctl alerts coverage"
            )
            raise BadInputError(f"no rule is called {name}", remedy=remedy)
        current = [_current(view) for view in views]
        if output in (Output.json, Output.yaml):
            rows = [{**dataclasses.asdict(view), "current": now} for view, now in zip(views, current, strict=True)]
            print_data(rows, output)
            return
        for view, now in zip(views, current, strict=True):
            _print_view(view, now)

    @alerts.command()
    def coverage(output: OutputOption = Output.table) -> None:
        """Which signal each engine can tell. What it cannot tell is absent, never zero."""
        from alerts.review.coverage import coverage as covered
        from alerts.review.coverage import covered_engines

        rows, engines = read_or_refuse(covered), read_or_refuse(covered_engines)
        if output in (Output.json, Output.yaml):
            print_data([{"signal": row.signal, **{e: e in row.engines for e in engines}} for row in rows], output)
            return
        print_table(
            ["signal", *engines],
            [[row.signal, *("yes" if engine in row.engines else "-" for engine in engines)] for row in rows],
            empty="no signals",
        )

    register_backtest(alerts)
    register_export(alerts)


def counted(count: int, noun: str) -> str:
    """A number with its noun: "1 file", "2 files"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _views(files: list[Path] | None) -> list[RuleView]:
    """The rules of the files; without any, those that a controller with these settings has in force."""
    from alerts.review.explain import rule_views
    from fleetctl.controller.content.load import load_content

    if files:
        return read_or_refuse(lambda: rule_views(existing_files(files)))
    content = load_content(current().settings().content)
    in_force = {(group.file, group.name, rule.name) for group in content.groups for rule in group.rules}
    views = read_or_refuse(lambda: rule_views(content.rule_files))
    return [view for view in views if (view.file, view.group, view.name) in in_force]


def _current(view: RuleView) -> dict[str, Any]:
    """What a rule says now: `{"at", "where"}`, or `{"unknown": reason}` when no controller answers.

    `where`: for each place its labels, the measured value, whether the condition holds there, and what has become of
    the alert: its state, since when, and when it would fire if the condition went on.
    """
    try:
        subject = call(lambda client: client.query(view.subject))
        holds = call(lambda client: client.query(view.expr))
        alerts = call(lambda client: client.alerts()) if view.kind == "alert" else []
    except FleetctlError as error:
        return {"unknown": error.message}
    now, true = subject["at"], holds["samples"]
    # A rule may hold where its leftmost part has no value (`absent(x)`, `x or y`): these places belong to the answer.
    extra = [one for one in true if not any(_fits(one["labels"], s["labels"]) for s in subject["samples"])]
    own = [alert for alert in alerts if alert.name == view.name and alert.source == "rules"]
    found = [
        *((one, any(_fits(each["labels"], one["labels"]) for each in true)) for one in subject["samples"]),
        *((one, True) for one in extra),
    ]
    found.sort(key=lambda pair: (_place(pair[0]["labels"]), sorted(pair[0]["labels"].items())))
    return {
        "at": now,
        "where": [_state_at(view, one["labels"], one["value"], now, holds=holds, alerts=own) for one, holds in found],
    }


def _state_at(
    view: RuleView, labels: dict[str, str], value: Any, now: float, *, holds: bool, alerts: list[Alert]
) -> dict[str, Any]:
    alert = next((one for one in alerts if one.state != "resolved" and _fits(labels, one.labels)), None)
    state = str(alert.state) if alert is not None else "inactive"
    since = (alert.fired_at or alert.active_at) if alert is not None else None
    fires_at = None
    if state == "pending" and alert is not None and alert.active_at is not None:
        fires_at = alert.active_at + view.for_s
    elif state == "inactive" and holds and view.kind == "alert":
        fires_at = now + view.for_s
    return {"labels": labels, "value": value, "holds": holds, "state": state, "since": since, "fires_at": fires_at}


def _fits(some: dict[str, str], other: dict[str, str]) -> bool:
    """True when no label that both have differs, the name aside."""
    return all(other.get(name, value) == value for name, value in some.items() if name != "__name__")


def _print_view(view: RuleView, now: dict[str, Any]) -> None:
    out.stdout().print()
    print_fields(
        view.name,
        [
            ("severity", view.severity),
            ("file", f"{view.file}, group {view.group}"),
            ("for", out.seconds(view.for_s) if view.for_s else ""),
            ("keep firing", out.seconds(view.keep_firing_for_s) if view.keep_firing_for_s else ""),
            ("says", view.summary),
            ("runbook", view.runbook_url),
        ],
    )
    for title, text in (("expression", view.expr), ("reason", view.reason)):
        if text:
            out.stdout().print(f"  {title}:", style="dim")
            for line in text.split("\n"):
                out.stdout().print(f"    {out.visible(line)}", markup=False)
    if "unknown" in now:
        out.stderr().print(f"  now: unknown ({now['unknown']})", markup=False)
        return
    if view.kind == "alert":
        _print_places(view, now)
    else:
        places = _places([one["labels"] for one in now["where"]])
        print_table(
            ["where", "value"],
            [[place, out.number(_float(one["value"]))] for place, one in zip(places, now["where"], strict=True)],
            empty=f"  {view.name}: no value now: unknown",
        )


def _print_places(view: RuleView, now: dict[str, Any]) -> None:
    out.stdout().print("  now:", style="dim")
    places = _places([one["labels"] for one in now["where"]])
    print_table(
        ["where", "value", "condition", "alert"],
        [
            [place, out.number(_float(one["value"])), "true" if one["holds"] else "false", _told(one, now["at"])]
            for place, one in zip(places, now["where"], strict=True)
        ],
        empty=f"    {_one_line(view.subject)}: no value now, so it is not known",
    )
    if now["where"]:
        out.stdout().print(f"  value: {_one_line(view.subject)}", style="dim", markup=False)
        held = f" for {out.seconds(view.for_s)} without a break" if view.for_s else ""
        out.stdout().print(f"  fires where the condition is true{held}", style="dim")


def _told(one: dict[str, Any], now: float) -> str:
    if one["state"] == "inactive":
        return "-" if one["fires_at"] is None else f"would fire in {out.seconds(one['fires_at'] - now)}"
    since = "" if one["since"] is None else f" for {out.seconds(max(0.0, now - one['since']))}"
    left = "" if one["fires_at"] is None else f", fires in {out.seconds(max(0.0, one['fires_at'] - now))}"
    return f"{one['state']}{since}{left}"


def _float(value: Any) -> float | None:
    return None if value is None else float(value)


def _place(labels: dict[str, str]) -> str:
    return labels.get("node") or labels.get("instance") or labels.get("pool") or "fleet"


def _places(found: list[dict[str, str]]) -> list[str]:
    """Where each label set is; further labels are named where several would look the same."""
    named = [_place(labels) for labels in found]
    twins: dict[str, list[dict[str, str]]] = {}
    for place, labels in zip(named, found, strict=True):
        twins.setdefault(place, []).append(labels)
    differing = {
        place: sorted(
            label for label in {*chain.from_iterable(each)} - {"__name__"} if len({one.get(label) for one in each}) > 1
        )
        for place, each in twins.items()
    }
    told = []
    for place, labels in zip(named, found, strict=True):
        told.append(" ".join([place, *(f"{name}={labels[name]}" for name in differing[place] if name in labels)]))
    return told


def _one_line(text: str) -> str:
    return " ".join(text.split())
