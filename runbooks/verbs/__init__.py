"""The table of verbs: every module of this folder adds its `VERBS`. See the README for how to add one.

Command line, cockpit, API, pages and guards read `VERBS` and nothing else.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from types import MappingProxyType

from runbooks.verb import Verb


def _load() -> Mapping[str, Verb]:
    table: dict[str, Verb] = {}
    for module in sorted(pkgutil.iter_modules(__path__), key=lambda found: found.name):
        declared: tuple[Verb, ...] = importlib.import_module(f"{__name__}.{module.name}").VERBS
        for verb in declared:
            if verb.name in table:
                raise ValueError(f"{module.name}.py declares {verb.name!r}, which another file has")
            table[verb.name] = verb
    return MappingProxyType(table)


VERBS = _load()
