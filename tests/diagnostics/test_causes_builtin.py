"""Each built-in cause, named from hand-made answers; and the neighbours that look like it."""

from __future__ import annotations

from functools import cache

import pytest

from alerts.evaluation.builtin import builtin_rule_files
from alerts.evaluation.rules import load_rule_files
from diagnostics.cause import builtin_causes
from diagnostics.diagnosis import Evidence, undiagnosed
from diagnostics.evidence.knowledge import builtin_knowledge
from diagnostics.evidence.score import Ranking, rank_causes
from diagnostics.tree import Tree, tree_for_alert
from diagnostics.tree_file import builtin_no_tree_file, builtin_tree_files, load_no_tree, load_trees
from runbooks.page import load_library

# What takes a node out of service or ends it: never for a fault of clients, gateway, routing or probes.
HARMFUL = {"drain-node", "replace-node", "replace-gpu-node", "replace-lying-node", "restart-node", "stop-oom-loop"}
NOT_THE_NODES = (
    *("retry_storm", "client_disconnects", "tenant_flood", "oversized_request", "routing_skew", "prefix_routing"),
    *("gateway_down", "gateway_crash", "gateway_limit", "gateway_settings", "network_path", "probe_too_strict"),
    *(
        "downstream",
        "slow_tool",
        "routing_stale",
        "poison_request",
        "long_prompts",
        "prefix_cache_broken",
        "traffic_mix",
    ),
    *("keys_refused", "model_missing", "kv_transfer", "kv_store", "certificate_expired", "grammar_slow"),
)


@cache
def trees() -> dict[str, Tree]:
    return load_trees(builtin_tree_files())


def rank(tree: str, yes: str, unknown: str = "", kind: str = "node") -> Ranking:
    """All questions answered no, but those named."""
    known = builtin_knowledge()
    assert {*yes.split(), *unknown.split()} <= known.questions.keys()
    readings = {
        name: Evidence(name, name, "yes" if name in yes.split() else "unknown" if name in unknown.split() else "no")
        for name in known.questions
    }
    return rank_causes(known.expectations, known.questions, readings, [tree], kind)


def named(tree: str, yes: str, unknown: str = "", kind: str = "node") -> tuple[str, ...]:
    return rank(tree, yes, unknown, kind).fits[0].causes


def test_numbers_that_stand_still_because_the_core_died_are_no_second_cause() -> None:
    seen = "core_died stood_still errors_up retries_up numbers_frozen"
    assert named("node", seen) == ("core_crash",)
    assert named("signals", "numbers_frozen") == ("signals_frozen",)


def test_a_prompt_that_is_read_while_tokens_come_slowly_is_no_slow_decoding() -> None:
    seen = "itl_up steps_slower_than_before steps_cost_more peers_slower_than_before steps_far_slower prefill_backlog"
    assert named("capacity", seen, kind="pool") == ("decode_slow",)
    assert "decode_slow" not in named("capacity", f"{seen} long_prompt_in_flight", kind="pool")


def test_retries_to_nodes_that_are_slow_are_no_matter_of_the_path() -> None:
    seen = "nodes_unreachable retries_up ttft_up itl_up steps_slower_than_before"
    assert named("gateway", seen, kind="pool") == ("network_path",)
    assert "network_path" not in named("gateway", f"{seen} steps_far_slower", kind="pool")


def test_a_serving_process_is_not_what_holds_requests_up_where_the_engine_is_far_slower_too() -> None:
    """On a machine that was short of processors, of one that used a hundredth of a core: 98 % sure."""
    seen = "frontend_lags ttft_up itl_up steps_slower_than_before steps_cost_more"
    assert named("capacity", seen, kind="pool") == ("frontend_bound",)
    assert "frontend_bound" not in named("capacity", f"{seen} steps_far_slower", kind="pool")


def test_no_tenant_is_named_where_nobody_tells_them_apart() -> None:
    """Behind one giant prompt everybody waited: "one tenant takes the room of the others", 98 % sure."""
    seen = "queue_waits ttft_up ttft_tail_up e2e_up clients_hang_up seats_free waits_without_work"
    assert "tenant_flood" not in named("capacity", seen, kind="pool", unknown="tenant_grew tenant_holds_more")


