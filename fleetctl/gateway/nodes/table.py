"""Where requests may go: the controller's routing table, immutable and versioned, and the last good one on disk."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError
from yarl import URL

from fleetctl.kit.errors import BadInputError
from fleetctl.kit.whole_file import write_whole
from fleetctl.traffic_rule import TrafficRule
from fleetctl.wire.node import NodePhase
from fleetctl.wire.routing import Route, RouteState, RoutingTable

FILE_NAME = "routing-table.json"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One node that requests may go to. `base` has no slash at its end; `phase` is how the controller last saw it."""

    node: str
    base: str
    state: RouteState
    pool: str
    model: str
    phase: NodePhase | None = None
    engine: str = ""
    revision: str = ""
    api_key: str = ""  # name of the key that it wants

    @property
    def is_well(self) -> bool:
        """Whether nothing was seen that keeps it from serving. Without a look at it, nothing was."""
        return self.phase in (None, NodePhase.READY)


@dataclass(frozen=True, slots=True)
class Table:
    """A routing table. `active`: endpoints that shall take new requests. `rejected`: routes that make no sense.

    `rules`: traffic rules; whether one has expired is asked when it is applied.
    """

    version: int
    endpoints: tuple[Endpoint, ...]
    active: tuple[Endpoint, ...] = field(init=False)
    rejected: tuple[str, ...] = ()
    rules: tuple[TrafficRule, ...] = ()
    num_gateways: int = 1
    epoch: int = 0  # of the controller that told it
    state_id: str = ""  # of the controllers' state; only epochs of one state can be compared
    _by_model: dict[str | None, tuple[Endpoint, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        active = tuple(e for e in self.endpoints if e.state is RouteState.ACTIVE)
        object.__setattr__(self, "active", active)
        by_model: dict[str | None, tuple[Endpoint, ...]] = {None: _serving(active)}
        for model in {e.model for e in active}:
            by_model[model] = _serving(tuple(e for e in active if e.model == model))
        object.__setattr__(self, "_by_model", by_model)

    @classmethod
    def from_wire(cls, table: RoutingTable) -> Table:
        """The controller's table; routes with an unusable URL, or a node's second, are left out and named."""
        endpoints: dict[str, Endpoint] = {}
        rejected = []
        for route in table.routes:
            if not _is_usable(route.url) or not route.node or route.node in endpoints:
                rejected.append(route.node)
                continue
            endpoints[route.node] = Endpoint(
                node=route.node,
                base=route.url.rstrip("/"),
                state=route.state,
                pool=route.pool,
                model=route.model,
                phase=route.phase,
                engine=route.engine,
                revision=route.revision,
                api_key=route.api_key,
            )
        return cls(
            version=table.version,
            endpoints=tuple(endpoints.values()),
            rejected=tuple(rejected),
            rules=tuple(table.rules),
            num_gateways=table.num_gateways,
            epoch=table.epoch,
            state_id=table.state_id,
        )

    def to_wire(self) -> RoutingTable:
        """The same table in the controller's form, without rejected routes."""
        routes = [
            Route(
                node=e.node,
                url=e.base,
                state=e.state,
                pool=e.pool,
                model=e.model,
                phase=e.phase,
                engine=e.engine,
                revision=e.revision,
                api_key=e.api_key,
            )
            for e in self.endpoints
        ]
        return RoutingTable(
            version=self.version,
            epoch=self.epoch,
            state_id=self.state_id,
            routes=routes,
            rules=list(self.rules),
            num_gateways=self.num_gateways,
        )

    def failing_open(self) -> dict[str, bool]:
        """Of each model: whether none of its active nodes was seen well, so that all of them are candidates."""
        models = {e.model for e in self.active}
        return {model: not any(e.is_well for e in self._by_model[model]) for model in models}

    def has_model(self, model: str | None) -> bool:
        """Whether an active route serves exactly this model."""
        return model is not None and model in self._by_model

    def num_active(self, model: str | None) -> int:
        """How many active routes serve the model; of a name that no route has, all of them."""
        return len(self._by_model.get(model) or self._by_model[None])

    def candidates(self, model: str | None) -> tuple[Endpoint, ...]:
        """Active endpoints that serve the model. A name that no route has goes to any node: it knows its adapters.

        Those that the controller saw well; when it saw none well, all of them: a controller that is cut off from the
        nodes must not take the fleet down, and a node that is down refuses at once or is found silent.
        """
        return self._by_model.get(model) or self._by_model[None]


class Routing:
    """The table in use and how old it is. One owner: the sync loop replaces it, requests read it."""

    def __init__(self, *, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self.table: Table | None = None
        self.confirmed_at: float | None = None  # when the controller last said that this table holds
        self.controller_is_reachable = False

    def replace(self, table: Table, confirmed_at: float) -> None:
        """Use this table from now on. `confirmed_at` in Unix seconds."""
        self.table = table
        self.confirmed_at = confirmed_at

    def confirm(self, at: float) -> None:
        """The controller said at `at` (Unix seconds) that the table in use still holds."""
        self.confirmed_at = at

    def age_s(self) -> float | None:
        """Seconds since the controller last confirmed the table; None without a table."""
        if self.confirmed_at is None:
            return None
        return max(0.0, self._now() - self.confirmed_at)


class _Stored(BaseModel):
    model_config = ConfigDict(extra="ignore")

    format: int = 1
    stored_at: float
    table: RoutingTable


def store_table(path: Path, table: Table, stored_at: float) -> None:
    """Write the table so that a crash leaves the old file or the new one, never a part. Raises OSError."""
    stored = _Stored(stored_at=stored_at, table=table.to_wire())
    write_whole(path, json.dumps(stored.model_dump(mode="json")), is_durable=True)


def load_table(path: Path) -> tuple[Table, float] | None:
    """The stored table and when it was stored; None when there is none yet. Raises BadInputError naming the file."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BadInputError(f"{path}: {error.strerror or error}", remedy="make the run folder readable") from error
    try:
        stored = _Stored.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "file"
        raise BadInputError(
            f"{path}: {place}: {first['msg']}", remedy="delete the file: the next table replaces it"
        ) from error
    if stored.format != 1:
        raise BadInputError(
            f"{path}: unknown format {stored.format}", remedy="delete the file: the next table replaces it"
        )
    return Table.from_wire(stored.table), stored.stored_at


def _serving(active: tuple[Endpoint, ...]) -> tuple[Endpoint, ...]:
    return tuple(e for e in active if e.is_well) or active


def _is_usable(url: str) -> bool:
    try:
        parsed = URL(url)
    except ValueError:
        return False
    return parsed.scheme in ("http", "https") and bool(parsed.host) and not parsed.query_string
