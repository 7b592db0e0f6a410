"""Metrics texts of nodes under traffic, scrape after scrape: real expositions with numbers that move as theirs do."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parent
ENGINES = {"vllm": "vllm.prom", "fleetctl": "node.prom"}

# Histograms that the signal rules read; the usual size of a bench target (about 120 samples) has no others.
_KEPT_HISTOGRAMS = (
    "vllm:time_to_first_token_seconds",
    "vllm:inter_token_latency_seconds",
    "vllm:request_prompt_tokens",
    "vllm:iteration_tokens_total",
)
_BULK = ("python_", "http_", "process_virtual", "vllm:request_params", "vllm:mm_cache")
_LE = re.compile(r'le="([^"]+)"')
_SEEN_PER_SCRAPE = 12.0  # observations of each histogram between two scrapes, on average


@dataclass(slots=True)
class _Line:
    """A sample line up to its value. `bound`: of a bucket."""

    text: str
    name: str
    family: str
    kind: str
    bound: float | None


class NodeExposition:
    """One node's metrics. Deterministic: the same seed gives the same texts."""

    def __init__(self, engine: str, seed: int, *, is_full: bool = False) -> None:
        self._lines = _template(engine, is_full=is_full)
        self._dice = np.random.default_rng(seed)
        self._values = [0.0] * len(self._lines)
        self._pace = float(self._dice.uniform(0.5, 1.5))
        self._start = 1.7e9 + seed

    @property
    def num_samples(self) -> int:
        """Sample lines in each text."""
        return sum(isinstance(line, _Line) for line in self._lines)

    def next_text(self) -> str:
        """The exposition one scrape later."""
        out: list[str] = []
        histogram = ""
        seen = low = 0.0
        for index, line in enumerate(self._lines):
            if isinstance(line, str):
                out.append(line)
                continue
            value = self._values[index]
            if line.bound is not None:
                if line.family != histogram:
                    histogram, low = line.family, 0.0
                    seen = float(self._dice.poisson(_SEEN_PER_SCRAPE * self._pace))
                low = seen if line.bound == np.inf else low + float(np.floor((seen - low) * self._dice.random() * 0.5))
                value += low
            elif line.name.endswith("_sum"):
                value += seen * float(self._dice.gamma(4.0, 0.01))
            elif line.name.endswith("_count"):
                value += seen
            elif line.kind == "counter":
                value += 0.0 if _is_rare(line) else float(self._dice.poisson(20 * self._pace))
            else:
                value = self._gauge(line)
            self._values[index] = value
            out.append(f"{line.text}{value!r}")
        return "\n".join(out) + "\n"

    def _gauge(self, line: _Line) -> float:
        if line.name == "process_start_time_seconds":
            return self._start
        if line.name.endswith(("_perc", "_ratio")):
            return float(self._dice.uniform(0.2, 0.6))
        if line.name.startswith("vllm:num_requests"):
            return float(self._dice.integers(0, 12 if "running" in line.name else 3))
        return self._values[0] if "info" in line.name else 1.0


def _is_rare(line: _Line) -> bool:
    """Errors and the like, which stand still in a healthy fleet."""
    words = (
        "error",
        "abort",
        "preempt",
        "reject",
        "oom",
        "failed",
        "recomputed",
        "corrupted",
        "caught",
        "lost",
        "restart",
    )
    return any(word in line.text for word in words)


def _template(engine: str, *, is_full: bool) -> list[_Line | str]:
    """The text's lines: samples taken apart, comments as they are."""
    kinds: dict[str, str] = {}
    found: list[_Line | str] = []
    for line in (FOLDER / ENGINES[engine]).read_text().splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            kinds[name] = kind
        if not line:
            continue
        name = line.split()[2] if line.startswith("#") else re.split(r"[{ ]", line)[0]
        family = re.sub(r"_(bucket|sum|count|total)$", "", name)
        kind = kinds.get(name) or kinds.get(family) or "gauge"
        if not is_full and _is_left_out(name, family, kind):
            continue
        if line.startswith("#"):
            found.append(line)
            continue
        text = line.rpartition(" ")[0] + " "
        le = _LE.search(text) if name.endswith("_bucket") else None
        found.append(_Line(text, name, family, kind, None if le is None else float(le.group(1))))
    return found


def _is_left_out(name: str, family: str, kind: str) -> bool:
    if name.endswith("_created") or name.startswith(_BULK):
        return True
    return kind == "histogram" and "_bucket" in name and family not in _KEPT_HISTOGRAMS
