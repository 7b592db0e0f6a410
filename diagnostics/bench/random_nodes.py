"""What may happen to the nodes, cards and revisions of a random fleet: one change each, and the names right for it."""

from __future__ import annotations

from typing import Any

from diagnostics.bench.random_fleet import OUT, RESTART_S, Fault, Happening, RandomFleet, change, native, rollout


def card(fleet: RandomFleet, slow: float, **readings: float) -> list[dict[str, Any]]:
    """Changed readings of one card, whose node computes so many times as long."""
    node = fleet.some_node()
    return [
        *(change(f"DCGM_FI_DEV_{name}", node, to=to) for name, to in readings.items()),
        change("slow", node, to=slow),
    ]


def upgrade_is_slow(fleet: RandomFleet) -> Happening:
    changes, facts = rollout(fleet, slow=fleet.some(1.7, 2.3))
    return Happening(("bad_deploy",), changes, facts)


def restart_is_slow(fleet: RandomFleet) -> Happening:
    changes, facts = rollout(fleet, slow=fleet.some(1.7, 2.3))
    return Happening(("bad_deploy",), changes, [{**one, "revision": ""} for one in facts])


def upgrade_breaks_sharing(fleet: RandomFleet) -> Happening | None:
    if fleet.load["hit_ratio"] < 0.4 or fleet.has("tgi"):
        return None
    changes, facts = rollout(fleet, hit_ratio=fleet.some(0.05, 0.15))
    return Happening(("prefix_by_upgrade", "caching_off"), changes, facts, OUT)


def upgrade_stops_chunking(fleet: RandomFleet) -> Happening | None:
    if fleet.has("tgi", "llamacpp"):
        return None
    fleet.load |= {"prompt_tokens": 6000, "hit_ratio": 0.1}
    changes, facts = rollout(fleet, chunking=0)
    return Happening(("chunking_off", "bad_deploy", "tail_latency"), changes, facts, OUT)


def upgrade_has_less_cache(fleet: RandomFleet) -> Happening:
    changes, facts = rollout(fleet, kv_tokens=round(fleet.load["kv_tokens"] * 0.2))
    return Happening(("kv_capped", "kv_pressure", "bad_deploy", "preemption_thrash", "prefix_evicted"), changes, facts)


def canary_fails(fleet: RandomFleet) -> Happening | None:
    if fleet.engine in ("sglang", "tgi", "llamacpp"):
        return None
    node = fleet.names[0]
    what = "http_error_ratio" if fleet.engine == "vllm" else "error_ratio"
    facts = [{"kind": "deploy", "on": node, "at": -70, "restart_s": RESTART_S, "revision": "v2"}]
    return Happening(("bad_deploy_errors",), [change(what, node, to=fleet.some(0.3, 0.7))], facts)


def frontend_of_one_node_is_slow(fleet: RandomFleet) -> Happening:
    changes = [change("overhead_seconds", fleet.some_node(), to=fleet.some(0.8, 2))]
    return Happening(("frontend_bound", "busy_host", "slow_node", "gpu_idle"), changes)


def one_node_is_slow(fleet: RandomFleet) -> Happening | None:
    if len(fleet.names) < 3:
        return None
    changes = [change("slow", fleet.some_node(), to=fleet.some(1.6, 2.2, 3))]
    return Happening(("slow_node", "straggler"), changes)


def one_node_prefills_slowly(fleet: RandomFleet) -> Happening | None:
    if len(fleet.names) < 3:
        return None
    changes = [change("slow_prefill", fleet.some_node(), to=fleet.some(2.5, 4))]
    return Happening(("slow_node", "straggler", "gpu_idle"), changes)


def all_decode_slowly(fleet: RandomFleet) -> Happening:
    changes = [change("slow_decode", to=fleet.some(1.8, 2.5))]
    return Happening(("decode_slow", "overload"), changes, not_remedies=OUT)


def cards_wait(fleet: RandomFleet) -> Happening | None:
    if not fleet.gpu:
        return None
    changes = [change("slow", to=fleet.some(2.5, 4)), change("gpu_busy", to=0.25)]
    return Happening(("gpu_idle", "decode_slow", "busy_host"), changes)


def a_node_dies(fleet: RandomFleet) -> Happening:
    return Happening(("node_down", "capacity_lost"), [change("up", fleet.some_node(), to=0)])


def a_process_ends(fleet: RandomFleet) -> Happening | None:
    if not fleet.controller or len(fleet.names) < 3:
        return None
    status = fleet.rng.choice([1, 134, 139])
    facts = [{"kind": "process_ended", "on": fleet.some_node(), "at": 0, "exit_status": status}]
    return Happening(("node_down", "capacity_lost"), facts=facts)


def killed_for_memory(fleet: RandomFleet) -> Happening | None:
    if not fleet.controller or len(fleet.names) < 3:
        return None
    node = fleet.some_node()
    facts = [
        {"kind": "process_ended", "on": node, "at": 0, "exit_status": 137},
        {"kind": "provider_reason", "on": node, "at": 0, "says": "OOMKilled/memory"},
    ]
    return Happening(("out_of_memory",), facts=facts)


def a_node_hangs(fleet: RandomFleet) -> Happening:
    return Happening(("core_hung", "node_down"), [change("stuck", fleet.some_node(), to=1)])


