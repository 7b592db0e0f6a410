"""The revisions that a workload keeps of itself, and the way back to one: what `kubectl rollout undo` does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fleetctl.kit.errors import BadInputError
from fleetctl.providers.kubernetes.cluster import Cluster, Object
from fleetctl.providers.kubernetes.pod import HASH_LABELS, controller_of, seconds_of
from fleetctl.providers.kubernetes.workload import Workload

_NUMBER = "deployment.kubernetes.io/revision"


@dataclass(frozen=True, slots=True)
class Revision:
    """One template that the workload had. `number` grows; the same template again gets a new one."""

    number: int
    hash: str  # the revision of its nodes
    images: tuple[str, ...]
    created_at: float
    is_current: bool


FindAll = Callable[[str, str], Sequence[Object]]
"""Every object of a kind in a namespace: of the API, or as a watch has told them."""


def list_revisions(cluster: Cluster, workload: Workload) -> list[Revision]:
    """Oldest first, as the API has them now. Raises FleetctlError; BadInputError for a kind that keeps none."""
    return kept_revisions(_asked(cluster), workload)


def kept_revisions(find_all: FindAll, workload: Workload) -> list[Revision]:
    """Oldest first. Raises BadInputError for a kind that keeps none."""
    return [revision for revision, _ in _kept(find_all, workload)]


def _asked(cluster: Cluster) -> FindAll:
    return lambda plural, namespace: cluster.find_all(plural, namespace)[0]


def roll_back(cluster: Cluster, workload: Workload, number: int | None = None) -> Revision:
    """Give the workload the template of a revision again; without a number, of the one before the current.

    The one that is current already changes nothing. Raises BadInputError for one that is not kept.
    """
    kept = _kept(_asked(cluster), workload)
    if number is None:
        before = [one for one in kept if not one[0].is_current]
        if not before:
            raise BadInputError(f"{workload.ref}: no revision before the current one is kept")
        revision, change = before[-1]
    else:
        found = next((one for one in kept if one[0].number == number), None)
        if found is None:
            numbers = ", ".join(str(one.number) for one, _ in kept)
            raise BadInputError(f"{workload.ref}: revision {number} is not kept; it has {numbers or 'none'}")
        revision, change = found
    if not revision.is_current:
        # Whatever else was changed in the template meanwhile goes too: that is what a rollback is.
        back = {"op": "replace", "path": "/spec/template", **change}
        same = {"op": "test", "path": "/metadata/uid", "value": workload.uid}
        cluster.patch_json(workload.plural, workload.namespace, workload.name, [same, back])
    return revision


def _kept(find_all: FindAll, workload: Workload) -> list[tuple[Revision, dict[str, Any]]]:
    """Each with its template, as the value of a JSON patch."""
    match workload.kind:
        case "Deployment":
            kept = _replica_sets(find_all, workload)
        case "StatefulSet":
            kept = _controller_revisions(find_all, workload)
        case _:
            raise BadInputError(f"{workload.ref}: Kubernetes keeps no revisions of this kind that we can go back to")
    return sorted(kept, key=lambda one: one[0].number)


def _replica_sets(find_all: FindAll, workload: Workload) -> list[tuple[Revision, dict[str, Any]]]:
    owned = _owned(find_all("replicasets", workload.namespace), workload)
    numbered = [(int((one["metadata"].get("annotations") or {}).get(_NUMBER, 0)), one) for one in owned]
    newest = max((number for number, _ in numbered), default=0)
    return [
        (_revision(number, one["metadata"], template, number == newest), {"value": _without_hash(template)})
        for number, one in numbered
        for template in [one["spec"]["template"]]
    ]


def _controller_revisions(find_all: FindAll, workload: Workload) -> list[tuple[Revision, dict[str, Any]]]:
    owned = _owned(find_all("controllerrevisions", workload.namespace), workload)
    # Not by the set's status: that follows a moment later.
    newest = max((one["revision"] for one in owned), default=0)
    return [
        (_revision(one["revision"], one["metadata"], template, one["revision"] == newest), {"value": template})
        for one in owned
        # Kubernetes keeps it as a patch of the set, marked `$patch: replace`.
        for template in [{key: value for key, value in one["data"]["spec"]["template"].items() if key != "$patch"}]
    ]


def _owned(found: Sequence[Object], workload: Workload) -> list[Object]:
    owners = ((one, controller_of(one)) for one in found)
    return [one for one, owner in owners if owner is not None and owner.uid == workload.uid]


def _revision(number: int, meta: Object, template: Object, is_current: bool) -> Revision:
    labels = meta.get("labels") or {}
    said = next((labels[key] for key in HASH_LABELS if key in labels), meta["name"])
    images = tuple(one["image"] for one in template["spec"]["containers"])
    return Revision(number, said, images, seconds_of(meta["creationTimestamp"]), is_current)


def _without_hash(template: Object) -> Object:
    meta = template["metadata"]
    labels = {key: value for key, value in (meta.get("labels") or {}).items() if key not in HASH_LABELS}
    return {**template, "metadata": {**meta, "labels": labels}}
