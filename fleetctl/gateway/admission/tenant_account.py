"""What one tenant uses now beside what it may: checked and charged at admission, settled with the real usage."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Any, NamedTuple

from fleetctl.gateway.admission.demand import Usage
from fleetctl.gateway.admission.tenant import Tenant, TenantLimits
from fleetctl.gateway.admission.token_bucket import TokenBucket
from fleetctl.kit.shared_counters import NO_TOTALS, CounterRow

FIRST_OUTPUT_TOKENS = 256.0  # what a request that does not say is expected to bring, until its tenant's mean is known
MAX_REMEMBERED_MODELS = 256
MEAN_WEIGHT = 0.05  # of the newest request in that mean


class Refusal(StrEnum):
    """Why a tenant's request was not let in: a closed set, because it is a metric label and an error code."""

    REQUESTS = "tenant_requests"  # requests per minute
    INPUT_TOKENS = "tenant_input_tokens"  # input tokens per minute
    OUTPUT_TOKENS = "tenant_output_tokens"  # output tokens per minute
    CONCURRENCY = "tenant_concurrency"  # as many at once as it may have
    MODEL = "model_not_allowed"  # not one of its models
    OUTPUT_CAP = "max_output_tokens"  # asks for more in one answer than it may have
    SHED = "shed"  # its class is turned away by order
    QUEUE_FULL = "queue_full"  # no room among those that wait for a seat
    QUEUE_LIMIT = "queue_limit"  # it waited for a seat as long as it may
    DEADLINE = "deadline_exceeded"  # its own deadline passed while it waited


class Charge(NamedTuple):
    """What was taken from a tenant's buckets for one request."""

    input_tokens: float
    output_tokens: float


