"""What a model's name in a request stands for: an alias, a smaller model for short questions, or nothing at all."""

from __future__ import annotations

from fleetctl.gateway.http import answers
from fleetctl.gateway.http.answers import ErrorAnswer, WholeAnswer, json_answer
from fleetctl.gateway.nodes.table import Table
from fleetctl.gateway.routing.json_cost import with_fields
from fleetctl.gateway.routing.routing_facts import RoutingFacts
from fleetctl.settings.gateway_routing import RoutingSettings

OWN_ENGINE = "fleetctl"  # serves one model under one name, and no adapters
MAX_NAMED = 50
MODEL_HEADER = b"x-fleet-model"


class ModelNames:
    """Resolves and checks names. Pure but for the table that it is given."""

    def __init__(self, settings: RoutingSettings) -> None:
        self._settings = settings
        self._is_off = not settings.aliases and not settings.tiers.small_model

    def resolve(self, table: Table | None, facts: RoutingFacts, body: bytes) -> tuple[RoutingFacts, bytes]:
        """Facts and body with the name that nodes know; the same objects when the client used that name."""
        if self._is_off or facts.model is None:
            return facts, body
        name = self._settings.aliases.get(facts.model, facts.model)
        tiers = self._settings.tiers
        if (
            tiers.small_model
            and name == tiers.model
            and facts.input_tokens <= tiers.max_input_tokens
            and facts.output_tokens is not None
            and facts.output_tokens <= tiers.max_output_tokens
            and table is not None
            and table.has_model(tiers.small_model)
        ):
            name = tiers.small_model
        if name == facts.model:
            return facts, body
        return facts._replace(model=name), with_fields(body, {"model": name})

    def listing(self, table: Table | None) -> WholeAnswer | None:
        """The body of `GET /v1/models` over all nodes, aliases too; None where one node knows as much."""
        models = {one.model for one in table.active if one.model} if table is not None else set()
        if len(models) + len(self._settings.aliases) < 2:
            return None
        names = [*sorted(models), *sorted(name for name, model in self._settings.aliases.items() if model in models)]
        data = [{"id": name, "object": "model", "created": 0, "owned_by": "fleetctl"} for name in names]
        return json_answer(200, {"object": "list", "data": data})

    def refusal(self, table: Table | None, facts: RoutingFacts) -> ErrorAnswer | None:
        """404 with the models that there are, for a name that is known to be none of them; else None."""
        name = facts.model
        if name is None or table is None or self._settings.unknown_models == "any" or table.has_model(name):
            return None
        models = {one.model for one in table.endpoints}
        if not table.active or not all(models) or name in models:
            return None
        if any(one.engine != OWN_ENGINE for one in table.endpoints):
            return None  # a foreign engine may have adapters of this name, and other names for its model
        known = ", ".join([*sorted(models)[:MAX_NAMED], *sorted(self._settings.aliases)[:MAX_NAMED]])
        message = f"there is no model {name[:200]!r}; models: {known}"
        return answers.bad_request(message, param="model", status=404, code="model_not_found")
