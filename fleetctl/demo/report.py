"""What the demo proved: times, cause, and the fate of every request."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

EXPECTED_CAUSE = "slow_node"


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """Requests of the demo, by fate."""

    sent: int = 0
    finished: int = 0
    moved: int = 0  # of the finished: went on at another node in the middle
    refused: int = 0
    lost: int = 0
    duplicated: int = 0


@dataclass(frozen=True, slots=True)
class DemoReport:
    """Seconds count from the fault; None means it did not happen."""

    detected_s: float | None
    diagnosed: str | None
    mitigated_s: float | None
    requests: RequestCounts
    diagnosed_s: float | None = None
    expected: str = EXPECTED_CAUSE
    ttft_before_s: float | None = None  # p95 of requests sent before the fault, during it, and after the repair
    ttft_during_s: float | None = None
    ttft_after_s: float | None = None
    false_alarms: int = 0
    postmortem: str | None = None
    blackbox: str | None = None

    def failures(self) -> list[str]:
        """What went wrong, in words; empty when the demo holds."""
        wrong = []
        if self.diagnosed != self.expected:
            wrong.append(f"the cause named is {self.diagnosed or 'none'}, expected {self.expected}")
        if self.mitigated_s is None:
            wrong.append("the incident was not mitigated")
        if self.requests.lost:
            wrong.append(f"{self.requests.lost} requests were lost")
        if self.requests.duplicated:
            wrong.append(f"{self.requests.duplicated} requests got tokens twice")
        if self.requests.finished == 0:
            wrong.append("no request finished")
        return wrong

    def to_json(self) -> dict[str, Any]:
        """Ready for json.dumps."""
        data = asdict(self)
        data["requests"] = asdict(self.requests)
        data["ok"] = not self.failures()
        return {key: round(value, 3) if isinstance(value, float) else value for key, value in data.items()}