class TenantAccount:
    """One owner: `Admission`. `check_integrity` holds between its calls.

    With a row of shared counters the workers of one gateway hold its limits together: each has the whole buckets, and
    takes out of its own what it reads that the others took out of theirs.
    """

    __slots__ = (
        "_allowed",
        "_input",
        "_mean_output",
        "_output",
        "_requests",
        "_row",
        "_running_elsewhere",
        "_seen",
        "counts",
        "max_running",
        "running",
        "share",
        "tenant",
        "tokens",
    )

    def __init__(self, tenant: Tenant, now: float) -> None:
        self.tenant = tenant
        self.running = 0
        self.share = 1.0
        self.max_running = _max_running(tenant, 1.0)
        self._allowed: dict[str | None, bool] = {}  # models that were asked for: patterns cost more than the rest
        self.tokens = [0, 0]  # input, output: really used, since the start
        self.counts: dict[str, int] = {"admitted": 0}
        self._mean_output = FIRST_OUTPUT_TOKENS
        limits = tenant.limits
        self._input = _bucket(limits.input_tokens_per_min, limits.burst_s, now, 1.0)
        self._output = _bucket(limits.output_tokens_per_min, limits.burst_s, now, 1.0)
        self._requests = _bucket(limits.requests_per_min, limits.burst_s, now, 1.0)
        self._row: CounterRow | None = None
        self._seen = NO_TOTALS  # of the other workers, as far as our buckets have it
        self._running_elsewhere = 0.0

    @property
    def is_joint(self) -> bool:
        """Whether it counts what other workers of this gateway let in."""
        return self._row is not None

    def join(self, row: CounterRow, now: float) -> None:
        """Count together with others from now on, and begin with what they have left."""
        self._row, self._seen = row, row.others()
        self._running_elsewhere = self._seen.held
        taken = [mine + theirs for mine, theirs in zip(row.own(), self._seen, strict=True)]
        for at, *levels in row.told():
            for bucket, level, count in zip(self._buckets(), levels, taken, strict=False):
                if bucket is not None:
                    bucket.lower_to(level - count + max(0.0, now - at) * bucket.rate_per_s, now)
        self.exchange(now)

    def exchange(self, now: float) -> None:
        """Take up what others took, and tell what is left: a worker that starts later begins with that."""
        row = self._row
        if row is None:
            return
        self._take_up(row, now)
        taken = [mine + theirs for mine, theirs in zip(row.own(), self._seen, strict=True)]
        levels = (math.inf if bucket is None else bucket.level_at(now) for bucket in self._buckets())
        row.tell(now, *(level + count for level, count in zip(levels, taken, strict=False)))

    def _buckets(self) -> tuple[TokenBucket | None, TokenBucket | None, TokenBucket | None]:
        """In the order of the row's counters."""
        return self._requests, self._input, self._output

    def _take_up(self, row: CounterRow, now: float) -> None:
        found, seen = row.others(), self._seen
        if found == seen:
            return
        self._seen, self._running_elsewhere = found, found.held
        for bucket, total, before in zip(self._buckets(), found, seen, strict=False):
            if bucket is not None and total != before:
                bucket.level_at(now)
                bucket.take(total - before)

    def may_use(self, model: str | None) -> bool:
        """As `Tenant.may_use`, remembered."""
        known = self._allowed.get(model)
        if known is None:
            known = self.tenant.may_use(model)
            if len(self._allowed) < MAX_REMEMBERED_MODELS:  # clients choose the names
                self._allowed[model] = known
        return known

    def charge_of(self, input_tokens: int, output_tokens: int | None) -> Charge:
        """What a request will probably cost. One that does not say how much it wants is like this tenant's others."""
        mean = self._mean_output
        if output_tokens is None:
            return Charge(input_tokens, mean)
        most = mean * 4 if mean > FIRST_OUTPUT_TOKENS / 4 else FIRST_OUTPUT_TOKENS
        return Charge(input_tokens, output_tokens if output_tokens < most else most)

    def refusal_of(self, charge: Charge, now: float) -> tuple[Refusal, float] | None:
        """The limit that keeps a request out now, and seconds until it would not; None when it may go in."""
        if self._row is not None:
            self._take_up(self._row, now)
        limit = self.max_running
        if limit is not None and self.running + self._running_elsewhere >= limit:
            return Refusal.CONCURRENCY, 1.0
        worst: tuple[Refusal, float] | None = None
        if self._requests is not None and (wait_s := self._requests.wait_s(1.0, now)) > 0:
            worst = Refusal.REQUESTS, wait_s
        if self._input is not None:
            wait_s = self._input.wait_s(charge.input_tokens, now)
            if wait_s > 0 and (worst is None or wait_s > worst[1]):
                worst = Refusal.INPUT_TOKENS, wait_s
        if self._output is not None:
            wait_s = self._output.wait_s(charge.output_tokens, now)
            if wait_s > 0 and (worst is None or wait_s > worst[1]):
                worst = Refusal.OUTPUT_TOKENS, wait_s
        return worst

    def admit(self, charge: Charge) -> None:
        """Let a request in that nothing refuses. `end` is owed once."""
        self.running += 1
        self.counts["admitted"] += 1
        if self._requests is not None:
            self._requests.take(1.0)
        if self._input is not None:
            self._input.take(charge.input_tokens)
        if self._output is not None:
            self._output.take(charge.output_tokens)
        if self._row is not None:
            self._row.add_all(1.0, charge.input_tokens, charge.output_tokens, 1.0)

    def end(self, charge: Charge, usage: Usage | None) -> None:
        """The request ended: what it really used replaces the estimate. None: no node worked on it, it cost nothing."""
        self.running -= 1
        used_in = used_out = 0
        if usage is not None:
            used_in, used_out = usage.input_tokens, usage.output_tokens
            self._mean_output += (used_out - self._mean_output) * MEAN_WEIGHT
            self.tokens[0] += used_in
            self.tokens[1] += used_out
        if self._input is not None:
            self._input.take(used_in - charge.input_tokens)
        if self._output is not None:
            self._output.take(used_out - charge.output_tokens)
        if self._row is not None:
            self._row.add_all(0.0, used_in - charge.input_tokens, used_out - charge.output_tokens, -1.0)

    def note_refused(self, why: Refusal) -> None:
        """Count a request that was not let in."""
        self.counts[why] = self.counts.get(why, 0) + 1

    def use_tenant(self, tenant: Tenant, now: float) -> None:
        """Go on with what the tenants file says now; what is used already stays used."""
        limits = tenant.limits
        self.tenant = tenant
        self.max_running = _max_running(tenant, self.share)
        self._allowed.clear()
        self._input = _kept(self._input, limits.input_tokens_per_min, limits, now, self.share)
        self._output = _kept(self._output, limits.output_tokens_per_min, limits, now, self.share)
        self._requests = _kept(self._requests, limits.requests_per_min, limits, now, self.share)

    def use_share(self, share: float, now: float) -> None:
        """Hold this part of every limit from now on: others hold the rest."""
        self.share = share
        self.max_running = _max_running(self.tenant, share)
        for bucket in (self._input, self._output, self._requests):
            if bucket is not None:
                bucket.use_share(share, now)

    def as_json(self, now: float) -> dict[str, Any]:
        """Use, limits and refusals, for `GET /gateway/tenants`. `left`: what may be taken at once; None: no limit."""
        limits, left = self.tenant.limits, {}
        if self._row is not None:
            self._take_up(self._row, now)
        for name, bucket in (("input", self._input), ("output", self._output), ("requests", self._requests)):
            if bucket is not None:
                bucket.level_at(now)
            left[name] = None if bucket is None else int(bucket.level)
        return {
            "tenant": self.tenant.name,
            "class": self.tenant.priority.value,
            "running": self.running,
            "share": round(self.share, 4),
            "joint": self.is_joint,
            "tokens": {"input": self.tokens[0], "output": self.tokens[1]},
            "left": left,
            "limits": {
                "input_tokens_per_min": limits.input_tokens_per_min,
                "output_tokens_per_min": limits.output_tokens_per_min,
                "requests_per_min": limits.requests_per_min,
                "concurrency": limits.concurrency,
                "max_output_tokens": limits.max_output_tokens,
                "models": list(self.tenant.models),
            },
            "admitted": self.counts["admitted"],
            "refused": {why: count for why, count in self.counts.items() if why != "admitted"},
        }

    def check_integrity(self) -> None:
        """Raises AssertionError when a count does not add up."""
        assert 0 <= self.running <= self.counts["admitted"]
        for bucket in (self._input, self._output, self._requests):
            assert bucket is None or bucket.level <= bucket.capacity


def _max_running(tenant: Tenant, share: float) -> int | None:
    """Requests that may be open at this gateway at once; at least one, however small its share is."""
    limit = tenant.limits.concurrency
    return None if limit is None else max(1, int(limit * share))


def _bucket(per_min: int | None, burst_s: float, now: float, share: float) -> TokenBucket | None:
    return None if per_min is None else TokenBucket(per_min, burst_s, now, share=share)


def _kept(
    bucket: TokenBucket | None, per_min: int | None, limits: TenantLimits, now: float, share: float
) -> TokenBucket | None:
    if bucket is None or per_min is None:
        return _bucket(per_min, limits.burst_s, now, share)
    bucket.use_limit(per_min, limits.burst_s, now)
    return bucket
