"""Whether the nodes that stay have room, in seats and KV, for what those that leave hold. Pure; unknown is said."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from runbooks.fleet_view import FleetView
from runbooks.ports import NodeRoom


def room_words(leaving: frozenset[str], fleet: FleetView, rooms: Mapping[str, NodeRoom] | None) -> str:
    """For each model that loses nodes: what may be moved, what the others have room for, and whether that is enough.

    Empty when nodes that are not known leave, or none.
    """
    nodes = fleet.nodes or {}
    models = sorted({nodes[name].model for name in leaving if name in nodes})
    return "; ".join(_of_model(model, leaving, fleet, rooms or {}, len(models) > 1) for model in models)


def _of_model(
    model: str, leaving: frozenset[str], fleet: FleetView, rooms: Mapping[str, NodeRoom], is_one_of_several: bool
) -> str:
    nodes = fleet.nodes or {}
    members = {name for name, node in nodes.items() if node.model == model}
    gone = [rooms.get(name, NodeRoom()) for name in sorted(leaving & members)]
    stay = [rooms.get(name, NodeRoom()) for name in sorted(((fleet.serving or frozenset()) & members) - leaving)]
    held, kv = _sum(one.held for one in gone), _sum(one.kv_used for one in gone)
    seats = _sum(None if one.seats is None or one.held is None else max(0, one.seats - one.held) for one in stay)
    free = _sum(None if one.kv_size is None or one.kv_used is None else one.kv_size - one.kv_used for one in stay)
    of = f" of {model}" if is_one_of_several else ""
    staying = f"{len(stay)} {'node stays' if len(stay) == 1 else 'nodes stay'}"
    told = f"moves up to {_count(held)} requests{of} ({_count(kv)} KV tokens); {staying}"
    told += f" with {_count(seats)} free seats and {_count(free)} free KV tokens"
    return f"{told}: {_judgement(held, kv, seats, free, len(stay))}"


def _judgement(held: int | None, kv: int | None, seats: int | None, free: int | None, num_stay: int) -> str:
    if held == 0:
        return "nothing is moved"
    if not num_stay:
        return "nobody is there to take them"
    short = []
    if held is not None and seats is not None and held > seats:
        short.append(f"{held - seats} wait for a seat")
    if kv is not None and free is not None and kv > free:
        short.append(f"{kv - free:,} KV tokens do not fit now")
    if short:
        return ", ".join(short)
    return "not known whether it is enough" if None in (held, kv, seats, free) else "enough"


def _sum(values: Iterable[int | None]) -> int | None:
    total = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total


def _count(value: int | None) -> str:
    return "an unknown number of" if value is None else f"{value:,}"
