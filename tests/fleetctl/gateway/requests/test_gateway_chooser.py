"""A node for a request: prefixes, rules, sessions and models together, without a server."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from fleetctl.gateway.nodes.loads import Loads
from fleetctl.gateway.nodes.table import Table
from fleetctl.gateway.requests.chooser import WEIGH_ALL, Choice, Chooser
from fleetctl.gateway.requests.model_names import ModelNames
from fleetctl.gateway.routing.pick import PickReason
from fleetctl.gateway.routing.routing_facts import RoutingFacts, routing_facts_of
from fleetctl.settings.gateway_routing import RoutingSettings, TierSettings
from fleetctl.traffic_rule import CanarySpec, RerouteSpec, Spec, TrafficRule
from fleetctl.wire.node import NodePhase
from fleetctl.wire.routing import Route, RouteSignals, RouteState, RoutingTable

SYSTEM = "You are the assistant of a house with many rooms. " * 60


def route(node: str, **facts: Any) -> Route:
    values = {"url": f"http://{node}", "state": RouteState.ACTIVE, "model": "m", "phase": NodePhase.READY, **facts}
    return Route(node=node, **values)


def rule(spec: Spec, **facts: Any) -> TrafficRule:
    return TrafficRule(id=facts.pop("id", spec.default_id), spec=spec, made_at=0.0, **facts)


def table_of(*routes: Route, rules: tuple[TrafficRule, ...] = ()) -> Table:
    return Table.from_wire(RoutingTable(version=1, routes=list(routes), rules=list(rules)))


def chat(*texts: str, **more: Any) -> RoutingFacts:
    messages = [{"role": "user", "content": text} for text in (SYSTEM, *texts)]
    return routing_facts_of("/v1/chat/completions", {"model": "m", "max_tokens": 100, "messages": messages, **more})


def long_prompt(tokens: int) -> RoutingFacts:
    return routing_facts_of("/v1/completions", {"model": "m", "prompt": f"{tokens:04}" * tokens, "max_tokens": 10})


class Rig:
    def __init__(self, table: Table, **settings: Any) -> None:
        self.table = table
        self.now = 1000.0
        self.loads = Loads(clock=lambda: self.now)
        options = RoutingSettings(**settings)
        self.chooser = Chooser(self.loads, settings=options, draw=random.Random(1), now=lambda: self.now)
        self.names = ModelNames(options)

    def send(self, facts: RoutingFacts, key: str = "") -> Choice:
        choice = self.chooser.choose(self.table, facts, key=key)
        self.chooser.note_sent(choice, facts, key)
        if choice.endpoint is not None:
            self.loads.begin(choice.endpoint.node, facts.input_tokens, is_long=choice.is_long).end()
        return choice

    def node(self, facts: RoutingFacts, key: str = "") -> str:
        choice = self.send(facts, key)
        assert choice.endpoint is not None
        return choice.endpoint.node


@pytest.mark.parametrize("size", [4, 200])
def test_each_conversation_stays_with_its_node_behind_one_long_system_prompt(size: int) -> None:
    rig = Rig(table_of(*(route(f"node-{i}") for i in range(size))))
    first = {user: rig.node(chat(f"I am user {user}. " * 100)) for user in range(30)}
    assert len(set(first.values())) > 1, "conversations spread though they begin the same"
    rig.now += 60.0
    for user, node in first.items():
        turn = chat(f"I am user {user}. " * 100, "an answer " * 30, "and then? " * 20)
        choice = rig.send(turn)
        assert choice.pick.node == node, choice.pick.scores
        assert choice.pick.reason is PickReason.PREFIX
    assert size > WEIGH_ALL or choice.num_nodes == len(choice.pick.scores)


def test_two_gateways_find_the_same_nodes_for_conversations_that_only_the_other_has_seen() -> None:
    routes = [route(f"node-{i}") for i in range(8)]
    one, other = Rig(table_of(*routes)), Rig(table_of(*routes))
    for user in range(60):  # both learn that the system prompt is everybody's
        one.send(chat(f"warm {user} " * 60))
        other.send(chat(f"warmer {user} " * 60))
    same = sum(
        one.node(chat(f"I am user {user}. " * 200)) == other.node(chat(f"I am user {user}. " * 200, "next " * 90))
        for user in range(60)
    )
    assert same > 15, "chance is 60 / 8"


def test_a_node_that_lost_its_cache_gets_no_request_for_what_it_held() -> None:
    rig = Rig(table_of(route("a"), route("b")))
    node = rig.node(chat("hello " * 50))
    dead = [route(name, phase=NodePhase.UNREACHABLE if name == node else NodePhase.READY) for name in "ab"]
    rig.table = table_of(*dead)
    rig.send(chat("hello " * 50))
    assert rig.chooser.index.match(chat("hello " * 50).blocks).tokens_of(node) == 0


def test_old_views_are_unknown_but_for_the_size_of_the_cache() -> None:
    rig = Rig(table_of(route("a"), route("b")))
    now = rig.loads.now()
    signals = [RouteSignals(node="a", age_s=60.0, kv_ratio=0.0, cache_tokens=5000)]
    rig.chooser.views.replace_all(signals, now)
    assert (rig.chooser.views.of("a", now).kv_free_tokens, rig.chooser.views.of("a", now).cache_tokens) == (None, 5000)
    rig.chooser.views.replace_all([signals[0].model_copy(update={"age_s": 1.0})], now)
    assert rig.chooser.views.of("a", now).kv_free_tokens == 5000
    assert rig.chooser.views.of("b", now).cache_tokens is None


POOLS = (route("s-1"), route("s-2"), route("long-1", pool="long"), route("long-2", pool="long"))
TO_POOL = rule(RerouteSpec(over_tokens=8000, pool="long"))


def test_long_prompts_go_to_their_pool_and_the_others_stay_away_from_it() -> None:
    rig = Rig(table_of(*POOLS, rules=(TO_POOL,)))
    long = Counter(rig.node(long_prompt(9000 + i)) for i in range(20))
    short = Counter(rig.node(chat(f"question {i} " * 10)) for i in range(40))
    assert set(long) <= {"long-1", "long-2"}
    assert set(short) == {"s-1", "s-2"}
    choice = rig.send(long_prompt(9000))
    assert (choice.is_long, choice.order.rules, choice.order.note) == (True, ("long-context",), "")
    unruled = Rig(table_of(*POOLS))
    assert {unruled.node(long_prompt(9000 + i)) for i in range(40)} > {"s-1"}, "without the rule they go anywhere"


def test_long_prompts_are_not_starved_when_their_pool_is_empty_or_unfit_and_it_is_told() -> None:
    rig = Rig(table_of(route("s-1"), route("s-2"), rules=(TO_POOL,)))
    choice = rig.send(long_prompt(9000))
    assert choice.endpoint is not None
    assert "no node of its own" in choice.order.note
    rig = Rig(table_of(*POOLS, rules=(TO_POOL,)))
    choice = rig.chooser.choose(rig.table, long_prompt(9000), {"long-1", "long-2"})
    assert choice.pick.node in ("s-1", "s-2")
    assert "none of its nodes takes it" in choice.order.note


def test_short_prompts_go_to_nodes_for_long_ones_when_no_other_is_left() -> None:
    rig = Rig(table_of(POOLS[2], POOLS[3], rules=(TO_POOL,)))
    choice = rig.send(chat("question"))
    assert choice.endpoint is not None
    assert choice.order.note == "only nodes for long prompts are left"


def test_a_rule_ends_on_time_though_the_controller_is_away() -> None:
    rig = Rig(table_of(*POOLS, rules=(TO_POOL.model_copy(update={"expires_at": 1010.0}),)))
    assert rig.send(long_prompt(9000)).is_long
    rig.now = 1010.0
    assert not rig.send(long_prompt(9000)).is_long


def test_a_share_of_the_nodes_is_the_same_from_every_gateway_and_never_all_of_them() -> None:
    spec = RerouteSpec(over_tokens=8000, share=0.25)
    routes = [route(f"node-{i}") for i in range(8)]
    seen = [
        {rig.node(long_prompt(9000 + i)) for i in range(30)}
        for rig in (Rig(table_of(*routes, rules=(rule(spec),))) for _ in range(2))
    ]
    assert seen[0] == seen[1]
    assert len(seen[0]) == 2
    alone = Rig(table_of(routes[0], rules=(rule(spec),)))
    assert alone.node(long_prompt(9000)) == alone.node(chat("short")) == "node-0"


def test_a_cap_bounds_long_requests_at_each_node_and_says_so() -> None:
    rig = Rig(table_of(*POOLS, rules=(rule(RerouteSpec(over_tokens=8000, pool="long", cap=1)),)))
    held = [rig.loads.begin(name, 9000, is_long=True) for name in ("long-1", "long-2")]
    choice = rig.chooser.choose(rig.table, long_prompt(9000))
    assert choice.is_capped
    assert dict(choice.left_out) == {"long-1": "cap", "long-2": "cap"}
    held[0].end()
    assert rig.node(long_prompt(9000)) == "long-1"


def test_long_is_also_what_would_prefill_for_long_or_fill_a_cache_and_never_what_can_not_be_predicted() -> None:
    by_time = rule(RerouteSpec(over_prefill_s=2, pool="long"))
    rig = Rig(table_of(*POOLS, rules=(by_time,)))
    assert not rig.send(long_prompt(9000)).is_long, "nothing was seen of the nodes' speed yet"
    rig.loads.note_prefill(4000, rig.loads.now() - 4.0)
    assert rig.send(long_prompt(9000)).is_long
    assert not rig.send(long_prompt(1000)).is_long
    rig = Rig(table_of(*POOLS, rules=(rule(RerouteSpec(over_kv_share=0.25, pool="long")),)))
    assert not rig.send(long_prompt(9000)).is_long
    signals = [RouteSignals(node=one.node, age_s=1.0, cache_tokens=32_000) for one in POOLS]
    rig.chooser.views.replace_all(signals, rig.loads.now())
    assert rig.send(long_prompt(9000)).is_long
    assert not rig.send(long_prompt(7000)).is_long


def test_a_canary_gets_its_share_by_session_and_falls_back_when_it_is_gone() -> None:
    routes = [route(f"old-{i}", revision="r1") for i in range(3)] + [route("new-1", revision="r2")]
    rules = (rule(CanarySpec(revisions={"r2": 0.2})),)
    rig = Rig(table_of(*routes, rules=rules))
    on_new = {user for user in range(400) if rig.node(chat("hello", user=f"user-{user}")) == "new-1"}
    assert 50 < len(on_new) < 110
    again = {user for user in range(400) if rig.node(chat("more", user=f"user-{user}"), key=f"r{user}") == "new-1"}
    assert on_new == again, "a user stays in his share"
    rig.table = table_of(*routes[:3], rules=rules)
    choice = rig.send(chat("hello", user=f"user-{min(on_new)}"))
    assert choice.endpoint is not None
    assert choice.order.note == "canary: no such node"
    rig = Rig(table_of(*routes, rules=(rule(CanarySpec(model="other", revisions={"r2": 1.0})),)))
    assert {rig.node(long_prompt(900 + i)) for i in range(40)} > {"old-0"}, "a canary of another model"


def test_a_session_stays_with_its_node_over_gateways_and_leaves_only_an_unfit_one() -> None:
    routes = [route(f"node-{i}") for i in range(6)]
    one, other = Rig(table_of(*routes), sticky_users=True), Rig(table_of(*routes), sticky_users=True)
    facts = [chat(f"turn {i} " * 99, user="ann") for i in range(5)]
    nodes = {one.node(each) for each in facts} | {other.node(each) for each in facts}
    assert len(nodes) == 1
    assert one.send(facts[0]).pick.reason is PickReason.STICKY
    one.loads.suspect(min(nodes))
    assert {one.node(each) for each in facts} != nodes
    plain = Rig(table_of(*routes))
    assert plain.send(facts[0]).pick.reason is not PickReason.STICKY, "off by default"


def test_an_alias_is_its_model_and_the_body_says_so() -> None:
    rig = Rig(table_of(route("a")), aliases={"best": "m"})
    facts, body = rig.names.resolve(rig.table, chat("x", model="best"), b'{"model": "best", "n": 1}')
    assert (facts.model, body) == ("m", b'{"model":"m","n":1}')
    same = chat("x")
    assert rig.names.resolve(rig.table, same, b"{}") == (same, b"{}")


def test_short_questions_go_to_the_small_model_only_by_rule_and_only_when_it_is_there() -> None:
    tiers = TierSettings(model="m", small_model="s", max_input_tokens=50, max_output_tokens=100)
    short = routing_facts_of("/v1/completions", {"model": "m", "prompt": "When was it?", "max_tokens": 20})
    both = table_of(route("a"), route("b", model="s"))
    rig = Rig(both, tiers=tiers)
    assert rig.names.resolve(both, short, b'{"model":"m"}')[0].model == "s"
    assert rig.names.resolve(both, chat("long"), b"{}")[0].model == "m"
    unlimited = routing_facts_of("/v1/completions", {"model": "m", "prompt": "When was it?"})
    assert rig.names.resolve(both, unlimited, b"{}")[0].model == "m"
    assert rig.names.resolve(table_of(route("a")), short, b"{}")[0].model == "m"
    assert Rig(both).names.resolve(both, short, b"{}")[0].model == "m", "off by default"


def test_a_model_that_no_node_serves_is_404_with_the_list_where_the_table_knows_all() -> None:
    own = table_of(route("a", engine="fleetctl"), route("b", model="s", engine="fleetctl"))
    names = Rig(own, aliases={"best": "m"}).names
    refusal = names.refusal(own, chat("x", model="q"))
    assert refusal is not None
    assert (refusal.status, refusal.code) == (404, "model_not_found")
    assert "models: m, s, best" in refusal.message
    assert names.refusal(own, chat("x")) is None
    assert names.refusal(own, RoutingFacts()) is None
    foreign = table_of(route("a", engine="fleetctl"), route("b", engine="vllm"))
    assert names.refusal(foreign, chat("x", model="q")) is None, "it may be one of its adapters"
    assert Rig(own, unknown_models="any").names.refusal(own, chat("x", model="q")) is None
    cordoned = table_of(route("a", engine="fleetctl"), route("b", model="s", engine="fleetctl", state="cordoned"))
    assert names.refusal(cordoned, chat("x", model="s")) is None, "it is known, and no node takes requests for it now"


def test_a_node_that_has_the_adapter_gets_its_requests() -> None:
    rig = Rig(table_of(*(route(name, engine="vllm") for name in "abcd")))
    signals = [RouteSignals(node=name, age_s=1.0, adapters=["sql"] if name == "c" else []) for name in "abcd"]
    rig.chooser.views.replace_all(signals, rig.loads.now())
    assert {rig.node(chat(f"{i} " * 99, model="sql")) for i in range(10)} == {"c"}


def test_decisions_tell_why_and_nothing_of_the_prompt() -> None:
    rig = Rig(table_of(*POOLS, rules=(TO_POOL,)))
    rig.send(chat("the secret word"), key="r1")
    rig.send(long_prompt(9000), key="r2")
    told = rig.chooser.decisions.as_json()
    newest = told["decisions"][0]
    assert (newest["request_id"], newest["rules"], newest["input_tokens"]) == ("r2", ["long-context"], 9000)
    assert "secret" not in str(told)
    assert sum(told["reasons"].values()) == 2


def test_a_beginning_that_another_node_holds_is_counted_apart_from_one_that_nobody_holds() -> None:
    rig = Rig(table_of(route("a"), route("b")))
    prompt = chat("a question " * 400)
    holder = rig.node(prompt)
    assert rig.chooser.decisions.recent()[0].elsewhere_tokens == 0, "nobody was sent it before"
    busy = rig.loads.begin(holder, 1_000_000)
    assert rig.node(prompt) != holder
    newest = rig.chooser.decisions.recent()[0]
    assert newest.cached_tokens == 0
    assert newest.elsewhere_tokens > prompt.input_tokens / 2
    busy.end()
