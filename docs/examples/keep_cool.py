"""An automation of your own: nodes whose GPUs slow down for heat take no new requests until they are cool again.

    FLEETCTL_CONTROLLER__TOKEN=flt-... python keep_cool.py http://controller:7700

Needs a token of role operator. Each order is a run like those of people: guards may refuse it, the audit has it, and
`fleetctl get runs` lists it. Run it as often as you like; it does nothing twice.
"""

from __future__ import annotations

import asyncio
import os
import sys

from fleetctl.client import ActionRequest, ControllerClient, FleetctlError, Node, NodePhase, RefusedError

HEAT = {"hw_thermal", "sw_thermal"}
WHY = "keep_cool: a GPU is throttled by heat"


def is_hot(node: Node) -> bool | None:
    """Whether heat slows a card of the node down; None when no card told lately: that is no reason to act."""
    known = [card.throttled for card in node.gpus if card.throttled is not None]
    return any(HEAT & set(reasons) for reasons in known) if known else None


async def keep_cool(url: str, token: str | None) -> int:
    """One look at the fleet. Returns how many orders were refused."""
    refused = 0
    async with ControllerClient(url, token) as client:
        last_cordon: dict[str, str] = {}  # by node: why it was cordoned the last time
        for run in await client.runs():  # the newest first
            if run.title.startswith("cordon") and run.status == "succeeded" and not run.dry_run:
                for target in run.targets:
                    last_cordon.setdefault(target, run.reason)
        for node in await client.nodes():
            hot = is_hot(node)
            if hot and node.phase is NodePhase.READY:
                command = f"cordon {node.name}"
            elif hot is False and node.phase is NodePhase.CORDONED and last_cordon.get(node.name) == WHY:
                command = f"uncordon {node.name}"
            else:
                continue
            try:
                run = await client.act(ActionRequest(command=command, reason=WHY))
            except RefusedError as error:  # a floor, a freeze, a budget: the guard's word is final
                print(f"{command}: {error}", file=sys.stderr)
                refused += 1
            else:
                print(f"{command}: run {run.id}")
    return refused


def main() -> int:
    """Exit codes as fleetctl's: 0 done, 3 refused, 4 no answer."""
    url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:7700"
    try:
        return 3 if asyncio.run(keep_cool(url, os.environ.get("FLEETCTL_CONTROLLER__TOKEN"))) else 0
    except FleetctlError as error:
        print(f"{error.message}; {error.remedy}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
