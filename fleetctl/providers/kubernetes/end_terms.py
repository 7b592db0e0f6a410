"""What PodDisruptionBudgets will say to the end of each pod, told before anybody asks for it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence

import structlog

from fleetctl.kit.errors import FleetctlError
from fleetctl.providers.kubernetes.cluster import ApiRefusedError, Cluster, Object
from fleetctl.providers.kubernetes.pod import Pod
from fleetctl.providers.provider import EndBudget, EndTerms

log = structlog.get_logger()

FRESH_FOR_S = 2.0  # guards that wait look each second
RETRY_S = 60.0  # after a no of the server: a Role of before this release has no such right
_VERSIONS = ("poddisruptionbudgets", "poddisruptionbudgets/v1beta1")  # servers before 1.21 have the second one alone


class EndBudgets:
    """Budgets of our namespaces, listed when they are asked for. Threading: any thread."""

    def __init__(self, cluster: Cluster, namespaces: Sequence[str]) -> None:
        self._cluster, self._namespaces = cluster, namespaces
        self._known: tuple[float, Sequence[Object]] = (float("-inf"), ())
        self._refused_until = float("-inf")

    def terms(self, nodes: Mapping[str, Pod]) -> dict[str, EndTerms]:
        """Of the nodes that some budget covers. Empty where budgets can't be listed: then the eviction alone tells."""
        now = time.monotonic()
        if now < self._refused_until:
            return {}
        asked_at, found = self._known
        if now - asked_at > FRESH_FOR_S:
            try:
                found = [one for namespace in self._namespaces for one in self._listed(namespace)]
            except ApiRefusedError as error:
                log.warning("kubernetes.budgets_not_seen", error=error.message)
                self._refused_until = now + RETRY_S
                return {}
            except FleetctlError:
                return {}
            self._known = now, found
        return end_terms(nodes, found)

    def _listed(self, namespace: str) -> list[Object]:
        try:
            return self._cluster.find_all(_VERSIONS[0], namespace)[0]
        except ApiRefusedError as error:
            if error.code != 404:
                raise
            return self._cluster.find_all(_VERSIONS[1], namespace)[0]


def end_terms(nodes: Mapping[str, Pod], budgets: Iterable[Object]) -> dict[str, EndTerms]:
    """Of each node that a budget covers and that eviction asks it for. Pure.

    Not asked for: a pod that never ran or is over. One that is not ready may go whatever the numbers say where the
    budget says so (`unhealthyPodEvictionPolicy: AlwaysAllow`).
    """
    found: dict[str, EndTerms] = {}
    told = [one for one in budgets if _is_current(one)]
    for name, pod in nodes.items():
        if pod.phase != "Running" or pod.terminating:
            continue
        own = [
            one
            for one in told
            if one["metadata"]["namespace"] == pod.namespace
            and _covers(one["spec"].get("selector"), pod.labels)
            and (pod.ready or one["spec"].get("unhealthyPodEvictionPolicy") != "AlwaysAllow")
        ]
        if own:
            found[name] = EndTerms(tuple(map(_budget, own)), counts_healthy=pod.ready)
    return found


def _is_current(budget: Object) -> bool:
    """A status that is older than what was asked for says nothing of it."""
    status = budget.get("status") or {}
    return bool(status.get("observedGeneration", -1) >= budget["metadata"].get("generation", 0))


def _budget(found: Object) -> EndBudget:
    spec, status = found["spec"], found["status"]
    is_minimum = spec.get("maxUnavailable") is None
    limit = spec.get("minAvailable", 1) if is_minimum else spec["maxUnavailable"]
    return EndBudget(
        name=found["metadata"]["name"],
        healthy=status.get("currentHealthy", 0),
        expected=status.get("expectedPods", 0),
        limit=int(str(limit).removesuffix("%")),
        is_percent=str(limit).endswith("%"),
        is_minimum=is_minimum,
    )


def _covers(selector: Object | None, labels: Mapping[str, str]) -> bool:
    """An empty selector covers all pods of its namespace, none at all covers none."""
    if selector is None:
        return False
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    return all(_holds(one, labels) for one in selector.get("matchExpressions") or ())


def _holds(expression: Object, labels: Mapping[str, str]) -> bool:
    key, values = expression["key"], expression.get("values") or ()
    match expression["operator"]:
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
        case _:
            return False
