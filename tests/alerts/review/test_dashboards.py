"""Our Grafana dashboards: each query can be evaluated, and reads what somebody emits or records."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from alerts.evaluation.builtin import builtin_dashboard_files, builtin_rule_files, builtin_signal_files
from alerts.evaluation.engine import RuleEngine
from alerts.evaluation.rules import load_rule_files
from alerts.promql import evaluate, parse
from alerts.promql.nodes import metric_names
from alerts.review.catalog import Metric, builtin_catalog
from alerts.review.lint_metrics import metric_problems
from alerts.review.lint_rule import output_labels
from tests.fixtures.signals import METRICS, Rig

FILES = builtin_dashboard_files()
OF_PROMETHEUS = {"up", "ALERTS"}
VARIABLES = {"$__rate_interval": "1m", "${datasource}": "prometheus"}
LABEL_VALUES = re.compile(r"label_values\((?:(?P<query>.+), *)?(?P<label>\w+)\)")


def load(path: Any) -> dict[str, Any]:
    return json.loads(path.read_text())


def queries(board: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Title, expression and legend of each query."""
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"], target["legendFormat"]


def filled(expression: str) -> str:
    """As Grafana sends it with everything chosen."""
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    return re.sub(r"\$\w+", ".*", expression)


def test_there_is_a_board_for_the_fleet_a_node_the_gateway_and_what_is_promised() -> None:
    assert [path.stem for path in FILES] == ["fleet", "gateway", "node", "slo"]
    boards = [load(path) for path in FILES]
    assert len({board["uid"] for board in boards}) == len({board["title"] for board in boards}) == len(FILES)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_query_reads_a_metric_that_is_there(path: Any) -> None:
    catalog = builtin_catalog()
    wrong = []
    for title, expression, _ in queries(load(path)):
        root = parse(filled(expression)).root
        names = metric_names(root) - OF_PROMETHEUS
        wrong += [f"{title}: {name} is not in the catalogue" for name in names if not known(catalog.find(name))]
        wrong += [f"{title}: {problem.message}" for problem in metric_problems(root, catalog, set(), is_alert=False)]
    assert wrong == []


def known(found: object) -> bool:
    return isinstance(found, Metric) and found.removed_in is None


def test_a_query_of_a_metric_that_is_not_there_is_noticed() -> None:
    catalog = builtin_catalog()
    assert not known(catalog.find("llm:kv_share"))
    assert not known(catalog.find("gateway_requests_lost_total"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_legend_names_a_label_that_the_query_keeps(path: Any) -> None:
    wrong = []
    for title, expression, legend in queries(load(path)):
        kept = output_labels(parse(filled(expression)).root)
        if kept is not None:
            wrong += [f"{title}: {{{{{label}}}}}" for label in re.findall(r"{{(\w+)}}", legend) if label not in kept]
    assert wrong == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_legend_tells_every_line_of_a_panel_from_the_others(path: Any) -> None:
    for panel in load(path)["panels"]:
        legends = [target["legendFormat"] for target in panel.get("targets", ())]
        assert len(set(legends)) == len(legends), panel["title"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_variable_that_is_used_is_defined_and_found_by_a_metric_that_is_there(path: Any) -> None:
    board, catalog = load(path), builtin_catalog()
    variables = {one["name"]: one for one in board["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)\}?", json.dumps(board))) - {"__rate_interval"}
    assert used == set(variables)
    for one in variables.values():
        if one["type"] == "query":
            match = LABEL_VALUES.fullmatch(one["query"]["query"])
            assert match is not None
            (name,) = metric_names(parse(filled(match["query"])).root)
            assert known(catalog.find(name)), name


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_panels_do_not_lie_over_each_other_and_every_one_has_an_id(path: Any) -> None:
    panels = load(path)["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells


class Busy(Rig):
    """A vLLM node whose counters of a real exposition go on, seen by all our rules for some minutes."""

    def __init__(self) -> None:
        super().__init__("vllm")
        self.rules = RuleEngine(load_rule_files([*builtin_signal_files(), *builtin_rule_files()]), self.store)
        text = (METRICS / "vllm_v1_full_qwen25_0.5b_2026-03.prom").read_text()
        told = dict(line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#"))
        grows = re.compile(r"\w+(:\w+)?_(total|bucket|count|sum)(\{|$)")
        self.drive(
            {name: (float(value), float(value) / 60 if grows.match(name) else 0.0) for name, value in told.items()},
            seconds=300,
        )


def test_panels_show_what_a_busy_vllm_node_tells() -> None:
    rig = Busy()
    shown = {
        f"{path.stem}: {title}"
        for path in FILES
        for title, expression, _ in queries(load(path))
        if evaluate(filled(expression), rig.store, rig.now)
    }
    told = ("Nodes up", "Requests/s", "Output tokens/s", "TTFT p95", "Time to first token", "Time between tokens (ITL)")
    load_of_it = ("Requests waiting and running", "KV cache in use", "Tokens", "Whole answers (E2E)")
    assert shown >= {f"fleet: {title}" for title in (*told, *load_of_it)}
    assert shown >= {f"node: {title}" for title in ("Up", "Requests", "KV cache in use")}
    assert shown >= {"slo: Promised", "slo: TTFT p99 beside its objective"}
    assert not {title for title in shown if "GPU" in title}  # what is not told is empty, and not zero
