"""What a node should be: plain data, stored with the fleet's desired state."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from typing import Any

NODE_NAME = re.compile(r"^[a-z0-9][a-z0-9-]{0,62}$")

OptionValue = str | int | float | bool | list[str] | None


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """A node wanted by the fleet: what everybody knows of it, and the options of what the provider starts."""

    name: str
    pool: str = "default"
    model: str = "model"  # the name clients ask for
    engine: str = "fleetctl"
    zone: str = "local"
    revision: str = "r1"
    provider: str = "local"  # who runs it: see `fleetctl.providers.providers`
    facts: Mapping[str, str] = field(default_factory=dict)
    """What else is known of it: host, gpu, sku, version, and of a node that was found its addresses and its source."""
    options: Mapping[str, OptionValue] = field(default_factory=dict)
    """For the provider, which passes them on: the engine checks them, nobody else looks inside."""

    def __post_init__(self) -> None:
        if not NODE_NAME.match(self.name):
            raise ValueError(f"node name {self.name!r}: use 1 to 63 of a-z, 0-9 and '-', not starting with '-'")

    @property
    def api_key(self) -> str:
        """Name of the key that the node wants of whoever asks it; empty: none. Of one that we start it is an option."""
        named = self.facts.get("api_key") or self.options.get("api_key")
        return named if isinstance(named, str) else ""

    def named(self, name: str) -> NodeSpec:
        """The same node under another name: what a replacement is. Its facts are its own."""
        return replace(self, name=name, facts={})

    def to_json(self) -> dict[str, Any]:
        """The spec as it is stored."""
        return {**asdict(self), "facts": dict(self.facts), "options": dict(self.options)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> NodeSpec:
        """A stored spec; keys that this version does not know are left out.

        Specs stored before 0.2 say `model_dir` and `extra_args` instead of `options`.
        """
        known = _field_names()
        values = {key: value for key, value in data.items() if key in known}
        if "options" not in values:
            model = {"model": data["model_dir"]} if "model_dir" in data else {}
            values["options"] = {**model, **options_from_words(data.get("extra_args", ()))}
        return cls(**values)


@cache
def _field_names() -> frozenset[str]:
    """Of a spec. Thousands are read from the database each second."""
    return frozenset(one.name for one in fields(NodeSpec))


def options_from_words(words: Sequence[str]) -> dict[str, OptionValue]:
    """The options in words of a command line: `--max-num-seqs 8 --enable-faults` is {max_num_seqs: "8", ...: True}.

    Raises ValueError for a word that belongs to no option.
    """
    options: dict[str, OptionValue] = {}
    key = ""
    for word in words:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            key = name.replace("-", "_")
            options[key] = value if equals else True
        elif not key:
            raise ValueError(f"{word!r}: expected an option like --max-num-seqs before it")
        else:
            standing = options[key]
            options[key] = (
                word if standing is True else [*(standing if isinstance(standing, list) else [str(standing)]), word]
            )
    return options


def words_from_options(options: Mapping[str, OptionValue]) -> list[str]:
    """The options as words of a command line. True is the bare option, False its `--no-` form, None is left out."""
    words: list[str] = []
    for key, value in options.items():
        name = key.replace("_", "-")
        if value is None:
            continue
        if isinstance(value, bool):
            words.append(f"--{name}" if value else f"--no-{name}")
        else:
            words += [f"--{name}", *(value if isinstance(value, list) else [str(value)])]
    return words
