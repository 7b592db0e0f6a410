"""`fleetctl-node drain`: drains the node on this machine and waits until it holds nothing.

For a hook that runs before a node is stopped (`preStop` of a pod): nothing is imported that takes a while, and no proxy
of the environment is asked.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable
from typing import Any

PATH = "/admin/drain"
POLL_S = 0.2
WAIT_BEYOND_DEADLINE_S = 20.0  # hand-offs that are being written; beyond it the node is stopped anyway
ANSWER_S = 10.0


class DrainFailedError(Exception):
    """The node did not drain; the message says why."""


def drain(
    host: str,
    port: int,
    token: str,
    deadline_s: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> str:
    """The receipt in one line. At the deadline the node moves what can be moved; then this waits a little more."""
    give_up_at = clock() + deadline_s + WAIT_BEYOND_DEADLINE_S
    status = _ask(host, port, token, {"deadline_s": deadline_s})
    while status["state"] != "drained":
        if status["state"] != "draining":
            raise DrainFailedError(f"the node is {status['state']}: somebody resumed it")
        if clock() >= give_up_at:
            held = status["running"] + status["waiting"]
            raise DrainFailedError(f"{held} requests are left {WAIT_BEYOND_DEADLINE_S:g} s after the deadline")
        sleep(POLL_S)
        status = _ask(host, port, token, None)
    return ", ".join(f"{name}: {count}" for name, count in status["receipt"].items())


def _ask(host: str, port: int, token: str, body: dict[str, float] | None) -> dict[str, Any]:
    connection = http.client.HTTPConnection(host, port, timeout=ANSWER_S)
    headers = {"Authorization": f"Bearer {token}"}
    try:
        if body is None:
            connection.request("GET", PATH, headers=headers)
        else:
            connection.request("POST", PATH, json.dumps(body), {**headers, "Content-Type": "application/json"})
        answer = connection.getresponse()
        said = json.loads(answer.read())
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise DrainFailedError(f"{host}:{port} does not answer: {error}") from error
    finally:
        connection.close()
    if answer.status != 200:
        raise DrainFailedError(f"{host}:{port} answers {answer.status}: {said.get('error', said)}")
    status: dict[str, Any] = said
    return status
