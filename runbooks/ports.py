"""What a runbook may do to the world, as a Protocol: the controller implements it, tests fake it at this border.

Every effect is idempotent: called again with the same arguments after a crash, it finds the work done and returns
the same kind of receipt. Effects raise `TemporaryError` (try again) or `PermanentError` (stop, undo) and nothing else.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from runbooks.node_setting import NodeSetting

Receipt = dict[str, Any]
"""Plain JSON of what was done and seen; stored with the step."""


class TemporaryError(Exception):
    """The step may be tried again after `retry_after_s`."""

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class PermanentError(Exception):
    """The step can't succeed; the run undoes what it did and fails."""


class NotPossibleError(PermanentError):
    """It can't be done, and nothing was changed: the step counts as refused, and nothing is undone for it."""


class Clock(Protocol):
    """Wall time in Unix seconds, and a sleep that tests can drive; `fleetctl.kit.clock.SystemClock` fits."""

    def now(self) -> float:
        """Unix time in seconds."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after that long."""
        ...


@dataclass(frozen=True, slots=True)
class Capacity:
    """How many more nodes like one can be started now. None: not known."""

    more: int | None = None
    why: str = ""
    names: tuple[str, ...] | None = None  # those that new ones can have, where not any


@dataclass(frozen=True, slots=True)
class EndBudget:
    """How many of some nodes must stay healthy while one of them is ended, as the platform told last."""

    name: str
    healthy: int
    expected: int
    limit: int  # a number of nodes, or a percentage of those expected
    is_percent: bool = False
    is_minimum: bool = True  # that many stay; False: that many may be away


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What plans and guards need of one node. `held`, its requests, is None when that is not known now."""

    name: str
    pool: str = ""
    model: str = ""
    revision: str = ""
    created_at: float = 0.0
    wanted: bool = True  # False: it was stopped; its name stays taken
    held: int | None = None
    zone: str = ""
    engine: str = ""  # empty: not known
    host: str = ""  # the machine under it; empty: not known
    cannot: Mapping[str, str] = field(default_factory=dict)
    """Abilities that it lacks, by the word of `runbooks.ability.Ability`, each with the reason."""
    capacity: Capacity = Capacity()  # for nodes like it
    end_budgets: tuple[EndBudget, ...] = ()  # those that its end is up to; empty: none, or not known
    counts_healthy: bool = True  # whether they count it among the healthy


@dataclass(frozen=True, slots=True)
class NodeRoom:
    """What a node holds and could hold. Of each, None: not known."""

    held: int | None = None  # requests
    seats: int | None = None  # requests that it computes at once
    kv_used: int | None = None  # tokens
    kv_size: int | None = None


@dataclass(frozen=True, slots=True)
class WayOut:
    """An endpoint outside that a gateway may send requests to. `budget_left`: the share; None: not known."""

    endpoint: str
    models: frozenset[str]  # as clients ask for them
    budget_left: float | None


@dataclass(frozen=True, slots=True)
class WantedChange:
    """A node began to be wanted, or ended to be, `age_s` seconds ago."""

    name: str
    pool: str
    model: str
    wanted: bool
    age_s: float


class PoolOwner(StrEnum):
    """Who may set a pool's wanted size. One at a time."""

    PERSON = "person"
    AUTOSCALER = "autoscaler"


class RolloutOrderKind(StrEnum):
    """What may be ordered of a pool's rollout."""

    START = "start"
    CANARY = "canary"
    PROMOTE = "promote"
    PAUSE = "pause"
    RESUME = "resume"
    ROLLBACK = "rollback"


@dataclass(frozen=True, slots=True)
class RolloutOrder:
    """An order to a pool's rollout. `args`: its verb's options by key; `override`: why no freeze holds it."""

    kind: RolloutOrderKind
    pool: str
    args: Mapping[str, Any]
    by: str = ""
    reason: str = ""
    override: str = ""


