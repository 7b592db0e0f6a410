"""`doctor`: this installation and what it reaches, looked at once, and how to mend what is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer

from fleetctl.cli.context import current, make_client
from fleetctl.cli.output import DATA, Output, OutputOption, print_data, stdout
from fleetctl.kit.errors import BadInputError, FleetctlError

if TYPE_CHECKING:
    from fleetctl.doctor.finding import Finding
    from fleetctl.settings.tree import Settings


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command("doctor")
    def doctor(output: OutputOption = Output.table) -> None:
        """Look at this installation and all that it reaches, and say how to mend what is wrong."""
        found: list[Finding] = []
        for one in _findings():
            found.append(one)
            if output not in DATA:
                _print(one)
        if output in DATA:
            told = [{"check": f.check, "health": f.health.value, "seen": f.seen, "mend": f.mend} for f in found]
            print_data(told, output)
        bad = [one for one in found if one.health == "bad"]
        if bad:
            remedy = bad[0].mend or None
            raise FleetctlError(f"{len(bad)} of {len(found)} checks are bad, the first: {bad[0].check}", remedy=remedy)


def _print(one: Finding) -> None:
    """Its line at once: what does not answer is waited for."""
    stdout().print(f"{one.check:<13} {one.health.value:<9} {one.seen}", markup=False)
    if one.mend and one.health in ("bad", "doubtful"):
        stdout().print(f"{'':<23} to mend it: {one.mend}", markup=False)


def _findings() -> Iterator[Finding]:
    from fleetctl.doctor.finding import Finding, Health
    from fleetctl.doctor.here import check_disk, check_installation, check_nvml, check_state_dir
    from fleetctl.kit.version import software_version

    version = software_version()
    yield from check_installation(version)
    try:
        settings = current().settings()
    except BadInputError as error:
        yield Finding("settings", Health.bad, error.message, error.remedy or "fleetctl config explain")
        return
    used = sorted({origin for origin in settings._origins.values() if origin != "flag"})
    yield Finding("settings", Health.good, f"from {', '.join(used)}" if used else "all defaults: no file, no variables")
    yield from check_state_dir(settings)
    yield from check_disk(settings)
    yield from check_nvml()
    yield from _beyond(settings, version)


def _beyond(settings: Settings, version: str) -> Iterator[Finding]:
    import asyncio

    from fleetctl.doctor.fleet import check_fleet
    from fleetctl.doctor.monitoring import check_monitoring

    async def ask() -> list[Finding]:
        async with make_client(settings) as client:
            return await check_fleet(client, version)

    yield from asyncio.run(ask())
    yield from check_monitoring(settings, _our_alerts)


def _our_alerts() -> set[str]:
    """Names of the alerts in force here."""
    from fleetctl.cli.alerts import names_in_force

    return names_in_force()
