"""What several gateways tell of one tenant, as one row."""

from __future__ import annotations

from fleetctl.wire.tenant import TenantUse


def test_the_use_of_two_gateways_is_summed_and_no_limit_stays_none() -> None:
    one = TenantUse.model_validate(
        {
            "tenant": "shop",
            "class": "batch",
            "running": 2,
            "tokens": {"input": 10, "output": 1},
            "left": {"input": 5, "output": None},
            "admitted": 3,
            "refused": {"shed": 1},
        }
    )
    both = one.plus(one.model_copy(update={"refused": {"shed": 1, "tenant_requests": 4}}))
    assert (both.priority, both.running, both.tokens, both.admitted) == ("batch", 4, {"input": 20, "output": 2}, 6)
    assert both.left == {"input": 10, "output": None}
    assert (both.refused, both.gateways) == ({"shed": 2, "tenant_requests": 4}, 2)
