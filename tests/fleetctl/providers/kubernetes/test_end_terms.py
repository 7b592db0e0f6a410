"""Which PodDisruptionBudgets cover a pod, and what they will be counted by: read from objects of the API."""

from __future__ import annotations

from typing import Any

import pytest

from fleetctl.providers.kubernetes.end_terms import end_terms
from fleetctl.providers.kubernetes.pod import Pod, read_pod
from fleetctl.providers.provider import EndBudget


def pod(*, ready: bool = True, phase: str = "Running", **labels: str) -> Pod:
    meta = {"name": "p", "namespace": "llm", "uid": "u", "creationTimestamp": "2026-11-01T10:00:00Z", "labels": labels}
    conditions = [{"type": "Ready", "status": str(ready), "lastTransitionTime": "2026-11-01T10:00:00Z"}]
    spec = {"containers": [{"name": "main"}]}
    return read_pod({"metadata": meta, "spec": spec, "status": {"phase": phase, "conditions": conditions}})


def budget(selector: dict[str, Any] | None, *, observed: int = 1, **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "keep", "namespace": "llm", "generation": 1},
        "spec": {"selector": selector, **spec},
        "status": {"currentHealthy": 3, "expectedPods": 4, "observedGeneration": observed},
    }


ENGINE = {"matchLabels": {"app": "engine"}}


def covered(selector: dict[str, Any] | None, **labels: str) -> bool:
    return "a" in end_terms({"a": pod(**labels)}, [budget(selector, minAvailable=2)])


@pytest.mark.parametrize(
    ("selector", "covers"),
    [
        (ENGINE, True),
        ({"matchLabels": {"app": "other"}}, False),
        ({}, True),
        (None, False),
        ({"matchExpressions": [{"key": "app", "operator": "In", "values": ["engine", "x"]}]}, True),
        ({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["engine"]}]}, False),
        ({"matchExpressions": [{"key": "tier", "operator": "Exists"}]}, False),
        ({**ENGINE, "matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]}, True),
    ],
)
def test_a_budget_covers_the_pods_that_its_selector_fits(selector: dict[str, Any] | None, covers: bool) -> None:
    assert covered(selector, app="engine") is covers


@pytest.mark.parametrize(
    ("spec", "limit"),
    [
        ({"minAvailable": 2}, (2, False, True)),
        ({"minAvailable": "75%"}, (75, True, True)),
        ({"maxUnavailable": 0}, (0, False, False)),
        ({"maxUnavailable": "25%"}, (25, True, False)),
    ],
)
def test_its_limit_is_a_number_or_a_share_that_stays_or_may_be_away(
    spec: dict[str, Any], limit: tuple[int, bool, bool]
) -> None:
    (terms,) = end_terms({"a": pod(app="engine")}, [budget(ENGINE, **spec)]).values()
    assert terms.budgets == (EndBudget("keep", 3, 4, *limit),)
    assert terms.counts_healthy


def test_what_eviction_does_not_ask_of_is_not_asked_of_here() -> None:
    keep = budget(ENGINE, minAvailable=2)
    assert not end_terms({"a": pod(app="engine", phase="Pending")}, [keep]), "it never ran"
    assert not end_terms({"a": pod(app="engine", ready=False)}, [keep | {"spec": keep["spec"] | ALWAYS}])
    assert end_terms({"a": pod(app="engine", ready=True)}, [keep | {"spec": keep["spec"] | ALWAYS}])
    assert not end_terms({"a": pod(app="engine", ready=False)}, [keep])["a"].counts_healthy
    assert not end_terms({"a": pod(app="engine")}, [budget(ENGINE, observed=0, minAvailable=2)]), "its numbers are old"


ALWAYS = {"unhealthyPodEvictionPolicy": "AlwaysAllow"}
