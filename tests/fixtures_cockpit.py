"""A controller's answers for the cockpit's tests: a fleet with a slow node, an incident, a proposed runbook."""

from __future__ import annotations

from typing import Any

from fleetctl.kit.errors import FleetctlError
from fleetctl.wire import (
    ActionRequest,
    Alert,
    ApprovalRequest,
    Incident,
    Node,
    NodePhase,
    Run,
    RunbookInfo,
    RunStatus,
    Signal,
    Status,
)

NOW = 1_700_000_000.0  # 2023-11-14 22:13:20 UTC

PAGE = """# Replace a node

A node that is slower than its peers is replaced by a fresh one.

```fleetctl
node start {{replacement}} --like {{node}}
```

| step | why |
|---|---|
| start | capacity first |
"""


def make_node(name: str = "node-1", **fields: Any) -> Node:
    def fresh(value: float) -> Signal:
        return Signal(value=value, age_s=1.0)

    values: dict[str, Any] = {
        "name": name, "url": f"http://127.0.0.1:9000/{name}", "phase": NodePhase.READY, "pool": "default",
        "model": "tiny-llama", "revision": "r41", "zone": "a", "pid": 4711, "since": NOW - 600,
        "running": fresh(7), "waiting": fresh(0), "kv_ratio": fresh(0.42), "ttft_s": fresh(0.21),
        "step_s": fresh(0.018), "requests_per_s": fresh(3.24), "signal_age_s": 1.0,
    }  # fmt: skip
    return Node(**values | fields)


def make_run(**fields: Any) -> Run:
    values: dict[str, Any] = {
        "id": "run-1", "runbook": "replace-node", "title": "Replace a node", "status": RunStatus.PROPOSED,
        "inputs": {"node": "node-2", "replacement": "node-4", "deadline": "20s"}, "incident_id": "inc-1",
        "reason": "slow_node is confirmed on node-2", "created_at": NOW - 40, "updated_at": NOW - 40,
        "expires_at": NOW + 3400, "requested_by": "controller",
        "steps": [
            {"index": index, "phase": "do", "title": title, "command": command, "status": "pending"}
            for index, (title, command) in enumerate([
                ("Start the replacement", "node start node-4 --like node-2 --wait 180s"),
                ("Drain the slow node", "drain node-2 --deadline 20s"),
                ("Stop it", "node stop node-2"),
            ])
        ],
    }  # fmt: skip
    return Run(**values | fields)


def make_incident(**fields: Any) -> Incident:
    labels = {"node": "node-2", "pool": "default"}
    values: dict[str, Any] = {
        "id": "inc-1", "title": "node-2 decodes slower than its peers", "status": "open", "severity": "page",
        "scope": labels, "opened_at": NOW - 42,
        "alerts": [Alert(fingerprint="f", name="LLMNodeSlow", severity="page", state="firing", labels=labels)],
        "diagnosis": {
            "tree": "latency", "cause": "slow_node", "confidence": "confirmed", "at": NOW - 41,
            "title": "node-2 computes slowly: its steps take 3.4× as long as its peers'",
            "ruled_out": ["prefix_cache_broken"],
            "evidence": [
                {"question": "prefix_hit", "title": "Has the prefix hit ratio fallen?", "answer": "no",
                 "value": 0.01, "unit": "ratio", "threshold": "> 20 %", "age_s": 1.2},
                {"question": "queue_wait", "title": "Do requests wait before they are scheduled?",
                 "answer": "unknown", "why_unknown": "no series has data", "threshold": "> 200 ms"},
                {"question": "slow_steps", "title": "Are its steps slower than those of its peers?",
                 "answer": "yes", "value": 3.41, "unit": "times", "threshold": "> 2.0×", "age_s": 0.8},
            ],
        },
        "runs": [make_run()],
        "timeline": [
            {"seq": 1, "at": NOW - 42, "kind": "incident.opened", "text": "LLMNodeSlow fires on node-2"},
            {"seq": 2, "at": NOW - 41, "kind": "diagnosis.made", "text": "latency tree: slow_node, confirmed"},
            {"seq": 3, "at": NOW - 40, "kind": "run.proposed", "text": "replace-node waits for an approval"},
        ],
    }  # fmt: skip
    return Incident(**values | fields)


def make_status(**fields: Any) -> Status:
    values: dict[str, Any] = {
        "version": "0.1.0", "started_at": NOW - 900, "epoch": 3, "policy": "ask", "now": NOW, "nodes_ready": 2,
        "nodes_total": 3, "firing": 1, "open_incidents": 1, "loops": {},
    }  # fmt: skip
    return Status(**values | fields)


class FakeController:
    """Answers from its attributes; `away` makes every call fail, as an unreachable controller does."""

    def __init__(self) -> None:
        self.nodes_now = [
            make_node("node-1"),
            make_node(
                "node-2", phase=NodePhase.DRAINING, reason="replace-node", alerts=["LLMNodeSlow"],
                ttft_s=Signal(value=1.42, age_s=1.0), kv_ratio=Signal(value=0.97, age_s=1.0),
            ),
            make_node(
                "node-3", phase=NodePhase.UNREACHABLE, reason="connection refused", signal_age_s=95.0,
                running=Signal(value=3, age_s=95.0), waiting=Signal(), kv_ratio=Signal(), step_s=Signal(),
                ttft_s=Signal(value=0.3, age_s=95.0), requests_per_s=Signal(),
            ),
        ]  # fmt: skip
        self.incidents_now = [make_incident()]
        self.status_now = make_status()
        self.away: FleetctlError | None = None
        self.refuses: FleetctlError | None = None
        self.decisions: list[tuple[str, ApprovalRequest]] = []
        self.actions: list[ActionRequest] = []
        self.asked: list[str] = []
        self.closed = False

    def _look(self, what: str) -> None:
        self.asked.append(what)
        if self.away is not None:
            raise self.away

    async def status(self) -> Status:
        self._look("status")
        return self.status_now

    async def nodes(self) -> list[Node]:
        self._look("nodes")
        return list(self.nodes_now)

    async def alerts(self) -> list[Alert]:
        self._look("alerts")
        return [alert for incident in self.incidents_now for alert in incident.alerts]

    async def incidents(self, status: str | None = None) -> list[Incident]:
        self._look("incidents")
        return [one.model_copy(update={"timeline": [], "diagnosis": None}) for one in self.incidents_now]

    async def incident(self, incident_id: str) -> Incident:
        self._look(f"incident {incident_id}")
        return next(one for one in self.incidents_now if one.id == incident_id)

    async def runbook(self, name: str) -> RunbookInfo:
        self._look(f"runbook {name}")
        return RunbookInfo(name=name, title="Replace a node", risk="medium", causes=["slow_node"], inputs={}, page=PAGE)

    async def act(self, request: ActionRequest) -> Run:
        self.actions.append(request)
        if self.refuses is not None:
            raise self.refuses
        return make_run(id="run-9", title=request.command, status=RunStatus.APPROVED)

    async def decide(self, run_id: str, answer: ApprovalRequest) -> Run:
        self.decisions.append((run_id, answer))
        if self.refuses is not None:
            raise self.refuses
        approved = answer.decision == "approve"
        run = make_run(status=RunStatus.APPROVED if approved else RunStatus.DENIED, decided_by=answer.by)
        self.incidents_now = [self.incidents_now[0].model_copy(update={"runs": [run]})]
        return run

    async def close(self) -> None:
        self.closed = True
