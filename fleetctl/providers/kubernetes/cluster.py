"""One Kubernetes API: plain mappings in and out, every failure an error of ours. The one door to lightkube.

Objects stay mappings on purpose: what a newer or older server says is kept as it is, and read where it is needed.
"""

from __future__ import annotations

import socket
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import httpx2
from lightkube import ApiError, Client, KubeConfig, operators
from lightkube.config.client_adapter import verify_cluster
from lightkube.config.kubeconfig import SingleConfig
from lightkube.core import decoders
from lightkube.core.exceptions import ConfigError
from lightkube.core.resource import (
    ApiInfo,
    GlobalResource,
    NamespacedResourceG,
    NamespacedSubResource,
    ResourceDef,
)
from lightkube.generic_resource import Generic
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.types import PatchType

from fleetctl.kit.errors import BadInputError, FleetctlError, UnreachableError

Object = Mapping[str, Any]

KINDS: dict[str, tuple[str, str, str]] = {  # plural: group, version, kind
    "pods": ("", "v1", "Pod"),
    "events": ("", "v1", "Event"),
    "nodes": ("", "v1", "Node"),
    "deployments": ("apps", "v1", "Deployment"),
    "statefulsets": ("apps", "v1", "StatefulSet"),
    "replicasets": ("apps", "v1", "ReplicaSet"),
    "controllerrevisions": ("apps", "v1", "ControllerRevision"),
    "poddisruptionbudgets": ("policy", "v1", "PodDisruptionBudget"),
    "poddisruptionbudgets/v1beta1": ("policy", "v1beta1", "PodDisruptionBudget"),
    "leaderworkersets": ("leaderworkerset.x-k8s.io", "v1", "LeaderWorkerSet"),
}
CLUSTER_WIDE = frozenset({"nodes"})
_VERBS = ["get", "list", "watch", "patch", "global_list", "global_watch"]
_making = threading.Lock()
_BROKEN = (httpx2.ReadError, httpx2.WriteError, httpx2.RemoteProtocolError)  # not a time-out: that has cost its time
WATCH_S = 300  # the server ends a watch after this, and it is begun anew from where it was
# A connection whose other end vanished is given up by the kernel after some 25 s; a watch has no other limit.
_KEEPALIVE = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *((socket.IPPROTO_TCP, getattr(socket, name), value) for name, value in
      (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 25_000))
      if hasattr(socket, name)),
]  # fmt: skip


class ApiRefusedError(FleetctlError):
    """The API answered, and said no. `code` is its HTTP status; the message is the server's own words."""

    def __init__(self, message: str, code: int, *, remedy: str | None = None) -> None:
        super().__init__(message, remedy=remedy)
        self.code = code


