"""What can be done to a node: what its engine can, and what whoever runs it can."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fleetctl.engines.kind import Can, Cannot
from fleetctl.engines.table import engine_kind
from fleetctl.providers.provider import NodeProvider, ProviderAct
from fleetctl.providers.spec import NodeSpec
from runbooks.ability import Ability

_ACTS = {Ability(act.value): act for act in ProviderAct}


@dataclass(frozen=True, slots=True)
class NodeAbility:
    """One ability of one node: how it is done, or why it can't be."""

    ability: Ability
    can: bool
    how: str


def abilities_of(spec: NodeSpec, provider: NodeProvider) -> Iterator[NodeAbility]:
    """Every ability in the order of `Ability`."""
    kind = engine_kind(spec.engine)
    for ability in Ability:
        if (act := _ACTS.get(ability)) is not None:
            why_not = provider.why_not(act, spec)
            yield NodeAbility(ability, not why_not, why_not)
            continue
        match kind.abilities[ability]:
            case Can(how):
                yield NodeAbility(ability, True, how)
            case Cannot(why):
                yield NodeAbility(ability, False, why)


def lacking(spec: NodeSpec, provider: NodeProvider) -> dict[str, str]:
    """The abilities that the node has not, each with the reason."""
    return {one.ability.value: one.how for one in abilities_of(spec, provider) if not one.can}
