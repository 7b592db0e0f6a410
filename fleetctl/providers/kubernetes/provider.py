"""Engine nodes as pods of a cluster: found by their labels, started and stopped through the workloads that own them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from fleetctl.kit.errors import FleetctlError, RefusedError
from fleetctl.providers.kubernetes.cluster import Cluster
from fleetctl.providers.kubernetes.disruption import ask_leave
from fleetctl.providers.kubernetes.end_terms import EndBudgets
from fleetctl.providers.kubernetes.estate import Estate
from fleetctl.providers.kubernetes.logs import read_logs
from fleetctl.providers.kubernetes.node_spec import spec_of
from fleetctl.providers.kubernetes.options import KubernetesOptions
from fleetctl.providers.kubernetes.pod import Pod
from fleetctl.providers.kubernetes.pod_reason import Event, pod_reason, read_event
from fleetctl.providers.kubernetes.pod_signs import is_in_trouble, pod_signs
from fleetctl.providers.kubernetes.pool_rollouts import PoolRollouts
from fleetctl.providers.kubernetes.revisions import Revision, list_revisions, roll_back
from fleetctl.providers.kubernetes.serving import set_serving
from fleetctl.providers.kubernetes.sizing import Sizing
from fleetctl.providers.kubernetes.workload import Workload
from fleetctl.providers.pool_rollout import PoolRollout
from fleetctl.providers.provider import EndTerms, LogChunk, ObservedInstance, ProviderAct
from fleetctl.providers.spec import NodeSpec

_NO_HOSTS = "providers.kubernetes.may_cordon_hosts is not set; components/cordon-hosts has setting and right"
_EVENTS_FOR_S = 15.0  # while a pod is in trouble, the events of its namespace are asked for this often


@dataclass(frozen=True, slots=True)
class _Warnings:
    """Events of a namespace's pods. `of_pod`: by their uid; None: they could not be read."""

    asked_at: float = float("-inf")
    of_pod: Mapping[str, Sequence[Event]] | None = None


