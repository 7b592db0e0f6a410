"""Cases that nobody has looked at: a random fleet under a random load, to which one known thing happens, or two.

The built-in cases are used up as a measure once causes are tuned on them; of these there are as many as there are
seeds. They tell no story: what changes is a quantity of the serving model or a series, and what it is called is what an
engineer would call it who knows what was changed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from diagnostics.bench.case import Case
from diagnostics.bench.random_circumstances import FAULTY, in_circumstances
from diagnostics.bench.random_course import Course, course
from diagnostics.bench.random_ends import END_FAULTS
from diagnostics.bench.random_fleet import Fault, Happening, RandomFleet, random_fleet
from diagnostics.bench.random_health import HEALTHY
from diagnostics.bench.random_load import COUNTED_LOAD_FAULTS, LOAD_FAULTS
from diagnostics.bench.random_nodes import COUNTED_NODE_FAULTS, NODE_FAULTS, SECOND_FAULTS
from diagnostics.bench.random_told import TOLD_FAULTS

FAULTS = (*LOAD_FAULTS, *NODE_FAULTS, *TOLD_FAULTS, *END_FAULTS)
HEALTHY_SHARE = 0.18
TWO_SHARE = 0.06  # of the faults: another one begins with it
TRIES = 40  # fleets until one is of the kind that a fault needs
_COUNTED = frozenset({*COUNTED_LOAD_FAULTS, *COUNTED_NODE_FAULTS})  # nobody sees them in five requests


@dataclass(frozen=True, slots=True)
class _Told:
    """What happens to a fleet, and in which circumstances."""

    fleet: RandomFleet
    what: str
    happens: tuple[Happening, ...]  # one, or two at once
    course: Course
    circumstances: tuple[str, ...]


def random_cases(count: int, seed: int) -> list[Case]:
    """So many cases; the same for the same seed."""
    rng = random.Random(seed)
    cases: list[Case] = []
    order: list[Fault] = []
    while len(cases) < count:
        if not order:
            wells = round(len(FAULTS) * HEALTHY_SHARE / (1 - HEALTHY_SHARE))
            order = [*FAULTS, *rng.sample(HEALTHY, min(wells, len(HEALTHY)))]
            rng.shuffle(order)
        if (told := _told(order.pop(), rng)) is not None:
            cases.append(_written(told, seed, len(cases)))
    return cases


def _told(fault: Fault, rng: random.Random) -> _Told | None:
    for _ in range(TRIES):
        fleet = random_fleet(rng)
        is_harmless = fault in HEALTHY
        circumstances = () if is_harmless and rng.random() < 0.5 else in_circumstances(fleet, is_well=is_harmless)
        if fleet.is_quiet and fault in _COUNTED:
            continue
        if (happens := fault(fleet)) is None:
            continue
        what = fault.__name__
        if not is_harmless and not fleet.is_quiet and rng.random() < TWO_SHARE:
            second = rng.choice(SECOND_FAULTS)
            other = second(fleet)
            if other is not None and not _names(happens) & _names(other) and second is not fault:
                return _Told(
                    fleet,
                    f"{what}_and_{second.__name__}",
                    (happens, other),
                    Course([*happens.changes, *other.changes], (300.0, 900.0), ""),
                    circumstances,
                )
        return _Told(fleet, what, (happens,), course(what, happens, is_quiet=fleet.is_quiet, rng=rng), circumstances)
    return None


def _names(happens: Happening) -> set[str]:
    return {one["what"] for one in happens.changes} | {str(one.get("on")) for one in happens.facts}


def _written(told: _Told, seed: int, number: int) -> Case:
    fleet, ages = told.fleet, told.course.judged_at_s
    engine = fleet.engine if fleet.only(fleet.engine) else "mixed"
    how = [*told.circumstances, *([told.course.word] if told.course.word else [])]
    return Case.model_validate(
        {
            "name": f"random-{seed}-{number:03}-{told.what.replace('_', '-')}-{engine}",
            "title": f"{told.what}: {', '.join(how) or 'as ever'}".replace("_", " "),
            "group": "random" if told.happens[0].causes else "healthy",
            "seed": seed * 1000 + number,
            "after": ages[-1] + 60,
            "judge_at_s": ages,
            "nodes": [one.model_dump() for one in (*fleet.nodes, *fleet.beside)],
            "load": fleet.load,
            "gateway": fleet.gateway,
            "controller": fleet.controller,
            "gpu": fleet.gpu,
            "series": fleet.series,
            "changes": _of_its_pool([*fleet.changes, *told.course.changes], fleet),
            "facts": [*fleet.facts, *(one for each in told.happens for one in each.facts)],
            "expect": _expected(
                told.happens, ages[0], is_ill=any(one.__name__ in told.circumstances for one in FAULTY)
            ),
        }
    )


def _expected(happens: Sequence[Happening], from_s: float, is_ill: bool) -> dict[str, Any]:
    """One of the names; of two faults at once one of each. `is_ill`: a node was ill before, and may rightly go."""
    if not happens[0].causes:
        return {"none": True, "page": False}
    bad = [one for one in ("drain", "replace") if not is_ill and all(one in each.not_remedies for each in happens)]
    expected: dict[str, Any] = {"from_s": from_s, "not_remedies": bad}
    if len(happens) > 1:
        return expected | {"both": [each.causes for each in happens]}
    first, *others = happens[0].causes
    return expected | {"cause": first, "or": others}


def _of_its_pool(changes: Sequence[dict[str, Any]], fleet: RandomFleet) -> list[dict[str, Any]]:
    """What happens to all happens to none of another pool."""
    pool = f"pool:{fleet.nodes[0].pool}"
    return [one | {"on": pool} if fleet.beside and one["on"] == "all" else one for one in changes]
