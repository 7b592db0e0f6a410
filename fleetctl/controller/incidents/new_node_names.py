"""Names for new nodes that a page starts: from the node that is replaced, and the names that were ever used."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from runbooks.page import Page
from runbooks.ports import NodeFacts
from runbooks.value import ValueType

NO_NAMES: Mapping[str, Sequence[str]] = {}


def given_names(nodes: Iterable[NodeFacts]) -> dict[str, Sequence[str]]:
    """By node, the names that nodes like it can have, where not any."""
    return {node.name: node.capacity.names for node in nodes if node.capacity.names}


def with_new_nodes(
    page: Page, inputs: Mapping[str, str], used: Collection[str], given: Mapping[str, Sequence[str]] = NO_NAMES
) -> dict[str, str]:
    """The inputs, with a fresh name for every new node that the caller left to us; one of those `given`, where a node
    like that can't have any."""
    node = inputs.get("node", "node-1")
    fresh = {
        name: given[node][0] if node in given else fresh_name(node, used)
        for name in page.inputs
        if _is_new_node(page, name) and name not in inputs
    }
    return {**inputs, **fresh}


def new_nodes(page: Page, inputs: Mapping[str, str]) -> dict[str, str]:
    """Those of the inputs that name a new node."""
    return {name: value for name, value in inputs.items() if _is_new_node(page, name)}


def _is_new_node(page: Page, name: str) -> bool:
    spec = page.inputs.get(name)
    return spec is not None and spec.type is ValueType.NEW_NODE


def fresh_name(name: str, used: Collection[str]) -> str:
    """node-2 becomes node-2b, then node-2c...; a name that was ever used is not used again."""
    match = re.fullmatch(r"(.*\d)([b-z])?", name)
    base = match[1] if match else name
    if match:
        for letter in "bcdefghijklmnopqrstuvwxyz":
            if f"{base}{letter}" not in used and len(base) < 63:
                return f"{base}{letter}"
    number = 2
    while f"{base[:50]}-{number}" in used:
        number += 1
    return f"{base[:50]}-{number}"
