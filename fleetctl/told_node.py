"""A node as the stream of nodes tells it: what is shown of it, no more often than that changes.

A list tells ages, which are others each moment, and every digit of a signal. Here a signal is a number as it is shown,
and what is told of time is when: `at`, of the last scrape, the last evaluation of the signals, the last probe, the last
deep check. `node_of` makes a `Node` of it again, and `KnownNodes` follows what changes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from fleetctl.wire.gpu import Gpu
from fleetctl.wire.node import DeepCheck, Node, NodeChanges, Signal

Row = dict[str, Any]
Path = tuple[str, ...]
"""Where in a row a value is: its name, and within `at`, `lag` and `gpus` what it is of."""

SIGNALS = tuple(name for name, field in Node.model_fields.items() if field.annotation is Signal)
_OWN_FORM = {"name", "gpus", "deep_check", "signal_age_s", "probe_age_s", *SIGNALS}
_OF_ONE = {"abilities", "more", "more_why"}  # only told of a node that is asked for by its name
_PLAIN = {
    name: field.get_default(call_default_factory=True)
    for name, field in Node.model_fields.items()
    if name not in _OWN_FORM | _OF_ONE
}
_OF_CARD = {name: field.get_default(call_default_factory=True) for name, field in Gpu.model_fields.items()}
_DEPTHS = {"at": 1, "lag": 1, "gpus": 2}  # of what is told in parts
_QUICK = {*SIGNALS, "at", "lag", "deep_check"}  # a node is not checked anew for it
_LAG_STEP_S = 5.0  # of a signal whose rule is evaluated less often than others
_NO_AGE = -1.0
_DIGITS = 3  # a screen shows no more


def values_of(node: Node, now: float) -> Iterator[tuple[Path, Any]]:
    """What is told of a node that was seen so at `now` (Unix seconds). What is not known, or as it is by default, is
    left out."""
    for name, default in _PLAIN.items():
        value = getattr(node, name)
        if value != default:
            yield _path(name), value
    heard = [(name, one) for name in SIGNALS if (one := getattr(node, name)).value is not None]
    ages = [one.age_s for _, one in heard if one.age_s is not None]
    youngest_s = min(ages, default=None)
    for name, one in heard:
        if math.isfinite(one.value):
            yield _path(name), shown(one.value)
            lag_s = _NO_AGE if one.age_s is None or youngest_s is None else _lag(one.age_s - youngest_s)
            if lag_s:
                yield _path("lag", name), lag_s
    if node.deep_check.result != "unknown" or node.deep_check.detail:
        yield ("deep_check",), {"result": node.deep_check.result, "detail": node.deep_check.detail}
    ages_of = {
        "scraped": node.signal_age_s,
        "signals": youngest_s,
        "probed": node.probe_age_s,
        "checked": node.deep_check.age_s,
    }
    for name, age_s in ages_of.items():
        if age_s is not None:
            yield _path("at", name), round(now - age_s, 1)
    for card in node.gpus:
        gpu = card.gpu
        for name, value in card.__dict__.items():  # thousands of cards have twenty fields each
            if value is not None and name != "node" and value != _OF_CARD[name]:
                yield _path("gpus", gpu, name), _shown_of_card(name, value) if type(value) is float else value


def shown(value: float) -> float:
    """The number as far as anybody sees it."""
    return value if value == 0.0 else float(f"{value:.{_DIGITS}g}")


def nested(values: Iterable[tuple[Path, Any]]) -> Row:
    """The values, each in its place."""
    row: Row = {}
    for (*places, name), value in values:
        within = row
        for place in places:
            within = within.setdefault(place, {})
        within[name] = value
    return row


def node_of(name: str, row: Row, now: float) -> Node:
    """The node again, with ages as of `now`."""
    plain = {key: value for key, value in row.items() if key not in _DEPTHS and key not in SIGNALS}
    node = Node.model_validate({**plain, "name": name, "gpus": _cards(name, row)})
    return aged(node, row, now)


def aged(node: Node, row: Row, now: float) -> Node:
    """The node with its row's signals, and with ages as of `now`; what else is told of it is as it was."""
    at, lag = row.get("at", {}), row.get("lag", {})
    signals_s = _since(at.get("signals"), now)
    updated: dict[str, Any] = {}
    for name in SIGNALS:
        value, lag_s = row.get(name), lag.get(name, 0.0)
        age_s = None if value is None or signals_s is None or lag_s == _NO_AGE else signals_s + lag_s
        updated[name] = Signal(value=value, age_s=age_s)
    updated["signal_age_s"] = _since(at.get("scraped"), now)
    updated["probe_age_s"] = _since(at.get("probed"), now)
    updated["deep_check"] = DeepCheck(age_s=_since(at.get("checked"), now), **row.get("deep_check", {}))
    return node.model_copy(update=updated)


class KnownNodes:
    """The nodes as the stream has told them so far, and where it goes on.

    Give the same one to `ControllerClient.follow_nodes` again after a line was cut: only what changed since is sent.
    """

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}  # by name; ages are as of when each was last told
        self.changed: set[str] = set()  # names of those that are told anew, or gone, since it was last whole
        self.mark = ""  # the id where it was last whole
        self._rows: dict[str, Row] = {}
        self._is_whole = True

    def take(self, told: NodeChanges, mark: str = "") -> None:
        """What one event says. `mark`: its id; without one more belongs to it."""
        if self._is_whole:
            self.changed.clear()
        if told.whole:
            self.changed |= self.nodes.keys()
            self._rows.clear()
            self.nodes.clear()
            self.mark = ""
        for name in told.gone:
            self._rows.pop(name, None)
            self.nodes.pop(name, None)
        for name, row in told.new.items():
            self._rows[name] = row
            self.nodes[name] = node_of(name, row, told.now)
        for name, patch in told.changed.items():
            if name not in self._rows:
                continue  # no controller of ours tells of a change in what it did not tell
            row = self._rows[name]
            merge(row, patch)
            is_quick = all(key in _QUICK for key in patch)
            self.nodes[name] = aged(self.nodes[name], row, told.now) if is_quick else node_of(name, row, told.now)
        self.changed.update(told.gone, told.new, told.changed)
        self._is_whole = bool(mark)
        self.mark = mark or self.mark


def merge(row: Row, patch: Mapping[str, Any]) -> None:
    """What is told of changes in a row, into it. None: not known any more."""
    for key, value in patch.items():
        _put(row, key, value, _DEPTHS.get(key, 0))


def _put(into: dict[str, Any], key: str, value: Any, depth: int) -> None:
    if value is None:
        into.pop(key, None)
    elif depth:
        within = into.setdefault(key, {})
        for name, one in value.items():
            _put(within, name, one, depth - 1)
    else:
        into[key] = value


def _cards(name: str, row: Row) -> list[dict[str, Any]]:
    cards = row.get("gpus", {})
    return [{**told, "node": name} for _, told in sorted(cards.items()) if told]


@lru_cache(maxsize=4096)
def _path(*names: str) -> Path:
    """One object for each: who keeps the rows of many nodes keeps a hundred of them for each."""
    return names


def _shown_of_card(name: str, value: float) -> float:
    return round(value, 2) if name.endswith("_ratio") else shown(value)


def _lag(seconds: float) -> float:
    return round(seconds / _LAG_STEP_S) * _LAG_STEP_S


def _since(at: float | None, now: float) -> float | None:
    return None if at is None else max(0.0, now - at)
