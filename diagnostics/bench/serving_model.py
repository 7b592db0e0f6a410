"""A fluid model of nodes under traffic: what arrives, waits, runs and ends, from which all their metrics follow.

It is deliberately coarse (means, no single request), and its consequences are the ones that users of such engines
report: longer prefill raises TTFT and, as chunks share the steps, the gap between tokens; a slow node holds more
requests; requests that outgrow the KV cache are preempted and computed again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from alerts.arrays import Floats, Index

# Quantities that a case may state or change, with the values of an 8B model on one mid-size card.
DEFAULTS: dict[str, float] = {
    "arrivals": 2.0,  # requests per second and node of the pool
    "weight": 1.0,  # the node's share of its pool's arrivals, beside its peers'
    "prompt_tokens": 2400.0,
    "prompt_sigma": 0.6,  # of the logarithm
    "output_tokens": 220.0,
    "output_sigma": 0.5,
    "hit_ratio": 0.72,  # of prompt tokens, in the prefix cache
    "giant_share": 0.0,  # of requests, with prompts of `giant_tokens` and no hit
    "giant_tokens": 100_000.0,
    "prefill_tps": 6000.0,  # tokens per second without anything else to do
    "step_seconds": 0.012,  # a decode step of one request
    "seat_seconds": 0.00015,  # what each further request adds to a step
    "slow": 1.0,  # computes so many times as long
    "slow_prefill": 1.0,
    "slow_decode": 1.0,
    "chunking": 1.0,  # 0: a prefill stops all decoding
    "overhead_seconds": 0.05,  # of the frontend: HTTP, template, tokenizer
    "frontend_rps": 40.0,  # what one API process can read and tokenize
    "prefill_hog": 0.0,  # share of prefill that one prompt in flight of `giant_tokens` has for itself
    "invalid_ratio": 0.002,  # of arrivals: refused as malformed or too long
    "seats": 64.0,  # requests that run at once
    "kv_tokens": 60_000.0,
    "kv_leak": 0.0,  # share of the KV cache that nobody holds and nobody gets
    "max_queue": 1e6,  # beyond it requests are refused
    "patience_seconds": 90.0,  # clients that wait longer hang up
    "abort_ratio": 0.01,
    "error_ratio": 0.0,  # of ended requests
    "http_error_ratio": 0.0,  # of arrivals: answered 5xx before they reach the engine
    "ttft_sigma": 0.45,
    "itl_sigma": 0.3,
    "ttft_add": 0.0,  # seconds that no other quantity explains
    "up": 1.0,  # 0: it does not answer
    "stuck": 0.0,  # 1: it answers, and makes no step
    "gpu_busy": 1.0,  # times the utilization that follows from the work
    "network_seconds": 0.003,  # between gateway and node
}

LB_LAG_S = 10.0  # a balancer notices so late that a node is gone, or back
_SHARED = 0.6  # of the tokens that hit, those whose blocks several running requests share


@dataclass(frozen=True, slots=True)
class Flows:
    """What nodes do. Shapes: all (nodes, times); rates per second, times in seconds."""

    running: Floats
    waiting: Floats
    kv_ratio: Floats
    arrivals: Floats
    admitted: Floats
    finished: Floats
    aborted: Floats
    errors: Floats
    rejected: Floats
    http_errors: Floats
    preemptions: Floats
    prompt_tokens: Floats  # mean of a request
    hit_ratio: Floats
    output_rate: Floats  # tokens per second
    ttft: Floats
    queue: Floats
    prefill: Floats
    itl: Floats
    e2e: Floats
    step: Floats  # of a step that only decodes
    busy: Floats
    oldest_wait: Floats
    frontend: Floats  # seconds before the engine has it
    frontend_cpu: Floats  # cores
    invalid: Floats
    longest_prompt: Floats  # without a first token, in tokens
    prefill_backlog: Floats  # tokens
    prefill_requests: Floats


def simulate(drivers: Mapping[str, Floats], pool_of: Index, dt: float, rng: np.random.Generator) -> Flows:
    """The flows of nodes whose quantities are `drivers`, each (nodes, times). `pool_of`: each node's pool by number."""
    d = drivers
    nodes, times = d["arrivals"].shape
    share = _shares(d, pool_of, dt)
    slow_wave = np.exp(0.05 * _wave(rng, nodes, times))
    arrivals = rng.poisson(np.maximum(d["arrivals"] * share * slow_wave, 0) * dt) / dt
    out = {name: np.zeros((nodes, times)) for name in Flows.__slots__}
    frontend, queue, running = np.zeros(nodes), np.zeros(nodes), d["arrivals"][:, 0] * 4
    rho = np.zeros(nodes)
    hits = np.clip(d["hit_ratio"] * (1 + 0.04 * rng.standard_normal((nodes, times))), 0, 0.99)
    luck = rng.random((nodes, times))
    for t in range(times):
        q = {name: values[:, t] for name, values in d.items()}
        q["hit_ratio"] = hits[:, t]
        alive = q["up"] > 0
        computes = alive & (q["stuck"] < 0.5)
        running, queue, frontend = running * alive, queue * alive, frontend * alive
        refused = arrivals[:, t] * np.clip(q["http_error_ratio"], 0, 1)
        invalid = arrivals[:, t] * q["invalid_ratio"] * alive
        into = (arrivals[:, t] - refused) * alive - invalid
        # The frontend: what it can't tokenize waits before any engine metric begins.
        frontend = frontend + into * dt
        passed = np.minimum(frontend, q["frontend_rps"] * dt)
        frontend = frontend - passed
        frontend_wait = frontend / np.maximum(passed / dt, 0.02)
        queue = queue + passed
        mean_prompt = (1 - q["giant_share"]) * q["prompt_tokens"] + q["giant_share"] * q["giant_tokens"]
        uncached = (1 - q["giant_share"]) * q["prompt_tokens"] * (1 - q["hit_ratio"]) + q["giant_share"] * q[
            "giant_tokens"
        ]
        speed = q["prefill_tps"] / (q["slow"] * q["slow_prefill"]) * (1 - q["prefill_hog"])
        held = mean_prompt * (1 - _SHARED * q["hit_ratio"])
        kv_tokens = q["kv_tokens"] * (1 - q["kv_leak"])
        step = (q["step_seconds"] + q["seat_seconds"] * running) * q["slow"] * q["slow_decode"]
        itl = step / (1 - 0.8 * rho) + (1 - q["chunking"]) * rho * 0.5 * uncached / speed
        done_share = np.where(computes, dt / (q["output_tokens"] * itl + dt), 0.0)
        room = (
            np.minimum(q["seats"], kv_tokens * 0.98 / (held + 0.1 * q["output_tokens"])) / (1 - done_share + 1e-9)
            - running
        )
        capacity = np.where(computes, 0.95 * speed * dt / np.maximum(uncached, 1), 0.0)
        admitted = np.minimum(np.minimum(queue, capacity), np.maximum(room, 0))
        queue = queue - admitted
        finished = (running + admitted) * done_share
        running = running + admitted - finished
        wanted = held + q["output_tokens"] / 2
        over = np.where(computes, np.maximum(0, running - kv_tokens / wanted), 0.0)
        running, queue = running - over, queue + over
        wait = np.where(queue > 0.5, queue / np.maximum(admitted / dt, 0.02), 0.0)
        hung_up = queue * np.clip((wait - q["patience_seconds"]) / q["patience_seconds"], 0, 1) * 0.1
        left = np.where(computes, 0.0, running * dt / (2 * q["patience_seconds"]) * alive)
        rejected = np.maximum(0, queue - q["max_queue"])
        queue, running = queue - hung_up - rejected, running - left
        rate = admitted / dt
        own = np.clip(rate * uncached / speed, 0, 0.95)
        rho = 0.5 * rho + 0.5 * np.clip(own * (1 - q["prefill_hog"]) + q["prefill_hog"], 0, 0.95)
        service = uncached / speed
        ordinary = q["prompt_tokens"] * (1 - q["hit_ratio"]) / speed
        second = (1 - q["giant_share"]) * ordinary**2 * np.exp(q["prompt_sigma"] ** 2 / 2)
        second = second + q["giant_share"] * (q["giant_tokens"] / speed) ** 2
        residual = rate * second / (2 * np.maximum(1 - rho, 0.1))
        row = {
            "running": running,
            "waiting": queue,
            "kv_ratio": np.clip(running * wanted / q["kv_tokens"] + q["kv_leak"], 0, 1),
            "arrivals": arrivals[:, t] * alive,
            "admitted": rate,
            "finished": finished / dt * (1 - q["error_ratio"]) * (1 - q["abort_ratio"]),
            "aborted": (hung_up + left) / dt + finished / dt * q["abort_ratio"],
            "errors": finished / dt * q["error_ratio"],
            "rejected": rejected / dt,
            "http_errors": refused * alive,
            "preemptions": over / dt,
            "prompt_tokens": mean_prompt,
            "hit_ratio": q["hit_ratio"] * (1 - q["giant_share"]) * q["prompt_tokens"] / np.maximum(mean_prompt, 1),
            "output_rate": np.where(computes, running / itl, 0.0),
            "queue": wait + 0.3 * residual,
            "prefill": service + 0.7 * residual,
            "ttft": q["overhead_seconds"] + frontend_wait + wait + residual + service + q["ttft_add"],
            "itl": itl,
            "step": step,
            "busy": np.clip((rho + (running > 0.3) * 0.75) * q["gpu_busy"], 0, 1) * computes,
            "oldest_wait": wait * 1.3,
            "frontend": q["overhead_seconds"] + frontend_wait,
            "frontend_cpu": np.clip(passed / dt / q["frontend_rps"], 0, 0.97) + 0.02,
            "invalid": invalid,
            "prefill_requests": rate * (service + 0.7 * residual),
            "prefill_backlog": (queue + rate * service) * uncached + (q["prefill_hog"] > 0) * q["giant_tokens"] / 2,
            "longest_prompt": _longest(q, luck[:, t], rate, service, residual + wait),
        }
        row["e2e"] = row["ttft"] + q["output_tokens"] * itl
        for name, values in row.items():
            out[name][:, t] = values
    return Flows(**out)


