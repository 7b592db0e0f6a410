"""Decisions, shadows, prefix report and explanations of several workers are one gateway's, whichever is asked."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from fleetctl.gateway.prompts.prefix_lint import PrefixLint, joined_report
from fleetctl.gateway.prompts.token_ratio import ESTIMATED
from fleetctl.gateway.requests.answer_text import AnswerText
from fleetctl.gateway.requests.shadow_report import ShadowReports, ShadowResult, joined_shadows
from fleetctl.gateway.siblings.joined_views import joined_decisions, joined_explanation
from fleetctl.gateway.siblings.siblings import Siblings
from fleetctl.settings.gateway import GatewaySettings
from fleetctl.settings.prompts import PrefixLintSettings, PromptSettings
from fleetctl.traffic_rule import ShadowSpec, TrafficRule
from tests.fixtures.gateway import Served, scripted_controller, scripted_nodes, served_gateway, until

pytestmark = pytest.mark.anyio

RULES = "\n".join(f"Rule {name}: be brief and cite the policy of the house by its title." for name in "abcdefghij")
LIMITS = GatewaySettings(prompts=PromptSettings(prefix_lint=PrefixLintSettings(max_per_s=1000)))


@asynccontextmanager
async def two_workers(run_dir: Path) -> AsyncIterator[tuple[Served, Served]]:
    """Two gateways of one folder that ask each other, before the same two nodes."""
    async with scripted_nodes("a", "b") as nodes, scripted_controller() as controller:
        controller.set(*nodes)
        async with (
            served_gateway(run_dir, controller.url, limits=LIMITS, siblings=Siblings(run_dir / "w", 1)) as one,
            served_gateway(run_dir, controller.url, limits=LIMITS, siblings=Siblings(run_dir / "w", 2)) as other,
        ):
            for served in (one, other):
                await until(lambda served=served: served.gateway.routing.controller_is_reachable, "a table")  # type: ignore[misc]
            yield one, other


async def get(served: Served, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    method = "GET" if body is None else "POST"
    async with served.session.request(method, served.url + path, json=body) as response:
        assert response.status == 200
        return dict(await response.json())


async def test_any_worker_tells_what_all_routed(tmp_path: Path) -> None:
    async with two_workers(tmp_path) as workers:
        prompt = "Why is the first token late? " * 40
        for index, worker in enumerate(workers):
            for turn in range(2):
                assert worker.gateway.prompts is not None
                worker.gateway.prompts._next_look = 0.0  # no waiting for the next turn
                text = f"Now: 10:{index}{turn}\n{RULES}\n{prompt}"
                await worker.chat(text, headers={"X-Request-Id": f"r{index}{turn}"})
        told = [await get(worker, "/gateway/decisions") for worker in workers]
        assert [one["request_id"] for one in told[0]["decisions"]] == ["r11", "r10", "r01", "r00"], "the newest first"
        assert sum(told[0]["reasons"].values()) == 4
        assert told[0] == told[1]

        for worker in workers:
            (template,) = (await get(worker, "/gateway/prefix-report"))["templates"]
            assert (template["requests"], template["kind"], template["share"]) == (4, "timestamp", 1.0)

        question = {"model": "demo", "prompt": "x" * 4000}
        answer = await workers[1].send({**question, "max_tokens": 1}, path="/v1/completions")
        assert answer.status == 200
        for worker in workers:
            found = await get(worker, "/gateway/route/explain", question)
            assert (found["worker"], found["reason"]) == (2, "prefix"), "the one that sent it somewhere knows more"
            assert [one["worker"] for one in found["workers"]] == [1, 2]
            assert found["workers"][0]["cached_tokens"] == 0
            assert found["workers"][1]["cached_tokens"] > 900
        async with workers[0].session.post(f"{workers[0].url}/gateway/route/explain", data=b"no json") as response:
            assert response.status == 400


def decisions(*times: float) -> dict[str, Any]:
    return {"kept": 3, "decisions": [{"at": at, "request_id": f"r{at:g}", "reason": "load"} for at in times]}


def test_of_all_decisions_as_many_are_told_as_one_worker_keeps() -> None:
    joined = joined_decisions([decisions(9, 5, 1), decisions(8, 7), decisions()])
    assert [one["at"] for one in joined["decisions"]] == [9, 8, 7]
    assert joined["reasons"] == {"load": 3}


def explained(node: str | None, *cached_tokens: int) -> dict[str, Any]:
    return {"node": node, "reason": "load", "candidates": [{"cached_tokens": count} for count in cached_tokens]}


def test_the_longest_match_explains_and_the_asked_worker_where_none_knows_more() -> None:
    joined = joined_explanation({3: explained("a", 0, 64), 1: explained("b", 96), 2: explained(None)})
    assert (joined["worker"], joined["node"]) == (1, "b")
    assert [(one["worker"], one["cached_tokens"]) for one in joined["workers"]] == [(1, 96), (2, 0), (3, 64)]
    assert joined_explanation({3: explained("a", 64), 1: explained("b", 64)})["worker"] == 3


def shadow_of(*, made_at: float = 1.0, agreements: tuple[bool, ...], tokens: int, ttft_s: tuple[float, ...]) -> Any:
    """What a worker tells of one rule whose copies agreed wholly (True) or in nothing."""
    reports = ShadowReports(CollectorRegistry())
    spec = ShadowSpec(revision="r2", share=1.0)
    reports.keep_rules([TrafficRule(id="shadow", spec=spec, made_by="a", made_at=made_at, expires_at=99.0)])
    for index, agrees in enumerate(agreements):
        user, shadow = AnswerText(("x",), tokens), AnswerText(("x" if agrees else "y",), tokens + 1)
        reports.note("shadow", ShadowResult.COMPARED)
        reports.note_comparison("shadow", f"{tokens}-{index}", user, shadow)
        reports.note_lengths("shadow", user, shadow)
    for at in ttft_s:
        reports.note_ttft("shadow", at, 2 * at)
    return reports.told(2.0)


def test_shadows_are_summed_and_not_averaged_again() -> None:
    one = shadow_of(agreements=(True,) * 9, tokens=10, ttft_s=(0.1, 0.1, 0.1))
    other = shadow_of(agreements=(False,), tokens=110, ttft_s=(0.9,))
    (joined,) = joined_shadows([one, other])["shadows"]
    assert (joined["compared"], joined["exact"], joined["mean_agreement"]) == (10, 9, 0.9)
    assert joined["mean_tokens"] == {"user": 20.0, "shadow": 21.0}
    assert joined["ttft_p50_s"] == {"user": 0.1, "shadow": 0.2}
    assert joined["results"]["compared"] == joined["requests"] == 10
    assert joined["differing"] == ["110-0"]


def test_of_a_rule_made_anew_only_what_was_found_since_counts() -> None:
    old = shadow_of(agreements=(False, False), tokens=1, ttft_s=())
    new = shadow_of(made_at=1.5, agreements=(True,), tokens=1, ttft_s=())
    for parts in ([old, new], [new, old]):
        (joined,) = joined_shadows(parts)["shadows"]
        assert (joined["compared"], joined["mean_agreement"], joined["made_at"]) == (1, 1.0, 1.5)


def test_the_last_ids_that_differed_are_of_all_workers() -> None:
    parts = [shadow_of(agreements=(False,) * 10, tokens=tokens, ttft_s=()) for tokens in (1, 2)]
    (joined,) = joined_shadows(parts)["shadows"]
    assert sorted(joined["differing"]) == [f"{tokens}-{index}" for tokens in (1, 2) for index in (5, 6, 7, 8, 9)]


def lint_of(*systems: str, tenant: str = "t") -> list[dict[str, Any]]:
    lint = PrefixLint(max_templates=10)
    for system in systems:
        lint.note_prompt(tenant, {"model": "m", "messages": [{"role": "system", "content": system}]}, ESTIMATED)
    return lint.told()


def test_a_template_is_one_though_each_worker_named_it_by_another_prompt() -> None:
    first = lint_of(*(f"Now: 10:0{i} {'early' if i else 'for once'}\n{RULES}" for i in range(3)))
    second = lint_of(*(f"Now: 11:0{i} it is late\n{RULES}" for i in range(5)))
    stranger = lint_of(f"Now: 11:00\n{RULES}", tenant="u")
    assert first[0]["template"] != second[0]["template"]
    joined = joined_report([first, second, stranger])
    assert [(row["tenant"], row["requests"]) for row in joined] == [("t", 8), ("u", 1)]
    assert joined_report([second, stranger, first])[0]["template"] == joined[0]["template"]
    alone = [joined_report([part])[0] for part in (first, second)]
    lost = sum(row["lost_tokens_per_request"] * compared for row, compared in zip(alone, (2, 4), strict=True))
    assert joined[0]["lost_tokens_per_request"] == pytest.approx(lost / 6, abs=0.1)
