"""What may end, start or run beside the nodes of a random fleet: processes, cards, hosts; and other traffic."""

from __future__ import annotations

from typing import Any

from diagnostics.bench.random_fleet import OUT, RESTART_S, Fault, Happening, RandomFleet, change, native, rollout


def _ended(node: str, at: float, until: float, status: int) -> dict[str, Any]:
    return {"kind": "process_ended", "on": node, "at": at, "until": until, "exit_status": status}


def _begun_anew(fleet: RandomFleet, facts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The counters of those that ended, when they are back."""
    engines = {one.name: one.engine for one in fleet.nodes}
    ends = [one for one in facts if one["kind"] == "process_ended"]
    return [change(native(engines[one["on"]]), one["on"], shape="reset", at=one["until"]) for one in ends]


def it_ends_again_and_again(fleet: RandomFleet) -> Happening:
    node, apart, away = fleet.some_node(), fleet.some(130, 170, 220), fleet.some(40, 60)
    facts = [_ended(node, at * apart, at * apart + away, 139) for at in range(8)]
    return Happening(("crash_loop", "node_down", "core_crash"), _begun_anew(fleet, facts), facts)


def it_ends_once(fleet: RandomFleet) -> Happening | None:
    if not fleet.controller:
        return None
    facts = [_ended(fleet.some_node(), 0, 110, fleet.rng.choice([134, 139]))]
    return Happening(("core_crash", "node_down"), _begun_anew(fleet, facts), facts, judged_at_s=(60.0, 300.0))


def memory_ends_one_after_the_other(fleet: RandomFleet) -> Happening | None:
    if not fleet.controller:
        return None
    facts: list[dict[str, Any]] = []
    for number, at in enumerate((0, 200, 420, 640, 860)):
        node = fleet.names[number % len(fleet.names)]
        facts.append(_ended(node, at, at + 90, 137))
        facts.append({"kind": "provider_reason", "on": node, "at": at, "until": at + 90, "says": "OOMKilled/memory"})
    return Happening(("out_of_memory",), _begun_anew(fleet, facts), facts)


def liveness_ends_busy_nodes(fleet: RandomFleet) -> Happening | None:
    if not fleet.controller or fleet.only("fleetctl"):
        return None
    facts: list[dict[str, Any]] = []
    for number, at in enumerate((0, 190, 400, 620, 850)):
        node = fleet.names[number % len(fleet.names)]
        facts.append({"kind": "provider_reason", "on": node, "at": at, "until": at + 120, "says": "Unhealthy/liveness"})
        facts.append(_ended(node, at + 5, at + 90, 137))
    return Happening(
        ("probe_too_strict", "crash_loop"), [change("arrivals", times=1.6), *_begun_anew(fleet, facts)], facts, OUT
    )


def it_gives_wrong_answers(fleet: RandomFleet) -> Happening | None:
    if not fleet.only("fleetctl") or len(fleet.names) < 3:
        return None
    return Happening(("wrong_output",), [change("engine_golden_ok", fleet.some_node(), to=0)])


def a_new_revision_gives_wrong_answers(fleet: RandomFleet) -> Happening | None:
    if not fleet.only("fleetctl"):
        return None
    _, facts = rollout(fleet)
    changes = [change("engine_golden_ok", one["on"], to=0, at=one["at"] + RESTART_S) for one in facts]
    return Happening(("quality_drop",), changes, facts, ["drain"])


def a_new_node_warms_up_for_long(fleet: RandomFleet) -> Happening | None:
    if len(fleet.names) < 3 or fleet.is_quiet:
        return None
    node, late = fleet.names[-1], {"at": 60, "until": 1000}
    changes = [
        change("slow", node, to=2.5, **late),
        change("hit_ratio", node, to=0.05, **late),
        change("ttft_add", node, to=6, **late),
    ]
    facts = [{"kind": "restart", "on": node, "at": 0, "restart_s": 60}]
    return Happening(("cold_start", "maintenance", "slow_node", "cold_cache"), changes, facts)


def all_caches_are_cold(fleet: RandomFleet) -> Happening | None:
    if fleet.load["hit_ratio"] < 0.6 or fleet.has("tgi") or fleet.is_quiet:
        return None
    before = fleet.load["hit_ratio"]
    facts = [
        {"kind": "restart", "on": node, "at": -30 + 20 * number, "restart_s": 40}
        for number, node in enumerate(fleet.names)
    ]
    changes = [change("hit_ratio", to=0.05, at=-30), change("hit_ratio", to=before, at=60, shape="ramp", over=1500)]
    return Happening(("cold_cache", "maintenance", "cold_start"), changes, facts, OUT)


def a_card_is_gone(fleet: RandomFleet) -> Happening | None:
    if not fleet.gpu:
        return None
    node = fleet.some_node()
    changes = [
        change("DCGM_FI_DEV_XID_ERRORS", node, to=79),
        change("DCGM_*", node, shape="vanish", at=fleet.some(40, 90)),
        change("stuck", node, to=1),
    ]
    return Happening(("gpu_lost", "gpu_fault", "core_hung", "node_down"), changes)


def a_row_waits_for_its_reset(fleet: RandomFleet) -> Happening | None:
    if not fleet.gpu:
        return None
    node = fleet.some_node()
    changes = [change("DCGM_FI_DEV_ROW_REMAP_PENDING", node, to=1), change("DCGM_FI_DEV_XID_ERRORS", node, to=63)]
    return Happening(("gpu_reset_due", "gpu_ecc"), changes)


def all_cards_are_held(fleet: RandomFleet) -> Happening | None:
    if not fleet.gpu:
        return None
    changes = [
        change("DCGM_FI_DEV_SM_CLOCK", to=fleet.some(600, 800)),
        change("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", to=fleet.some(4, 8, 128)),
        change("slow", to=fleet.some(1.7, 2.2)),
    ]
    return Happening(("gpu_power", "gpu_clock", "decode_slow", "correlated_failure"), changes)


def memory_of_the_cards_fills(fleet: RandomFleet) -> Happening | None:
    if not fleet.gpu or fleet.is_quiet or fleet.has("sglang", "llamacpp"):
        return None
    changes = [
        change("DCGM_FI_DEV_FB_FREE", to=150, shape="ramp", over=60),
        change("DCGM_FI_DEV_FB_USED", to=80_700, shape="ramp", over=60),
        change("error_ratio", to=fleet.some(0.08, 0.15)),
    ]
    return Happening(("out_of_memory", "poison_request"), changes, not_remedies=OUT)


def a_neighbour_takes_the_processor(fleet: RandomFleet) -> Happening | None:
    if len(fleet.names) < 3 or fleet.is_quiet:
        return None
    for mode, rate in (("steal", 0.002), ("user", 0.3), ("idle", 0.69)):
        labels = {"cpu": "0", "mode": mode}
        fleet.series.append({"name": "node_cpu_seconds_total", "labels": labels, "rate": rate})
    node = fleet.some_node()
    changes = [
        change("node_cpu_seconds_total", node, labels={"mode": "steal"}, to=0.4),
        change("node_cpu_seconds_total", node, labels={"mode": "idle"}, to=0.02),
        change("slow_decode", node, to=fleet.some(1.6, 2.2)),
        change("overhead_seconds", node, to=0.4),
    ]
    return Happening(("busy_host", "slow_node", "frontend_bound"), changes)


def adapters_do_not_fit(fleet: RandomFleet) -> Happening | None:
    if not fleet.only("vllm") or fleet.is_quiet:
        return None
    name = "vllm:lora_requests_info"
    for waits in ("", "c"):
        labels = {"max_lora": "2", "running_lora_adapters": "a,b", "waiting_lora_adapters": waits}
        fleet.series.append({"name": name, "labels": labels, "gauge": 1781100000})
    changes = [
        change(name, labels={"waiting_lora_adapters": ""}, shape="vanish"),
        change(name, labels={"waiting_lora_adapters": "c"}, shape="vanish", at=-2700, until=0),
        change("ttft_add", to=fleet.some(2, 4), shape="pulse", over=40),
        change("vllm:num_requests_waiting", add=5, shape="pulse", over=40),
    ]
    return Happening(("adapter_cold",), changes, not_remedies=OUT)


def other_traffic_comes(fleet: RandomFleet) -> Happening | None:
    if fleet.load["hit_ratio"] < 0.6 or fleet.has("tgi") or fleet.is_quiet:
        return None
    more = fleet.some(1.7, 2)
    changes = [change("arrivals", times=more), change("hit_ratio", times=round(1 / more, 2))]
    causes = ("traffic_mix", "overload", "collapse_knee", "seats_full", "prefix_routing")
    return Happening(causes, changes, not_remedies=OUT)


def a_batch_job_each_few_minutes(fleet: RandomFleet) -> Happening | None:
    if fleet.is_quiet:
        return None
    changes = [change("arrivals", times=fleet.some(5, 7), shape="pulse", over=fleet.some(240, 280))]
    causes = ("overload", "collapse_knee", "seats_full", "tail_latency", "tenant_flood")
    return Happening(causes, changes, not_remedies=OUT)


def one_of_two_gets_nearly_all(fleet: RandomFleet) -> Happening | None:
    if len(fleet.names) != 2 or fleet.is_quiet:
        return None
    return Happening(("routing_skew",), [change("weight", fleet.some_node(), to=12)], not_remedies=OUT)


def half_of_the_nodes_get_nothing(fleet: RandomFleet) -> Happening | None:
    if len(fleet.names) < 4 or fleet.is_quiet:
        return None
    changes = [change("weight", fleet.names[: len(fleet.names) // 2], to=0.02)]
    return Happening(("routing_skew", "routing_stale"), changes, not_remedies=OUT)


def answers_are_cut_on_the_way(fleet: RandomFleet) -> Happening | None:
    if not fleet.tells_cancelled:
        return None
    changes = [change("abort_ratio", to=0.85), change("output_tokens", times=0.6)]
    return Happening(("client_disconnects", "gateway_limit"), changes, not_remedies=OUT)


END_FAULTS: tuple[Fault, ...] = (
    it_ends_again_and_again,
    it_ends_once,
    memory_ends_one_after_the_other,
    liveness_ends_busy_nodes,
    it_gives_wrong_answers,
    a_new_revision_gives_wrong_answers,
    a_new_node_warms_up_for_long,
    all_caches_are_cold,
    a_card_is_gone,
    a_row_waits_for_its_reset,
    all_cards_are_held,
    memory_of_the_cards_fills,
    a_neighbour_takes_the_processor,
    adapters_do_not_fit,
    other_traffic_comes,
    a_batch_job_each_few_minutes,
    one_of_two_gets_nearly_all,
    half_of_the_nodes_get_nothing,
    answers_are_cut_on_the_way,
)
