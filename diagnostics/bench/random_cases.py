"""Cases that nobody has looked at: a random fleet under a random load, to which one known thing happens.

The built-in cases are used up as a measure once causes are tuned on them; of these there are as many as there are
seeds. They tell no story: what changes is a quantity of the serving model or a series, and what it is called is what an
engineer would call it who knows what was changed.
"""

from __future__ import annotations

import random

from diagnostics.bench.case import Case
from diagnostics.bench.random_fleet import Fault, Happening, RandomFleet, random_fleet
from diagnostics.bench.random_health import HEALTHY
from diagnostics.bench.random_load import LOAD_FAULTS
from diagnostics.bench.random_nodes import NODE_FAULTS

FAULTS = (*LOAD_FAULTS, *NODE_FAULTS)
JUDGED_AFTER_S = (300.0, 900.0)
HEALTHY_SHARE = 0.15
TRIES = 20  # fleets until one is of the kind that a fault needs


def random_cases(count: int, seed: int) -> list[Case]:
    """So many cases; the same for the same seed."""
    rng = random.Random(seed)
    cases: list[Case] = []
    order: list[Fault] = []
    while len(cases) < count:
        if not order:
            wells = round(len(FAULTS) * HEALTHY_SHARE / (1 - HEALTHY_SHARE))
            order = [*FAULTS, *(rng.choice(HEALTHY) for _ in range(wells))]
            rng.shuffle(order)
        if (case := _case(order.pop(), rng, seed, len(cases))) is not None:
            cases.append(case)
    return cases


def _case(fault: Fault, rng: random.Random, seed: int, number: int) -> Case | None:
    for _ in range(TRIES):
        fleet = random_fleet(rng)
        if (happens := fault(fleet)) is not None:
            return _written(fault.__name__, fleet, happens, seed, number)
    return None


def _written(what: str, fleet: RandomFleet, happens: Happening, seed: int, number: int) -> Case:
    if happens.causes:
        first, *others = happens.causes
        expect = {"cause": first, "or": others, "from_s": JUDGED_AFTER_S[0], "not_remedies": happens.not_remedies}
    else:
        expect = {"none": True, "page": False}
    return Case.model_validate(
        {
            "name": f"random-{seed}-{number:03}-{what.replace('_', '-')}-{fleet.engine}",
            "title": what.replace("_", " "),
            "group": "random" if happens.causes else "healthy",
            "seed": seed * 1000 + number,
            "after": JUDGED_AFTER_S[-1] + 60,
            "judge_at_s": JUDGED_AFTER_S,
            "nodes": [one.model_dump() for one in fleet.nodes],
            "load": fleet.load,
            "gateway": fleet.gateway,
            "controller": fleet.controller,
            "series": fleet.series,
            "changes": happens.changes,
            "facts": happens.facts,
            "expect": expect,
        }
    )
