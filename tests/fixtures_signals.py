"""One scraped target through our signal rules, for the traps of each engine's metrics."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from alerts.content import builtin_signal_files
from alerts.evaluation import RuleEngine
from alerts.promql import evaluate
from alerts.rules import load_rule_files
from alerts.sample import NAME
from alerts.store import SeriesStore

METRICS = Path(__file__).parent / "alerts" / "data" / "metrics"
START = 1_700_000_000.0
GROUPS = load_rule_files(builtin_signal_files())


class Rig:
    """One target, scraped every 5 s; a metric's text holds values at t seconds as first+step."""

    def __init__(self, engine: str, **labels: str) -> None:
        self.labels = {
            "node": "n1",
            "pool": "chat",
            "model": "m",
            "engine": engine,
            "zone": "z",
            "revision": "r",
            **labels,
        }
        self.store = SeriesStore()
        self.rules = RuleEngine(GROUPS, self.store)
        self.now = START

    def scrape(self, text: str | None, times: int = 1, every_s: float = 5.0) -> None:
        for _ in range(times):
            self.now += every_s
            self.store.ingest({**self.labels, "instance": "n1:1", "job": "llm"}, text, self.now)
            self.rules.tick(self.now)
        assert self.rules.failures() == {}

    def drive(self, series: Mapping[str, tuple[float, float]], seconds: int = 60, gauges: str = "") -> Rig:
        """Scrapes with every series at first + per_s * t."""
        for t in range(0, seconds, 5):
            lines = [f"{name} {first + per_s * t}" for name, (first, per_s) in series.items()]
            self.scrape("\n".join(lines) + "\n" + gauges)
        return self

    def value(self, name: str) -> float | None:
        """The one value of this signal with exactly the canonical labels; None when it is absent."""
        found = evaluate(name, self.store, self.now)
        if not found:
            return None
        (sample,) = found
        extra = {key: value for key, value in sample.labels.items() if key in ("gpu",)}
        assert sample.labels == {NAME: name, **self.labels, **extra}
        return sample.value


def histogram(
    name: str, labels: str, rate: float, mean: float, bounds: tuple[float, ...]
) -> dict[str, tuple[float, float]]:
    """`rate` observations a second, all of size `mean`."""
    series = {f"{name}_count{{{labels}}}": (0.0, rate), f"{name}_sum{{{labels}}}": (0.0, rate * mean)}
    for bound in (*bounds, float("inf")):
        le = "+Inf" if bound == float("inf") else str(bound)
        series[f'{name}_bucket{{{labels},le="{le}"}}'] = (0.0, rate if mean <= bound else 0.0)
    return series


V = 'engine="0",model_name="q"'
S = 'model_name="q",engine_type="unified"'
