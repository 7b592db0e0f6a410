"""Every fault of the night in its order, which causes they provoke, and why the others are not provoked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fleetctl.first_night.cache_faults import CACHE_FAULTS
from fleetctl.first_night.cause_faults import CAUSE_FAULTS
from fleetctl.first_night.change_faults import CHANGE_FAULTS
from fleetctl.first_night.fault import Fault
from fleetctl.first_night.gpu_faults import GPU_FAULTS
from fleetctl.first_night.load_faults import LOAD_FAULTS
from fleetctl.first_night.night_faults import NIGHT_FAULTS

FAULTS: tuple[Fault, ...] = (
    *NIGHT_FAULTS,
    *CAUSE_FAULTS,
    *CACHE_FAULTS,
    *LOAD_FAULTS,
    *CHANGE_FAULTS,
    *GPU_FAULTS,
)

NOT_PROVOKED: Mapping[str, str] = {
    "adapter_cold": "our engine loads no adapters",
    "asleep": "our gateways send nothing to a node that sleeps: it needs a router of somebody else's",
    "autoscaler_thrash": "three reversals take the autoscaler longer than a drill lasts",
    "busy_host": "nobody tells of the host: there is no node exporter beside local nodes",
    "certificate_expired": "local gateways and nodes speak without certificates, and nothing probes them from outside",
    "clock_shifted": "all processes read one machine's clock",
    "cold_cache": "a local node's cache is full again before its requests have been seen",
    "cold_start": "a node that starts hurts nobody while others have room; of one that does, the restart is named",
    "controller_failover": "needs two controllers and PostgreSQL (tests/e2e has them)",
    "controller_leaderless": "who would tell of it is what is gone; the gateway goes on with its table",
    "drain_stuck": "a drain moves what is left after half a minute: none lasts a quarter of an hour",
    "gpu_idle": "a fake driver's utilisation is no engine's",
    "grammar_slow": "nodes of ours count nobody who waits for a grammar",
    "keys_refused": "a drill's load comes without keys",
    "kv_capped": "our engine reserves no blocks, and a cache gets smaller only with a rollout, to new nodes",
    "kv_leak": "our engine checks its books and starts its core anew before the leak fills the cache (kv-leak)",
    "kv_store": "our engine's tiers are its own host's: none of them goes away alone",
    "kv_transfer": "the drills' nodes read and write in one: none waits for another's KV",
    "machine_unhealthy": "nobody tells of the machine under local nodes: that is a cluster's word",
    "model_missing": "our gateway answers for a model that nobody has, and counts it with its other refusals",
    "network_path": "local nodes have no network between them and the gateway",
    "overflow_spent": "needs a hosted provider",
    "poison_request": "no request ends a core of ours; a drill that kills it is a crash loop",
    "preemption_thrash": "our scheduler admits what has room for its expected answer: of what runs on, that is named",
    "prefill_slow": "our engine's drills make steps slow that only decode, or all of them: of the latter that is named",
    "prefix_evicted": "a cache too full for beginnings is too full for requests here: that is named (cache-too-small)",
    "prefix_routing": "a balancer of somebody else's; ours goes where the beginning is cached",
    "probe_too_strict": "local probes are answered under any load that a laptop makes",
    "rollout_stuck": "a rollout by hand waits by design; a gate takes minutes to stop one",
    "routing_stale": "needs a controller that is gone for minutes, and nobody to tell of it",
    "signals_stale": "the controller scrapes local nodes itself: it stops when it stops",
    "slow_tool": "nobody is to be told while nodes are well: it is named beside another alert alone",
    "tail_latency": "needs ten minutes of past",
    "unschedulable": "needs a scheduler",
}


def provoked_by(faults: Iterable[Fault] = FAULTS) -> dict[str, list[str]]:
    """Cause to the faults that are to be named so, the first of each fault's causes alone."""
    found: dict[str, list[str]] = {}
    for fault in faults:
        for cause in fault.expects.causes[:1]:
            found.setdefault(cause, []).append(fault.name)
    return found


def fault_named(name: str) -> Fault:
    """Raises KeyError when there is none."""
    return {fault.name: fault for fault in FAULTS}[name]
