"""`alerts`: check, test, explain and backtest rule files, with or without a controller.

These commands work on files, so they use the alerts package itself; it is imported when a command runs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from fleetctl.cli import output as out
from fleetctl.cli.alerts_backtest import register_backtest
from fleetctl.cli.context import call
from fleetctl.cli.output import Output, OutputOption, print_data, print_fields, print_table
from fleetctl.kit.errors import BadInputError, FleetctlError

if TYPE_CHECKING:
    from alerts.explain import RuleView

T = TypeVar("T")

Files = Annotated[list[Path], typer.Argument(help="Rule files (Prometheus' format).", show_default=False)]
CaseFiles = Annotated[list[Path], typer.Argument(help="Unit-test files (promtool's format).", show_default=False)]
OptionalFiles = Annotated[
    list[Path] | None, typer.Option("--rules", help="Rule files instead of the usual ones.", show_default=False)
]


def register(app: typer.Typer) -> None:
    alerts = typer.Typer(no_args_is_help=True, help="Check, test, explain and backtest alert rules.")
    app.add_typer(alerts, name="alerts")

    @alerts.command()
    def check(files: Files, output: OutputOption = Output.table) -> None:
        """Review rule files: what cannot load, can never fire, or misleads. Exit 1 when there is an error."""
        from alerts.lint import lint_files

        findings = reading(lambda: lint_files(_existing(files)))
        if output in (Output.json, Output.yaml):
            print_data([dataclasses.asdict(finding) for finding in findings], output)
        else:
            for finding in findings:
                out.stdout().print(str(finding), markup=False)
            errors = sum(finding.severity == "error" for finding in findings)
            out.stderr().print(f"{len(files)} files: {errors} errors, {len(findings) - errors} warnings")
        if any(finding.severity == "error" for finding in findings):
            raise typer.Exit(1)

    @alerts.command()
    def test(files: CaseFiles, rules: OptionalFiles = None, output: OutputOption = Output.table) -> None:
        """Run promtool's unit-test files with our own engine. Exit 1 when an expectation does not hold."""
        from alerts.casefile import run_case_file

        replaced = _existing(rules) if rules else None
        reports = [reading(partial(run_case_file, path, rule_files=replaced)) for path in _existing(files)]
        if output in (Output.json, Output.yaml):
            print_data([dataclasses.asdict(report) for report in reports], output)
        else:
            for report in reports:
                for failure in report.failures:
                    out.stdout().print(failure, markup=False)
                verdict = "FAILED" if report.failures else "ok"
                out.stdout().print(
                    f"{report.file}: {verdict}, {report.num_checks} checks, {len(report.failures)} failed", markup=False
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
                    view.name, view.severity or "-", out.seconds(view.for_s) if view.for_s else "0s", view.group,
                    _one_line(view.subject), *([view.file, _one_line(view.expr)] if wide else []),
                ]
                for view in views
            ],
            empty="no alert rules in these files",
        )  # fmt: skip

    @alerts.command()
    def explain(
        name: Annotated[str, typer.Argument(help="Name of an alert or of a recorded signal.")],
        rules: OptionalFiles = None,
        output: OutputOption = Output.table,
    ) -> None:
        """Show a rule: expression, reason, and its current value on each node when a controller answers."""
        views = [view for view in _views(rules) if view.name == name]
        if not views:
            raise BadInputError(f"no rule is called {name}", remedy="fleetctl alerts list, or fleetctl alerts coverage")
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
        from alerts.coverage import ENGINES
        from alerts.coverage import coverage as covered

        rows = reading(covered)
        if output in (Output.json, Output.yaml):
            print_data([{"signal": row.signal, **{e: e in row.engines for e in ENGINES}} for row in rows], output)
            return
        print_table(
            ["signal", *ENGINES],
            [[row.signal, *("yes" if engine in row.engines else "-" for engine in ENGINES)] for row in rows],
            empty="no signals",
        )

    register_backtest(alerts)


def reading(work: Callable[[], T]) -> T:
    """Work on files. What cannot be read is bad input: exit code 2, one line."""
    from alerts.errors import AlertsError

    try:
        return work()
    except AlertsError as error:
        raise BadInputError(str(error)) from error


def _existing(files: Sequence[Path]) -> Sequence[Path]:
    for path in files:
        if not path.is_file():
            raise BadInputError(f"{path}: no such file", remedy="give rule files, not folders")
    return files


def _views(files: list[Path] | None) -> list[RuleView]:
    from alerts.content import builtin_rule_files, builtin_signal_files
    from alerts.explain import rule_views

    paths = _existing(files) if files else [*builtin_signal_files(), *builtin_rule_files()]
    return reading(lambda: rule_views(paths))


def _current(view: RuleView) -> dict[str, Any]:
    """`{"subject": samples, "firing": samples}`, or `{"unknown": reason}` when no controller answers."""
    try:
        subject = call(lambda client: client.query(view.subject))
        holds = call(lambda client: client.query(view.expr))
    except FleetctlError as error:
        return {"unknown": error.message}
    return {"subject": subject.get("samples", []), "holds": holds.get("samples", [])}


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
                out.stdout().print(f"    {line}", markup=False)
    if "unknown" in now:
        out.stderr().print(f"  now: unknown ({now['unknown']})", markup=False)
        return
    holds = [_place(sample["labels"]) for sample in now["holds"]]
    print_table(
        ["where", _one_line(view.subject), "condition"],
        [
            [_place(s["labels"]), out.number(_value(s)), "true" if _place(s["labels"]) in holds else "false"]
            for s in now["subject"]
        ],
        empty=f"  {_one_line(view.subject)}: no value now, so it is not known",
    )


def _value(sample: dict[str, Any]) -> float | None:
    value = sample.get("value")
    return None if value is None else float(value)


def _place(labels: dict[str, str]) -> str:
    return labels.get("node") or labels.get("instance") or labels.get("pool") or "fleet"


def _one_line(text: str) -> str:
    return " ".join(text.split())
