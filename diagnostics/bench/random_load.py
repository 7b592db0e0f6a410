"""What may happen to the load of a random fleet, its prompts, its clients and the way to its nodes; one change each.

Where an engineer could give several names (a queue of a pool that is overrun: the load, or the limit that it met), all
are right.
"""

from __future__ import annotations

from typing import Any

from diagnostics.bench.random_fleet import OUT, Fault, Happening, RandomFleet, change


def more_arrivals(fleet: RandomFleet) -> Happening:
    how: dict[str, Any] = fleet.rng.choice([{}, {"shape": "ramp", "over": 240}])
    changes = [change("arrivals", times=fleet.some(2.5, 3.5, 5), **how)]
    return Happening(("overload", "collapse_knee", "tail_latency", "seats_full"), changes, not_remedies=OUT)


def refused_for_want_of_room(fleet: RandomFleet) -> Happening:
    fleet.load["max_queue"] = 6
    causes = ("overload", "seats_full", "collapse_knee", "kv_pressure")
    return Happening(causes, [change("arrivals", times=4)], not_remedies=OUT)


def impatient_clients(fleet: RandomFleet) -> Happening | None:
    if not fleet.tells_cancelled:
        return None
    fleet.load["seats"] = max(4, fleet.load["seats"] // 3)
    changes = [change("patience_seconds", to=4), change("arrivals", times=2.5)]
    return Happening(("overload", "retry_storm", "client_disconnects", "seats_full"), changes, not_remedies=OUT)


def clients_ask_again(fleet: RandomFleet) -> Happening | None:
    if not fleet.tells_cancelled:
        return None
    fleet.load["patience_seconds"] = 15
    ramp: dict[str, Any] = {"shape": "ramp", "over": 240}
    hits = min(0.95, fleet.load["hit_ratio"] + 0.2)
    changes = [
        change("arrivals", times=3, **ramp),
        change("abort_ratio", to=0.45, **ramp),
        change("hit_ratio", to=hits, **ramp),
    ]
    return Happening(("retry_storm", "overload", "client_disconnects"), changes, not_remedies=OUT)


def clients_hang_up(fleet: RandomFleet) -> Happening | None:
    if not fleet.tells_cancelled:
        return None
    return Happening(("client_disconnects",), [change("abort_ratio", to=fleet.some(0.2, 0.35, 0.5))], not_remedies=OUT)


def one_tenant_sends_more(fleet: RandomFleet) -> Happening | None:
    if not fleet.gateway:
        return None
    all_rate = fleet.load["arrivals"] * len(fleet.names)
    name = "gateway_tenant_requests_total"
    for tenant, share in (("a", 0.5), ("b", 0.3), ("c", 0.2)):
        labels = {"tenant": tenant, "result": "admitted"}
        fleet.series.append({"name": name, "on": "gateway", "labels": labels, "rate": round(all_rate * share, 2)})
    changes = [change("arrivals", times=3.5), change(name, "gateway", labels={"tenant": "b"}, times=9.3)]
    return Happening(("tenant_flood", "overload"), changes, not_remedies=OUT)


def traffic_cut_off(fleet: RandomFleet) -> Happening:
    return Happening(("network_path", "gateway_down", "slow_tool"), [change("arrivals", to=0)], not_remedies=OUT)


def too_long_requests(fleet: RandomFleet) -> Happening | None:
    if fleet.has("llamacpp"):
        return None
    changes = [change("invalid_ratio", to=fleet.some(0.15, 0.3, 0.5))]
    return Happening(("oversized_request",), changes, not_remedies=OUT)


def longer_answers(fleet: RandomFleet) -> Happening:
    how: dict[str, Any] = fleet.rng.choice([{}, {"shape": "ramp", "over": 300}])
    changes = [change("output_tokens", times=fleet.some(3, 5, 8), **how)]
    return Happening(("runaway_generations", "preemption_thrash"), changes, not_remedies=OUT)


def longer_prompts(fleet: RandomFleet) -> Happening:
    changes = [change("prompt_tokens", times=fleet.some(2.2, 3, 4))]
    return Happening(("long_prompts", "long_prompt_share"), changes, not_remedies=OUT)


def a_few_giant_prompts(fleet: RandomFleet) -> Happening | None:
    if fleet.has("trtllm", "tgi", "llamacpp"):
        return None
    fleet.load["kv_tokens"] = max(fleet.load["kv_tokens"], 300_000)
    changes = [
        change("giant_share", to=fleet.some(0.01, 0.02)),
        change("giant_tokens", to=fleet.some(60_000, 100_000)),
    ]
    causes = ("long_context_outlier", "long_prompt_share", "long_prompts", "tail_latency")
    return Happening(causes, changes, not_remedies=OUT)


def one_giant_prompt_in_prefill(fleet: RandomFleet) -> Happening | None:
    if not fleet.only("fleetctl"):
        return None
    changes = [change("prefill_hog", fleet.some_node(), to=0.8), change("giant_tokens", to=100_000)]
    return Happening(("long_context_outlier",), changes, not_remedies=OUT)


def prompts_share_no_more(fleet: RandomFleet) -> Happening | None:
    if fleet.load["hit_ratio"] < 0.4 or fleet.has("tgi"):
        return None
    changes = [change("hit_ratio", to=fleet.some(0.02, 0.1, 0.2))]
    return Happening(("prefix_cache_broken", "prefix_routing"), changes, not_remedies=OUT)


def fewer_seats(fleet: RandomFleet) -> Happening:
    changes = [change("seats", to=max(2, round(fleet.load["seats"] * 0.12)))]
    return Happening(("limit_lowered", "seats_full", "kv_capped"), changes, not_remedies=OUT)


def frontend_is_short(fleet: RandomFleet) -> Happening:
    changes = [change("frontend_rps", to=fleet.load["arrivals"] * fleet.some(0.8, 0.9))]
    return Happening(("frontend_bound", "gpu_idle"), changes, not_remedies=OUT)


def uneven_routing(fleet: RandomFleet) -> Happening | None:
    if len(fleet.names) < 3:
        return None
    return Happening(("routing_skew",), [change("weight", fleet.some_node(), to=fleet.some(4, 8))], not_remedies=OUT)


def node_gets_nothing(fleet: RandomFleet) -> Happening:
    return Happening(("routing_skew",), [change("weight", fleet.some_node(), to=0.01)], not_remedies=OUT)


def the_gateway_is_slow(fleet: RandomFleet) -> Happening | None:
    if not fleet.gateway:
        return None
    changes = [
        fleet.rng.choice(
            [
                change("gateway_ttft_seconds", "gateway", add=fleet.some(0.6, 1.5, 4)),
                change("network_seconds", to=fleet.some(0.8, 2)),
            ]
        )
    ]
    return Happening(("downstream", "network_path", "gateway_limit"), changes, not_remedies=OUT)


def a_node_is_not_reached(fleet: RandomFleet) -> Happening | None:
    if not fleet.gateway:
        return None
    node = fleet.some_node()
    failed = {"outcome": "failed", "node": node}
    changes = [
        change("gateway_requests_total", "gateway", labels=failed, to=fleet.load["arrivals"] * 0.4),
        change("gateway_node_silent", "gateway", labels={"node": node}, to=1),
    ]
    return Happening(("network_path", "node_down", "probe_too_strict"), changes, not_remedies=OUT)


LOAD_FAULTS: tuple[Fault, ...] = (
    more_arrivals,
    refused_for_want_of_room,
    impatient_clients,
    clients_ask_again,
    clients_hang_up,
    one_tenant_sends_more,
    traffic_cut_off,
    too_long_requests,
    longer_answers,
    longer_prompts,
    a_few_giant_prompts,
    one_giant_prompt_in_prefill,
    prompts_share_no_more,
    fewer_seats,
    frontend_is_short,
    uneven_routing,
    node_gets_nothing,
    the_gateway_is_slow,
    a_node_is_not_reached,
)

COUNTED_LOAD_FAULTS: tuple[Fault, ...] = (
    more_arrivals,
    refused_for_want_of_room,
    impatient_clients,
    clients_ask_again,
    one_tenant_sends_more,
    traffic_cut_off,
    a_few_giant_prompts,
    fewer_seats,
    frontend_is_short,
    uneven_routing,
    node_gets_nothing,
    a_node_is_not_reached,
)
"""Those that only many requests show."""
