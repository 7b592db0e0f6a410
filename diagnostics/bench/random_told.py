"""What may happen around a random fleet, and is told by its gateway, platform or controller; or to what is told."""

from __future__ import annotations

from typing import Any

from diagnostics.bench.random_fleet import OUT, Fault, Happening, RandomFleet, change, native


def the_gateway_is_gone(fleet: RandomFleet) -> Happening | None:
    if not fleet.gateway:
        return None
    changes = [change("up", "gateway", to=0), change("arrivals", to=0)]
    if fleet.controller and fleet.rng.random() < 0.5:
        changes.append(change("fleet_gateway_process_up", "controller", to=0))
    return Happening(("gateway_down", "gateway_crash"), changes, not_remedies=OUT)


def the_gateway_dies_again_and_again(fleet: RandomFleet) -> Happening | None:
    if not fleet.gateway:
        return None
    times: dict[str, Any] = {"shape": "pulse", "over": fleet.some(60, 100, 140)}
    changes = [
        change("gateway_worker_deaths_total", "gateway", to=0.2, **times),
        change("arrivals", times=0.7, **times),
    ]
    return Happening(("gateway_crash", "gateway_down"), changes, not_remedies=OUT)


def _tenants(fleet: RandomFleet, result: str) -> float:
    """Two tenants, of whom one will meet `result`. Returns what both send."""
    all_rate = fleet.load["arrivals"] * len(fleet.names)
    for tenant, outcome, rate in (("a", "admitted", 0.7), ("b", "admitted", 0.3), ("a", result, 0.0)):
        labels = {"tenant": tenant, "result": outcome}
        rated = round(all_rate * rate, 3)
        fleet.series.append({"name": "gateway_tenant_requests_total", "on": "gateway", "labels": labels, "rate": rated})
    return all_rate


def a_tenant_meets_its_limit(fleet: RandomFleet) -> Happening | None:
    if not fleet.gateway:
        return None
    result = fleet.rng.choice(["tenant_requests", "tenant_input_tokens", "shed"])
    all_rate = _tenants(fleet, result)
    refused = fleet.some(0.6, 0.9)
    name, of_a = "gateway_tenant_requests_total", {"tenant": "a"}
    changes = [
        change(name, "gateway", labels=of_a | {"result": result}, to=round(all_rate * 0.7 * refused, 3)),
        change(name, "gateway", labels=of_a | {"result": "admitted"}, times=1 - refused),
        change("arrivals", times=round(1 - 0.7 * refused, 2)),
    ]
    return Happening(("gateway_limit",), changes, not_remedies=OUT)


def requests_wait_at_the_gateway(fleet: RandomFleet) -> Happening | None:
    if not fleet.gateway:
        return None
    changes = [
        change("gateway_queue_requests", "gateway", to=fleet.some(20, 70)),
        change("gateway_queue_oldest_wait_seconds", "gateway", to=fleet.some(9, 25)),
        change("arrivals", times=0.7),
    ]
    return Happening(("gateway_limit",), changes, not_remedies=OUT)


def its_table_is_old(fleet: RandomFleet) -> Happening | None:
    if not fleet.gateway:
        return None
    changes = [change("gateway_table_age_seconds", "gateway", add=3600, shape="ramp", over=3600)]
    return Happening(("routing_stale", "controller_leaderless"), changes, not_remedies=OUT)


def a_gone_node_is_still_asked(fleet: RandomFleet) -> Happening | None:
    if not fleet.gateway or len(fleet.names) < 3:
        return None
    node = fleet.some_node()
    of_it = {"node": node}
    changes = [
        change("scrape", node, shape="vanish"),
        change("http_error_ratio", node, to=1),
        change("gateway_requests_total", "gateway", labels=of_it | {"outcome": "finished"}, to=0),
    ]
    return Happening(("routing_stale", "network_path", "downstream"), changes, not_remedies=OUT)


def more_tenants_share_nothing(fleet: RandomFleet) -> Happening | None:
    if not fleet.gateway or fleet.load["hit_ratio"] < 0.4 or fleet.has("tgi"):
        return None
    all_rate = fleet.load["arrivals"] * len(fleet.names)
    name = "gateway_tenant_requests_total"
    changes = [change("hit_ratio", times=0.45)]
    for number in range(4):
        labels = {"tenant": f"t{number}", "result": "admitted"}
        rate = round(all_rate, 3) if number == 0 else 0.0
        fleet.series.append({"name": name, "on": "gateway", "labels": labels, "rate": rate})
        changes.append(change(name, "gateway", labels=labels, to=round(all_rate / 4, 3)))
    return Happening(("prefix_salt", "traffic_mix", "prefix_cache_broken"), changes, not_remedies=OUT)


def probes_fail_of_nodes_that_work(fleet: RandomFleet) -> Happening | None:
    if not fleet.controller or fleet.only("fleetctl"):
        return None
    two = fleet.rng.sample(fleet.names, 2)
    facts = [
        {"kind": "provider_reason", "on": node, "at": 20 + 40 * number, "says": "Unhealthy/liveness"}
        for number, node in enumerate(two)
    ]
    changes = [
        change("weight", node, to=0.05, shape="pulse", over=fleet.some(50, 70, 90), at=20 + 40 * number)
        for number, node in enumerate(two)
    ]
    return Happening(("probe_too_strict",), [*changes, change("arrivals", times=1.4)], facts, OUT)


