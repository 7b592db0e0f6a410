"""Drains one after the other, and what takes part in them is killed meanwhile: does every receipt add up?"""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from fleetctl.first_night.target_fleet import OPERATOR, TargetFleet
from fleetctl.gateway_soak.disturbances import MEND_LIMIT_S, POLL_S, Disturber
from fleetctl.kit.errors import FleetctlError, UnreachableError
from fleetctl.wire import ActionRequest, Run, RunStatus

CONTROLLER = "controller"
DEADLINE = "1s"
KILL_EVERY = 5  # drains
KILL_WITHIN_S = 1.5  # of the drain's begin: before, while and after requests move
GUARD_PAUSE_S = 1.0
COUNTS = ("in_flight", "finished", "moved", "refused", "aborted")


class Drainer(Disturber):
    """Drains node after node and takes each back; every few drains something is killed in the middle of one."""

    unit = "drains"

    def __init__(self, fleet: TargetFleet, gateways: Mapping[str, str], *, seed: int, pause_s: float) -> None:
        super().__init__(fleet, gateways, seed=seed, pause_s=pause_s)
        self._seed = seed
        self._kills = random.Random(f"kills-{seed}")
        self.ends: Counter[str] = Counter()  # of drains: by the receipt's state, or by how the run ended
        self.receipts: Counter[str] = Counter()  # sums of their counts
        self.wrong: list[str] = []  # receipts that don't add up, runs without a terminal state

    @property
    def num_done(self) -> int:
        """Drains that ended, with a receipt."""
        return sum(self.ends.values())

    async def disturb_until_cancelled(self) -> None:
        """Round after round over all nodes."""
        turn = 0
        while not self.has_given_up:
            for node in self._nodes():
                turn += 1
                try:
                    await self._drain_once(node, turn)
                except (FleetctlError, OSError) as error:
                    self.problems.append(f"{self.doing}: {error}"[:200])
                await asyncio.sleep(self._pause_s)

    async def kill_controller(self, _: str) -> None:
        """SIGKILL; started again a moment later, and it goes on with the drain."""
        self._fleet.send_signal(CONTROLLER, signal.SIGKILL)
        await self._until(lambda: not self._fleet.is_running(CONTROLLER), "the controller is gone")
        self._fleet.stack.table.start_again(CONTROLLER)

    async def _drain_once(self, node: str, turn: int) -> None:
        self.doing = f"drain {node}"
        draining = asyncio.create_task(self._carried_out(f"drain {node} --deadline {DEADLINE}", f"{turn}-drain"))
        try:
            if turn % KILL_EVERY == 0:
                await asyncio.sleep(self._kills.uniform(0.0, KILL_WITHIN_S))
                await self._kill(node)
            self._hold_to_its_sum(node, await draining)
        finally:
            draining.cancel()
        await self._carried_out(f"uncordon {node}", f"{turn}-uncordon")
        await self.wait_until_whole()
        self.downtimes.note_all_back()

    async def _kill(self, node: str) -> None:
        kinds: list[Callable[[str], Awaitable[None]]] = [self.kill_node, self.kill_core, self.kill_controller]
        if len(self._gateways) > 1:
            kinds += [self.kill_gateway, self.kill_worker]
        kind = self._kills.choice(kinds)
        self.doing = f"drain {node}, {kind.__name__}"
        await kind(node)
        self.done[kind.__name__] += 1

    async def _carried_out(self, command: str, key: str) -> Run:
        """The run in its terminal state; asked for under one key, so that a killed controller makes no second one.

        Asked for again under another key where a guard refused: the fleet is short of a node for a moment.
        """
        deadline, refusals = time.monotonic() + MEND_LIMIT_S, 0
        while time.monotonic() < deadline:
            request = ActionRequest(
                command=command,
                reason="soak",
                requested_by=OPERATOR,
                idempotency_key=f"soak-{self._seed}-{key}-{refusals}",
            )
            try:
                run = await self._fleet.client.act(request)
                if run.status is RunStatus.REFUSED:
                    refusals += 1
                    await asyncio.sleep(GUARD_PAUSE_S)
                elif run.status.is_terminal:
                    return run
            except UnreachableError:
                pass  # it was killed: asked again under the same key
            await asyncio.sleep(POLL_S)
        self.wrong.append(f"{command}: no terminal state within {MEND_LIMIT_S:.0f} s")
        raise FleetctlError(f"{command}: no terminal state within {MEND_LIMIT_S:.0f} s")

    def _hold_to_its_sum(self, node: str, run: Run) -> None:
        receipt: dict[str, Any] = run.steps[0].receipt if run.steps else {}
        state = str(receipt.get("state", "")) if run.status is RunStatus.SUCCEEDED else run.status.value
        self.ends[state] += 1
        if state != "drained":  # the node was killed: nobody knows its counts, and none may be told
            if told := [name for name in COUNTS if name in receipt]:
                self.wrong.append(f"{run.id}: {node} {state}, and its receipt counts {', '.join(told)}")
            return
        counts = {name: receipt.get(name) for name in COUNTS}
        known = {name: count for name, count in counts.items() if isinstance(count, int)}
        if len(known) < len(COUNTS) or known["in_flight"] != known["finished"] + known["moved"] + known["aborted"]:
            self.wrong.append(f"{run.id}: the receipt of {node} does not add up: {counts}")
        self.receipts.update(known)