def test_no_limit_is_said_to_be_lowered_where_nobody_tells_limits() -> None:
    """ "A limit was lowered: 1.0 times the seats before", 98 % sure."""
    seen = "queue_waits ttft_up ttft_tail_up itl_up e2e_up running_up seats_free prefill_backlog"
    assert "limit_lowered" not in named("capacity", seen, kind="pool", unknown="changed_limits")


def test_a_cache_that_is_full_for_some_seconds_is_not_named() -> None:
    assert named("latency", "kv_full", kind="pool") == ("kv_pressure",)
    assert "kv_pressure" not in named("latency", "kv_full full_for_a_moment", kind="pool")


def test_a_node_that_is_gone_without_an_order_is_named_beside_the_table_that_still_has_it() -> None:
    seen = "silent nodes_fewer gone_for_others routed_to_gone fails_for_users"
    assert set(named("node", seen, unknown="process_ended core_gone")) == {"node_down", "routing_stale"}


def test_blocks_that_leak_are_named_beside_adapters_that_do_not_fit() -> None:
    """Who waits for an adapter holds no blocks: a request that holds more of them is not its doing."""
    seen = "adapters_wait queue_waits ttft_up ttft_tail_up e2e_up kv_full kv_per_request_up kv_full_first"
    assert set(named("latency", seen, kind="pool")) == {"kv_leak", "adapter_cold"}


def test_a_router_that_waits_for_a_node_that_is_gone_is_named_beside_its_death() -> None:
    seen = "silent silent_for_good nodes_fewer gone_for_others held_at_gateway arrivals_down served_fell"
    assert set(named("node", seen)) == {"node_down", "network_path"}


def test_a_budget_that_is_spent_is_told_of_its_own_alert_whatever_else_a_pool_suffers_from() -> None:
    seen = "overflow_spent itl_up steps_slower_than_before steps_cost_more ttft_up e2e_up queue_waits running_up"
    assert named("gateway", seen, kind="fleet")[0] == "overflow_spent"
    assert named("latency", seen, kind="fleet")[0] == "decode_slow"


def test_prompts_that_are_read_slowly_are_no_slow_decoding_and_no_broken_prefix() -> None:
    seen = "reads_slower prefill_slower ttft_up ttft_tail_up"
    assert named("latency", seen, kind="pool") == ("prefill_slow",)
    assert "prefill_slow" not in named("latency", f"{seen} shared_tokens_fell prefix_hit_fell misses_grew", kind="pool")


@pytest.mark.parametrize("question", ["most_silent", "most_processes_ended", "peers_wrong"])
def test_a_share_that_is_asked_for_is_the_share_that_is_shown(question: str) -> None:
    """67 % beside "are at least half of the nodes silent?", meaning those that answer, was read the wrong way round."""
    assert builtin_knowledge().questions[question].when.comparison in (">", ">=")


