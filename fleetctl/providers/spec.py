"""What a node should be: plain data, stored with the fleet's desired state."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

NODE_NAME = re.compile(r"^[a-z0-9][a-z0-9-]{0,62}$")


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """A node wanted by the fleet. `extra_args` go to `fleetctl-node serve` as they are."""

    name: str
    model_dir: str
    pool: str = "default"
    model: str = "model"  # the name clients ask for
    engine: str = "fleetctl"
    zone: str = "local"
    revision: str = "r1"
    extra_args: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not NODE_NAME.match(self.name):
            raise ValueError(f"node name {self.name!r}: use 1 to 63 of a-z, 0-9 and '-', not starting with '-'")

    def named(self, name: str) -> NodeSpec:
        """The same node under another name: what a replacement is."""
        return replace(self, name=name)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "extra_args": list(self.extra_args)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> NodeSpec:
        known = {f.name for f in fields(cls)}
        values = {key: value for key, value in data.items() if key in known}
        return cls(**{**values, "extra_args": tuple(values.get("extra_args", ()))})