def its_pod_finds_no_machine(fleet: RandomFleet) -> Happening | None:
    if not fleet.controller:
        return None
    node = fleet.some_node()
    facts = [{"kind": "provider_reason", "on": node, "at": 10, "says": "Unschedulable/unscheduled"}]
    return Happening(("unschedulable",), [change("up", node, to=0)], facts, OUT)


def its_machine_is_short(fleet: RandomFleet) -> Happening | None:
    if not fleet.controller:
        return None
    says = fleet.rng.choice(["DiskPressure/disk", "MemoryPressure/memory"])
    facts = [{"kind": "machine_problem", "on": fleet.some_node(), "at": 0, "says": says}]
    return Happening(("machine_unhealthy",), facts=facts)


def its_machine_is_silent(fleet: RandomFleet) -> Happening | None:
    if not fleet.controller:
        return None
    node = fleet.some_node()
    facts = [{"kind": "machine_problem", "on": node, "at": 45, "says": "Unknown/silent"}]
    return Happening(("machine_unhealthy", "node_down"), [change("up", node, to=0)], facts)


def a_new_image_is_not_found(fleet: RandomFleet) -> Happening | None:
    if not fleet.controller or len(fleet.names) < 3:
        return None
    new = fleet.names[: max(1, len(fleet.names) // 2)]
    facts = [
        {"kind": "deploy", "on": new, "at": 0, "restart_s": 1, "revision": "v2"},
        {"kind": "provider_reason", "on": new, "at": 5, "says": "ImagePullBackOff/image"},
    ]
    return Happening(("bad_deploy_never_ready",), [change("up", new, to=0)], facts, OUT)


def the_autoscaler_goes_to_and_fro(fleet: RandomFleet) -> Happening | None:
    if not fleet.controller or len(fleet.names) < 3:
        return None
    last = fleet.names[-1]
    changes = [
        change("controller_autoscaler_reversals", "controller", to=7, shape="ramp", over=300),
        change("weight", last, to=0, shape="pulse", over=240),
    ]
    return Happening(("autoscaler_thrash",), changes, [{"kind": "scale", "on": last, "at": -60}], OUT)


def the_controller_cannot_write(fleet: RandomFleet) -> Happening | None:
    if not fleet.controller:
        return None
    return Happening(("controller_storage",), [change("controller_storage_ok", "controller", to=0)], not_remedies=OUT)


def nobody_leads(fleet: RandomFleet) -> Happening | None:
    if not fleet.controller:
        return None
    changes = [change("controller_leader", "controller", to=0)]
    return Happening(("controller_leaderless",), changes, not_remedies=OUT)


def its_numbers_stand_still(fleet: RandomFleet) -> Happening | None:
    node = fleet.rng.choice(fleet.nodes)
    others = {
        "fleetctl": ["engine_*", "process_*"],
        "vllm": ["http_*", "process_*"],
        "sglang": ["process_*"],
        "trtllm": ["process_*"],
    }
    names = [native(node.engine), *others.get(node.engine, [])]
    changes = [change(name, node.name, shape="freeze") for name in names]
    return Happening(("signals_frozen", "signals_stale"), changes, not_remedies=OUT)


def nobody_scrapes_it(fleet: RandomFleet) -> Happening:
    return Happening(("signals_stale",), [change("scrape", fleet.some_node(), shape="freeze")], not_remedies=OUT)


def its_scrapes_fail_by_turns(fleet: RandomFleet) -> Happening:
    node = fleet.some_node()
    changes = []
    at = 0.0
    while at < 1200:
        lasts = fleet.rng.uniform(25, 80)
        changes.append(change("up", node, shape="vanish", at=round(at), until=round(at + lasts)))
        at += lasts + fleet.rng.uniform(30, 120)
    return Happening(("signals_missing", "signals_stale", "probe_too_strict"), changes, not_remedies=OUT)


def it_serves_and_answers_no_scrape(fleet: RandomFleet) -> Happening | None:
    if not fleet.gateway or fleet.is_quiet:
        return None
    changes = [change("up", fleet.some_node(), shape="vanish")]
    return Happening(("signals_missing", "signals_stale"), changes, not_remedies=OUT)


TOLD_FAULTS: tuple[Fault, ...] = (
    the_gateway_is_gone,
    the_gateway_dies_again_and_again,
    a_tenant_meets_its_limit,
    requests_wait_at_the_gateway,
    its_table_is_old,
    a_gone_node_is_still_asked,
    more_tenants_share_nothing,
    probes_fail_of_nodes_that_work,
    its_pod_finds_no_machine,
    its_machine_is_short,
    its_machine_is_silent,
    a_new_image_is_not_found,
    the_autoscaler_goes_to_and_fro,
    the_controller_cannot_write,
    nobody_leads,
    its_numbers_stand_still,
    nobody_scrapes_it,
    its_scrapes_fail_by_turns,
    it_serves_and_answers_no_scrape,
)