class Cluster:
    """Requests to one API server. Threading: any thread, several at a time.

    Raises ApiRefusedError for what the server refuses, UnreachableError when it gives no answer.
    """

    def __init__(self, kubeconfig: Path | None = None, context: str | None = None, *, timeout_s: float = 10.0) -> None:
        """Without a kubeconfig: the pod's service account, else `$KUBECONFIG`, else ~/.kube/config.

        Raises BadInputError naming what can't be used.
        """
        _make_decoders()
        config = _config(kubeconfig, context)
        self.url = config.cluster.server
        assert config.user is not None
        verify = verify_cluster(config.cluster, config.user, config.abs_file, trust_env=False)
        limits = httpx2.Limits(max_connections=None)
        self._transport = _Transport(verify=verify, limits=limits, socket_options=_KEEPALIVE)
        self._client = Client(config, timeout=httpx2.Timeout(timeout_s), transport=self._transport, trust_env=False)
        self.knows_deletion_cost: bool | None = None
        """Whether a ReplicaSet weighs its pods' deletion cost (since 1.22, as eviction by policy/v1); None: not known
        before the first eviction was asked for."""
        self.namespace: str = self._client.namespace or "default"

    def end_watches(self) -> None:
        """Every watch ends now, with an error in the thread that follows it."""
        self._transport.end_watches()

    def close(self) -> None:
        """Give the connections back. Call it once no thread uses them."""
        self._client.close()

    def find(self, plural: str, namespace: str, name: str) -> Object | None:
        """One object as the server has it now; None: there is no such object."""
        try:
            with self._errors(f"get {plural} {name}"):
                found: Object = self._client.get(_resource(plural), name, **_within(plural, namespace))
                return found
        except ApiRefusedError as error:
            if error.code == 404:
                return None
            raise

    def find_all(
        self, plural: str, namespace: str, *, selector: str | None = None, fields: Mapping[str, str] | None = None
    ) -> tuple[list[Object], str]:
        """All objects that fit, and the version from which a watch goes on. `selector` is a label selector."""
        with self._errors(f"list {plural}"):
            labels = _labels(selector)
            found = self._client.list(
                _resource(plural), labels=labels, fields=dict(fields or {}) or None, **_within(plural, namespace)
            )
            items: list[Object] = list(found)
            return items, found.resourceVersion

    def answers(self, plural: str, namespace: str) -> None:
        """Ask for one object, whichever: the cheapest proof that server and storage answer."""
        with self._errors(f"list {plural}"):
            next(iter(self._client.list(_resource(plural), chunk_size=1, **_within(plural, namespace))), None)

    def watch(self, plural: str, namespace: str, *, selector: str | None, version: str) -> Iterator[tuple[str, Object]]:
        """Changes since `version`: ADDED, MODIFIED or DELETED, and the object. Ends with an error alone."""
        with self._errors(f"watch {plural}"):
            labels = _labels(selector)
            yield from self._client.watch(
                _resource(plural),
                labels=labels,
                server_timeout=WATCH_S,
                resource_version=version,
                **_within(plural, namespace),
            )

    def patch(self, plural: str, namespace: str, name: str, change: Object) -> Object:
        """A merge patch. With `metadata.resourceVersion` in it, refused (409) when the object changed meanwhile."""
        with self._errors(f"patch {plural} {name}"):
            resource = _resource(plural)
            within = _within(plural, namespace)
            made: Object = self._client.patch(resource, name, dict(change), patch_type=PatchType.MERGE, **within)
            return made

    def patch_json(self, plural: str, namespace: str, name: str, change: list[Object]) -> Object:
        """A JSON patch: what must be replaced as a whole."""
        with self._errors(f"patch {plural} {name}"):
            resource = _resource(plural)
            within = _within(plural, namespace)
            made: Object = self._client.patch(resource, name, change, patch_type=PatchType.JSON, **within)
            return made

    def patch_status(self, namespace: str, pod: str, change: Object) -> Object:
        """A pod's status: conditions are merged by their type."""
        with self._errors(f"patch pods/status {pod}"):
            resource = _resource("pods", "status")
            made: Object = self._client.patch(
                resource, pod, dict(change), namespace=namespace, patch_type=PatchType.STRATEGIC
            )
            return made

    def evict(self, namespace: str, pod: str, *, uid: str, grace_s: float | None = None, dry_run: bool = False) -> None:
        """Ask for the pod's deletion as the PodDisruptionBudgets allow it (429 when they don't); only this very pod.

        Nothing when it is gone.
        """
        options: dict[str, Any] = {"preconditions": {"uid": uid}}
        if grace_s is not None:
            options["gracePeriodSeconds"] = int(grace_s)
        if dry_run:
            options["dryRun"] = ["All"]
        for version in ("v1", "v1beta1"):  # servers before 1.22 know the second one alone
            body = _eviction()(
                apiVersion=f"policy/{version}", kind="Eviction", metadata={"name": pod, "namespace": namespace}
            )
            body["deleteOptions"] = options
            try:
                with self._errors(f"evict {pod}"):
                    self._client.create(body, pod, namespace=namespace, dry_run=dry_run)
                self.knows_deletion_cost = version == "v1"
                return
            except ApiRefusedError as error:
                if error.code in (404, 409):  # gone, or another pod under this name
                    found = self.find("pods", namespace, pod)
                    if found is None or found["metadata"]["uid"] != uid:
                        return
                if error.code not in (400, 404) or version == "v1beta1":
                    raise

    def read_log(
        self, namespace: str, pod: str, *, container: str, lines: int | None, since_s: int | None
    ) -> list[str]:
        """Lines with their times, oldest first; none when the container wrote none yet."""
        try:
            with self._errors(f"read the log of {pod}"):
                found = self._client.log(
                    pod,
                    namespace=namespace,
                    container=container,
                    tail_lines=lines,
                    since=since_s,
                    timestamps=True,
                    newlines=False,
                )
                return list(found)
        except ApiRefusedError as error:
            if error.code in (400, 404):  # the container waits to start, or the pod is gone
                return []
            raise

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except ApiError as error:
            raise _refused(
                what, str(error.status.message), int(error.status.code or 0), error.status.details
            ) from error
        except httpx2.HTTPStatusError as error:
            code = error.response.status_code
            raise _refused(what, f"HTTP {code}", code, None) from error
        except (httpx2.HTTPError, ConfigError, ValueError, OSError) as error:
            # ValueError: half an answer is no JSON.
            said = f"{type(error).__name__}: {error}".rstrip(": ")
            message = f"the Kubernetes API at {self.url} gave no answer ({what}): {said}"
            raise UnreachableError(
                message, remedy="check providers.kubernetes in the settings and the API server"
            ) from error