CASES = [
    (
        "overload",
        "capacity",
        "queue_waits queue_everywhere arrivals_up ttft_up ttft_tail_up running_up kv_full seats_taken",
    ),
    ("overload", "latency", "queue_waits queue_everywhere ttft_up e2e_up kv_full arrivals_up"),
    ("kv_pressure", "latency", "queue_waits queue_everywhere ttft_up e2e_up kv_full"),  # and no more arrive
    (
        "retry_storm",
        "capacity",
        "clients_hang_up arrivals_up served_fell queue_waits queue_everywhere ttft_up retries_up",
    ),
    ("client_disconnects", "errors", "clients_hang_up served_fell"),
    ("tenant_flood", "capacity", "tenant_grew arrivals_up queue_waits queue_everywhere ttft_up"),
    # nobody waits: all share their steps with thirty of one tenant
    ("tenant_flood", "latency", "tenant_holds_more arrivals_up running_up itl_up steps_slower_than_before e2e_up"),
    ("capacity_lost", "capacity", "nodes_fewer queue_waits queue_everywhere running_up ttft_up"),
    (
        "long_prompts",
        "latency",
        "prompts_longer prompts_median_longer prefix_hit_fell ttft_up queue_waits kv_per_request_up",
    ),
    ("long_prompts", "cache", "prompts_longer prompts_median_longer prefix_hit_fell hit_fell_everywhere ttft_up"),
    ("long_prompt_share", "latency", "prompts_longer ttft_tail_up ttft_up kv_per_request_up queue_waits"),
    (
        "long_context_outlier",
        "latency",
        "long_prompt_in_flight prefill_backlog ttft_up ttft_tail_up itl_up queue_waits",
    ),
    (
        "long_context_outlier",
        "latency",
        "long_prompt_in_flight slow_steps steps_slower steps_slower_than_before ttft_up",
    ),
    ("runaway_generations", "capacity", "answers_longer answers_run_on running_up e2e_up kv_full queue_waits"),
    (
        "collapse_knee",
        "latency",
        "running_up steps_slower_than_before steps_far_slower itl_up arrivals_up "
        "peers_slower_than_before e2e_up ttft_up",
    ),
    ("long_context_outlier", "gray", "large_in_flight slow_steps steps_slower steps_slower_than_before itl_up ttft_up"),
    ("bad_deploy", "latency", "new_revision changed_deploy arrivals_up running_up steps_far_slower itl_up"),
    ("tail_latency", "latency", "tail_later ttft_tail_up"),
    ("routing_skew", "capacity", "load_uneven node_gets_more idle_peers queue_waits ttft_up slower_than_peers"),
    ("prefix_cache_broken", "latency", "shared_tokens_fell prefix_hit_fell hit_fell_everywhere ttft_up prefill_slower"),
    (
        "prefix_by_upgrade",
        "latency",
        "shared_tokens_fell prefix_hit_fell hit_fell_everywhere ttft_up new_revision restarted_before",
    ),
    (
        "prefix_by_upgrade",
        "cache",
        "shared_tokens_fell prefix_hit_fell ttft_up restarted_before started_lately changed_deploy",
    ),
    ("cold_cache", "cache", "shared_tokens_fell prefix_hit_fell started_lately restarted_before ttft_up"),
    ("prefix_evicted", "cache", "shared_tokens_fell prefix_hit_fell kv_full ttft_up preempts"),
    (
        "prefix_routing",
        "cache",
        "shared_tokens_fell prefix_hit_fell hit_fell_everywhere routed_apart changed_routing ttft_up",
    ),
    (
        "prefix_routing",
        "cache",
        "shared_tokens_fell prefix_hit_fell hit_fell_everywhere arrivals_up hits_lost_under_load routing_untold",
    ),
    ("prefix_salt", "cache", "shared_tokens_fell prefix_hit_fell hit_fell_everywhere tenants_more"),
    ("traffic_mix", "cache", "shared_tokens_fell prefix_hit_fell arrivals_up tenant_grew"),
    (
        "caching_off",
        "cache",
        "hits_gone caching_off shared_tokens_fell prefix_hit_fell hit_fell_everywhere ttft_up restarted_before",
    ),
    ("kv_pressure", "capacity", "kv_full preempts queue_waits ttft_up running_up"),
    (
        "preemption_thrash",
        "capacity",
        "preempts preempts_much kv_full served_fell itl_up e2e_up queue_waits ttft_up tokens_fell",
    ),
    ("kv_leak", "capacity", "kv_per_request_up kv_full queue_waits preempts"),
    ("kv_leak", "capacity", "kv_held_idle"),
    ("kv_capped", "capacity", "queue_waits seats_free kv_capacity_fell ttft_up restarted_before"),
    ("seats_full", "capacity", "seats_taken kv_free queue_waits ttft_up"),
    ("limit_lowered", "capacity", "seats_lowered changed_limits seats_taken kv_free queue_waits ttft_up"),
    ("out_of_memory", "errors", "out_of_memory errors_up memory_full running_up"),
    (
        "slow_node",
        "latency",
        "slow_steps steps_slower steps_slower_than_before itl_up ttft_up slower_than_peers queue_waits",
    ),
    ("slow_node", "gray", "slow_steps steps_slower steps_slower_than_before itl_up kv_free"),
    ("straggler", "gray", "steps_slower fell_behind slower_beyond_work steps_slower_than_before kv_free"),
    ("decode_slow", "latency", "itl_up steps_slower_than_before steps_cost_more peers_slower_than_before e2e_up"),
    (
        "decode_slow",  # and what takes twice as long holds its blocks for twice as long
        "latency",
        "itl_up steps_slower_than_before steps_cost_more peers_slower_than_before e2e_up running_up kv_full",
    ),
    ("prefill_slow", "latency", "reads_slower prefill_slower ttft_up itl_up steps_slower_than_before queue_waits"),
    ("gpu_fault", "latency", "gpu_xid slow_steps steps_slower steps_slower_than_before itl_up ttft_up fell_far_behind"),
    ("network_path", "errors", "fails_at_gateway arrivals_down served_fell tokens_fell"),
    ("probe_too_strict", "gateway", "left_out_by_turns nodes_work"),
    ("core_hung", "node", "ends_nothing tokens_fell served_fell"),
    ("kv_pressure", "latency", "itl_up steps_slower_than_before running_up kv_full queue_waits ttft_up preempts"),
    ("gpu_idle", "latency", "gpu_idle gpu_idler_than_before tokens_fell ttft_up itl_up kv_free"),
    (
        "gpu_idle",
        "latency",
        "gpu_idle gpu_idler_than_before arrivals_up running_up steps_far_slower itl_up ttft_up",
    ),
    ("frontend_bound", "latency", "frontend_cpu_full frontend_lags ttft_up gpu_idler_than_before tokens_fell"),
    ("busy_host", "gray", "host_steals slow_steps steps_slower steps_slower_than_before itl_up ttft_up"),
    ("cold_start", "node", "loading started_lately no_steps ttft_up restarted_before"),
    ("adapter_cold", "latency", "adapters_wait adapter_slots_full ttft_up queue_waits kv_free"),
    ("adapter_cold", "capacity", "adapters_wait no_steps queue_waits idle_peers kv_free"),
    ("gpu_fault", "gpu", "gpu_unhealthy gpu_xid core_died errors_up"),
    ("gpu_fault", "latency", "gpu_unhealthy slow_steps ttft_up"),
    ("gpu_lost", "gpu", "gpu_gone gpu_unhealthy gpu_xid no_steps"),
    ("gpu_ecc", "gpu", "gpu_ecc gpu_unhealthy core_died"),
    ("gpu_thermal", "gray", "gpu_hot gpu_clock_low gpu_hotter gpu_unhealthy slow_steps steps_slower itl_up"),
    ("gpu_power", "gpu", "gpu_brake gpu_unhealthy gpu_clock_low steps_slower"),
    # of all cards alike no peer shows it
    (
        "gpu_power",
        "latency",
        "gpu_limit_lowered gpu_clock_fell steps_slower_than_before peers_slower_than_before itl_up e2e_up",
    ),
    ("gpu_power", "gray", "gpu_power_capped gpu_clock_low gpu_clock_fell slow_steps steps_slower itl_up"),
    ("gpu_clock", "gray", "gpu_clock_low gpu_clock_fell steps_slower steps_slower_than_before"),
    ("gpu_links", "gpu", "gpu_link_faults slow_steps steps_slower"),
    ("node_down", "node", "silent process_ended nodes_fewer"),
    (
        "node_down",
        "errors",
        "errors_only errors_up no_steps load_uneven queue_waits running_up",
    ),  # its gauges stand still
    ("bad_deploy_errors", "errors", "errors_only errors_up new_revision changed_deploy"),
    ("correlated_failure", "errors", "errors_only errors_up errors_everywhere"),
    ("machine_unhealthy", "node", "silent machine_silent nodes_fewer"),
    ("machine_unhealthy", "node", "machine_short fails_often"),
    ("slow_node", "gray", "slow_steps steps_slower itl_up fails_often"),
    ("overload", "capacity", "queue_waits queue_everywhere arrivals_up running_up fails_often"),
    ("machine_unhealthy", "node", "machine_faulty silent process_ended"),
    ("gpu_fault", "node", "gpu_unhealthy machine_gpu_fault silent process_ended"),
    ("unschedulable", "node", "pod_unscheduled loading silent"),
    ("out_of_memory", "node", "process_ended ended_by_memory pod_out_of_memory silent"),
    (  # also minutes after a deploy that had nothing to do with it
        "out_of_memory",
        "node",
        "process_ended pod_out_of_memory silent nodes_fewer gone_for_others ended_unasked gpu_idler_than_before "
        "new_revision changed_deploy",
    ),
    ("client_disconnects", "errors", "clients_hang_up queue_waits tokens_fell"),  # a third of a second is no reason
    ("bad_deploy_never_ready", "node", "pod_cannot_start new_revision changed_deploy loading"),
    ("node_down", "node", "core_gone core_died errors_up"),
    ("core_hung", "node", "core_stuck no_steps tokens_fell served_fell queue_waits gpu_idle"),
    ("gpu_fault", "node", "gpu_xid core_stuck no_steps tokens_fell served_fell queue_waits gpu_idle"),
    ("core_hung", "capacity", "no_steps tokens_fell served_fell queue_waits seats_taken"),
    ("signals_frozen", "node", "held_by_nobody no_steps tokens_fell kv_full seats_taken queue_waits"),
    ("signals_missing", "node", "serves_unseen silent nodes_fewer tokens_fell served_fell"),
    ("signals_missing", "capacity", "serves_unseen silent most_silent nodes_fewer tokens_fell queue_waits"),
    ("crash_loop", "node", "core_dies_often core_died errors_up served_fell"),
    (
        "machine_unhealthy",
        "node",
        "machine_silent silent process_ended ended_by_memory ended_unasked ends_again gone_for_others nodes_fewer",
    ),
    ("core_crash", "node", "core_died errors_up retries_up"),
    (
        "core_crash",
        "node",
        "ended_and_returns comes_back silent process_ended ended_unasked ended_with_status nodes_fewer",
    ),
    ("node_down", "node", "comes_back stays_away silent process_ended nodes_fewer"),  # it was told to end
    ("correlated_failure", "node", "silent most_silent process_ended most_processes_ended nodes_fewer"),
    ("correlated_failure", "errors", "errors_up errors_everywhere served_fell"),
    ("maintenance", "node", "restarted_by_us silent process_ended loading"),
    ("correlated_failure", "node", "silent several_silent nodes_fewer"),
    (
        "correlated_failure",
        "capacity",
        "silent several_silent nodes_fewer queue_waits queue_everywhere kv_full ttft_up running_up",
    ),
    # of a node that ended it says nothing that the others are full: one more beside it replaces none
    ("node_down", "node", "silent process_ended nodes_fewer queue_waits running_up seats_taken ttft_up ttft_median_up"),
    ("wrong_output", "output", "output_wrong"),
    ("wrong_output", "output", "output_wrong wrong_alone restarted_before"),  # it was restarted, and was right since
    ("quality_drop", "output", "output_wrong peers_wrong new_revision"),
    ("poison_request", "node", "poison_found core_died core_dies_often errors_up"),
    (
        "bad_deploy",
        "latency",
        "new_revision restarted_before ttft_up steps_slower_than_before peers_slower_than_before itl_up",
    ),
    ("bad_deploy_errors", "errors", "new_revision changed_deploy errors_up errors_everywhere"),
    ("bad_deploy_never_ready", "controller", "starts_fail loading_long changed_deploy"),
    ("bad_deploy_never_ready", "node", "start_failed process_ended silent"),
    ("chunking_off", "latency", "gaps_jump restarted_before ttft_tail_up chunking_off"),
    ("gateway_down", "gateway", "gateway_silent"),
    ("quality_drop", "gateway", "output_wrong peers_wrong gateway_fails_open nodes_work retries_up"),
    ("gateway_down", "gateway", "gateway_silent gateway_ended gateway_died"),
    ("gateway_crash", "gateway", "gateway_died gateway_just_died"),
    ("gateway_limit", "gateway", "limits_refuse gateway_refuses"),
    ("gateway_limit", "gateway", "gateway_refuses nodes_work kv_free"),
    ("oversized_request", "gateway", "gateway_refuses refused_as_invalid"),
    ("routing_stale", "errors", "routed_to_gone nodes_work"),
    ("routing_skew", "latency", "node_starved load_uneven idle_peers nodes_work"),
    ("network_path", "gateway", "arrivals_gone arrivals_down served_fell tokens_fell gpu_idler_than_before"),
    ("tenant_flood", "gateway", "limits_refuse gateway_refuses tenant_grew"),
    ("network_path", "gateway", "nodes_unreachable retries_up lost_on_the_way gateway_ejects"),
    ("probe_too_strict", "gateway", "gateway_ejects answers_flap arrivals_up queue_waits nodes_work ttft_up"),
    ("downstream", "latency", "lost_on_the_way"),
    (
        "retry_storm",
        "capacity",
        "clients_hang_up arrivals_up prompts_repeat hits_kept queue_waits queue_everywhere kv_full preempts ttft_up",
    ),
    ("downstream", "node", "silent most_silent nodes_fewer"),
    ("slow_tool", "gateway", "arrivals_down arrivals_dropped gpu_idler_than_before tokens_fell"),
    ("autoscaler_thrash", "controller", "size_reverses changed_size"),
    # A deploy a quarter of an hour before: what tells by itself of something else is not its doing.
    (
        "autoscaler_thrash",
        "latency",
        "size_reverses changed_size new_revision changed_deploy restarted_before ttft_up queue_waits kv_full preempts"
        " preempts_much e2e_up kv_full_first idle_peers ttft_tail_up ttft_median_up",
    ),
    ("client_disconnects", "errors", "clients_hang_up new_revision"),
    ("downstream", "gateway", "lost_on_the_way queue_waits"),
    ("signals_frozen", "signals", "numbers_frozen no_steps"),
    ("probe_too_strict", "node", "ended_when_full process_ended silent refuses arrivals_up queue_waits nodes_work"),
    ("out_of_memory", "errors", "memory_ran_full memory_full errors_up"),
    (
        "tenant_flood",
        "capacity",
        "tenant_holds_more answers_longer answers_cut_by_length queue_waits queue_everywhere seats_taken running_up",
    ),
    # What a cause brings about does not become the cause.
    (
        "overload",
        "capacity",
        "arrivals_up queue_waits queue_everywhere kv_full seats_free ttft_up itl_up running_up clients_hang_up",
    ),
    (
        "capacity_lost",
        "capacity",
        "nodes_fewer queue_waits queue_everywhere kv_full seats_free preempts ttft_up itl_up running_up",
    ),
    (
        "bad_deploy_never_ready",
        "capacity",
        "starts_fail changed_deploy nodes_fewer silent queue_waits queue_everywhere kv_full ttft_up",
    ),
    (
        "runaway_generations",
        "capacity",
        "answers_longer answers_cut_by_length preempts preempts_much kv_full queue_waits ttft_up e2e_up running_up",
    ),
    ("kv_pressure", "capacity", "kv_full kv_jumped kv_per_request_up preempts queue_waits queue_everywhere ttft_up"),
    ("decode_slow", "latency", "itl_up steps_slower_than_before peers_slower_than_before e2e_up running_up"),
    ("chunking_off", "latency", "gaps_jump itl_up restarted_before restarted_by_us e2e_up"),
    ("drain_stuck", "node", "drains_long draining no_steps"),
    (
        "bad_deploy",
        "latency",
        "own_new_revision new_revision restarted_before started_after_peers slow_steps steps_slower itl_up ttft_up",
    ),
]


