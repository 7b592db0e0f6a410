"""Answers of deterministic requests, kept in memory to be given again: exact, by tenant, bounded in bytes and age.

A key holds everything that an answer depends on: the tenant, the routing table's version (what serves may have
changed with it), the path and the body in one canonical way of writing. What a request says to nobody but accounting
is left out. Only requests that say that they are deterministic are looked at: temperature 0, or a seed.
"""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge

from fleetctl.gateway.http.exchange import KeptBody
from fleetctl.gateway.routing.json_cost import is_cheap_to_parse
from fleetctl.gateway.routing.routing_facts import GENERATION_PATHS
from fleetctl.settings.response_cache import ResponseCacheSettings

OVERHEAD_BYTES = 300  # of an entry, beside its body
_SAYS_NOTHING = frozenset({"user", "metadata", "store", "deadline_s", "safety_identifier", "priority"})


@dataclass(frozen=True, slots=True)
class CachedAnswer:
    """A whole answer with status 200, as its client got it."""

    body: bytes
    is_stream: bool
    stored_at: float  # monotonic seconds

    @property
    def cost_bytes(self) -> int:
        """What it takes of the cache."""
        return len(self.body) + OVERHEAD_BYTES


class Recording(NamedTuple):
    """The answer to a request that missed, as it passes."""

    key: bytes
    is_stream: bool
    answer: KeptBody


class ResponseCache:
    """Least recently used answers go first. Threading: event loop only."""

    def __init__(
        self,
        settings: ResponseCacheSettings,
        registry: CollectorRegistry,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._answers: OrderedDict[bytes, CachedAnswer] = OrderedDict()
        self._table_version: int | None = None
        self.num_bytes = 0
        self._requests = Counter(
            "gateway_response_cache_requests_total",
            "Deterministic requests that were looked up in the response cache: hit, miss, not_read (too many values).",
            ["result"],
            registry=registry,
        )
        self._hit, self._miss = self._requests.labels("hit"), self._requests.labels("miss")
        self._requests.labels("not_read")
        self._removed = Counter(
            "gateway_response_cache_removed_total",
            "Answers that left the response cache: evicted, expired or purged.",
            ["reason"],
            registry=registry,
        )
        Gauge(
            "gateway_response_cache_bytes", "Bytes of the answers in the response cache.", registry=registry
        ).set_function(lambda: self.num_bytes)
        for reason in ("evicted", "expired", "purged"):
            self._removed.labels(reason)

    def look_up(
        self, path: str, body: bytes, *, tenant: str, table_version: int | None
    ) -> CachedAnswer | Recording | None:
        """The answer, or what records one that missed; None: not a request that is kept."""
        if table_version is None or path not in GENERATION_PATHS:
            return None
        self._follow(table_version)
        if not is_cheap_to_parse(body):
            self._requests.labels("not_read").inc()
            return None
        asked = _read_deterministic(body)
        if asked is None:
            return None
        key = _key(path, asked, tenant=tenant, table_version=table_version)
        answer = self._answers.get(key)
        if answer is not None and self._clock() - answer.stored_at > self._settings.ttl_s:
            self._remove(key, "expired")
            answer = None
        if answer is None:
            self._miss.inc()
            return Recording(key, asked.get("stream") is True, KeptBody(self._settings.max_entry_bytes))
        self._hit.inc()
        self._answers.move_to_end(key)
        return answer

    def store(self, recording: Recording) -> None:
        """Keep the answer that was recorded, if it was whole and short enough."""
        if recording.answer.is_too_long or not recording.answer.parts:
            return
        answer = CachedAnswer(b"".join(recording.answer.parts), recording.is_stream, self._clock())
        if answer.cost_bytes > self._settings.max_bytes:
            return
        if recording.key in self._answers:
            self.num_bytes -= self._answers.pop(recording.key).cost_bytes
        self._answers[recording.key] = answer
        self.num_bytes += answer.cost_bytes
        while self.num_bytes > self._settings.max_bytes:
            self._remove(next(iter(self._answers)), "evicted")

    def check_integrity(self) -> None:
        """Raises AssertionError when bytes were counted wrong."""
        assert self.num_bytes == sum(answer.cost_bytes for answer in self._answers.values())
        assert self.num_bytes <= self._settings.max_bytes

    def _follow(self, table_version: int) -> None:
        """Another table: other revisions may serve, so nothing of before is given again."""
        if table_version != self._table_version:
            self._removed.labels("purged").inc(len(self._answers))
            self._answers.clear()
            self.num_bytes = 0
            self._table_version = table_version

    def _remove(self, key: bytes, reason: str) -> None:
        self.num_bytes -= self._answers.pop(key).cost_bytes
        self._removed.labels(reason).inc()


def _read_deterministic(body: bytes) -> dict[str, Any] | None:
    """A deterministic request; None for every other one."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and is_deterministic(value) else None


def _key(path: str, asked: dict[str, Any], *, tenant: str, table_version: int) -> bytes:
    said = {key: one for key, one in asked.items() if key not in _SAYS_NOTHING}
    text = json.dumps([tenant, table_version, path, said], sort_keys=True, separators=(",", ":"))
    return blake2b(text.encode(), digest_size=16).digest()


def is_deterministic(body: dict[str, Any]) -> bool:
    """Whether the request says that its answer may not differ from one time to the next."""
    temperature, seed = body.get("temperature"), body.get("seed")
    is_greedy = isinstance(temperature, int | float) and not isinstance(temperature, bool) and temperature == 0
    return is_greedy or (isinstance(seed, int) and not isinstance(seed, bool))
