"""The exact words of each command: templates with their places filled in. Pure, so that they can be shown unrun."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import urlsplit

from fleetctl.kit.errors import BadInputError
from fleetctl.providers.hosts.options import HostsOptions, Place
from fleetctl.providers.spec import NodeSpec, words_from_options

_PLACEHOLDER = re.compile(r"\{([a-z]+)\}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class Commands:
    """What is run for what, word by word. Nothing here is read by a shell of this machine."""

    def __init__(self, options: HostsOptions) -> None:
        self._options = options

    def start(self, place: Place, spec: NodeSpec | None = None) -> list[str]:
        """Start a node; with its options where the template asks for them."""
        options = {} if spec is None else spec.options
        port = urlsplit(place.url).port or (443 if place.url.startswith("https:") else 80)
        values = {**_of(place), "port": str(port), "model": place.model, "pool": place.pool}
        return self._there(place.host, self._options.start, values, {"options": words_from_options(options)})

    def stop(self, place: Place) -> list[str]:
        """Ask a node to end."""
        return self._there(place.host, self._options.stop, _of(place))

    def kill(self, place: Place) -> list[str]:
        """End a node by force."""
        return self._there(place.host, self._options.kill, _of(place))

    def observe(self, host: str, units: Sequence[str]) -> list[str]:
        """Look at all units of a host."""
        return self._there(host, self._options.observe, {"host": host}, {"units": units})

    def logs(self, place: Place, lines: int) -> list[str]:
        """The last lines that a node wrote."""
        return self._there(place.host, self._options.logs, {**_of(place), "lines": str(lines)})

    def logs_after(self, place: Place, cursor: str) -> list[str]:
        """What it wrote after the cursor."""
        return self._there(place.host, self._options.logs_after, {**_of(place), "cursor": cursor})

    def _there(
        self,
        host: str,
        template: Sequence[str],
        values: Mapping[str, str],
        several: Mapping[str, Sequence[str]] | None = None,
    ) -> list[str]:
        words = list(_filled(template, values, several or {}))
        reached = {"host": host, "command": shlex.join(words)}
        return list(_filled(self._options.connect, reached, {"words": words}))


def _of(place: Place) -> dict[str, str]:
    return {"unit": place.unit, "host": place.host, "node": place.name}


def _filled(template: Sequence[str], values: Mapping[str, str], several: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """The words of a template. What is filled in is never looked at for places again. Raises BadInputError for a value
    that no command line can carry on one line."""
    for word in template:
        match = _PLACEHOLDER.fullmatch(word)
        found = (
            several[match[1]]
            if match is not None and match[1] in several
            else [_PLACEHOLDER.sub(lambda place: values[place[1]], word)]
        )
        for one in found:
            if _CONTROL.search(one):
                raise BadInputError(f"{one[:100]!r}: a control character can't be part of a command")
            yield one
