"""Traffic rules: what operators and runbooks order the gateways to do with requests, for a time.

The controller owns them: it stores them, publishes them with the routing table, and removes them when they expire. A
gateway judges expiry by itself too, so that a rule ends on time while the controller is away. Times are Unix seconds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from fleetctl.priority_class import PriorityClass
from fleetctl.settings.overflow import OverflowReason

MAX_LIFETIME_S = 366 * 86400.0
MAX_RULES = 200
LITTLE = 1.4  # times by which two thresholds may differ and mean the same
RULE_ID = r"^[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,99}$"
PoolName = Annotated[str, Field(min_length=1, max_length=200)]


class Spec(BaseModel, ABC):
    """What a rule orders. A new kind is a subclass with its own `kind`, added to `RuleSpec`."""

    model_config = ConfigDict(defer_build=True, extra="forbid", frozen=True)

    @property
    @abstractmethod
    def default_id(self) -> str:
        """The id of a rule of this spec that was given none: one that is ordered again replaces the older one."""

    @property
    @abstractmethod
    def words(self) -> str:
        """What it orders, in one line for people."""

    def orders_as_much_as(self, other: Spec) -> bool:
        """Whether the other one, in the place of this, would change nothing that it is made for."""
        return self == other


class RerouteSpec(Spec):
    """Requests with long prompts go to a pool, or to a share of the nodes, and other requests stay away from there.

    Long is what exceeds the one threshold that is given: prompt tokens, or the predicted prefill in seconds, or the
    predicted share of a node's KV cache. `cap`: long requests that one of those nodes gets at once.
    """

    kind: Literal["reroute"] = "reroute"  # of rule
    what: Literal["long-context"] = "long-context"  # which requests
    over_tokens: int | None = Field(default=None, gt=0)  # prompts longer than that
    over_prefill_s: float | None = Field(default=None, gt=0)  # or whose prefill would take longer
    over_kv_share: float | None = Field(default=None, gt=0, le=1)  # or that would fill so much of a node's KV cache
    pool: PoolName | None = None  # where they go
    share: float | None = Field(default=None, gt=0, lt=1)  # of them
    cap: int | None = Field(default=None, gt=0)  # requests at once, at most

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        if sum(one is not None for one in (self.over_tokens, self.over_prefill_s, self.over_kv_share)) != 1:
            raise ValueError("give one threshold: over_tokens, over_prefill_s or over_kv_share")
        if (self.pool is None) == (self.share is None):
            raise ValueError("give pool or share, and only one of them")
        return self

    @property
    def default_id(self) -> str:
        """One rule for long context, unless others are named."""
        return self.what

    def orders_as_much_as(self, other: Spec) -> bool:
        """Whether it sends to the same place, to no fewer nodes, what the other one would. Thresholds that were chosen
        between two measured lengths at different times differ by little: that is no other order."""
        if not isinstance(other, RerouteSpec) or self.pool != other.pool or (self.share or 0) < (other.share or 0):
            return False
        pairs = zip(self._thresholds, other._thresholds, strict=True)
        return all((mine is None) == (its is None) and (mine or 0) <= (its or 0) * LITTLE for mine, its in pairs)

    @property
    def _thresholds(self) -> tuple[float | None, ...]:
        return (self.over_tokens, self.over_prefill_s, self.over_kv_share)

    @property
    def threshold(self) -> str:
        """The threshold with its unit."""
        if self.over_tokens is not None:
            return (
                f"{self.over_tokens // 1024}k tokens" if self.over_tokens % 1024 == 0 else f"{self.over_tokens} tokens"
            )
        if self.over_prefill_s is not None:
            return f"{self.over_prefill_s:g} s of prefill"
        return f"{_percent(self.over_kv_share or 0)} of a KV cache"

    @property
    def words(self) -> str:
        """Threshold, place and cap."""
        where = f"pool {self.pool}" if self.pool is not None else f"{_percent(self.share or 0)} of the nodes"
        cap = f", at most {self.cap} at once on each" if self.cap is not None else ""
        return f"over {self.threshold} to {where}{cap}"


class ShedSpec(Spec):
    """Requests of tenants of the classes below this one are answered 429 at the gateway; what runs goes on.

    `share`: of those requests, by their id. `tenants`: only theirs; empty: all tenants'.
    """

    kind: Literal["shed"] = "shed"
    below: PriorityClass
    share: float | None = Field(default=None, gt=0, lt=1)
    tenants: tuple[Annotated[str, Field(min_length=1, max_length=63)], ...] = Field(default=(), max_length=100)

    @model_validator(mode="after")
    def _sheds_something(self) -> Self:
        if not self.below.lower_classes:
            raise ValueError(f"no class is below {self.below.value}")
        return self

    @property
    def default_id(self) -> str:
        """One rule for all tenants; one for each choice of them."""
        return ":".join(("shed", "+".join(self.tenants)))[:100] if self.tenants else "shed"

    def orders_as_much_as(self, other: Spec) -> bool:
        """Whether it turns away as many of the same requests."""
        if not isinstance(other, ShedSpec) or (self.below, self.tenants) != (other.below, other.tenants):
            return False
        return (1.0 if self.share is None else self.share) >= (1.0 if other.share is None else other.share)

    @property
    def words(self) -> str:
        """Classes, share and tenants."""
        classes = " and ".join(one.value for one in self.below.lower_classes)
        share = f"{_percent(self.share)} of " if self.share is not None else ""
        whose = f" of {', '.join(self.tenants)}" if self.tenants else ""
        return f"turns away {share}class {classes}{whose}"


class CanarySpec(Spec):
    """Shares of the requests go to nodes of some revisions or pools, the rest to the other nodes.

    The same session, user or else request is always in the same share. `model`: only requests for it; None: all.
    """

    kind: Literal["canary"] = "canary"
    model: str | None = Field(default=None, min_length=1, max_length=500)
    revisions: dict[PoolName, float] = Field(default_factory=dict, max_length=20)
    pools: dict[PoolName, float] = Field(default_factory=dict, max_length=20)

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        shares = self.revisions or self.pools
        if bool(self.revisions) == bool(self.pools):
            raise ValueError("give revisions or pools with their shares, and only one of them")
        if any(not 0 <= share <= 1 for share in shares.values()) or sum(shares.values()) > 1 + 1e-9:
            raise ValueError("shares are from 0 to 1, and together at most 1")
        return self

    @property
    def default_id(self) -> str:
        """One canary for each model."""
        return f"canary-{self.model}"[:100] if self.model else "canary"

    @property
    def words(self) -> str:
        """The shares."""
        kind = "revision" if self.revisions else "pool"
        shares = (f"{_percent(share)} to {kind} {name}" for name, share in (self.revisions or self.pools).items())
        return ", ".join(shares) + (f", of model {self.model}" if self.model else "")


class ShadowSpec(Spec):
    """Copies of a share of the requests go to a pool or a revision, and their answers are compared with the users'.

    Users wait for no copy, and which node they get does not change. The share is of request ids. `model`: only requests
    for it; None: all. `cap`: copies that one gateway has in flight; more are left out.
    """

    kind: Literal["shadow"] = "shadow"
    model: str | None = Field(default=None, min_length=1, max_length=500)
    pool: PoolName | None = None
    revision: PoolName | None = None
    share: float = Field(gt=0, le=1)
    cap: int = Field(default=16, gt=0, le=256)

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        if (self.pool is None) == (self.revision is None):
            raise ValueError("give pool or revision, and only one of them")
        return self

    @property
    def default_id(self) -> str:
        """One shadow for each model."""
        return f"shadow-{self.model}"[:100] if self.model else "shadow"

    @property
    def words(self) -> str:
        """Share and place."""
        where = f"pool {self.pool}" if self.pool is not None else f"revision {self.revision}"
        whose = f", of model {self.model}" if self.model else ""
        return f"copies of {_percent(self.share)} of the requests to {where}{whose}"


class OverflowSpec(Spec):
    """The way out of the house is open, or closed, whatever the settings say of when; within their budget all the same.

    `when`: with `on`, the reasons for which requests go out beside those of the settings. `model`: only requests for
    it, and stronger than an order for all; None: all.
    """

    kind: Literal["overflow"] = "overflow"
    state: Literal["on", "off"]
    model: str | None = Field(default=None, min_length=1, max_length=500)
    when: tuple[OverflowReason, ...] = ("no_node", "overloaded")

    @property
    def default_id(self) -> str:
        """One order for each model."""
        return f"overflow-{self.model}"[:100] if self.model else "overflow"

    @property
    def words(self) -> str:
        """Whether requests may leave the house, whose, and when."""
        whose = f" for model {self.model}" if self.model else ""
        return f"overflow{whose} on ({', '.join(self.when)})" if self.state == "on" else f"overflow{whose} off"


RuleSpec = Annotated[RerouteSpec | ShedSpec | CanarySpec | ShadowSpec | OverflowSpec, Field(discriminator="kind")]
"""Every kind of rule; a tagged union by `kind`."""


class TrafficRule(BaseModel):
    """One rule in force. `expires_at` None: until it is removed."""

    model_config = ConfigDict(defer_build=True, extra="ignore", frozen=True)

    id: str = Field(pattern=RULE_ID)  # to end it by
    spec: RuleSpec  # what it does
    made_by: str = ""  # who
    made_at: float  # when
    expires_at: float | None = None  # None: until it is removed
    reason: str = ""  # why

    @property
    def kind(self) -> str:
        """The kind of its spec."""
        return self.spec.kind

    def is_in_force(self, now: float) -> bool:
        """Whether it holds at `now`."""
        return self.expires_at is None or now < self.expires_at


class TrafficRuleRequest(BaseModel):
    """Make a rule, in place of one with the same id. Without an id it has that of its spec."""

    model_config = ConfigDict(defer_build=True, extra="forbid")

    id: str | None = Field(default=None, pattern=RULE_ID)
    spec: RuleSpec
    for_s: float | None = Field(default=None, gt=0, le=MAX_LIFETIME_S)
    reason: str = Field(default="", max_length=2000)
    made_by: str = Field(default="api", max_length=200)


_RULE: TypeAdapter[TrafficRule] = TypeAdapter(TrafficRule)


def _known_rules(value: Any) -> Any:
    """Those that this version understands: a newer controller's other rules must not cost us its table."""
    return [rule for rule in value if _is_known(rule)] if isinstance(value, list) else value


def _is_known(rule: Any) -> bool:
    try:
        _RULE.validate_python(rule)
    except ValidationError:
        return False
    return True


KnownRules = Annotated[list[TrafficRule], BeforeValidator(_known_rules)]
"""Rules of a table that may come from a newer controller."""


def _percent(share: float) -> str:
    """`5%`, and not `0%` for one in a thousand."""
    return f"{share * 100:.3g}%"
