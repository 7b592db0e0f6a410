"""A page of what can be done to each kind of engine, written from the table. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from fleetctl.engines.kind import Can, Cannot, EngineKind
from fleetctl.engines.table import ENGINES
from runbooks.ability import Ability

MADE_BY = (
    "<!-- Made by `fleetctl content docs docs/engines --of engines` from fleetctl/engines/table.py: change that. -->"
)
OF_PROVIDERS = (Ability.START, Ability.STOP, Ability.RESTART, Ability.LOGS, Ability.CORDON_HOST)


def engine_pages() -> dict[str, str]:
    """File name to text: the table, and a page per engine."""
    pages = {f"{kind.name}.md": "\n".join(_page(kind)) + "\n" for kind in ENGINES.values()}
    return {"README.md": "\n".join(_index()) + "\n", **pages}


def _index() -> Iterator[str]:
    kinds = list(ENGINES.values())
    own = [ability for ability in Ability if ability not in OF_PROVIDERS]
    yield from ("# Engines", "", MADE_BY, "")
    yield "What can be done to a node by its engine; `fleetctl describe node NAME` says it of one node. What can't be"
    yield "done is refused with the reason (exit code 3) before anything is touched. Whether a node can be started,"
    yield "stopped and restarted, and its log read, is a matter of who runs it: [providers](../providers.md). How nodes"
    yield "that run already are found: [attach](../attach.md)."
    yield ""
    yield "| | " + " | ".join(f"[{kind.name}]({kind.name}.md)" for kind in kinds) + " |"
    yield "|---" * (len(kinds) + 1) + "|"
    for ability in own:
        cells = ("yes" if isinstance(kind.abilities[ability], Can) else "-" for kind in kinds)
        yield f"| {ability.value} | " + " | ".join(cells) + " |"
    yield ""
    yield "Names of metrics: `alerts/signals/`, one file per engine; what each lacks stands at its head."


def _page(kind: EngineKind) -> Iterator[str]:
    yield from (f"# {kind.name}: {kind.title}", "", MADE_BY, "")
    yield f"- ready: `GET {kind.ready_paths[0]}`" + "".join(f", where that is 404 `{p}`" for p in kind.ready_paths[1:])
    yield f"- metrics: `GET {kind.metrics_path}`" if kind.metrics_path else "- metrics: not read, as none are known"
    if kind.version_paths:
        yield "- version: " + " or ".join(f"`GET {path}`" for path in kind.version_paths)
    option = f"; `{kind.at_stop_option}`" if kind.at_stop_option else ""
    yield f"- SIGTERM: it {kind.at_stop}{option}"
    yield from ("", "| what | can | how, or why not |", "|---|---|---|")
    for ability, capability in kind.abilities.items():
        match capability:
            case Can(how, call):
                yield f"| {ability.value} | yes | {how}{f'; `{call}`' if call else ''} |"
            case Cannot(why):
                yield f"| {ability.value} | no | {why} |"