class _Transport(httpx2.HTTPTransport):
    """Knows the sockets of watches: a thread that waits for the next change is woken by the end of its connection.

    A kept connection may break as it is used again, by a server that starts anew or a balancer that forgets it: what
    changes nothing when it is done twice is then sent once more.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._watches: weakref.WeakSet[socket.socket] = weakref.WeakSet()

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        try:
            response = super().handle_request(request)
        except _BROKEN:
            if not _may_be_sent_twice(request):
                raise
            response = super().handle_request(request)
        stream = response.extensions.get("network_stream")
        if request.url.params.get("watch") == "true" and stream is not None:
            self._watches.add(stream.get_extra_info("socket"))
        return response

    def end_watches(self) -> None:
        for one in list(self._watches):
            with suppress(OSError):  # it ended by itself
                # Not the TLS socket's own shutdown: that changes what the reading thread is in the middle of.
                socket.socket.shutdown(one, socket.SHUT_RDWR)


def _may_be_sent_twice(request: httpx2.Request) -> bool:
    """A look, or a merge that does not say of which version: the second of the same changes nothing.

    A JSON patch tests what it finds, the version too, so the second of the same may be refused for the first.
    """
    is_merge = request.method == "PATCH" and request.headers.get("Content-Type") != PatchType.JSON.value
    return request.method == "GET" or (is_merge and b'"resourceVersion"' not in request.content)


def _refused(what: str, message: str, code: int, details: Any) -> ApiRefusedError:
    causes = [one.message for one in getattr(details, "causes", None) or () if one.message]
    if code == 403:
        return ApiRefusedError(
            f"Kubernetes does not allow us to {what}: {message}",
            code,
            remedy="give the controller the Role in fleetctl/deploy/kustomize/fleet-access",
        )
    return ApiRefusedError(f"Kubernetes refused to {what}: {'; '.join([message, *causes])}", code)


def _config(kubeconfig: Path | None, context: str | None) -> SingleConfig:
    try:
        whole = KubeConfig.from_env() if kubeconfig is None else KubeConfig.from_file(kubeconfig.expanduser())
        found = whole.get(context)
    except (ConfigError, OSError, KeyError, ValueError) as error:
        raise BadInputError(
            f"providers.kubernetes: no usable configuration of a cluster: {error}",
            remedy="name a file in providers.kubernetes.kubeconfig, or run in a pod with a service account",
        ) from error
    if found is None or found.user is None:
        raise BadInputError(f"providers.kubernetes: context {context or 'current'} has no user")
    return found


def _within(plural: str, namespace: str) -> dict[str, Any]:
    return {} if plural in CLUSTER_WIDE else {"namespace": namespace}


def _labels(selector: str | None) -> Any:
    """A selector in Kubernetes' own notation, where lightkube wants a mapping of keys to operators."""
    return None if not selector else {"": operators.UnaryOperator("text", selector)}


def _make_decoders() -> None:
    """Decode one of each in one thread: msgspec learns a type at its first use, and two at once may crash it."""
    with _making:
        decoders.decode_watch_event(b'{"type": "ADDED", "object": {}}')
        decoders.decode_status(b'{"details": {"causes": [{}]}}')
        for plural in KINDS:
            decoders.decode_list(b'{"items": [], "metadata": {}}', _resource(plural))
        ObjectMeta.from_dict({"name": "any", "ownerReferences": [], "managedFields": []})


@cache
def _resource(plural: str, action: str | None = None) -> Any:
    """What lightkube calls a resource, of plain mappings: its own ones know the fields of one version alone."""
    group, version, kind = KINDS[plural]
    definition = ResourceDef(group, version, kind)
    plural = plural.partition("/")[0]  # what comes after is an older version of it
    info = ApiInfo(definition, plural, _VERBS, parent=definition if action else None, action=action)
    base = GlobalResource if plural in CLUSTER_WIDE else NamespacedResourceG
    return type(kind, (base, Generic), {"_api_info": info})


@cache
def _eviction() -> Any:
    definition = ResourceDef("policy", "v1", "Eviction")
    info = ApiInfo(definition, "pods", ["post"], parent=ResourceDef("", "v1", "Pod"), action="eviction")
    return type("Eviction", (NamespacedSubResource, Generic), {"_api_info": info})
