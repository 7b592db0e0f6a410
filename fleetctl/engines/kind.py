"""One kind of engine as data: its paths, and for each ability how it is done or why it can't be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from runbooks.ability import Ability

OWN_ENGINE = "fleetctl"


@dataclass(frozen=True, slots=True)
class Can:
    """An ability and how it is done. `call`: the engine's own route for it."""

    how: str
    call: str = ""


@dataclass(frozen=True, slots=True)
class Cannot:
    """An ability that is not there, and why."""

    why: str


Capability = Can | Cannot


@dataclass(frozen=True, slots=True)
class EngineKind:
    """What nodes of one kind have in common. Paths are tried in order: a 404 is another version's."""

    name: str
    title: str
    ready_paths: tuple[str, ...]
    version_paths: tuple[str, ...]
    metrics_path: str = "/metrics"  # empty: it is not scraped, as nothing is known of its metrics
    metric_prefixes: tuple[str, ...] = ()  # of its own metrics, by their native names: what tells it from others
    tells_load: bool = True  # it says how many requests it holds: a drain waits for none
    sleep_path: str = ""  # says whether it sleeps, where its health does not
    unready_reason: str = ""  # what 503 from its ready path means, where that is one thing
    at_stop: str = ""  # what SIGTERM does
    at_stop_option: str = ""  # gives requests time at SIGTERM
    abilities: Mapping[Ability, Capability] = field(default_factory=dict)

    @property
    def is_own(self) -> bool:
        """Whether it is our engine, with admin routes of its own."""
        return self.name == OWN_ENGINE
