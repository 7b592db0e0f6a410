"""What would be chosen for a request, and why: `POST /gateway/route/explain`. Nothing is sent or remembered."""

from __future__ import annotations

from typing import Any

from fleetctl.gateway.nodes.table import Table
from fleetctl.gateway.requests.chooser import Chooser
from fleetctl.gateway.requests.model_names import ModelNames
from fleetctl.gateway.routing.routing_facts import RoutingFacts


def explain_choice(
    table: Table | None, chooser: Chooser, names: ModelNames, facts: RoutingFacts, body: bytes
) -> dict[str, Any]:
    """Candidates with their costs in tokens of prefill, who was left out and why, and what rules had to say."""
    asked = facts.model
    facts, _ = names.resolve(table, facts, body)
    refusal = names.refusal(table, facts)
    choice = chooser.choose(table, facts)
    pick, order = choice.pick, choice.order
    return {
        "table_version": table.version if table is not None else None,
        "asked_model": asked,
        "model": facts.model,
        "refused": refusal.message if refusal is not None else "",
        "input_tokens": facts.input_tokens,
        "output_tokens": facts.output_estimate,
        "node": pick.node if refusal is None else None,
        "reason": pick.reason.value,
        "is_long": choice.is_long,
        "rules": list(order.rules),
        "note": order.note,
        "num_nodes": choice.num_nodes,
        "candidates": [
            {
                "node": score.node,
                "cost": score.cost,
                "cached_tokens": score.cached_tokens,
                "waiting": score.waiting,
                "uncached": score.uncached,
                "seats": score.seats,
                "recent": score.recent,
                "kv": score.kv,
                "adapter": score.adapter,
            }
            for score in sorted(pick.scores, key=lambda score: score.cost)
        ],
        "left_out": [
            {"node": node, "reason": str(reason)} for node, reason in (*choice.left_out.items(), *pick.left_out)
        ],
    }
