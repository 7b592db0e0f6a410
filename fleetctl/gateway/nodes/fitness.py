"""Which of a model's nodes may get a request now, and why the others may not.

When nobody is left, those that are only judged against their peers are taken after all: a bad answer is no worse than
none. A node that answered none of our own probes stays out: whoever is sent there only waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from fleetctl.gateway.nodes.ejection import Ejections
from fleetctl.gateway.nodes.loads import Loads
from fleetctl.gateway.nodes.node_watch import NodeWatch
from fleetctl.gateway.nodes.table import Endpoint


class Sifted(NamedTuple):
    """`fit`: may get a request, in the order given. `left_out`: node to reason, one of a closed set of words."""

    fit: Sequence[Endpoint]
    left_out: Mapping[str, str]


_NONE: Mapping[str, str] = {}


class Fitness:
    """What all views together say of nodes, asked for each choice: a dict look-up while nothing is wrong."""

    def __init__(
        self,
        watch: NodeWatch,
        ejections: Ejections,
        loads: Loads,
        *,
        fail_open: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`fail_open`: nodes of which the controller saw none well are tried all the same."""
        self._fail_open = fail_open
        self._watch = watch
        self._ejections = ejections
        self._loads = loads
        self._clock = clock

    def sift(self, endpoints: Sequence[Endpoint]) -> Sifted:
        """Those of `endpoints` that may get a request now, and why not the others."""
        if (
            not self._fail_open and endpoints and not endpoints[0].is_well
        ):  # a table gives those that are well, else all
            return Sifted((), {e.node: e.phase.value for e in endpoints if e.phase is not None})
        if not self._watch.has_any_out and not self._ejections.has_any:
            return Sifted(endpoints, _NONE)
        now = self._clock()
        left_out: dict[str, str] = {}
        fit: list[Endpoint] = []
        on_trial: list[Endpoint] = []
        ejected: list[Endpoint] = []
        for endpoint in endpoints:
            node = endpoint.node
            if (silent := self._watch.why_out(endpoint)) is not None:
                left_out[node] = silent.value
                continue
            why = self._ejections.why_left_out(node, self._loads.of(node).requests, now)
            if why is None:
                fit.append(endpoint)
                continue
            left_out[node] = why
            (on_trial if why == "trial" else ejected).append(endpoint)
        taken = fit or on_trial or ejected
        for endpoint in taken if not fit else ():
            del left_out[endpoint.node]
        return Sifted(taken, left_out)
