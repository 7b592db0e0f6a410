"""A request that the response cache answers, and the recording of one that it may answer next time."""

from __future__ import annotations

from fleetctl.gateway.admission.tenant import ANONYMOUS
from fleetctl.gateway.http.exchange import Exchange
from fleetctl.gateway.metrics import GatewayMetrics
from fleetctl.gateway.nodes.table import Routing
from fleetctl.gateway.requests.continuation import Continuance
from fleetctl.gateway.requests.fates import Fates, Outcome, ProxiedRequest
from fleetctl.gateway.requests.outside_relay import STREAM_TYPE
from fleetctl.gateway.requests.place import Job
from fleetctl.gateway.requests.relay import id_header
from fleetctl.gateway.response_cache import CachedAnswer, Recording, ResponseCache

CACHE_HEADER = b"x-fleet-cache"
NODE = "cache"  # stands where a node's name would


class CachedAnswers:
    """Answers out of the cache, and what goes into it."""

    def __init__(self, cache: ResponseCache, routing: Routing, fates: Fates, metrics: GatewayMetrics) -> None:
        self._cache = cache
        self._routing = routing
        self._fates = fates
        self._metrics = metrics

    async def serve(self, exchange: Exchange, proxied: ProxiedRequest, job: Job) -> bool:
        """Whether the cache answered it. Otherwise its answer is recorded as it passes, if it may be kept."""
        if job.body is None or job.method != "POST":
            return False
        table = self._routing.table
        found = self._cache.look_up(
            job.path,
            job.body,
            tenant=proxied.tenant or ANONYMOUS,
            table_version=table.version if table else None,
        )
        if isinstance(found, CachedAnswer):
            await self._answer(exchange, proxied, found)
            return True
        if isinstance(found, Recording):
            proxied.answer_headers.append((CACHE_HEADER, b"miss"))
            proxied.recording = found
            exchange.copy_to.append(found.answer.note)
        return False

    def keep(self, proxied: ProxiedRequest) -> None:
        """The request is over: keep its answer when it was a whole one, of a node of ours."""
        recording, proxied.recording = proxied.recording, None
        if recording is None or proxied.outcome is not Outcome.FINISHED:
            return
        is_exact = all(move.how == Continuance.EXACT for move in proxied.moves)  # by text: another answer than a node's
        if proxied.status == 200 and is_exact and not proxied.last_node.startswith("overflow/"):
            self._cache.store(recording)

    async def _answer(self, exchange: Exchange, proxied: ProxiedRequest, answer: CachedAnswer) -> None:
        proxied.nodes.append(NODE)
        proxied.answer_headers.append((CACHE_HEADER, b"hit"))
        headers = id_header(proxied)
        if answer.is_stream:
            proxied.status = 200
            exchange.begin(200, [(b"content-type", STREAM_TYPE), *headers])
            self._metrics.ttft.observe(self._fates.mark_first_byte(proxied))
            await exchange.write(answer.body)
            await exchange.end()
        else:
            await exchange.answer(200, answer.body, [(b"content-type", b"application/json"), *headers])
        self._fates.end(proxied, Outcome.FINISHED, status=200)