RESTART_QUEUE = "restarted_by_us started_lately queue_waits queue_everywhere ttft_up running_up kv_full prefill_backlog"


def test_a_queue_that_a_restart_left_is_the_restarts_while_a_node_is_just_back_and_an_overload_later() -> None:
    assert named("capacity", f"{RESTART_QUEUE} back_lately", kind="pool") == ("maintenance",)
    assert "maintenance" not in named("capacity", RESTART_QUEUE, kind="pool")
    assert rank("capacity", f"{RESTART_QUEUE} back_lately", kind="pool").probability_of("overload") < 0.2


@pytest.mark.parametrize(("cause", "tree", "yes"), CASES, ids=[f"{n}-{c}-{t}" for n, (c, t, _) in enumerate(CASES)])
def test_names_the_cause(cause: str, tree: str, yes: str) -> None:
    assert named(tree, yes) == (cause,)


@pytest.mark.parametrize("cause", sorted(builtin_causes()))
def test_what_a_cause_expects_makes_it_the_verdict(cause: str) -> None:
    expects = builtin_knowledge().expectations[cause]
    yes = " ".join([*(group[0] for group in expects.must), *expects.often])
    for tree in sorted(expects.explains):
        assert cause in named(tree, yes, kind=sorted(expects.where)[0]), tree


