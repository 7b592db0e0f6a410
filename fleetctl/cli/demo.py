"""`demo`: the whole story on this machine, from the fault to the post-mortem."""

from __future__ import annotations

import asyncio
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fleetctl.cli.context import current, make_client
from fleetctl.cli.lifecycle import cancelled_by_signals
from fleetctl.cli.output import Output, OutputOption, print_data, seconds, stderr, stdout
from fleetctl.kit.errors import BadInputError, FleetctlError
from fleetctl.settings.load import with_flags
from fleetctl.settings.tree import Settings

if TYPE_CHECKING:
    from fleetctl.demo.report import DemoReport
    from fleetctl.demo.story import DemoPlan
    from fleetctl.stack import Stack


Trace = Annotated[
    Path | None, typer.Option("--trace", help="Shape traffic after this trace: Mooncake JSONL or Azure CSV.")
]
Rate = Annotated[float, typer.Option("--rate", min=0.1, max=100, help="Requests per second.")]
Plain = Annotated[bool, typer.Option("--plain", help="Lines instead of the cockpit, on a terminal too.")]


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def demo(
        trace: Trace = None,
        rate: Rate = 4.0,
        nodes: Annotated[int, typer.Option("--nodes", min=3, max=16, help="Size of the fleet.")] = 3,
        plain: Plain = False,
        seed: Annotated[int, typer.Option("--seed", help="Of the built-in traffic.")] = 0,
        output: OutputOption = Output.table,
    ) -> None:
        """Start a fleet, slow one node down, and watch it being found, diagnosed and replaced."""
        from fleetctl.demo.story import DemoPlan, run_demo, settings_for_demo
        from fleetctl.stack import Stack, prepare_model

        plan = DemoPlan(trace=trace, rate_per_s=rate, seed=seed)
        plan.check()
        base = current().settings()
        tell = _line_printer(output)
        base = with_flags(base, fleet={"model_dir": prepare_model(base, tell)})
        settings = settings_for_demo(base, nodes=nodes)
        _clear_last_demo(settings)
        stack = Stack(settings)
        cockpit = sys.stdout.isatty() and sys.stdin.isatty() and not plain and output is Output.table
        try:
            if cockpit:
                report = _in_cockpit(settings, stack, plan)
            else:
                report = asyncio.run(cancelled_by_signals(run_demo(stack, plan, tell)))
        finally:
            stack.down(lambda _: None)
        _print(report, output)


def _in_cockpit(settings: Settings, stack: Stack, plan: DemoPlan) -> DemoReport:
    from fleetctl.demo.screen import run_in_cockpit

    return asyncio.run(run_in_cockpit(stack, plan, lambda: make_client(settings)))


def _clear_last_demo(settings: Settings) -> None:
    from fleetctl.providers.process import ProcessTable

    running = ProcessTable(settings.run_dir).running()
    if running:
        raise BadInputError(
            f"{settings.state_dir}: a demo runs here already ({', '.join(running)})",
            remedy=f"fleetctl --state-dir {settings.state_dir} down",
        )
    shutil.rmtree(settings.state_dir, ignore_errors=True)


def _line_printer(output: Output):  # type: ignore[no-untyped-def]
    console = stdout() if output is Output.table else stderr()
    return lambda line: console.print(line, markup=False)


def _print(report: DemoReport, output: Output) -> None:
    wrong = report.failures()
    if output in (Output.json, Output.yaml):
        print_data(report.to_json(), output)
    else:
        _print_report(report)
    if wrong:
        raise FleetctlError("the demo did not hold: " + "; ".join(wrong), remedy="read the post-mortem and the logs")


def _print_report(report: DemoReport) -> None:
    console = stdout()
    requests = report.requests
    right = "right" if report.diagnosed == report.expected else f"expected {report.expected}"
    ttft = [seconds(value) for value in (report.ttft_before_s, report.ttft_during_s, report.ttft_after_s)]
    console.print()
    console.print("Report", style="bold")
    for name, text in [
        ("detected", f"{seconds(report.detected_s)} after the fault"),
        ("diagnosed", f"{report.diagnosed or 'nothing'} ({right}), {seconds(report.diagnosed_s)} after the fault"),
        ("mitigated", f"{seconds(report.mitigated_s)} after the fault"),
        ("TTFT p95", f"{ttft[0]} before, {ttft[1]} during, {ttft[2]} after"),
        ("requests", f"sent: {requests.sent}, finished: {requests.finished}, moved: {requests.moved}"),
        ("", f"refused: {requests.refused}, lost: {requests.lost}, duplicated: {requests.duplicated}"),
        ("post-mortem", report.postmortem or "-"),
        ("black box", report.blackbox or "-"),
    ]:
        console.print(f"  {name:<12} {text}", markup=False)
