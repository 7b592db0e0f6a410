"""`hosts`: the nodes that the settings have on hosts, as they are there now; or the commands that would be run."""

from __future__ import annotations

import shlex
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Annotated

import typer

from fleetctl.cli.context import current
from fleetctl.cli.output import Column, Output, OutputOption, print_rows
from fleetctl.kit.errors import BadInputError, UnreachableError
from fleetctl.wire.hosts import HostCommand, ListedUnit

if TYPE_CHECKING:
    from fleetctl.providers.hosts.options import Place
    from fleetctl.providers.hosts.provider import HostsProvider

COLUMNS = [
    Column("name", lambda u: u.name),
    Column("runs", lambda u: u.runs),
    Column("host", lambda u: u.host),
    Column("unit", lambda u: u.unit),
    Column("pool", lambda u: u.pool),
    Column("model", lambda u: u.model, wide=True),
    Column("zone", lambda u: u.zone or "-", wide=True),
    Column("sku", lambda u: u.sku or "-", wide=True),
    Column("url", lambda u: u.url, wide=True),
    Column("instance", lambda u: u.instance or "-", wide=True),
    Column("why", lambda u: u.why),
]
COMMAND_COLUMNS = [
    Column("name", lambda c: c.name),
    Column("for", lambda c: c.what),
    Column("command", lambda c: shlex.join(c.words)),
]


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def hosts(
        names: Annotated[
            list[str] | None, typer.Argument(metavar="[NODE]...", help="Only these.", show_default=False)
        ] = None,
        dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the exact commands; run none.")] = False,
        output: OutputOption = Output.table,
    ) -> None:
        """Look once at every node of providers.hosts: whether its unit runs. No controller is needed.

        Exit codes: 0 all hosts could be looked at, 2 there are none, 4 some could not.
        """
        from fleetctl.providers.hosts.options import hosts_options
        from fleetctl.providers.hosts.provider import HostsProvider

        settings = current().settings().providers.hosts
        if settings is None:
            raise BadInputError("the settings have no hosts", remedy="providers.hosts: see docs/providers.md")
        provider = HostsProvider(hosts_options(settings.model_dump()))
        if unknown := [name for name in names or () if name not in provider.places]:
            raise BadInputError(f"providers.hosts.nodes has no {unknown[0]}", remedy="fleetctl hosts")
        places = [provider.places[name] for name in names or provider.places]
        if dry_run:
            print_rows(_commands(provider, places), COMMAND_COLUMNS, output, empty="")
            return
        with ThreadPoolExecutor(max_workers=16) as pool:
            units = list(pool.map(lambda place: _look(provider, place), places))
        print_rows(units, COLUMNS, output, empty="")
        if any(unit.runs == "unknown" for unit in units):
            raise typer.Exit(4)


def _look(provider: HostsProvider, place: Place) -> ListedUnit:
    known = {"name": place.name, "host": place.host, "unit": place.unit, "pool": place.pool, "model": place.model}
    known |= {"zone": place.zone, "sku": place.sku, "url": place.url}
    try:
        seen = provider.observe(place.name)
    except UnreachableError as error:
        return ListedUnit(runs="unknown", why=error.message, **known)
    return ListedUnit(runs="yes" if seen.running else "no", instance=seen.instance, why=seen.trouble, **known)


def _commands(provider: HostsProvider, places: list[Place]) -> list[HostCommand]:
    """Each with what a template fills in by itself; the cursor of a log is the journal's."""
    made = provider.commands
    units = {place.host: [one.unit for one in provider.places.values() if one.host == place.host] for place in places}
    return [
        HostCommand(name=place.name, what=what, words=words)
        for place in places
        for what, words in (
            ("observe", made.observe(place.host, units[place.host])),
            ("start", made.start(place)),
            ("stop", made.stop(place)),
            ("kill", made.kill(place)),
            ("logs", made.logs(place, 50)),
            ("logs after", made.logs_after(place, "CURSOR")),
        )
    ]
