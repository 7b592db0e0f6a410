"""`drill`: break a node on purpose, where nodes were started for it, and mend it again."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from fleetctl.cli.act import AsksNothing, Yes, confirm
from fleetctl.cli.completion import complete_node
from fleetctl.cli.context import call, current
from fleetctl.cli.output import DATA, Output, OutputOption, print_data, print_table, stdout
from fleetctl.kit.errors import BadInputError


@dataclass(frozen=True, slots=True)
class DrillFault:
    """One way to break a node. `usual` is what is sent without --value; None: there must be one."""

    key: str  # in the node's API
    usual: float | int | bool | tuple[str, ...] | None
    meaning: str

    def value_of(self, text: str | None) -> Any:
        """What is sent to the node. Raises BadInputError."""
        if text is None:
            return list(self.usual) if isinstance(self.usual, tuple) else self.usual
        if isinstance(self.usual, bool):
            raise BadInputError(f"{self.key}: it is on or off, and takes no --value")
        if isinstance(self.usual, tuple):
            return [part.strip() for part in text.split(",") if part.strip()]
        try:
            return int(text) if isinstance(self.usual, int) else float(text)
        except ValueError as error:
            raise BadInputError(f"--value {text[:40]!r}: a number, please") from error


FAULTS: Mapping[str, DrillFault] = {
    "slow-steps": DrillFault("slow_steps", 6.0, "each step takes so many times as long"),
    "slow-decode": DrillFault("slow_decode", 6.0, "each step without a prompt takes so many times as long"),
    "row-seconds": DrillFault("row_seconds", 0.02, "each step takes so many seconds longer for each of its sequences"),
    "slow-tokenizer": DrillFault("slow_tokenizer", 2.0, "tokenising takes so many seconds longer"),
    "hung-core": DrillFault("hung_core", True, "the core does nothing more and says nothing"),
    "wrong-numbers": DrillFault("wrong_numbers", True, "answers are not those of the model"),
    "kv-leak": DrillFault("kv_leak", 4, "so many KV blocks are lost at each step"),
    "oom-next": DrillFault("oom_next", 3, "so many of the next steps run out of memory"),
    "prefix-cache-off": DrillFault("prefix_cache_off", True, "nothing is found in the prefix cache"),
    "failing-share": DrillFault("failing_share", 0.2, "this share of new requests ends with an error"),
    "metrics-frozen": DrillFault("metrics_frozen", True, "/metrics answers what it answered when this was set"),
    "metrics-missing": DrillFault("metrics_missing", ("vllm:",), "series whose names begin so are left out"),
    "metrics-nan": DrillFault("metrics_nan", ("vllm:",), "series whose names begin so are NaN"),
    "metrics-renamed": DrillFault("metrics_renamed", ("vllm:",), "series whose names begin so end in _renamed"),
}

FaultName = Annotated[
    str,
    typer.Argument(
        metavar="FAULT",
        help="`fleetctl drill list` has them.",
        autocompletion=lambda incomplete: [name for name in FAULTS if name.startswith(incomplete)],
    ),
]
NodeName = Annotated[str, typer.Argument(metavar="NODE", help="Name of the node.", autocompletion=complete_node)]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(no_args_is_help=True)
    app.add_typer(group, name="drill")

    @group.command("list")
    def list_faults(
        node: Annotated[
            str, typer.Argument(help="What is on there; none: all there are.", autocompletion=complete_node)
        ] = "",
        output: OutputOption = Output.table,
    ) -> None:
        """List the faults that a node can be given, or those that are on at one."""
        if node:
            _show(node, _change(node, None), output)
            return
        rows = [(name, _usual(fault), fault.meaning) for name, fault in FAULTS.items()]
        if output in DATA:
            print_data([{"fault": name, "usual": usual, "meaning": meaning} for name, usual, meaning in rows], output)
        else:
            print_table(("fault", "usual value", "what it does"), rows, empty="")

    @group.command("inject")
    def inject(
        fault: FaultName,
        node: NodeName,
        value: Annotated[
            str | None, typer.Option("--value", help="How much, or names with commas; else the usual.")
        ] = None,
        yes: Yes = False,
        output: OutputOption = Output.table,
    ) -> None:
        """Break a node on purpose. Its users notice: nodes take faults only where fleet.enable_faults says so."""
        found = fault_of(fault)
        asked = found.value_of(value)
        confirm(f"inject {fault} into {node}", yes=yes)
        _show(node, _change(node, {found.key: asked}), output)

    @group.command("clear")
    def clear(
        fault: Annotated[str, typer.Argument(metavar="FAULT", help="Which; all: every one.")],
        node: NodeName,
        yes: AsksNothing = False,
        output: OutputOption = Output.table,
    ) -> None:
        """Mend a node that was broken on purpose."""
        chosen = FAULTS.values() if fault == "all" else [fault_of(fault)]
        _show(node, _change(node, {one.key: None for one in chosen}), output)


def fault_of(name: str) -> DrillFault:
    """The fault of this name. Raises BadInputError."""
    if name not in FAULTS:
        raise BadInputError(f"there is no fault {name[:50]!r}", remedy=f"one of {', '.join(FAULTS)}")
    return FAULTS[name]


def _usual(fault: DrillFault) -> str:
    if isinstance(fault.usual, bool):
        return "on"
    return ",".join(fault.usual) if isinstance(fault.usual, tuple) else f"{fault.usual:g}"


def _worded(name: str, value: Any) -> str:
    """A fault that is on, as it is typed: `kv-leak 4`, `metrics-nan vllm:`, `hung-core`."""
    if value is True:
        return name
    return f"{name} {','.join(map(str, value))}" if isinstance(value, list) else f"{name} {value:g}"


def _change(node: str, faults: Mapping[str, Any] | None) -> dict[str, Any]:
    from fleetctl.node_faults import change_faults_at

    url = call(lambda client: client.node(node)).url
    on = asyncio.run(change_faults_at(node, url, current().settings().node_token(), faults))
    return {name: value for name, value in on.items() if value is not None}


def _show(node: str, on: Mapping[str, Any], output: Output) -> None:
    if output in DATA:
        print_data({"node": node, "faults": dict(on)}, output)
        return
    told = ", ".join(_worded(name, on[fault.key]) for name, fault in FAULTS.items() if fault.key in on)
    stdout().print(f"{node}: {told or 'no fault is on'}", markup=False)
    if on:
        stdout().print("  to see it found: fleetctl top", markup=False)
        stdout().print(f"  to mend it: fleetctl drill clear all {node}", markup=False)
