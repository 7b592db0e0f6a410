"""`reroute list` and `shed list`: what the gateways are ordered to do with requests. The orders are verbs."""

from __future__ import annotations

import typer

from fleetctl.cli.act import command_group
from fleetctl.cli.context import call
from fleetctl.cli.kinds import VIEWS, Kind
from fleetctl.cli.output import ListOutput, ListOutputOption, print_rows


def register(app: typer.Typer) -> None:
    """Add the commands."""

    @command_group(app, "shed").command("list")
    def list_sheds(output: ListOutputOption = ListOutput.table) -> None:
        """List what is turned away by order; `fleetctl get traffic-rules` lists every kind of rule."""
        view = VIEWS[Kind.traffic_rules]
        rules = [rule for rule in call(lambda client: client.traffic_rules()) if rule.kind == "shed"]
        print_rows(rules, view.columns, output, empty="nothing is turned away", name=view.name)

    @command_group(app, "reroute").command("list")
    def list_reroutes(output: ListOutputOption = ListOutput.table) -> None:
        """List the reroutes in force; `fleetctl get traffic-rules` lists every kind of rule."""
        view = VIEWS[Kind.traffic_rules]
        rules = [rule for rule in call(lambda client: client.traffic_rules()) if rule.kind == "reroute"]
        print_rows(rules, view.columns, output, empty="no reroutes", name=view.name)
