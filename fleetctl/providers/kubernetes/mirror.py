"""The objects of one kind as the API has them, kept by a watch: reading them costs no request.

List once, then follow the changes from that version. A connection that ends is begun anew from where it was; when the
server no longer has that version (410 Gone), everything is listed again. A mirror that can't follow says so.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

import structlog

from fleetctl.kit.errors import FleetctlError, UnreachableError
from fleetctl.providers.kubernetes.cluster import ApiRefusedError, Cluster, Object
from fleetctl.providers.kubernetes.pulse import Pulse

log = structlog.get_logger()

FIRST_RETRY_S = 0.2
LAST_RETRY_S = 5.0
ABSENT_RETRY_S = 30.0  # a kind that the server does not have, or that we may not see
GONE = 410


class Mirror:
    """Objects of one kind in one namespace, by name. Threading: any thread reads; one of its own follows the API."""

    def __init__(
        self,
        cluster: Cluster,
        plural: str,
        namespace: str,
        pulse: Pulse,
        *,
        selector: str | None = None,
        optional: bool = False,
        stale_after_s: float = 10.0,
    ) -> None:
        """`optional`: a kind that may not be there, or not be ours to see; then it has no objects. `stale_after_s`:
        without any word from the server for so long, what is here is not known to be true."""
        self.plural, self.namespace = plural, namespace
        self.lists = 0  # whole lists that were asked for
        self.changes = 0  # grows with whatever changes in it
        self.refused: str | None = None  # why an optional kind has no objects
        self._cluster, self._pulse, self._selector, self._optional = cluster, pulse, selector, optional
        self._stale_after_s = stale_after_s
        self._objects: dict[str, Object] = {}
        self._changed = threading.Condition()
        self._heard_at: float | None = None  # when the API last proved that what is here is all there is
        self._follows = False
        self._error: FleetctlError | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"kubernetes-{plural}", daemon=True)
        self._thread.start()

    def objects(self, wait_s: float | None = None) -> Mapping[str, Object]:
        """All of them now, by name. Waits for the first list. Raises UnreachableError when it may be old."""
        limit_s = self._stale_after_s if wait_s is None else wait_s
        with self._changed:
            # What may be over in a moment, as a connection that broke, is waited out; that we may not look is not.
            self._changed.wait_for(self._is_settled, limit_s)
            self._check()
            return dict(self._objects)

    def _is_settled(self) -> bool:
        is_final = self._error is not None and not isinstance(self._error, UnreachableError)
        return self._heard_at is not None or is_final

    def check_fresh(self) -> None:
        """Raises UnreachableError when what is here may be old."""
        with self._changed:
            self._check()

    def note(self, found: Object) -> None:
        """What the API just answered to a change of ours: the watch tells it too, a moment later."""
        with self._changed:
            standing = self._objects.get(found["metadata"]["name"])
            # One that is not here may have been deleted since.
            if standing is not None and _same(standing, found) and _version(found) > _version(standing):
                self._put(found)

    def wait_change(self, seen: int, limit_s: float) -> None:
        """Return once something changed since `changes` was `seen`, or after `limit_s`."""
        with self._changed:
            self._changed.wait_for(lambda: self.changes != seen, limit_s)

    def close(self) -> None:
        """Stop following: no later than the end of its watch."""
        self._closing.set()

    def join(self, limit_s: float) -> None:
        """Return once its thread ended, or after `limit_s`."""
        self._thread.join(limit_s)

    def _check(self) -> None:
        heard_at = self._heard_at
        if heard_at is not None and self._follows:  # silent, it has all there is as long as the server answers
            heard_at = max(heard_at, self._pulse.answered_at)
        now = time.monotonic()
        if heard_at is not None and now - heard_at <= self._stale_after_s:
            return
        error = self._error or self._pulse.error
        if isinstance(error, ApiRefusedError):
            raise error
        age = "never" if heard_at is None else f"{now - heard_at:.0f} s ago"
        why, remedy = (f": {error.message}", error.remedy) if error else ("", None)
        raise UnreachableError(
            f"could not look at {self.plural} in Kubernetes; last heard of {age}{why}", remedy=remedy
        )

    def _run(self) -> None:
        version: str | None = None
        retry_s = FIRST_RETRY_S
        while not self._closing.is_set():
            try:
                if version is None:
                    version = self._list()
                retry_s = FIRST_RETRY_S
                self._follows = True
                for kind, found in self._cluster.watch(
                    self.plural, self.namespace, selector=self._selector, version=version
                ):
                    version = found["metadata"]["resourceVersion"]
                    self._take(kind, found)
                    if self._closing.is_set():
                        return
            except FleetctlError as error:
                self._follows = False
                if isinstance(error, ApiRefusedError) and error.code == GONE:
                    version = None
                    continue
                if self._optional and isinstance(error, ApiRefusedError) and error.code in (403, 404):
                    self._be_empty(error)
                    version = None
                    self._follows = True  # that there is none stays so until the next look
                    self._closing.wait(ABSENT_RETRY_S)
                    continue
                self._note_error(error)
                self._closing.wait(retry_s)
                retry_s = min(LAST_RETRY_S, 2 * retry_s)

    def _list(self) -> str:
        items, version = self._cluster.find_all(self.plural, self.namespace, selector=self._selector)
        with self._changed:
            self.lists += 1
            self.refused = None
            self._objects = {one["metadata"]["name"]: one for one in items}
            self.changes += 1
        self._heard()
        return version

    def _take(self, kind: str, found: Object) -> None:
        with self._changed:
            name = found["metadata"]["name"]
            standing = self._objects.get(name)
            if kind == "DELETED":
                # Under one name a new object may have come already.
                if standing is not None and _same(standing, found):
                    del self._objects[name]
                    self.changes += 1
                    self._changed.notify_all()
            elif standing is None or not _same(standing, found) or _version(found) >= _version(standing):
                self._put(found)
        self._heard()

    def _put(self, found: Object) -> None:
        self._objects[found["metadata"]["name"]] = found
        self.changes += 1
        self._changed.notify_all()

    def _be_empty(self, error: ApiRefusedError) -> None:
        if self.refused is None:
            log.info("kubernetes.kind_unseen", kind=self.plural, reason=error.message)
        with self._changed:
            self.refused = error.message
            self._objects = {}
            self.changes += 1
        self._heard()

    def _heard(self) -> None:
        with self._changed:
            if self._error is not None:
                log.info("kubernetes.follows_again", kind=self.plural, namespace=self.namespace)
            self._heard_at, self._error = time.monotonic(), None
            self._changed.notify_all()

    def _note_error(self, error: FleetctlError) -> None:
        if self._closing.is_set():
            return
        with self._changed:
            if self._error is None:
                log.warning("kubernetes.not_followed", kind=self.plural, namespace=self.namespace, error=error.message)
            self._error = error
            self._changed.notify_all()


def _same(one: Object, other: Object) -> bool:
    return bool(one["metadata"]["uid"] == other["metadata"]["uid"])


def _version(found: Object) -> int:
    """Of one object they only grow; where a server's are no numbers, its last word counts."""
    version = str(found["metadata"].get("resourceVersion", ""))
    return int(version) if version.isdecimal() else 0