def test_nothing_unusual_names_nothing() -> None:
    for tree in trees():
        assert named(tree, "kv_free nodes_work") == ()


def test_what_nobody_can_tell_names_nothing() -> None:
    unknown = " ".join(builtin_knowledge().questions)
    assert all(named(tree, "", unknown) == () for tree in trees())


@pytest.mark.parametrize("late", ["", "started_lately"], ids=["an hour later", "at once"])
def test_upgrade_that_breaks_prefix_sharing_is_rolled_back(late: str) -> None:
    yes = f"shared_tokens_fell prefix_hit_fell hit_fell_everywhere ttft_up restarted_before new_revision {late}"
    for unknown in ("", "changed_deploy routed_apart tenants_more tenant_grew changed_routing routing_old caching_off"):
        assert named("latency", yes, unknown, kind="pool") == ("prefix_by_upgrade",)
    assert builtin_causes()["prefix_by_upgrade"].page == "rollback-pool"


def test_prompts_are_only_likely_to_be_blamed_where_nobody_tells_where_they_went() -> None:
    yes = "shared_tokens_fell prefix_hit_fell hit_fell_everywhere ttft_up"
    silent = "routed_apart changed_routing routing_old nodes_more tenants_more tenant_grew"
    untold = rank("cache", f"{yes} routing_untold", silent, kind="pool")
    assert untold.best.causes == ("prefix_cache_broken",)
    assert 0.15 < untold.probability_of("prefix_routing") < 0.4
    near = {"prefix_routing", "prefix_salt", "traffic_mix"}
    assert untold.next_to(["prefix_cache_broken"], near) == "prefix_routing", "where prompts went is asked next"
    assert rank("cache", yes, kind="pool").probability_of("prefix_routing") == 0, "a gateway tells that it was not it"