@dataclass(frozen=True, slots=True)
class RolloutFacts:
    """What a plan needs of a pool's rollout. `state`, `steps`, `step` and `to`: of the one under way; empty: none.

    `size` is the pool's wanted one, and `surge` how many nodes beyond it are there only while it is under way.
    """

    revision: str  # what the pool's new nodes get
    earlier: str = ""  # what a rollback goes to; empty: no other one is known
    state: str = ""
    steps: tuple[float, ...] = ()
    step: int = 0
    to: str = ""
    size: int = 0
    surge: int = 0
    kept: tuple[str, ...] = ()  # of a workload: the revisions that it can be given again
    workload: str = ""  # whose own rollout it is, as deployment/engine in Kubernetes; empty: the controller's
    cannot: Mapping[str, str] = field(default_factory=dict)  # orders by their kind's word that it takes never, and why
    given: tuple[str, ...] | None = None  # names of the settings that its revision has; None: not known
    takes: Mapping[str, NodeSetting] | None = None  # what its nodes can be started with; None: nobody could say


@dataclass(frozen=True, slots=True)
class RevisionFacts:
    """Every stored revision, and how each pool gets from one to another."""

    revisions: frozenset[str]
    pools: Mapping[str, RolloutFacts]


@dataclass(frozen=True, slots=True)
class Freeze:
    """A time in which no automation acts, and a person only with an override. Times in Unix seconds."""

    id: str
    reason: str
    made_by: str
    made_at: float
    pool: str | None = None  # None: the whole fleet
    expires_at: float | None = None  # None: until a person ends it

    def is_in_force(self, now: float) -> bool:
        """Whether its time is not over. One from the future, of a clock that was set back since, holds too."""
        return self.expires_at is None or now < self.expires_at


