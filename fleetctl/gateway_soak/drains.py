"""Drains one after the other, and what takes part in them is killed meanwhile: does every receipt add up?"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from fleetctl.first_night.target_fleet import OPERATOR, TargetFleet
from fleetctl.gateway_soak.disturbances import MEND_LIMIT_S, POLL_S, Disturber
from fleetctl.kit.errors import FleetctlError, RefusedError, UnreachableError
from fleetctl.kit.signed_document import why_not_signed
from fleetctl.wire.receipt import DrainReceipt
from fleetctl.wire.run import ActionRequest, Run, RunStatus

T = TypeVar("T")

CONTROLLER = "controller"
DEADLINE = "1s"
KILL_EVERY = 10  # drains
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
        self.receipts: Counter[str] = Counter()  # requests by outcome, of all signed receipts
        self.wrong: list[str] = []  # receipts that are unsigned or don't add up, runs without a terminal state

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
                    self.note_mended()
                except (FleetctlError, OSError) as error:
                    self.note_problem(error)
                await asyncio.sleep(self._pause_s)

    async def kill_controller(self, _: str) -> None:
        """SIGKILL; started again a moment later, and it goes on with the drain."""
        await self._kill_process(CONTROLLER)
        self._fleet.stack.table.start_again(CONTROLLER)

    async def _drain_once(self, node: str, turn: int) -> None:
        self.doing = f"drain {node}"
        draining = asyncio.create_task(self._carried_out(f"drain {node} --deadline {DEADLINE}", f"{turn}-drain"))
        is_disturbed = turn % KILL_EVERY == 0
        try:
            if is_disturbed:
                await asyncio.sleep(self._kills.uniform(0.0, KILL_WITHIN_S))
                await self._kill(node)
            await self._hold_to_its_sum(node, await draining, was_disturbed=is_disturbed)
        finally:  # whatever went wrong: a node that stays drained has the guards refuse every drain that follows
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
                    raise RefusedError(run.error or "refused")
                if run.status.is_terminal:
                    return run
            except RefusedError:
                refusals += 1
                await asyncio.sleep(GUARD_PAUSE_S)
            except UnreachableError:
                pass  # it was killed: asked again under the same key
            await asyncio.sleep(POLL_S)
        self.wrong.append(f"{command}: no terminal state within {MEND_LIMIT_S:.0f} s")
        raise FleetctlError(f"{command}: no terminal state within {MEND_LIMIT_S:.0f} s")

    async def _answered(self, ask: Callable[[], Awaitable[T]]) -> T:
        """The controller's answer; one that was killed is asked again once it is back."""
        deadline = time.monotonic() + MEND_LIMIT_S
        while True:
            try:
                return await ask()
            except UnreachableError:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(POLL_S)

    async def _hold_to_its_sum(self, node: str, run: Run, *, was_disturbed: bool) -> None:
        told: dict[str, Any] = run.steps[0].receipt if run.steps else {}
        state = str(told.get("state", "")) if run.status is RunStatus.SUCCEEDED else run.status.value
        self.ends[state] += 1
        if problems := [*_wrong_counts(told, state), *await self._wrong_lines(told, was_disturbed)]:
            self.wrong.append(f"{run.id}: {node} {state}: {'; '.join(problems)}")

    async def _wrong_lines(self, told: Mapping[str, Any], was_disturbed: bool) -> list[str]:
        """What is wrong with the signed receipt; it may be without counts where a node or the controller was killed."""
        client = self._fleet.client
        key = await self._answered(client.receipt_key)
        document = None
        if "receipt" in told:
            document = await self._answered(lambda: client.signed_receipt(str(told["receipt"])))
        if document is None:
            return [] if was_disturbed else ["no signed receipt"]
        receipt = DrainReceipt.model_validate(document)
        self.receipts.update(receipt.sums)
        by_line = Counter(line.outcome for line in receipt.lines)
        problems = [why] if (why := why_not_signed(document, key)) else []
        if dict(by_line) != {outcome: count for outcome, count in receipt.sums.items() if count}:
            problems.append(f"{dict(by_line)} by its lines, {receipt.sums} by its sums")
        # Unknown is said in good faith, and counted: of a request that waits for a seat, or came twice under its id.
        if not was_disturbed and receipt.sums.get("lost"):
            problems.append(f"{receipt.summary}, though nothing was killed")
        return problems


def _wrong_counts(told: Mapping[str, Any], state: str) -> list[str]:
    """What is wrong with the node's own counts in the run's step."""
    counts = {name: told[name] for name in COUNTS if isinstance(told.get(name), int)}
    if state != "drained":  # the node was killed: nobody knows its counts, and none may be told
        return [f"counts {', '.join(counts)}"] if counts else []
    if len(counts) < len(COUNTS) or counts["in_flight"] != counts["finished"] + counts["moved"] + counts["aborted"]:
        return [f"does not add up: {counts}"]
    return []