def test_storm_of_long_prompts_is_no_broken_prefix() -> None:
    found = rank("cache", "prefix_hit_fell hit_fell_everywhere prompts_longer ttft_up queue_waits", kind="pool")
    assert found.probability_of("prefix_cache_broken") == 0


def test_prefill_chunks_of_others_make_no_slow_node() -> None:
    found = rank("latency", "slow_steps steps_slower prefills_more itl_up ttft_up longest_prompts_grew")
    assert found.probability_of("slow_node") == 0


def test_node_that_warms_up_is_not_stuck() -> None:
    assert rank("node", "loading no_steps started_lately").probability_of("core_hung") == 0


def test_pool_that_slows_down_as_a_whole_is_no_slow_node() -> None:
    assert (
        rank("latency", "slow_steps steps_slower_than_before peers_slower_than_before").probability_of("slow_node") == 0
    )


def test_page_never_takes_a_node_out_for_what_is_not_the_nodes_fault() -> None:
    causes = builtin_causes()
    assert {causes[name].page for name in NOT_THE_NODES}.isdisjoint(HARMFUL)


def test_causes_name_questions_trees_and_causes_that_there_are() -> None:
    known, causes = builtin_knowledge(), builtin_causes()
    for name, one in causes.items():
        assert one.expects is not None, name
        assert one.expects.names <= known.questions.keys(), name
        assert one.expects.explains <= trees().keys(), name
        assert {*one.confused_with, *one.expects.tell_apart} <= causes.keys() - {name}, name


