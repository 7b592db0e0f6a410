"""What the controller asks of whoever runs nodes: local processes, Kubernetes, a cloud.

A provider is told what a node should be (`NodeSpec`) and says what it sees (`ObservedInstance`). How it runs a node,
and what it needs to find it again, are its own affair: nothing of that crosses here.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from fleetctl.providers.spec import NodeSpec


class SignKind(StrEnum):
    """What a platform's word for a problem comes to. Of machines the first ones, of what runs there the others."""

    SILENT = "silent"  # the machine does not report, or says itself that it is not ready
    MEMORY = "memory"  # a machine short of it; what runs there was killed for it
    DISK = "disk"
    PIDS = "pids"
    NETWORK = "network"
    KERNEL = "kernel"
    RUNTIME = "runtime"  # kubelet, container runtime
    GPU = "gpu"
    MAINTENANCE = "maintenance"  # somebody plans to take the machine away
    IMAGE = "image"
    CONFIG = "config"  # what it is started with: a mount, a secret, a command
    UNSCHEDULED = "unscheduled"  # no machine takes it
    CRASH = "crash"  # it ended before, and is started again later and later
    LIVENESS = "liveness"  # it is ended because it does not answer its probe
    EVICTED = "evicted"  # taken away by the platform
    OTHER = "other"


@dataclass(frozen=True, slots=True, order=True)
class Sign:
    """One thing that a platform says is wrong, in its own word: `DiskPressure`, `OOMKilled`."""

    word: str
    kind: SignKind
    message: str = ""

    def __str__(self) -> str:
        return f"{self.word} ({self.message})" if self.message else self.word


@dataclass(frozen=True, slots=True)
class ObservedInstance:
    """What a provider sees under one node's name, now."""

    name: str
    running: bool
    instance: str | None = None
    """Opaque identity, the same as long as it runs and never used again; None when nothing runs, or it is not known
    yet. A node that was restarted has another one."""
    url: str | None = None  # where it answers; None: not known yet
    exit_status: int | None = None
    """Of what ran last and ended: its exit code, or minus the signal that ended it (-9: SIGKILL). None: not known."""
    sees_process: bool = True
    """False: it was found, and nobody here sees its process. `running` then says that it should be there."""
    trouble: str = ""  # what the provider knows of why it does not run, or not well, in words
    machine_problems: tuple[Sign, ...] | None = None
    """What is wrong with the machine under it, by the platform's word. None: nobody tells, which is not "nothing"."""
    reasons: tuple[Sign, ...] | None = None  # what the platform says is wrong with the node itself; None: as above
    comes_back: bool | None = None
    """Of what ended: whether somebody else starts it again, as a kubelet does. None: it runs, or nobody knows."""


def exit_words(exit_status: int | None) -> str:
    """How a process ended, for people; empty where that is not known."""
    if exit_status is None:
        return ""
    if exit_status >= 0:
        return f"exit code {exit_status}"
    try:
        return f"killed by {signal.Signals(-exit_status).name}"
    except ValueError:
        return f"killed by signal {-exit_status}"


@dataclass(frozen=True, slots=True)
class LogChunk:
    """Lines that a node wrote, oldest first, and where the next read goes on."""

    lines: tuple[str, ...]
    cursor: str  # opaque, of this provider


class ProviderAct(StrEnum):
    """What a provider may be able to do to a node; the words are those of `runbooks.ability.Ability`."""

    START = "start"  # another node like it
    STOP = "stop"
    RESTART = "restart"
    LOGS = "logs"
    CORDON_HOST = "cordon machine"


class NodeProvider(Protocol):
    """Starts, finds and stops nodes.

    Every method is idempotent and safe to call again after a crash of the caller. It raises FleetctlError when it can't
    do its work: "could not look" is never told as "not running".

    Threading: synchronous, called from worker threads, several at a time.
    """

    def why_not(self, act: ProviderAct, spec: NodeSpec) -> str:
        """Why this can never be done to such a node, for people; empty when it can. Looks at nothing."""

    def list_instances(self) -> Sequence[ObservedInstance]:
        """Every node that runs here, whoever started it."""

    def attach(self, spec: NodeSpec) -> ObservedInstance | None:
        """Take charge of the node if it runs already, e.g. since before a restart of the controller. Never starts one.

        None: there is nothing to take charge of.
        """

    def ensure_started(self, spec: NodeSpec) -> None:
        """Start the node unless it runs. Returns before it is ready."""

    def stop(self, name: str, grace_s: float) -> None:
        """Ask the node to end, end it by force after `grace_s`, return once it is gone. Nothing, if it does not run."""

    def forget(self, name: str) -> None:
        """Drop what is kept of a node that does not run, its log too. Nothing, if it runs or is not known."""

    def observe(self, name: str) -> ObservedInstance:
        """The node as it is now; `running` is False for one that is not known here."""

    def read_logs(self, name: str, *, lines: int, after: str | None = None) -> LogChunk:
        """Up to `lines` lines: the last ones, or with the `cursor` of an earlier chunk, those that came after it.

        Empty when there is no log. A cursor that is no longer valid begins with what there is.
        """


