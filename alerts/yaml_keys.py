"""Where a YAML document's keys stand, and which are given twice: YAML itself lets the last one win without a word.

For rules, trees, causes, pages and policies. Tenants and settings are read by the same code in
`fleetctl/kit/yaml_keys.py`: what the client imports must run without `alerts` (a test holds the two to each other).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import yaml

REMEDY = "keep one"

_MERGE = "tag:yaml.org,2002:merge"  # `<<` may stand twice: each brings another mapping


class GivenTwice(NamedTuple):
    """A key that its mapping has already. `line`: of the second one, from 1."""

    path: tuple[Hashable, ...]
    line: int

    def __str__(self) -> str:
        return f"{dotted(self.path)!r} is given twice"


@dataclass(frozen=True, slots=True)
class YamlKeys:
    """`lines`: the line of each key and list entry by its path, from 1. `twice`: in the order of the file."""

    lines: Mapping[tuple[Hashable, ...], int] = field(repr=False)
    twice: tuple[GivenTwice, ...]

    def line_of(self, *path: Hashable) -> int:
        """The line of the longest part of `path` that is in the file; 0 for none of it."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 0)


def read_document(
    text: str, loader_type: type[yaml.SafeLoader] | type[yaml.CSafeLoader] = yaml.SafeLoader
) -> tuple[Any, YamlKeys]:
    """What a text says, None being nothing, and its keys: parsed once. Raises yaml.YAMLError, RecursionError."""
    loader = loader_type(text)
    try:
        root = loader.get_single_node()
        keys = read_keys(root)
        return None if root is None else loader.construct_document(root), keys
    finally:
        loader.dispose()


def read_keys(root: yaml.Node | None) -> YamlKeys:
    """The keys below a composed document, before merge keys are resolved."""
    lines: dict[tuple[Hashable, ...], int] = {}
    twice: list[GivenTwice] = []
    walked: set[int] = set()  # an anchor's node stands at each alias: ten of ten of ten would be a thousand walks
    left: list[tuple[yaml.Node, tuple[Hashable, ...]]] = [] if root is None else [(root, ())]
    while left:
        node, path = left.pop()
        if id(node) in walked:
            continue
        walked.add(id(node))
        below: list[tuple[yaml.Node, tuple[Hashable, ...]]] = []
        if isinstance(node, yaml.SequenceNode):
            for index, entry in enumerate(node.value):
                here = (*path, index)
                lines[here] = entry.start_mark.line + 1
                below.append((entry, here))
        elif isinstance(node, yaml.MappingNode):
            seen: set[str] = set()
            for key, value in node.value:
                here = (*path, key.value if isinstance(key, yaml.ScalarNode) else "")
                if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE:
                    if key.value in seen:
                        twice.append(GivenTwice(here, key.start_mark.line + 1))
                    seen.add(key.value)
                lines.setdefault(here, key.start_mark.line + 1)
                below.append((value, here))
        left.extend(reversed(below))
    return YamlKeys(lines, tuple(sorted(twice, key=lambda one: one.line)))


def dotted(path: tuple[Hashable, ...]) -> str:
    """A path as people write it: `tenants.a.keys[0]`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")[:200]