class KubernetesProvider:
    """Implements `NodeProvider` over one cluster. What it must remember is on the objects themselves.

    Looking costs no request: mirrors follow the API. While they can't, every method raises UnreachableError.
    """

    def __init__(self, options: KubernetesOptions) -> None:
        """Follows the cluster from now on. Raises BadInputError when there is no usable configuration of one."""
        self._options = options
        self.cluster = Cluster(options.kubeconfig, options.context)
        self.estate = Estate(self.cluster, options)
        self._sizing = Sizing(self.cluster, self.estate)
        self._rollouts = PoolRollouts(self.cluster, self.estate, options)
        self._budgets = EndBudgets(self.cluster, self.estate.namespaces)
        self._events: dict[str, _Warnings] = {}  # by namespace

    def close(self) -> None:
        """Stop following the cluster."""
        self.estate.close()
        self.cluster.close()

    def why_not(self, act: ProviderAct, spec: NodeSpec) -> str:
        """A pod that no workload owns nobody starts again; machines are changed where the settings say so."""
        if act is ProviderAct.CORDON_HOST:
            return "" if self._options.may_cordon_hosts else _NO_HOSTS
        if act in (ProviderAct.START, ProviderAct.RESTART) and "workload" not in spec.options:
            return "" if spec.options.get("pod") is None else "no workload owns its pod: nothing would make another one"
        return ""

    def version(self) -> object:
        """Another one whenever a pod or its workload changes."""
        return self.estate.version()

    def specs(self) -> list[NodeSpec]:
        """Every node that is seen, as its labels describe it."""
        roster = self.estate.roster()
        return [
            spec_of(name, pod, roster.workloads.get(pod.uid), self.estate.host(pod.host), self._options)
            for name, pod in roster.nodes.items()
            if pod.active
        ]

    def list_instances(self) -> Sequence[ObservedInstance]:
        """Every pod that is a node and runs, or is on its way."""
        found = (self._observed(name, pod, ()) for name, pod in self.estate.roster().nodes.items())
        return [one for one in found if one.running]

    def attach(self, spec: NodeSpec) -> ObservedInstance | None:
        """The pod is looked at, nothing more."""
        found = self.observe(spec.name)
        return found if found.running else None

    def ensure_started(self, spec: NodeSpec) -> None:
        """One replica more of the workload that its options name, or its pool's only one."""
        pod = self.estate.roster().nodes.get(spec.name)
        if pod is None or not pod.active:
            self._sizing.start(spec)

    def stop(self, name: str, grace_s: float) -> None:
        """One replica less, if Kubernetes would take this very pod and every PodDisruptionBudget allows it.

        Raises RefusedError otherwise: with the reason, and what can be done instead.
        """
        roster = self.estate.roster()
        pod = roster.nodes.get(name)
        if pod is not None:
            self._sizing.stop(name, pod, grace_s)
        elif name in roster.pending:
            self._sizing.stop_pending(name, roster.pending[name])
        else:
            self._sizing.forget(name)

    def restart(self, name: str, grace_s: float) -> None:
        """Delete the pod, if every PodDisruptionBudget allows it: its workload makes another one, the same node.

        Returns once the old one is gone. Nothing, if it does not run.
        """
        pod = self.estate.roster().nodes.get(name)
        if pod is not None:
            self._sizing.restart(name, pod, grace_s)

    def forget(self, name: str) -> None:
        """Nothing is kept here: a pod's log goes with its pod."""

    def observe(self, name: str) -> ObservedInstance:
        """As the API told last. `trouble` has the reasons of container, pod, Kubernetes node and events."""
        roster = self.estate.roster()
        pod = roster.nodes.get(name)
        if pod is None:
            pending = roster.pending.get(name)
            if pending is None:
                return ObservedInstance(name, False)
            return ObservedInstance(name, True, trouble=f"{pending.ref} has made no pod for it yet")
        return self._observed(name, pod, self._events_of(pod))

    def read_logs(self, name: str, *, lines: int, after: str | None = None) -> LogChunk:
        """From the pod's log in Kubernetes; it ends with the pod."""
        pod = self.estate.roster().nodes.get(name)
        return LogChunk((), "") if pod is None else read_logs(self.cluster, pod, lines, after)

    def cordon(self, name: str) -> None:
        """Say on the pod that it gets no requests. Nothing, if there is no such pod."""
        self._set_serving(name, False)

    def uncordon(self, name: str) -> None:
        """Say on the pod that it gets requests again."""
        self._set_serving(name, True)

    def end_terms(self) -> Mapping[str, EndTerms]:
        """What budgets will say; nothing where they can't be listed."""
        return self._budgets.terms(self.estate.roster().nodes)

    def check_end(self, name: str) -> None:
        """Ask every PodDisruptionBudget, nothing more. Raises RefusedError naming the one that forbids it."""
        pod = self.estate.roster().nodes.get(name)
        if pod is not None and pod.active:
            ask_leave(self.cluster, pod)

    def cordon_host(self, name: str, *, cordoned: bool = True) -> str:
        """Keep new pods from the machine under the node, or let them come again; the machine's name.

        Raises RefusedError unless the settings allow it.
        """
        pod = self._pod(name)
        if not self._options.may_cordon_hosts:
            raise RefusedError(
                f"{name}: Kubernetes node {pod.host} is left as it is",
                remedy="set providers.kubernetes.may_cordon_hosts, and give the ServiceAccount patch on nodes",
            )
        if pod.host is None:
            raise RefusedError(f"{name}: its pod is on no Kubernetes node yet")
        self.cluster.patch("nodes", "", pod.host, {"spec": {"unschedulable": cordoned}})
        return pod.host

    def revisions(self, name: str) -> list[Revision]:
        """What the node's workload can be rolled back to, oldest first."""
        return list_revisions(self.cluster, self._workload(name))

    def roll_back(self, name: str, number: int | None = None) -> Revision:
        """Roll the node's workload back to a revision; without a number, to the one before the current."""
        return roll_back(self.cluster, self._workload(name), number)

    def pool_rollouts(self) -> Mapping[str, PoolRollout]:
        """How each pool's workload exchanges its pods. Looking costs no request."""
        return self._rollouts.pool_rollouts()

    def roll_to(self, pool: str, revision: str) -> None:
        """Give the pool's workload the template of a revision that it keeps."""
        self._rollouts.roll_to(pool, revision)

    def roll_image(self, pool: str, image: str) -> None:
        """Give the pool's workload its template with another image of the container that serves."""
        self._rollouts.roll_image(pool, image)

    def hold_rollout(self, pool: str, *, held: bool) -> None:
        """Pause the pool's Deployment, or let it go on."""
        self._rollouts.hold_rollout(pool, held=held)

    def _set_serving(self, name: str, serving: bool) -> None:
        pod = self.estate.roster().nodes.get(name)
        if pod is not None and pod.active:
            set_serving(self.cluster, self.estate, pod, serving)

    def _pod(self, name: str) -> Pod:
        pod = self.estate.roster().nodes.get(name)
        if pod is None:
            raise FleetctlError(f"{name}: no pod in Kubernetes is this node")
        return pod

    def _workload(self, name: str) -> Workload:
        found = self.estate.roster().workloads.get(self._pod(name).uid)
        if found is None:
            raise RefusedError(f"{name}: no workload owns its pod")
        return found

    def _observed(self, name: str, pod: Pod, events: Sequence[Event] | None) -> ObservedInstance:
        host = self.estate.host(pod.host)
        return ObservedInstance(
            name,
            running=pod.running,
            instance=pod.instance,
            url=pod.url,
            exit_status=None if pod.running else pod.container.exit_status,
            trouble=pod_reason(pod, host, events),
            machine_problems=None if host is None else host.signs,
            reasons=pod_signs(pod, events, time.time()),
            # A pod that failed, was evicted or waits for a machine is started by no kubelet.
            comes_back=None if pod.running else pod.phase == "Running",
        )

    def _events_of(self, pod: Pod) -> Sequence[Event] | None:
        """Of a pod that does not get on; None: they could not be read, or not yet.

        All warnings of a namespace at once: a field selector saves the server nothing, and a thousand pods that start
        together cost one request.
        """
        if not is_in_trouble(pod):
            return ()
        now = time.monotonic()
        known = self._events.get(pod.namespace, _Warnings())
        if now - known.asked_at >= _EVENTS_FOR_S:
            # Others who look meanwhile have what was known.
            self._events[pod.namespace] = replace(known, asked_at=now)
            found: Mapping[str, Sequence[Event]] | None = None
            with suppress(FleetctlError):
                found = self._warnings(pod.namespace)
            known = self._events[pod.namespace] = _Warnings(now, found)
        return None if known.of_pod is None else known.of_pod.get(pod.uid, ())

    def _warnings(self, namespace: str) -> dict[str, list[Event]]:
        fields = {"type": "Warning", "involvedObject.kind": "Pod"}
        by_pod: dict[str, list[Event]] = {}
        for one in self.cluster.find_all("events", namespace, fields=fields)[0]:
            by_pod.setdefault(one["involvedObject"].get("uid", ""), []).append(read_event(one))
        return by_pod
