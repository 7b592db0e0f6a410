"""What a node holds when nothing is asked of it, and whether that grew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.soak.node_process import ProcessUsage

MIB = 2**20
# Python and malloc give memory back late and in pieces; what leaks at each request passes any fixed bound.
RSS_SLACK_BYTES = 6 * MIB
RSS_SLACK_RATIO = 0.05
THREAD_SLACK = 8  # the pool that long texts are tokenised in grows to its size when it is first needed at once


@dataclass(frozen=True, slots=True)
class IdleReading:
    """One reading at rest: no request held, no client connected but the one that reads."""

    at_s: float  # since the start of the run
    requests: int  # sent so far
    node: ProcessUsage
    core: ProcessUsage
    tasks: int

    def as_dict(self) -> dict[str, object]:
        """For the report: MiB, counts and seconds, rounded."""
        return {
            "at_s": round(self.at_s, 1),
            "requests": self.requests,
            "node_rss_mib": round(self.node.rss_bytes / MIB, 1),
            "core_rss_mib": round(self.core.rss_bytes / MIB, 1),
            "core_pid": self.core.pid,
            "files": self.node.files,
            "threads": self.node.threads,
            "tasks": self.tasks,
        }


def find_growth(readings: Sequence[IdleReading]) -> list[str]:
    """What the last reading holds more of than the first, past what is allowed. The first comes after warm-up."""
    if len(readings) < 2:
        return []
    first, last = readings[0], readings[-1]
    problems = [
        f"the node holds {name}: {before} at {first.at_s:.0f} s, {after} at {last.at_s:.0f} s"
        for name, before, after, slack in (
            ("asyncio tasks", first.tasks, last.tasks, 0),
            ("open files", first.node.files, last.node.files, 0),
            ("threads", first.node.threads, last.node.threads, THREAD_SLACK),
        )
        if after > before + slack
    ]
    problems += _rss("the node", first.at_s, first.node, last.at_s, last.node)
    same = [reading for reading in readings if reading.core.pid == last.core.pid]  # a killed core starts anew
    if len(same) > 2:
        warm = same[1]
        problems += _rss("the core", warm.at_s, warm.core, last.at_s, last.core)
        if last.core.files > warm.core.files:
            problems.append(f"the core holds open files: {warm.core.files} at first, {last.core.files} now")
    return problems


def _rss(who: str, at_s: float, before: ProcessUsage, now_s: float, after: ProcessUsage) -> list[str]:
    allowed = before.rss_bytes + max(RSS_SLACK_BYTES, before.rss_bytes * RSS_SLACK_RATIO)
    if after.rss_bytes <= allowed:
        return []
    return [
        f"{who} grew from {before.rss_bytes / MIB:.1f} MiB at {at_s:.0f} s to {after.rss_bytes / MIB:.1f} MiB at "
        f"{now_s:.0f} s; {allowed / MIB:.1f} MiB are allowed"
    ]
