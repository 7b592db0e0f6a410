"""Whatever a scraper or Ray Serve makes of an engine's names, signals are read from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from alerts.evaluation.builtin import builtin_signal_files
from alerts.evaluation.rules import load_rule_files
from alerts.history.prometheus_source import metric_selectors
from alerts.history.recording import read_recordings, recording_store, wanted_names
from alerts.native_name import native_name, spellings
from alerts.promql import evaluate
from alerts.series.store import SeriesStore

SPELLINGS = ("vllm:", "vllm_", "ray_vllm:", "ray_vllm_")


@pytest.mark.parametrize("begins", SPELLINGS)
def test_a_scrape_is_kept_under_native_names(begins: str) -> None:
    store = SeriesStore()
    store.ingest({"node": "a", "engine": "vllm"}, f'{begins}num_requests_running{{model_name="m"}} 3\n', 1.0)
    (found,) = evaluate("vllm:num_requests_running", store, 1.0)
    assert found.value == 3.0


@pytest.mark.parametrize("begins", SPELLINGS)
def test_a_recording_is_kept_under_native_names(begins: str, tmp_path: Path) -> None:
    path = tmp_path / "fleet.om"
    path.write_text(f'{begins}num_requests_running{{model_name="m"}} 3 60\n# EOF\n')
    store = recording_store()
    assert read_recordings([path], store, wanted_names(load_rule_files(builtin_signal_files()))) == 1
    assert [one.value for one in evaluate("vllm:num_requests_running", store, 60.0)] == [3.0]


@pytest.mark.parametrize("name", ["vllm_router_processed_requests_total", "sgl_router_requests_total", "ray_x"])
def test_other_programs_keep_their_names(name: str) -> None:
    store = SeriesStore()
    store.ingest({"node": "a"}, f"{name} 3\n", 1.0)
    assert [one.value for one in evaluate(name, store, 1.0)] == [3.0]
    assert (native_name(name), spellings(name)) == (name, name)


def test_a_prometheus_is_asked_for_all_spellings() -> None:
    selectors = metric_selectors(load_rule_files(builtin_signal_files()))
    wanted = '{__name__=~"vllm:num_requests_running|vllm_num_requests_running|ray_vllm:num_requests_running'
    assert any(selector.startswith(wanted) for selector in selectors)
    assert '{__name__="llm:running"}' not in selectors