def a_node_answers_500(fleet: RandomFleet) -> Happening | None:
    if not fleet.only("vllm", "sglang"):
        return None
    return Happening(("node_down", "core_hung"), [change("http_error_ratio", fleet.some_node(), to=1)])


def all_fail(fleet: RandomFleet) -> Happening | None:
    if fleet.has("sglang", "tgi", "llamacpp"):
        return None
    changes = [change("error_ratio", to=fleet.some(0.2, 0.5))]
    return Happening(("correlated_failure", "poison_request", "bad_deploy_errors"), changes, not_remedies=OUT)


def half_of_the_nodes_silent(fleet: RandomFleet) -> Happening | None:
    if len(fleet.names) < 4:
        return None
    changes = [change("up", fleet.names[: len(fleet.names) // 2], to=0)]
    return Happening(("correlated_failure", "downstream", "network_path", "capacity_lost"), changes, not_remedies=OUT)


def scaled_away(fleet: RandomFleet) -> Happening | None:
    if len(fleet.names) < 4:
        return None
    gone = fleet.names[: len(fleet.names) // 2]
    fleet.load["arrivals"] = round(fleet.load["arrivals"] * 1.3, 2)
    changes = [
        change("up", gone, to=0),
        change("up", gone, shape="vanish"),
        change("scrape", gone, shape="vanish", at=30),
    ]
    facts = [{"kind": "scale", "at": -10}] if fleet.controller else []
    return Happening(("capacity_lost", "overload", "correlated_failure"), changes, facts, OUT)


def a_card_is_hot(fleet: RandomFleet) -> Happening | None:
    if not fleet.gpu:
        return None
    reasons = fleet.some(32, 64, 72)
    return Happening(("gpu_thermal",), card(fleet, 1.5, SM_CLOCK=900, GPU_TEMP=90, CLOCKS_EVENT_REASONS=reasons))


def a_card_lacks_power(fleet: RandomFleet) -> Happening | None:
    if not fleet.gpu:
        return None
    reasons = fleet.some(8, 128)
    return Happening(("gpu_power",), card(fleet, 1.8, SM_CLOCK=700, POWER_USAGE=140, CLOCKS_EVENT_REASONS=reasons))


def a_cards_clock_is_low(fleet: RandomFleet) -> Happening | None:
    if not fleet.gpu:
        return None
    causes = ("gpu_clock", "slow_node", "straggler", "gpu_power")
    return Happening(causes, card(fleet, 1.5, SM_CLOCK=fleet.some(700, 900)))


def a_card_reports_an_xid(fleet: RandomFleet) -> Happening | None:
    if not fleet.gpu:
        return None
    causes = ("gpu_fault", "core_hung", "gpu_ecc", "gpu_links")
    return Happening(causes, card(fleet, 1.0, XID_ERRORS=fleet.some(48, 62, 74, 95, 119)))


def a_row_cannot_be_remapped(fleet: RandomFleet) -> Happening | None:
    if not fleet.gpu:
        return None
    return Happening(("gpu_ecc", "gpu_fault"), card(fleet, 1.0, ROW_REMAP_FAILURE=1))


def a_bus_sends_again(fleet: RandomFleet) -> Happening | None:
    if not fleet.gpu:
        return None
    return Happening(("gpu_links", "slow_node"), card(fleet, 1.3, PCIE_REPLAY_COUNTER=8))


def blocks_leak(fleet: RandomFleet) -> Happening | None:
    if fleet.has("tgi", "llamacpp"):
        return None
    changes = [change("kv_leak", fleet.some_node(), to=0.93, shape="ramp", over=240)]
    return Happening(("kv_leak", "kv_pressure"), changes)


def metrics_vanish(fleet: RandomFleet) -> Happening | None:
    node = fleet.rng.choice(fleet.nodes)
    if node.engine == "fleetctl":
        return None
    return Happening(("signals_missing",), [change(native(node.engine), node.name, shape="vanish")], not_remedies=OUT)


NODE_FAULTS: tuple[Fault, ...] = (
    upgrade_is_slow,
    restart_is_slow,
    upgrade_breaks_sharing,
    upgrade_stops_chunking,
    upgrade_has_less_cache,
    canary_fails,
    frontend_of_one_node_is_slow,
    one_node_is_slow,
    one_node_prefills_slowly,
    all_decode_slowly,
    cards_wait,
    a_node_dies,
    a_process_ends,
    killed_for_memory,
    a_node_hangs,
    a_node_answers_500,
    all_fail,
    half_of_the_nodes_silent,
    scaled_away,
    a_card_is_hot,
    a_card_lacks_power,
    a_cards_clock_is_low,
    a_card_reports_an_xid,
    a_row_cannot_be_remapped,
    a_bus_sends_again,
    blocks_leak,
    metrics_vanish,
)

COUNTED_NODE_FAULTS: tuple[Fault, ...] = (
    upgrade_stops_chunking,
    upgrade_has_less_cache,
    canary_fails,
    all_fail,
    scaled_away,
)
"""Those that only many requests show."""

SECOND_FAULTS: tuple[Fault, ...] = (
    one_node_is_slow,
    a_node_dies,
    a_card_is_hot,
    a_node_hangs,
    metrics_vanish,
    blocks_leak,
)
"""Those that may begin beside another one."""