def test_every_question_is_asked_by_a_cause() -> None:
    known = builtin_knowledge()
    assert known.questions.keys() == {name for one in known.expectations.values() for name in one.names}
    assert {name for tree in trees().values() for name in tree.ask} <= known.questions.keys()


def test_page_of_a_cause_says_that_it_treats_it() -> None:
    pages = load_library()
    for one in builtin_causes().values():
        assert not one.page or one.name in pages[one.page].causes, one.name


@pytest.mark.parametrize(
    ("alert", "tree"),
    [
        ("LLMTTFTRegression", "latency"),
        ("LLMPoolTTFTRegression", "latency"),
        ("LLMNodeSlow", "latency"),
        ("LLMTTFTHigh", "latency"),
        ("LLMNodeGray", "gray"),
        ("LLMQueueDepth", "capacity"),
        ("LLMKVCacheSaturated", "capacity"),
        ("LLMPreemptions", "capacity"),
        ("LLMErrorRate", "errors"),
        ("LLMNodeDown", "node"),
        ("LLMCoreDown", "node"),
        ("LLMPrefixHitDrop", "cache"),
        ("LLMGPUXid", "gpu"),
        ("LLMSignalFrozen", "signals"),
    ],
)
def test_each_alert_has_its_tree(alert: str, tree: str) -> None:
    found = tree_for_alert(trees(), alert)
    assert found is not None
    assert found.name == tree


def test_every_alert_of_ours_has_a_tree_or_a_reason_why_not() -> None:
    groups = load_rule_files(builtin_rule_files())
    alerts = {rule.name for group in groups for rule in group.rules if rule.kind == "alert"}
    explained = {symptom for tree in trees().values() for symptom in tree.symptoms}
    assert explained <= alerts
    no_tree = load_no_tree(builtin_no_tree_file())
    assert explained.isdisjoint(no_tree)
    assert explained | no_tree.keys() == alerts


