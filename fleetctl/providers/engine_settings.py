"""What our engine can be started with, as its own command says: asked once in a while, as it may be exchanged."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import structlog

from fleetctl.providers.provider import NodeSetting

log = structlog.get_logger()

ASKED_EVERY_S = 60.0
ANSWER_WITHIN_S = 5.0  # it takes 0.2 s on an idle machine
EACH_HAS_ITS_OWN = "each node has its own, which is given to it when it is started"
OWN = ("host", "port", "node-name", "pool", "zone", "revision", "admin-token-file")


class _Answer(NamedTuple):
    at: float
    settings: Mapping[str, NodeSetting] | None


class EngineSettings:
    """Owner of the last answer. Threading: any worker thread; two that ask at once both ask."""

    def __init__(self, command: Sequence[str], monotonic: Callable[[], float] = time.monotonic) -> None:
        """`command` is what the engine's commands are put behind."""
        self._command = tuple(command)
        self._monotonic = monotonic
        self._last: _Answer | None = None

    def known(self) -> Mapping[str, NodeSetting] | None:
        """By name with dashes; None: the engine is not installed here, or does not say."""
        now, last = self._monotonic(), self._last
        if last is None or now - last.at > ASKED_EVERY_S:
            last = self._last = _Answer(now, self._ask())
        return last.settings

    def _ask(self) -> Mapping[str, NodeSetting] | None:
        try:
            told = subprocess.run(
                [*self._command, "options"],
                capture_output=True,
                check=True,
                text=True,
                stdin=subprocess.DEVNULL,
                timeout=ANSWER_WITHIN_S,
            )
            return settings_from(told.stdout)
        except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError) as error:
            log.info("provider.settings_unknown", command=self._command[0], error=str(error)[:200])
            return None


def settings_from(document: str) -> dict[str, NodeSetting]:
    """The settings in what `fleetctl-node options` prints. Raises ValueError, KeyError, TypeError for anything else."""
    return {
        str(one["name"]): NodeSetting(
            kind=str(one["kind"]),
            least=None if one["least"] is None else float(one["least"]),
            choices=None if one["choices"] is None else tuple(map(str, one["choices"])),
            fixed=EACH_HAS_ITS_OWN if one["name"] in OWN else "",
        )
        for one in json.loads(document)
    }
