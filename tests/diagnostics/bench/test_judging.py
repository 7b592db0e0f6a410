"""The quick part of the benchmark: some cases through the whole chain, five minutes after their onset."""

from __future__ import annotations

import pytest

from diagnostics.bench.case import HERE, Case, load_case
from diagnostics.bench.engine_under_test import Under
from diagnostics.bench.judging import Bench, Result, Verdict
from diagnostics.bench.report import page, reliability, reliability_svg


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench(Under())


def short(name: str) -> Case:
    case = load_case(HERE / "cases" / f"{name}.yaml")
    return case.model_copy(update={"before": 1200.0, "after": 310.0, "step_s": 10.0, "judge_at_s": (300.0,)})


@pytest.fixture(scope="module")
def results(bench: Bench) -> dict[str, Result]:
    names = ("node-killed", "slow-node-vllm", "overload-vllm", "healthy-traffic-doubles")
    return {name: bench.run_case(short(name)) for name in names}


@pytest.mark.parametrize("name", ["node-killed", "slow-node-vllm", "overload-vllm", "healthy-traffic-doubles"])
def test_the_cause_is_named_and_nobody_is_called_for_nothing(results: dict[str, Result], name: str) -> None:
    result = results[name]

    assert [result.is_right(one) for one in result.verdicts] == [True]
    assert result.false_pages == ()


def test_the_page_has_its_figures_and_a_plot(results: dict[str, Result]) -> None:
    text = page(list(results.values()), "make bench-diagnosis")

    assert "| all faults | 100 % (3 of 3) |" in text
    assert "| node-killed | node_down | " in text
    assert reliability_svg(reliability(results.values())).count("<circle") >= 1


def test_what_still_fires_once_a_restart_of_ours_is_over_opens_its_incident(bench: Bench) -> None:
    """As a controller does it: the process of a new image ended at the end of its start, and goes on to end."""
    (verdict,) = bench.run_case(short("public-9-new-image-needs-a-newer-driver")).verdicts

    assert verdict.scope == {"node": "node-1", "pool": "chat"}
    assert verdict.causes[0] == "bad_deploy_never_ready"


@pytest.mark.parametrize(
    ("named", "has_both", "has_first_names"),
    [
        (("slow_node", "node_down"), True, True),
        (("straggler", "overload", "node_down"), True, False),
        (("slow_node", "straggler"), False, False),
        (("capacity_lost",), False, False),
    ],
)
def test_of_two_faults_both_are_named_where_each_has_a_name_of_its_own(
    named: tuple[str, ...], has_both: bool, has_first_names: bool
) -> None:
    twos = ("slow_node", "straggler", "capacity_lost"), ("node_down", "capacity_lost")
    case = load_case(HERE / "cases" / "two-slow-nodes-vllm.yaml")
    case = case.model_copy(update={"expect": case.expect.model_copy(update={"both": twos})})
    said = Verdict(300.0, named, (), "likely", 0.8, "", is_calm=False, took_s=0.1)
    result = Result(case, (said,), (), None, None, (), 0.0)
    assert (result.has_both(said), result.has_first_names(said)) == (has_both, has_first_names)