def test_an_incident_without_a_tree_says_what_to_do_instead() -> None:
    no_tree = load_no_tree(builtin_no_tree_file())
    known = undiagnosed("LLMAutomationRests", no_tree.get("LLMAutomationRests"))
    assert (known.tree, known.cause, known.confidence) == ("", None, "unknown")
    assert known.title.startswith("No tree explains LLMAutomationRests: its last runs tell what did not help")
    assert undiagnosed("HostOOM", no_tree.get("HostOOM")).title == "No tree explains HostOOM: see its own description"
    itself = undiagnosed("LLMReceiverFailing", no_tree["LLMReceiverFailing"], {"receiver": "night"}).title
    assert itself.startswith("LLMReceiverFailing says itself what is wrong: `fleetctl notify show night` says what")


def test_an_unknown_alert_has_no_tree() -> None:
    assert tree_for_alert(trees(), "SomethingElse") is None


def test_verdict_of_a_process_that_ends_again_names_the_neighbour_that_its_engine_cannot_tell() -> None:
    untold = "out_of_memory pod_out_of_memory memory_ran_full poison_found"
    yes = "ends_again process_ended silent ended_unasked"
    assert rank("node", yes, untold).fits[0].causes == ("crash_loop",)
    assert rank("node", yes, untold).untold_of({"out_of_memory", "poison_request"}) in (
        "out_of_memory",
        "poison_request",
    )


def test_requests_that_come_once_more_after_a_restart_on_purpose_are_no_overload() -> None:
    yes = "restarted_by_us back_lately load_fills arrivals_up queue_waits kv_full ttft_up preempts started_lately"
    assert "overload" not in named("capacity", yes, kind="pool")


def test_node_a_little_slower_is_no_reason_for_requests_that_take_many_times_as_long() -> None:
    yes = "steps_slower fell_behind slower_beyond_work kv_full seats_taken queue_waits ttft_up e2e_up"
    assert "straggler" in named("gray", "steps_slower fell_behind slower_beyond_work")
    assert named("latency", f"{yes} e2e_far_up", kind="pool") == ("kv_pressure",)


def test_cache_that_was_warm_before_it_began_is_not_cold() -> None:
    found = rank("cache", "shared_tokens_fell prefix_hit_fell started_lately warm_before", kind="pool")
    assert found.probability_of("cold_cache") == 0
    assert "prefix_cache_broken" not in named("cache", "shared_tokens_fell started_lately", kind="pool")


@pytest.mark.parametrize(
    ("tree", "seen", "cause", "told_apart_by"),
    [
        ("errors", "refused_as_invalid keys_refused", "keys_refused", ("keys_refused", "oversized_request")),
        ("errors", "refused_as_invalid asked_for_missing", "model_missing", ("asked_for_missing", "oversized_request")),
        ("node", "no_steps tokens_fell sleeps_with_work", "asleep", ("sleeps_with_work", "core_hung")),
        ("latency", "ttft_up kv_transfers_wait frontend_lags", "kv_transfer", ("kv_transfers_wait", "frontend_bound")),
        (
            "latency",
            "ttft_up prefill_slower reads_slower external_hits_fell",
            "kv_store",
            ("external_hits_fell", "prefill_slow"),
        ),
        ("latency", "ttft_up frontend_lags grammars_wait", "grammar_slow", ("grammars_wait", "frontend_bound")),
        (
            "gateway",
            "arrivals_gone certificate_expired",
            "certificate_expired",
            ("certificate_expired", "network_path"),
        ),
        (
            "errors",
            "errors_up errors_everywhere queue_everywhere queue_waits arrivals_up fails_beyond_room",
            "overload",
            ("fails_beyond_room queue_everywhere queue_waits arrivals_up", "correlated_failure"),
        ),
    ],
)
def test_what_was_measured_and_never_asked_names_its_cause_and_its_neighbour_without_it(
    tree: str, seen: str, cause: str, told_apart_by: tuple[str, str]
) -> None:
    signs, neighbour = told_apart_by
    assert named(tree, seen, kind="pool") == (cause,)
    assert named(tree, " ".join(word for word in seen.split() if word not in signs.split()), kind="pool") == (
        neighbour,
    )


def test_a_node_that_does_not_start_is_taken_back_only_where_a_new_revision_is_known_of() -> None:
    cause = builtin_causes()["bad_deploy_never_ready"]
    assert cause.expects is not None
    assert {"changed_deploy", "new_revision"} <= set(cause.expects.acts_on)
    assert not {"pod_cannot_start", "loading_long", "starts_fail"} & set(cause.expects.acts_on)
