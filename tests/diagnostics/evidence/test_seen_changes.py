"""What nobody told and the series show: each change with what it was before, what it is now, and when."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from alerts.sample import STALE_NAN
from alerts.series.store import SeriesStore
from diagnostics.evidence.changes import recent_changes, seen_untold
from diagnostics.evidence.onset import Onset
from diagnostics.evidence.seen_changes import seen_changes

NOW = 1_700_000_100.0
ONSET = Onset(NOW - 105, NOW - 120, NOW - 105, "a test")
CHANGED = ONSET.at - 30
SCOPE = {"pool": "chat"}
Labels = dict[str, str]


def store_of(*written: Callable[[SeriesStore], None]) -> SeriesStore:
    store = SeriesStore(retention_s=10_000, max_points=1_000_000)
    for write in written:
        write(store)
    return store


def held(
    name: str, value: float, since: float = 0.0, until: float = NOW, **labels: str
) -> Callable[[SeriesStore], None]:
    """A series from `since` (0: for an hour) to `until`, where it ends."""
    own = {"__name__": name, "pool": "chat", **labels}

    def write(store: SeriesStore) -> None:
        at = max(since, NOW - 3600)
        while at <= until:
            store.append(own, at, value)
            at += 15
        if until < NOW:
            store.append(own, at, STALE_NAN)

    return write


def stepped(name: str, before: float, after: float, **labels: str) -> Callable[[SeriesStore], None]:
    def write(store: SeriesStore) -> None:
        at = NOW - 3600
        while at <= NOW:
            store.append({"__name__": name, "pool": "chat", **labels}, at, after if at >= CHANGED else before)
            at += 15

    return write


def seen(store: SeriesStore, scope: Labels = SCOPE) -> tuple[str, ...]:
    return recent_changes(seen_changes(scope, store, NOW, ONSET), scope, ONSET)


WHEN = ", 30 s before it began"
N1: Labels = {"node": "n1"}
SETTINGS = {"num_gpu_blocks": "3750", "enable_prefix_caching": "True", **N1}


@pytest.mark.parametrize(
    ("written", "said"),
    [
        pytest.param(
            [
                held("llm:up", 1, until=CHANGED - 15, revision="v1", **N1),
                held("llm:up", 1, CHANGED, revision="v2", **N1),
            ],
            f"revision v1 → v2 of n1{WHEN}",
            id="revision",
        ),
        pytest.param(
            [
                held("vllm:cache_config_info", 1, until=CHANGED - 15, **SETTINGS),
                held("vllm:cache_config_info", 1, CHANGED, **SETTINGS | {"num_gpu_blocks": "1800"}),
            ],
            f"num_gpu_blocks 3750 → 1800 of n1{WHEN}",
            id="settings",
        ),
        pytest.param(
            [stepped("llm:limit", 64, 16, limit="max_num_seqs", **N1)],
            f"max_num_seqs 64 → 16 of n1{WHEN}",
            id="limit",
        ),
        pytest.param(
            [held("llm:up", 1, node="n1"), held("llm:up", 1, CHANGED, node="n2")], f"n2 came{WHEN}", id="node that came"
        ),
        pytest.param(
            [held("llm:up", 1, node="n1"), held("llm:up", 1, until=CHANGED, node="n2")],
            f"n2 went, and is scraped no more{WHEN}",
            id="node that went",
        ),
        pytest.param(
            [
                held("llm:lora_info", 1, until=CHANGED - 15, running_lora_adapters="sql", **N1),
                held("llm:lora_info", 1, CHANGED, running_lora_adapters="sql, poems", **N1),
            ],
            f"adapter poems is asked for in pool chat, and was not before{WHEN}",
            id="adapter",
        ),
        pytest.param(
            [stepped("llm:prompt_tokens:mean", 2000, 6000, **N1)],
            f"prompts 2,000 → 6,000 tokens in pool chat{WHEN}",
            id="length of prompts",
        ),
        pytest.param(
            [stepped("llm:prompt_tokens:p99", 8000, 90_000, **N1)],
            f"the longest prompts 8,000 → 90,000 tokens in pool chat{WHEN}",
            id="longest prompts",
        ),
        pytest.param(
            [stepped("llm:prefix_hit_ratio", 0.72, 0.45, **N1)],
            f"prompts as long as before share 72 % → 45 % of their tokens in pool chat{WHEN}",
            id="template",
        ),
        pytest.param(
            [stepped("llm:arrivals:rate", 6, 18, **N1)], f"requests 6/s → 18/s in pool chat{WHEN}", id="how many"
        ),
        pytest.param(
            [stepped("llm:generation_tokens:rate", 400, 1200, **N1), held("llm:requests:rate", 2, **N1)],
            f"answers 200 → 600 tokens in pool chat{WHEN}",
            id="length of answers",
        ),
    ],
)
def test_a_change_that_nobody_told_is_said_with_what_it_was_before(
    written: list[Callable[[SeriesStore], None]], said: str
) -> None:
    assert seen(store_of(*written)) == (said,)


def test_prompts_that_grew_have_their_quantiles_and_say_nothing_of_a_template() -> None:
    def buckets(store: SeriesStore) -> None:
        at = NOW - 3600
        while at <= NOW:
            for le, share in (("1000", 0.2), ("4000", 0.9), ("16000", 1.0), ("+Inf", 1.0)):
                grown = max(0.0, share - 0.6) if at >= CHANGED and le != "+Inf" and le != "16000" else share
                store.append({"__name__": "llm:prompt_tokens:bucket_rate", "pool": "chat", "le": le}, at, 5 * grown)
            at += 15

    store = store_of(buckets, stepped("llm:prompt_tokens:mean", 2000, 6000), stepped("llm:prefix_hit_ratio", 0.72, 0.3))

    (said,) = seen(store)
    assert said.startswith("prompts 2,000 → 6,000 tokens (p50 2,286 → ")
    assert ", p95 10,000 → " in said


def test_a_tenant_that_sends_more_of_all_requests_is_named() -> None:
    def counted(store: SeriesStore) -> None:
        totals = {"acme": 0.0, "zoo": 0.0}
        at = NOW - 3600
        while at <= NOW:
            for tenant in totals:
                # By the minute that a rate looks back, the share is new 30 s before it began.
                totals[tenant] += 15 * (8.0 if tenant == "acme" and at >= CHANGED - 30 else 2.0)
                labels = {"__name__": "gateway_tenant_requests_total", "tenant": tenant, "result": "admitted"}
                store.append(labels, at, totals[tenant])
            at += 15

    said = seen(store_of(counted))

    assert any(one.startswith("tenant acme sends 50 % → ") for one in said)


def test_what_changed_only_after_it_began_is_a_consequence_and_what_never_changed_is_not_told() -> None:
    later = Onset(CHANGED - 300, CHANGED - 310, CHANGED - 300, "a test")
    store = store_of(
        stepped("llm:arrivals:rate", 6, 18, **N1),
        held("llm:up", 1, revision="v1", **N1),
        held("llm:prefix_hit_ratio", 0.5, **N1),
        held("llm:lora_info", 1, running_lora_adapters="sql", **N1),
    )
    assert seen_changes(SCOPE, store, NOW, later) == []


def test_of_a_record_that_begins_shortly_before_nothing_is_new() -> None:
    since = ONSET.at - 40
    store = store_of(held("llm:up", 1, since, node="n1"), held("llm:up", 1, since + 15, node="n2"))
    assert seen(store) == ()


def test_what_a_controller_told_of_is_told_once_and_the_revisions_of_its_rollout_beside_it() -> None:
    store = store_of(
        held("llm:up", 1, until=CHANGED - 15, revision="v1", **N1),
        held("llm:up", 1, CHANGED, revision="v2", **N1),
        stepped("llm:limit", 64, 16, limit="max_num_seqs", **N1),
    )
    found = seen_changes(SCOPE, store, NOW, ONSET)
    by_hand = [one for one in found if one.labels["kind"] == "limits"]
    told = [
        type(by_hand[0])({"kind": kind, "pool": "chat", "node": node}, CHANGED - 20, NOW)
        for kind, node in (("limits", "n1"), ("deploy", "n1"), ("rollout", ""))
    ]
    assert [one.labels["kind"] for one in seen_untold(found, told)] == ["revision"]
    assert len(seen_untold(found, [])) == 2