class Effects(Protocol):
    """The closed set of things a step can do."""

    async def start_node(self, name: str, *, like: str | None, wait_s: float) -> Receipt:
        """Start node `name` (a copy of node `like`, or the fleet's default) and wait until it is ready and routed."""
        ...

    async def stop_node(self, name: str, *, grace_s: float, force: bool = False) -> Receipt:
        """Stop a node. Refuses (PermanentError) while it holds requests, unless `force`."""
        ...

    async def forget_node(self, name: str) -> Receipt:
        """Drop what is kept of a stopped node. Refuses (PermanentError) while it is wanted or runs."""
        ...

    async def cordon(self, name: str) -> Receipt:
        """Send no new requests to a node; what runs there goes on."""
        ...

    async def uncordon(self, name: str) -> Receipt:
        """Undo `cordon` and `drain`: the node takes requests again."""
        ...

    async def cordon_host(self, name: str, *, cordoned: bool) -> Receipt:
        """Keep new nodes from the machine, or let them be placed there again; what runs there goes on."""
        ...

    async def drain(self, name: str, *, deadline_s: float) -> Receipt:
        """Cordon, let requests finish until the deadline, move the rest, wait until idle.

        The receipt holds `in_flight, finished, moved, refused, aborted` counts.
        """
        ...

    async def restart_node(self, name: str, *, wait_s: float) -> Receipt:
        """Stop and start a drained node under its own name, and wait until it is ready and routed."""
        ...

    async def restart_gateway(self, name: str, *, wait_s: float) -> Receipt:
        """Stop and start a gateway of this machine, and wait until it answers. Requests in its hand end with it."""
        ...

    async def scale_pool(
        self,
        pool: str,
        *,
        start: Sequence[str],
        stop: Sequence[str],
        like: str | None,
        wait_s: float,
        deadline_s: float,
        before_removal: Callable[[str], Awaitable[None]],
        by: str = "",
    ) -> Receipt:
        """Start the nodes of `start` together (as `start_node`), then drain and stop those of `stop` one by one.

        `before_removal` is awaited with each name right before its drain; what it raises ends the call. `by` is who
        asked: the autoscaler may not change what a person owns.
        """
        ...

    async def set_pool_owner(self, pool: str, owner: str, *, by: str) -> Receipt:
        """Say who may set the pool's size from now on: person or autoscaler."""
        ...

    async def order_rollout(self, order: RolloutOrder) -> Receipt:
        """Begin or change a pool's rollout, which then goes on by itself. The same order again changes nothing."""
        ...

    async def make_traffic_rule(
        self, rule_id: str, spec: Mapping[str, Any], *, for_s: float | None, made_by: str, reason: str
    ) -> Receipt:
        """Order the gateways to do what `spec` (plain JSON with its `kind`) says, for `for_s` seconds; None: for ever.

        It replaces a rule with the same id.
        """
        ...

    async def remove_traffic_rule(self, rule_id: str, *, removed_by: str) -> Receipt:
        """End a traffic rule now. One that is not there is removed already."""
        ...

    async def set_limits(
        self, name: str, limits: Mapping[str, int], *, seats_ratio: float | None = None, run_id: str
    ) -> Receipt:
        """Change limits of a running node, for steps and arrivals from now on.

        `seats_ratio`: max_num_seqs as a share of what it was before the run. What held before the run's first change is
        kept, for `restore_limits`.
        """
        ...

    async def restore_limits(self, name: str, *, run_id: str) -> Receipt:
        """Give a node the limits that it had before the run's change; without one, before the first that stands."""
        ...

    async def reset_prefix_cache(self, name: str) -> Receipt:
        """Let a node forget its cached prompts."""
        ...

    async def load_adapter(self, name: str, adapter: str, *, path: str) -> Receipt:
        """Let a running node serve a LoRA adapter under this model name."""
        ...

    async def unload_adapter(self, name: str, adapter: str) -> Receipt:
        """Take it away again."""
        ...

    async def set_profiling(self, name: str, *, is_on: bool) -> Receipt:
        """Let a node's engine begin, or end, to record a profile."""
        ...

    async def sleep_node(self, name: str) -> Receipt:
        """Let a drained node give back the memory of weights and KV cache. Refuses while it holds requests."""
        ...

    async def wake_node(self, name: str, *, wait_s: float) -> Receipt:
        """Load what sleep gave back, and wait until the node is ready and routed."""
        ...

    async def add_silence(self, alert: str, labels: Mapping[str, str], *, for_s: float, by: str, key: str) -> Receipt:
        """Mute an alert of these labels for a time. One that was made with this key is not made again."""
        ...

    async def notify(self, receiver: str, text: str, *, key: str, facts: Mapping[str, Any]) -> Receipt:
        """Tell a webhook of the settings; it may hear the same `key` twice."""
        ...

    async def execute(self, program: str, arguments: Sequence[str], *, limit_s: float, key: str) -> Receipt:
        """Call an executable of the settings; after a crash it is called again with the same `key`."""
        ...

    async def collect_evidence(self, name: str, *, incident_id: str | None, key: str) -> Receipt:
        """Write what a node says of itself into a file. What could not be got says why."""
        ...


class Lookup(Protocol):
    """What guards and verification may ask. None means "could not look", which no guard takes for a yes."""

    async def nodes(self) -> Sequence[NodeFacts]:
        """Every node that was ever wanted, whatever its state."""
        ...

    async def wanted_changes(self) -> Sequence[WantedChange]:
        """What began and ended to be wanted in the last hour, and each node's last change before it. Survives restarts.

        Empty when nothing is known of it.
        """
        ...

    async def serving_nodes(self) -> list[str] | None:
        """Names of nodes that take requests and are ready now."""
        ...

    async def rooms(self) -> Mapping[str, NodeRoom] | None:
        """What each node holds and could hold now, by name; one that does not say is left out."""
        ...

    async def freezes(self) -> Sequence[Freeze] | None:
        """What people froze, whatever its time."""
        ...

    async def priority_classes(self) -> frozenset[str] | None:
        """Classes that tenants of the gateways may be of."""
        ...

    async def ways_out(self) -> Sequence[WayOut] | None:
        """Endpoints outside of the gateways that answer; None when none does."""
        ...

    async def cleared_at(self, incident_id: str) -> float | None:
        """Since when no alert of the incident stands, in Unix seconds; None: one does, or that is not known."""
        ...

    async def revisions(self) -> RevisionFacts | None:
        """Revisions, and the rollouts of pools."""
        ...

    async def evaluate(self, expression: str) -> float | None:
        """A PromQL expression's single value now; None when it has none or is stale."""
        ...
