"""Prompts on their way through a real gateway: trimmed, refused, canonical, measured and reported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from fleetctl.gateway.prompts import preparation as preparation_module
from fleetctl.gateway.prompts.preparation import PromptOverBudgetError, PromptPreparation
from fleetctl.gateway.prompts.prompt_metrics import PromptMetrics
from fleetctl.gateway.prompts.token_ratio import TokenRatios
from fleetctl.gateway.routing.json_cost import MAX_CHEAP_VALUES
from fleetctl.settings.gateway import GatewaySettings
from fleetctl.settings.prompts import PrefixLintSettings, PromptBudget, PromptSettings
from tests.fixtures.gateway import small_fleet, until

pytestmark = pytest.mark.anyio

TURN = "word " * 40  # 200 characters, 50 tokens
OLD = [{"role": "user", "content": TURN}, {"role": "assistant", "content": TURN}]
ASKED = {"role": "user", "content": "and now?"}
RULES = {"role": "system", "content": "Be brief."}


def settings(**prompts: Any) -> GatewaySettings:
    return GatewaySettings(prompts=PromptSettings(**prompts))


async def test_a_conversation_over_its_budget_reaches_the_node_trimmed_and_the_client_is_told(tmp_path: Path) -> None:
    limits = settings(budgets=(PromptBudget(max_tokens=200),))
    async with small_fleet(tmp_path, "a", limits=limits) as (served, nodes, _):
        within = await served.send({"messages": [RULES, *OLD, ASKED], "stream": False})
        assert "X-Fleet-Trimmed" not in within.headers
        over = await served.send({"messages": [RULES, *OLD, *OLD, *OLD, ASKED], "stream": False})
        assert over.status == 200
        assert over.headers["X-Fleet-Trimmed"] == "2 turns, 224 tokens (estimated at 4.0 characters a token)"
        assert nodes[0].seen[-1]["body"]["messages"] == [RULES, *OLD, ASKED]
        registry = served.gateway.metrics.registry
        assert registry.get_sample_value("gateway_prompt_budget_total", {"result": "trimmed"}) == 1
        assert registry.get_sample_value("gateway_prompt_trimmed_tokens_total") == 224


@pytest.mark.parametrize(
    ("body", "policy", "said"),
    [
        ({"messages": [RULES, *OLD, ASKED]}, "refuse", "send fewer or shorter messages"),
        ({"messages": [RULES, {"role": "user", "content": TURN}]}, "trim", "the last turn alone have"),
        ({"prompt": TURN}, "trim", "a plain prompt has no turns"),
    ],
    ids=["policy", "nothing to leave out", "plain prompt"],
)
async def test_what_is_over_budget_and_cannot_be_trimmed_is_refused(
    tmp_path: Path, body: dict[str, Any], policy: Any, said: str
) -> None:
    limits = settings(budgets=(PromptBudget(max_tokens=40, policy=policy),))
    path = "/v1/completions" if "prompt" in body else "/v1/chat/completions"
    async with small_fleet(tmp_path, "a", limits=limits) as (served, nodes, _):
        reply = await served.send(body, path=path)
        assert reply.status == 400
        error = json.loads(reply.body)["error"]
        assert error["code"] == "prompt_over_budget"
        assert "its budget is 40" in error["message"]
        assert said in error["message"]
        assert nodes[0].seen == []


async def test_the_report_names_the_template_that_loses_its_prefix(tmp_path: Path) -> None:
    limits = settings(prefix_lint=PrefixLintSettings(max_per_s=1000))
    async with small_fleet(tmp_path, "a", limits=limits) as (served, _, _):
        for i in range(3):
            served.gateway.prompts._next_look = 0.0  # type: ignore[union-attr]  # no waiting for the next turn
            system = {"role": "system", "content": f"Now: 10:0{i}\n{'Always cite the policy of the house. ' * 20}"}
            await served.send({"model": "m", "messages": [system, ASKED], "stream": False})
        async with served.session.get(served.url + "/gateway/prefix-report") as response:
            (row,) = (await response.json())["templates"]
        assert (row["tenant"], row["kind"], row["requests"]) == ("anonymous", "timestamp", 3)
        assert row["lost_tokens_per_request"] > 100


async def test_a_node_that_can_count_makes_the_budget_exact(tmp_path: Path) -> None:
    limits = settings(budgets=(PromptBudget(max_tokens=150),))
    async with small_fleet(tmp_path, "a", limits=limits) as (served, nodes, _):
        nodes[0].token_count = 600  # for 832 characters and a few: one token has fewer of them than we guess
        body = {"messages": [RULES, *OLD, *OLD, ASKED], "stream": False}
        assert (await served.send(body)).headers["X-Fleet-Trimmed"].endswith("(estimated at 4.0 characters a token)")
        prompts = served.gateway.prompts
        assert prompts is not None
        await until(lambda: prompts.ratios.of(None).is_measured)
        told = (await served.send(body)).headers["X-Fleet-Trimmed"]
        assert told.endswith("(measured at 1.4 characters a token)")
        assert served.gateway.prompts is not None


def preparation(**prompts: Any) -> PromptPreparation:
    return PromptPreparation(PromptSettings(**prompts), PromptMetrics(CollectorRegistry()))


def test_a_budget_is_the_first_that_fits_tenant_and_model() -> None:
    made = preparation(
        budgets=(PromptBudget(tenant="a", max_tokens=20, policy="refuse"), PromptBudget(model="big", max_tokens=5000)),
        prefix_lint=PrefixLintSettings(max_per_s=0),
    )
    body = json.dumps({"model": "big", "messages": [ASKED, *OLD, ASKED]}).encode()
    assert made.prepare(body, "b").body is body
    other = json.dumps({"model": "other", "messages": [ASKED, *OLD, ASKED]}).encode()
    assert made.prepare(other, "b").body is other
    with pytest.raises(Exception, match="budget is 20"):
        made.prepare(body, "a")


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"messages": 1}', b'{"messages": [1]}', b"[" * 100_000])
def test_what_is_no_chat_goes_on_as_it_came(body: bytes) -> None:
    made = preparation(
        budgets=(PromptBudget(max_tokens=16),), canonical_rules=("system_first", "tool_order", "plain_content")
    )
    assert made.prepare(body, "a").body is body


MANY = ",".join(["[]"] * (MAX_CHEAP_VALUES + 2))
ADVERTISED = f'{{"model": "m", "messages": [{{"role": "user", "content": "hi"}}], "more": [{MANY}]}}'.encode()
TOKEN_IDS = json.dumps({"model": "m", "prompt": [7] * 60_000}).encode()


class NoJson:
    """In place of the module: a body of so many values is not to be parsed whole."""

    def loads(self, text: bytes) -> Any:
        raise AssertionError("parsed")


@pytest.mark.parametrize("policy", ["refuse", "trim"])
@pytest.mark.parametrize(
    ("body", "most_tokens"), [(ADVERTISED, len(ADVERTISED) // 4), (TOKEN_IDS, 60_000)], ids=["chat", "token ids"]
)
def test_a_body_of_very_many_values_is_held_against_its_budget_without_a_parse(
    monkeypatch: pytest.MonkeyPatch, body: bytes, most_tokens: int, policy: Any
) -> None:
    monkeypatch.setattr(preparation_module, "json", NoJson())
    small = preparation(budgets=(PromptBudget(model="m", max_tokens=most_tokens - 1, policy=policy),))
    with pytest.raises(PromptOverBudgetError, match="counted by their length"):
        small.prepare(body, "a")
    large = preparation(budgets=(PromptBudget(model="m", max_tokens=most_tokens + 200, policy=policy),))
    assert large.prepare(body, "a").body is body
    other = preparation(budgets=(PromptBudget(model="other", max_tokens=16, policy=policy),))
    assert other.prepare(body, "a").body is body


def test_canonical_rules_leave_a_body_of_very_many_values_as_it_is_and_count_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(preparation_module, "json", NoJson())
    registry = CollectorRegistry()
    made = PromptPreparation(PromptSettings(canonical_rules=("plain_content",)), PromptMetrics(registry))
    assert made.prepare(ADVERTISED, "a").body is ADVERTISED
    assert registry.get_sample_value("gateway_prompt_not_canonicalised_total") == 1


def test_where_prompts_first_differ_and_what_is_lost_behind_it_is_counted_by_what_stands_there() -> None:
    registry = CollectorRegistry()
    clock = iter(range(1, 100))
    settings_ = PromptSettings(prefix_lint=PrefixLintSettings(max_per_s=1))
    made = PromptPreparation(settings_, PromptMetrics(registry), clock=lambda: float(next(clock)))
    kept, lost = (
        "Be brief and cite the policy by its title.\n" * 8,
        "Never guess at prices, and ask where in doubt.\n" * 8,
    )
    for minute in range(4):
        system = {"role": "system", "content": f"{kept}It is 10:0{minute}.\n{lost}"}
        made.prepare(json.dumps({"model": "m", "messages": [system, ASKED]}).encode(), "a")

    def told(name: str) -> float:
        return registry.get_sample_value(f"gateway_prompts_{name}_total", {"kind": "timestamp"}) or 0.0

    assert registry.get_sample_value("gateway_prompts_looked_at_total") == 4
    assert told("differing") == 3
    assert told("first_difference_tokens") / 3 == pytest.approx(len(kept) / 4, abs=16)
    assert told("prefix_lost_tokens") / 3 == pytest.approx(len(lost) / 4, rel=0.2)


def test_half_a_surrogate_pair_survives_a_rewrite() -> None:
    made = preparation(canonical_rules=("plain_content",))
    content = [{"type": "text", "text": "\ud800"}]
    body = json.dumps({"messages": [{"role": "user", "content": content}]}).encode()
    assert json.loads(made.prepare(body, "a").body)["messages"][0]["content"] == "\ud800"


def test_a_measured_ratio_moves_by_a_part_and_short_prompts_do_not_count() -> None:
    ratios = TokenRatios()
    ratios.note_measured("m", chars=30, tokens=30)
    assert not ratios.of("m").is_measured
    ratios.note_measured("m", chars=3000, tokens=1000)
    assert ratios.of("m").chars_per_token == 3
    ratios.note_measured("m", chars=4000, tokens=1000)
    assert ratios.of("m").chars_per_token == pytest.approx(3.3)
    assert ratios.of("m").tokens(33) == 10
