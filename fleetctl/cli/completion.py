"""What the shell offers after TAB. Names come from the controller; when it doesn't answer at once, none are offered."""

from __future__ import annotations

import asyncio

import typer

from fleetctl.cli.context import Context, make_client
from fleetctl.cli.kinds import MODELS, VIEWS, Kind
from fleetctl.kit.errors import FleetctlError

PATIENCE_S = 1.0


def complete_kind(incomplete: str) -> list[str]:
    """Kinds in the plural, and in the singular once that is what is being typed."""
    plural = [kind.value for kind in Kind if kind.value.startswith(incomplete)]
    return plural or [kind.singular for kind in Kind if kind.singular.startswith(incomplete)]


def complete_one_kind(incomplete: str) -> list[str]:
    """Kinds of which one can be described."""
    return [kind.singular for kind in Kind if VIEWS[kind].read_one and kind.singular.startswith(incomplete)]


def complete_field(incomplete: str) -> list[str]:
    """Kinds, and the fields of one after its dot."""
    kind, dot, name = incomplete.partition(".")
    if not dot:
        return complete_kind(incomplete)
    found = next((one for one in Kind if kind in (one.value, one.singular)), None)
    fields = MODELS[found].model_fields if found is not None else {}
    return [f"{kind}.{field}" for field in fields if field.startswith(name)]


def complete_name(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of the kind that stands before."""
    kind = _kind_of(ctx)
    if kind is None or kind is Kind.events:
        return []
    given = set(ctx.params.get("names") or ())
    return [name for name in _names(ctx, kind) if name.startswith(incomplete) and name not in given]


def complete_node(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of nodes."""
    return [name for name in _names(ctx, Kind.nodes) if name.startswith(incomplete)]


def complete_runbook(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of runbooks."""
    return [name for name in _names(ctx, Kind.runbooks) if name.startswith(incomplete)]


def complete_run(ctx: typer.Context, incomplete: str) -> list[str]:
    """Ids of runs."""
    return [name for name in _names(ctx, Kind.runs) if name.startswith(incomplete)]


def complete_incident(ctx: typer.Context, incomplete: str) -> list[str]:
    """Ids of incidents."""
    return [name for name in _names(ctx, Kind.incidents) if name.startswith(incomplete)]


def complete_revision(ctx: typer.Context, incomplete: str) -> list[str]:
    """Ids of revisions."""
    return [name for name in _names(ctx, Kind.revisions) if name.startswith(incomplete)]


def complete_label(ctx: typer.Context, incomplete: str) -> list[str]:
    """Labels that rows of the kind have, with their values."""
    kind = _kind_of(ctx)
    if kind is None:
        return []
    found = set()
    for row in _rows(ctx, kind):
        for key, values in VIEWS[kind].labels(row).items():
            found |= {f"{key}={value}" for value in ([values] if isinstance(values, str) else values) if value}
    return sorted(pair for pair in found if pair.startswith(incomplete))


def complete_sort_key(ctx: typer.Context, incomplete: str) -> list[str]:
    """Columns of the kind."""
    kind = _kind_of(ctx)
    titles = [column.title.lower() for column in VIEWS[kind].columns] if kind is not None else []
    return [title for title in titles if title.startswith(incomplete.lower())]


def _kind_of(ctx: typer.Context) -> Kind | None:
    text = ctx.params.get("kind")
    return next((kind for kind in Kind if text in (kind.value, kind.singular)), None)


def _names(ctx: typer.Context, kind: Kind) -> list[str]:
    return list(dict.fromkeys(VIEWS[kind].name(row) for row in _rows(ctx, kind)))


def _rows(ctx: typer.Context, kind: Kind) -> list[object]:
    """Rows of the kind; none when the controller can't be asked: nobody waits for TAB."""
    flags = ctx.find_root().params
    given = Context(flags.get("config"), flags.get("state_dir"), flags.get("controller"), flags.get("log_level"))

    async def read() -> list[object]:
        async with make_client(given.settings()) as client:
            async with asyncio.timeout(PATIENCE_S):
                return list(await (VIEWS[kind].read_newest or VIEWS[kind].read_all)(client))

    try:
        return asyncio.run(read())
    except (FleetctlError, TimeoutError):
        return []
