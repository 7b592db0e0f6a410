"""What a node can be started with, by name, and what is wrong with a setting that a person wrote. Pure."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from runbooks.errors import BadInputError

_NEAR = 0.5  # of difflib's ratio: below it two names have letters in common and nothing else
_FLAG = ("true", "false")


@dataclass(frozen=True, slots=True)
class NodeSetting:
    """How the value of one setting is written.

    `kind`: text, words, integer, number, flag (true or false) or switch (true alone). `fixed`: why nobody may set it
    for a whole revision; empty: anybody may.
    """

    kind: str = "text"
    least: float | None = None
    choices: tuple[str, ...] | None = None
    fixed: str = ""

    def why_not(self, value: str) -> str:
        """What such a value should have been; empty: it will do, as far as can be told without a start."""
        if self.choices is not None:
            return "" if value in self.choices else f"expected one of {', '.join(self.choices)}"
        if self.kind == "switch":
            return "" if value == "true" else "expected true; leave it out, or --unset it, for no"
        if self.kind == "flag":
            return "" if value in _FLAG else "expected true or false"
        if self.kind in ("integer", "number"):
            return self._why_no_number(value)
        return "" if value else "expected a value behind ="

    def _why_no_number(self, value: str) -> str:
        what = "a whole number" if self.kind == "integer" else "a number"
        try:
            number = int(value) if self.kind == "integer" else float(value)
        except ValueError:
            return f"expected {what}"
        if not math.isfinite(number):
            return f"expected {what}"
        return f"expected {self.least:g} or more" if self.least is not None and number < self.least else ""


def check_settings(known: Mapping[str, NodeSetting], settings: Iterable[str], remedy: str) -> None:
    """Raises BadInputError naming the first of `settings` (key=value) that no node would start with.

    `known` by names with dashes; `remedy` is a command in which `SETTING` stands for what should be typed.
    """
    for setting in settings:
        key, _, value = setting.partition("=")
        name = key.replace("_", "-")
        found = known.get(name)
        if found is None:
            near = difflib.get_close_matches(name, [one for one, is_ in known.items() if not is_.fixed], 1, _NEAR)
            meant = f"did you mean {near[0]}? {remedy.replace('SETTING', f'{near[0]}={value}')}" if near else None
            raise BadInputError(
                f"--set {setting}: a node has no setting {key}",
                remedy=meant or "`fleetctl-node serve --help` lists what there is",
            )
        why = found.fixed or found.why_not(value)
        if why:
            raise BadInputError(f"--set {setting}: {why}", remedy="`fleetctl-node serve --help` says what it takes")


def check_unset(given: Iterable[str], keys: Iterable[str], revision: str, pool: str) -> None:
    """Raises BadInputError naming the first of `keys` that the revision, whose settings are `given`, does not have."""
    names = sorted(one.replace("_", "-") for one in given)
    for key in keys:
        name = key.replace("_", "-")
        if name not in names:
            near = difflib.get_close_matches(name, names, 1, _NEAR)
            raise BadInputError(
                f"--unset {key}: revision {revision} has no such setting; it has {', '.join(names) or 'none'}",
                remedy=f"did you mean {near[0]}? fleetctl rollout start {pool} --unset {near[0]} --dry-run"
                if near
                else f"fleetctl describe revision {revision}",
            )
