"""A request's way in: whose it is, whether it may come in, and a node that takes it, perhaps after a wait.

Joins admission (who may ask) and placement (who answers).
"""

from __future__ import annotations

from fleetctl.gateway.admission.admission import Admission, Admitted
from fleetctl.gateway.admission.demand import Demand, with_output_cap, with_response_cap
from fleetctl.gateway.admission.tenant_account import Refusal, TenantAccount
from fleetctl.gateway.http.answers import ErrorAnswer
from fleetctl.gateway.http.exchange import Exchange
from fleetctl.gateway.nodes.node_watch import WaitEnd
from fleetctl.gateway.requests.fates import ProxiedRequest
from fleetctl.gateway.requests.place import Job, NotPlaced, Placed, Placer
from fleetctl.gateway.routing.routing_facts import RESPONSES_PATH


class Entry:
    """The steps before a node has the request, in their order: `authenticate`, `admit`, `place`; then `leave`."""

    def __init__(self, admission: Admission, placer: Placer) -> None:
        self._admission = admission
        self._placer = placer

    def authenticate(self, exchange: Exchange, proxied: ProxiedRequest) -> TenantAccount | ErrorAnswer:
        """Whose request it is, or what to tell its client."""
        account = self._admission.authenticate(exchange.header(b"authorization"))
        if isinstance(account, TenantAccount):
            proxied.tenant, proxied.priority = account.tenant.name, account.tenant.priority
        return account

    async def admit(self, job: Job, proxied: ProxiedRequest, account: TenantAccount) -> Job | ErrorAnswer:
        """The job as it may go to a node, or what to tell its client. May wait for a free seat."""
        facts = job.facts
        demand = Demand(
            proxied.request_id,
            model=facts.model,
            input_tokens=facts.input_tokens,
            output_tokens=facts.output_tokens,
            size_bytes=len(job.body) if job.body else 0,
            deadline_at=job.deadline_at,
            is_work=job.is_work,
        )
        admitted = await self._admission.admit(account, demand)
        if isinstance(admitted, ErrorAnswer):
            return admitted
        proxied.admitted = admitted
        proxied.queue_wait_s = admitted.queue_wait_s
        headers = self._admission.node_headers(job.headers)
        cap = admitted.max_output_tokens
        if cap is not None and job.body is not None and job.is_generation:
            job = job._replace(body=with_output_cap(job.body, cap))
        elif cap is not None and job.body is not None and job.path == RESPONSES_PATH:
            job = job._replace(body=with_response_cap(job.body, cap))
        return job if headers is job.headers else job._replace(headers=headers)

    async def place(self, job: Job, proxied: ProxiedRequest, *, may_wait: bool = True) -> Placed | NotPlaced:
        """A node that takes the job. While every node is overloaded, it waits its turn here, where it may."""
        where = await self._placer.place(job, proxied)
        admitted = proxied.admitted
        assert admitted is not None  # `admit` comes first
        if not (may_wait or isinstance(where, Placed)):
            return where
        while isinstance(where, NotPlaced) and where.is_overload and where.given_up is None and not proxied.deaths:
            refusal = await self._wait_again(admitted, proxied, where.retry_after_s)
            if refusal is Refusal.DEADLINE:
                where.given_up = WaitEnd.DEADLINE
            if refusal is not None:
                return where
            where = await self._placer.place(job, proxied)
        if isinstance(where, Placed):
            admitted.note_seated()
        return where

    def leave(self, proxied: ProxiedRequest) -> None:
        """The request is over: its tenant's account and its seat are settled, once."""
        admitted, proxied.admitted = proxied.admitted, None
        if admitted is not None:
            admitted.release(proxied.meter.usage(admitted.input_tokens))

    async def _wait_again(self, admitted: Admitted, proxied: ProxiedRequest, retry_after_s: int) -> Refusal | None:
        try:
            return await admitted.wait_again(retry_after_s)
        finally:
            proxied.queue_wait_s = admitted.queue_wait_s
