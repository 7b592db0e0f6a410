"""What nodes cost: by the settings, by SKU. What has no price there is not known, and not free."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fleetctl.providers.spec import NodeSpec


@dataclass(frozen=True, slots=True)
class NodeCosts:
    """Price of a node-hour, by SKU or by the name of its GPU."""

    per_hour: Mapping[str, float] = field(default_factory=dict)

    def of(self, spec: NodeSpec, cards: Iterable[str] = ()) -> float | None:
        """Of a node like this one; `cards`: what the driver calls its GPUs, for nodes of which nobody says the SKU."""
        names = (spec.facts.get("sku"), spec.facts.get("gpu"), *cards)
        return next((self.per_hour[name] for name in names if name and name in self.per_hour), None)
