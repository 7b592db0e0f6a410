"""The rule files and dashboards that come with this package."""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).parents[1]


def builtin_signal_files() -> list[Path]:
    """Recording rules that map each engine's metrics to the `llm:` series. Evaluated before the alerts."""
    return sorted((_HERE / "signals").glob("*.yaml"))


def builtin_rule_files() -> list[Path]:
    """Alerting rules over the `llm:` series."""
    return sorted((_HERE / "rules").glob("*.yaml"))


def builtin_case_files() -> list[Path]:
    """Unit tests of our rules in promtool's format."""
    return sorted((_HERE / "cases").glob("*.yaml"))


def builtin_dashboard_files() -> list[Path]:
    """Grafana dashboards over the `llm:` series and what gateway and controller tell."""
    return sorted((_HERE / "dashboards").glob("*.json"))
