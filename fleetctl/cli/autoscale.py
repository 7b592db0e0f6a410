"""`autoscale`: what the autoscaler would do with each pool, why, and how far it may go."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from fleetctl.cli.context import call, whoami
from fleetctl.cli.moment import clock
from fleetctl.cli.output import (
    DATA,
    Column,
    ListOutput,
    ListOutputOption,
    Output,
    OutputOption,
    print_data,
    print_fields,
    print_rows,
    print_table,
    stderr,
    stdout,
)
from fleetctl.kit.errors import BadInputError
from fleetctl.wire.autoscaler import AutoscalerPool, AutoscalerRequest

BACKTEST_LIMIT_S = 600.0  # for one step of it

COLUMNS = [
    Column("pool", lambda p: p.pool),
    Column("mode", lambda p: p.mode if p.mode == "advise" or p.acts else "act (a person's)"),
    Column("wanted", lambda p: str(p.wanted), right=True),
    Column("size", lambda p: "-" if p.size is None else str(p.size), right=True),
    Column("min", lambda p: str(p.min), right=True),
    Column("max", lambda p: str(p.max), right=True),
    Column("kv", lambda p: percent(p.kv_ratio), right=True, wide=True),
    Column("seats", lambda p: percent(p.seat_ratio), right=True, wide=True),
    Column("queue", lambda p: "-" if p.waiting is None else f"{p.waiting:.0f}", right=True, wide=True),
    Column("why", lambda p: p.why or "not judged yet"),
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(help="What the autoscaler would do, or does, with each pool.", no_args_is_help=True)
    app.add_typer(group, name="autoscale")

    @group.command()
    def status(output: ListOutputOption = ListOutput.table) -> None:
        """List each pool with the size that it has, the size that it should have, and why."""
        pools = call(lambda client: client.autoscaler())
        print_rows(pools, COLUMNS, output, empty="no pools")

    @group.command()
    def explain(pool: Annotated[str, typer.Argument(help="The pool.")], output: OutputOption = Output.table) -> None:
        """Show everything that the last judgement of a pool was made of."""
        found = _named(call(lambda client: client.autoscaler()), pool)
        if output in DATA:
            print_data(found.model_dump(mode="json"), output)
            return
        print_fields(f"pool {found.pool}", _fields(found))

    @group.command("set")
    def set_policy(
        pool: Annotated[str, typer.Argument(help="The pool.")],
        least: Annotated[int | None, typer.Option("--min", min=1, help="Nodes that it has at least.")] = None,
        most: Annotated[int | None, typer.Option("--max", min=1, help="Nodes that it has at most.")] = None,
        mode: Annotated[
            str | None,
            typer.Option("--mode", help="advise: only say it; act: scale, where the autoscaler owns the pool."),
        ] = None,
        output: OutputOption = Output.table,
    ) -> None:
        """Set how far the autoscaler may go with a pool. What is left out stays as it is."""
        if (least, most, mode) == (None, None, None):
            raise BadInputError("nothing to set", remedy="give --min, --max or --mode")
        request = AutoscalerRequest(min=least, max=most, mode=_mode(mode), by=whoami())
        found = call(lambda client: client.configure_autoscaler(pool, request))
        if output in DATA:
            print_data(found.model_dump(mode="json"), output)
            return
        stdout().print(f"pool {found.pool}: {found.mode}, {found.min} to {found.max} nodes", markup=False)
        if found.mode == "act" and not found.acts:
            stdout().print(
                f"a person owns its size, so nothing is done: fleetctl pool owner {found.pool} --to autoscaler",
                markup=False,
            )

    @group.command()
    def backtest(
        trace: Annotated[Path, typer.Argument(help="Azure's CSV or Mooncake's JSON lines, .gz too.")],
        minutes: Annotated[float | None, typer.Option("--minutes", min=0.1, help="Only the first of them.")] = None,
        least: Annotated[int, typer.Option("--min", min=1, help="Nodes at least.")] = 2,
        nodes: Annotated[
            int | None, typer.Option("--nodes", min=1, help="Nodes at the begin; default: as --min.")
        ] = None,
        most: Annotated[int, typer.Option("--max", min=1, help="Nodes at most.")] = 16,
        slo_s: Annotated[
            float, typer.Option("--slo", min=0.01, help="TTFT that a request should keep, seconds.")
        ] = 2.0,
        start_s: Annotated[
            float, typer.Option("--start", min=0, help="How long a node takes to start, seconds.")
        ] = 60.0,
        day_hours: Annotated[
            float | None,
            typer.Option("--day", min=0.1, max=24, help="Give the trace the shape of a day that takes so many hours."),
        ] = None,
        low_ratio: Annotated[
            float,
            typer.Option("--night", min=0.01, max=1, help="With --day: its lowest rate, as a share of its highest."),
        ] = 0.2,
        rate: Annotated[
            float, typer.Option("--rate", min=0.01, max=100, help="With --day: its highest, as times the trace's mean.")
        ] = 1.0,
        node: Annotated[
            Path | None, typer.Option("--node", help="JSON with limits and cost of a node; default: a small GPU's.")
        ] = None,
        output: OutputOption = Output.table,
    ) -> None:
        """Run recorded traffic through the simulator: the autoscaler beside the KV rule alone and fixed pools."""
        # Not at the top: every command would wait for the imports of this one.
        from fleetctl.controller.autoscaler.backtest import SMALL_GPU, BacktestSetup, run_backtest
        from fleetctl.controller.autoscaler.judgement import Bounds
        from fleetctl.controller.autoscaler.simulator import Simulator
        from fleetctl.controller.autoscaler.trace import as_day, read_trace
        from fleetctl.settings.autoscaler import AutoscalerSettings

        limits = AutoscalerSettings(ttft_slo_s=slo_s)
        profile = SMALL_GPU if node is None else _profile(node)
        bounds = Bounds(least, max(least, most))
        requests = read_trace(trace, minutes=minutes)
        if day_hours is not None:
            requests = as_day(requests, day_hours, low_ratio, rate)
        setup = BacktestSetup(requests, profile, limits, bounds, start_s, nodes or least)
        told = stderr()
        simulator = Simulator(deadline_s=BACKTEST_LIMIT_S)
        found = asyncio.run(
            run_backtest(setup, simulator, lambda name: told.print(f"simulating: {name}", markup=False))
        )
        if output in DATA:
            print_data([asdict(one) for one in found], output)
            return
        rows = [
            (
                one.name,
                f"{one.attained_ratio:.2%}",
                f"{one.ttft_p95_s:.2f} s",
                f"{one.node_hours:.2f}",
                str(one.largest),
                str(one.scalings),
            )
            for one in found
        ]
        print_table(("pool", f"TTFT <= {slo_s:g} s", "p95 TTFT", "node hours", "largest", "scalings"), rows, empty="-")


def percent(ratio: float | None) -> str:
    """A ratio for people; a dash for one that is not known."""
    return "-" if ratio is None else f"{ratio:.0%}"


def _profile(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise BadInputError(f"{path}: {error}", remedy='give {"limits": {...}, "cost": {...}}') from error
    if not isinstance(found, dict) or found.keys() != {"limits", "cost"}:
        raise BadInputError(f"{path}: no limits and cost", remedy='give {"limits": {...}, "cost": {...}}')
    return found


def _mode(given: str | None) -> Literal["advise", "act"] | None:
    match given:
        case None | "advise" | "act":
            return given
    raise BadInputError(f"--mode {given!r}", remedy="give advise or act")


def _named(pools: list[AutoscalerPool], name: str) -> AutoscalerPool:
    found = next((pool for pool in pools if pool.pool == name), None)
    if found is None:
        known = ", ".join(pool.pool for pool in pools) or "none"
        raise BadInputError(f"there is no pool {name}; pools: {known}")
    return found


def _fields(pool: AutoscalerPool) -> list[tuple[str, str]]:
    size = "not judged yet" if pool.size is None else f"{pool.size} ({pool.direction}): {pool.why}"
    start = "not measured yet" if pool.start_s is None else f"{pool.start_s:.0f} s"
    return [
        ("size", f"{pool.wanted} wanted"),
        ("judgement", size),
        ("check", pool.check or "none was needed"),
        ("mode", f"{pool.mode}, the pool is {'the autoscaler' if pool.owner == 'autoscaler' else 'a person'}'s"),
        ("bounds", f"{pool.min} to {pool.max} nodes"),
        ("KV in use", percent(pool.kv_ratio)),
        ("seats taken", percent(pool.seat_ratio)),
        ("queue", "-" if pool.waiting is None else f"{pool.waiting:.0f} requests"),
        ("start of a node", start),
        ("last out", "-" if pool.last_out_at is None else clock(pool.last_out_at)),
        ("last in", "-" if pool.last_in_at is None else clock(pool.last_in_at)),
        ("reversals", f"{pool.reversals} within the last hour"),
        ("judged", "-" if pool.judged_at is None else clock(pool.judged_at)),
    ]
