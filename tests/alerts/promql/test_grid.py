"""The evaluator over many steps at once gives what the evaluator gives at each step."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest

from alerts.errors import AlertsError
from alerts.promql import parse
from alerts.promql.evaluator import InstantEvaluator
from alerts.promql.grid import evaluate_grid
from alerts.promql.values import Vector
from alerts.series.store import SeriesStore
from tests.fixtures import DATA, promqltest

FILES = sorted((DATA / "promqltest").glob("*.test"))
STEPS = np.arange(0, 7_200_000, 150_000, dtype=np.int64)
INSTANT = re.compile(r"eval(_\w+)? instant (?:at (\S+) )?(.*)", re.S)


def by_step(root: object, store: SeriesStore) -> list[dict[object, float]] | str:
    answers: list[dict[object, float]] = []
    for at_ms in STEPS.tolist():
        try:
            value = InstantEvaluator(store, at_ms, int(STEPS[0]), int(STEPS[-1]), 150_000).evaluate(root)  # type: ignore[arg-type]
        except AlertsError:
            return "error"
        if isinstance(value, float):
            answers.append({(): value})
        elif isinstance(value, Vector):
            answers.append(dict(zip((entry.pairs for entry in value.labels), value.values.tolist(), strict=True)))
        else:
            return "no vector"
    return answers


def at_once(root: object, store: SeriesStore) -> list[dict[object, float]] | str:
    try:
        grid = evaluate_grid(root, store, STEPS, 150_000)  # type: ignore[arg-type]
    except AlertsError:
        return "error"
    vectors = [grid.at(step, at_ms) for step, at_ms in enumerate(STEPS.tolist())]
    return [dict(zip((entry.pairs for entry in v.labels), v.values.tolist(), strict=True)) for v in vectors]


def same(a: float, b: float) -> bool:
    return (math.isnan(a) and math.isnan(b)) or a == b or math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_expression_of_prometheus_own_tests_agrees(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compared = 0
    run = promqltest._Runner.run

    def compare(self: promqltest._Runner, number: int, block: list[str]) -> None:
        nonlocal compared
        run(self, number, block)
        match = INSTANT.match(block[0])
        if match is None:
            return
        try:
            root = parse(match.group(3)).root
        except AlertsError:
            return
        wanted = by_step(root, self.store)
        if wanted == "no vector":
            return
        got = at_once(root, self.store)
        compared += 1
        if isinstance(wanted, str) or isinstance(got, str):
            assert wanted == got, block[0]
            return
        for step, (a, b) in enumerate(zip(wanted, got, strict=True)):
            assert a.keys() == b.keys(), (block[0], step)
            assert all(same(a[key], b[key]) for key in a), (block[0], step, a, b)

    monkeypatch.setattr(promqltest._Runner, "run", compare)
    promqltest.run_file(path)
    assert compared > 5
