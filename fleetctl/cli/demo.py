"""`demo`: the whole story on this machine, from the fault to the post-mortem."""

from __future__ import annotations

import asyncio
import shlex
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fleetctl.cli.context import current, make_client
from fleetctl.cli.lifecycle import ENDING, cancelled_by_signals
from fleetctl.cli.output import Output, OutputOption, print_data, seconds, stderr, stdout
from fleetctl.kit.errors import BadInputError, FleetctlError
from fleetctl.settings.load import with_flags
from fleetctl.settings.tree import Settings

if TYPE_CHECKING:
    from fleetctl.demo.report import DemoReport
    from fleetctl.demo.story import DemoPlan
    from fleetctl.stack import Stack, Tell


Trace = Annotated[
    Path | None, typer.Option("--trace", help="Shape traffic after this trace: Mooncake JSONL or Azure CSV.")
]
Rate = Annotated[float, typer.Option("--rate", min=0.1, max=100, help="Requests per second.")]
Auto = Annotated[
    bool, typer.Option("--auto", help="No tour: it mends itself while you watch. So it is where there is no terminal.")
]
Plain = Annotated[bool, typer.Option("--plain", help="As --auto, in lines instead of the cockpit.")]


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def demo(
        trace: Trace = None,
        rate: Rate = 4.0,
        nodes: Annotated[int, typer.Option("--nodes", min=3, max=16, help="Size of the fleet.")] = 3,
        auto: Auto = False,
        plain: Plain = False,
        seed: Annotated[int, typer.Option("--seed", help="Of the built-in traffic.")] = 0,
        output: OutputOption = Output.table,
    ) -> None:
        """Start a fleet, slow one node down, and mend it: a guided tour on a terminal, by itself elsewhere."""
        from fleetctl.demo.story import DemoPlan, settings_for_demo
        from fleetctl.stack import Stack, prepare_model

        on_terminal = sys.stdout.isatty() and sys.stdin.isatty() and not plain and output is Output.table
        is_tour = on_terminal and not auto
        plan = DemoPlan(trace=trace, rate_per_s=rate, seed=seed)
        if is_tour:
            plan = replace(plan, repair_timeout_s=None)
        plan.check()
        base = current().settings()
        base = with_flags(base, fleet={"model_dir": prepare_model(base, _line_printer(output))})
        settings = settings_for_demo(base, nodes=nodes, policy="ask" if is_tour else "run")
        _clear_last_demo(settings)
        stack = Stack(settings)
        try:
            report = asyncio.run(cancelled_by_signals(_told(stack, plan, output, on_terminal, is_tour)))
        finally:
            with _undisturbed():
                stack.down(_unless_gone(_line_printer(output)) if is_tour else lambda _: None)
        _print(report, output, is_tour=is_tour)


async def _told(stack: Stack, plan: DemoPlan, output: Output, on_terminal: bool, is_tour: bool) -> DemoReport:
    """The story in the cockpit or in lines; as a tour where a person is to take part."""
    from fleetctl.cli.cockpit_shell import CockpitShell
    from fleetctl.demo.screen import run_in_cockpit
    from fleetctl.demo.start_screen import start_screen
    from fleetctl.demo.story import run_demo
    from fleetctl.demo.tour import run_tour

    settings = stack.settings
    shell = CockpitShell(replace(current(), state_dir=settings.state_dir))
    if is_tour:
        with start_screen(stdout(), settings.fleet.nodes) as tell:
            view = await stack.up(tell)
        return await run_tour(stack, view, plan, lambda: make_client(settings), shell)
    if on_terminal:
        return await run_in_cockpit(stack, plan, lambda: make_client(settings), shell)
    return await run_demo(stack, plan, _line_printer(output))


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Stopping takes seconds, and a second Ctrl-C must leave nothing behind."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _unless_gone(tell: Tell) -> Tell:
    """The terminal may be closed; what runs is stopped all the same."""

    def told(line: str) -> None:
        with suppress(OSError):
            tell(line)

    return told


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


def _print(report: DemoReport, output: Output, *, is_tour: bool) -> None:
    wrong = report.failures()
    if output in (Output.json, Output.yaml):
        print_data(report.to_json(), output)
    else:
        _print_report(report)
        if is_tour:
            _print_lesson(report)
    if wrong:
        raise FleetctlError("the demo did not hold: " + "; ".join(wrong), remedy="read the post-mortem and the logs")


def _print_lesson(report: DemoReport) -> None:
    """What the tour leaves behind, and where to go on: each line is a command that works now."""
    console = stdout()
    console.print()
    if report.postmortem is not None:
        text = Path(report.postmortem).read_text(encoding="utf-8")
        summary = text.partition("## Summary\n")[2].partition("\n## ")[0].replace("**", "").strip()
        console.print("Its post-mortem begins", style="bold")
        console.print(f"  {summary}\n", markup=False)
    console.print("Next", style="bold")
    folder = current().state_dir
    fleetctl = "fleetctl" if folder is None else f"fleetctl --state-dir {shlex.quote(str(folder))}"
    replay = f"fleetctl top --replay {shlex.quote(report.blackbox)}" if report.blackbox else ""
    for command, what in [
        (f"{fleetctl} up --enable-faults", "a fleet that stays, and may be broken"),
        (f"{fleetctl} load --for 10m", "traffic for it, with its numbers as they come"),
        (f"{fleetctl} top", "the cockpit, in another terminal"),
        (f"{fleetctl} drill inject hung-core node-2", "break it in another way; `fleetctl drill list` has them all"),
        (f"{fleetctl} down", "and stop it"),
        *([(replay, "the screens you saw, over the black box of what happened")] if replay else []),
    ]:
        console.print(f"  {command}", markup=False, soft_wrap=True)
        console.print(f"      {what}", style="dim", markup=False)


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
