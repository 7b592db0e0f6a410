"""One finished incident as the controller records it: a slow node, replaced."""

from __future__ import annotations

from typing import Any

from diagnostics.record import IncidentRecord

OPENED = 1_700_000_000.0  # 2023-11-14 22:13:20 UTC


def make_record(**changes: Any) -> IncidentRecord:
    fields: dict[str, Any] = {
        "id": "inc-20231114-221320-ab12",
        "title": "node-2 is slower than its peers",
        "status": "resolved",
        "severity": "page",
        "scope": {"node": "node-2", "pool": "chat"},
        "opened_at": OPENED,
        "resolved_at": OPENED + 90,
        "alerts": [
            {
                "fingerprint": "f1", "name": "LLMNodeSlow", "severity": "page", "state": "resolved",
                "labels": {"node": "node-2", "pool": "chat"}, "value": 3.41, "active_at": OPENED - 15,
                "fired_at": OPENED, "resolved_at": OPENED + 85,
            }
        ],
        "diagnosis": {
            "tree": "latency", "cause": "slow_node", "title": "node-2 computes slowly: 3.4× its peers",
            "confidence": "confirmed", "at": OPENED + 1, "ruled_out": ["prefix_cache_broken"], "not_known": [],
            "evidence": [
                {"question": "prefix_hit", "title": "Has the prefix hit ratio fallen?", "answer": "no",
                 "query": "avg(x) | y", "value": 0.01, "threshold": "> 20 %", "unit": "ratio", "age_s": 1.5},
                {"question": "slow_steps", "title": "Are its steps slower?", "answer": "yes",
                 "query": "a / b", "value": 3.41, "threshold": "> 2.0×", "unit": "times", "age_s": 1.0},
            ],
        },
        "runs": [
            {
                "id": "run-1", "runbook": "replace-node", "title": "Replace a node", "status": "succeeded",
                "inputs": {"node": "node-2", "replacement": "node-4"}, "created_at": OPENED + 1,
                "updated_at": OPENED + 70, "requested_by": "controller", "decided_by": "ana",
                "decided_at": OPENED + 21, "verification": "LLMNodeSlow is clear",
                "steps": [
                    {"index": 0, "phase": "do", "title": "Start the replacement",
                     "command": "node start node-4 --like node-2", "status": "done", "attempts": 1,
                     "started_at": OPENED + 21, "ended_at": OPENED + 33, "receipt": {"ready_after_s": 11.2}},
                    {"index": 1, "phase": "do", "title": "Drain", "command": "drain node-2 --deadline 20s",
                     "status": "done", "attempts": 2, "started_at": OPENED + 33, "ended_at": OPENED + 54,
                     "receipt": {"in_flight": 7, "finished": 4, "moved": 3, "refused": 0, "aborted": 0}},
                ],
            }
        ],
        "timeline": [
            {"seq": 1, "at": OPENED, "kind": "incident.opened", "text": "LLMNodeSlow on node-2"},
            {"seq": 2, "at": OPENED + 90, "kind": "incident.resolved", "text": "all clear | done",
             "data": {"moved": 3}, "node": "node-2"},
        ],
    }  # fmt: skip
    return IncidentRecord.model_validate(fields | changes)
