"""The closed set of causes: the words that trees end in and that runbooks say they treat."""

from __future__ import annotations

from enum import StrEnum


class Cause(StrEnum):
    SLOW_NODE = "slow_node"  # one node computes more slowly than its peers: clocks, neighbours, faulty hardware
    PREFIX_CACHE_BROKEN = "prefix_cache_broken"  # prompts stopped sharing their beginning
    OVERLOAD = "overload"  # more work arrives than the pool can do
    LONG_PROMPTS = "long_prompts"  # prompts in general became longer
    LONG_CONTEXT_OUTLIER = "long_context_outlier"  # a few very long prompts hold up the others
    KV_PRESSURE = "kv_pressure"  # the KV cache is full: requests wait for blocks or lose them
    GPU_FAULT = "gpu_fault"  # the GPU itself says so: throttled, ECC, XID
    BAD_DEPLOY = "bad_deploy"  # it began with a new revision or a restart
    NODE_DOWN = "node_down"  # the node does not answer, or answers and does nothing
    DOWNSTREAM = "downstream"  # the nodes are well: the time is lost around them