@runtime_checkable
class ComesBack(Protocol):
    """A provider whose nodes are started again by somebody else when they end, as a pod is by its workload."""

    def restart(self, name: str, grace_s: float) -> None:
        """End the node so that it comes back under its name; return once its successor is on its way."""


@runtime_checkable
class AsksLeave(Protocol):
    """A provider that must be allowed to end a node, as by PodDisruptionBudgets."""

    def check_end(self, name: str) -> None:
        """Nothing when the node may be ended now, or does not run. Raises RefusedError naming what forbids it."""


@dataclass(frozen=True, slots=True)
class EndBudget:
    """A budget that the end of a node is up to; field by field `runbooks.ports.EndBudget`."""

    name: str
    healthy: int
    expected: int
    limit: int
    is_percent: bool
    is_minimum: bool


@dataclass(frozen=True, slots=True)
class EndTerms:
    """What a node's end is up to. `counts_healthy`: whether the budgets count it among the healthy now."""

    budgets: tuple[EndBudget, ...]
    counts_healthy: bool


@runtime_checkable
class TellsEndTerms(Protocol):
    """A provider that can say beforehand what budgets will say."""

    def end_terms(self) -> Mapping[str, EndTerms]:
        """By node, of those that some budget covers; empty where it can't be looked. May ask, so it takes a moment."""


def end_terms_of(provider: NodeProvider) -> Mapping[str, EndTerms]:
    """Nothing of a provider that has no budgets."""
    return provider.end_terms() if isinstance(provider, TellsEndTerms) else {}


@runtime_checkable
class CordonsHosts(Protocol):
    """A provider that places nodes on machines."""

    def cordon_host(self, name: str, *, cordoned: bool) -> str:
        """Keep new nodes from the machine under the node, or let them come again; the machine's name."""


def end_for_restart(provider: NodeProvider, name: str, grace_s: float) -> None:
    """The first half of a restart; `ensure_started` is the second. Raises FleetctlError."""
    if isinstance(provider, ComesBack):
        provider.restart(name, grace_s)
    else:
        provider.stop(name, grace_s)


@dataclass(frozen=True, slots=True)
class Capacity:
    """How many more nodes like one can be started now. None: not known, and no reason to refuse."""

    more: int | None = None
    why: str = ""  # what decides it, for people
    names: tuple[str, ...] | None = None  # those that new nodes can have, where not any


@runtime_checkable
class HasCapacity(Protocol):
    """A provider that knows how many more nodes it could start."""

    def capacity(self, spec: NodeSpec) -> Capacity:
        """For nodes of its provider, pool, model and SKU. From what was seen last: it waits for nothing."""


def capacity_of(provider: NodeProvider, spec: NodeSpec) -> Capacity:
    """Unknown of a provider that can't tell."""
    return provider.capacity(spec) if isinstance(provider, HasCapacity) else Capacity()


@dataclass(frozen=True, slots=True)
class NodeSetting:
    """How one option of a node is written; field by field `runbooks.node_setting.NodeSetting`."""

    kind: str = "text"
    least: float | None = None
    choices: tuple[str, ...] | None = None
    fixed: str = ""


@runtime_checkable
class KnowsSettings(Protocol):
    """A provider that can say what its nodes are started with before it starts one."""

    def settings_of(self, spec: NodeSpec) -> Mapping[str, NodeSetting] | None:
        """By name with dashes, for nodes like this one; None: it could not find out. May take a moment."""


def settings_of(provider: NodeProvider, spec: NodeSpec) -> Mapping[str, NodeSetting] | None:
    """Unknown of a provider that can't tell."""
    return provider.settings_of(spec) if isinstance(provider, KnowsSettings) else None


@runtime_checkable
class HasProcesses(Protocol):
    """A provider whose nodes are processes of this machine."""

    def process_ids(self, name: str) -> list[int]:
        """Of the node and of what it started, its own first; empty when it does not run."""
