"""`discover`: whom the settings list, who answers there, and what is wrong with the list. No controller is needed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import typer

from fleetctl.cli.context import current
from fleetctl.cli.output import DATA, Column, Output, OutputOption, print_data, print_rows, stderr
from fleetctl.kit.errors import BadInputError
from fleetctl.wire.discovery import ListedNode

if TYPE_CHECKING:
    from fleetctl.discovery.inquiry import Answer

COLUMNS = [
    Column("name", lambda n: n.name),
    Column("answers", lambda n: "yes" if n.answers else "no"),
    Column("engine", lambda n: n.engine or "-"),
    Column("version", lambda n: n.version or "-"),
    Column("pool", lambda n: n.pool or "default"),
    Column("model", lambda n: n.model or "-"),
    Column("zone", lambda n: n.zone or "-", wide=True),
    Column("revision", lambda n: n.revision or "-", wide=True),
    Column("url", lambda n: n.url, wide=True),
    Column("listed by", lambda n: n.source, wide=True),
]


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def discover(output: OutputOption = Output.table) -> None:
        """Look once at everything that fleet.targets lists: who answers, which engine it is, what is wrong.

        Exit codes: 0 all answer, 1 some do not, 2 nothing is listed or a list can't be read.
        """
        from fleetctl.discovery.inquiry import ask_everybody

        fleet = current().settings().fleet
        groups, keys = fleet.targets, fleet.key_ring()
        if not groups:
            raise BadInputError("the settings list no nodes", remedy="fleet.targets: see docs/attach.md")
        found, answers = asyncio.run(ask_everybody(groups, keys))
        nodes = [_listed(answer) for answer in answers]
        if output in DATA:
            rows = [node.model_dump(mode="json") for node in nodes]
            print_data({"nodes": rows, "dropped": found.dropped, "problems": dict(found.problems)}, output)
        else:
            print_rows(nodes, COLUMNS, output, empty="nothing is listed")
            if found.dropped:
                stderr().print(f"{found.dropped} targets dropped by relabelling")
            for text in found.problems.values():
                stderr().print(f"error: {text}", markup=False)
        if found.problems or not nodes:
            raise typer.Exit(2)
        if not all(node.answers for node in nodes):
            raise typer.Exit(1)


def _listed(answer: Answer) -> ListedNode:
    """What the labels say holds, what they leave out is the engine's own word."""
    node, told = answer.node, answer.told
    return ListedNode(
        name=node.name,
        url=node.url,
        answers=told is not None,
        engine=node.engine or (told.engine if told else ""),
        version=told.version if told else "",
        pool=node.pool,
        model=node.model or (told.model if told else ""),
        zone=node.zone,
        revision=node.revision,
        facts=dict(node.facts),
        source=node.source,
    )