def _longest(q: Mapping[str, Floats], luck: Floats, rate: Floats, service: Floats, wait: Floats) -> Floats:
    """The longest prompt that has no first token yet: a giant while it is in prefill, else an ordinary one."""
    in_prefill = np.maximum(rate * (service + wait), 0)  # not below it by rounding
    deviations = np.sqrt(2 * np.log1p(in_prefill))  # of the largest of so many draws of a normal
    ordinary = q["prompt_tokens"] * np.exp(q["prompt_sigma"] * deviations - q["prompt_sigma"] ** 2 / 2)
    ordinary = ordinary * (luck < in_prefill)
    giants = rate * q["giant_share"] * q["giant_tokens"] / q["prefill_tps"] * q["slow"]
    has_giant = (q["prefill_hog"] > 0) | (luck < giants)
    found: Floats = np.where(has_giant, q["giant_tokens"], ordinary)
    return found


def _shares(d: Mapping[str, Floats], pool_of: Index, dt: float) -> Floats:
    """Each node's arrivals beside the mean of its pool: by weight, over the nodes that a balancer takes for up."""
    lag = max(1, round(LB_LAG_S / dt))
    seen_up = np.concatenate((d["up"][:, :1].repeat(lag, axis=1), d["up"][:, :-lag]), axis=1)
    weights = d["weight"] * (seen_up > 0)
    found = np.zeros_like(weights)
    for pool in np.unique(pool_of):
        own = pool_of == pool
        total = weights[own].sum(axis=0)
        found[own] = weights[own] / np.maximum(total, 1e-9) * own.sum()
    return found


def _wave(rng: np.random.Generator, nodes: int, times: int) -> Floats:
    """Slow noise, of the whole fleet alike: traffic is never flat. Standard deviation about 1."""
    noise = rng.standard_normal(times + 120)
    kernel = np.hanning(120)
    smooth = np.convolve(noise, kernel / np.sqrt((kernel**2).sum()), mode="valid")[:times]
    return np.broadcast_to(smooth, (nodes, times)).astype(np.float64)
