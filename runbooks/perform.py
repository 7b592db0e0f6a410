"""From an action to the one effect that carries it out: the only way from a command to the world."""

from __future__ import annotations

from runbooks.command import Action
from runbooks.ports import Effects, Receipt


async def perform(effects: Effects, action: Action) -> Receipt:
    """The effect's receipt. Raises TemporaryError or PermanentError as the effect does."""
    args = action.args
    match action.verb:
        case "node start":
            return await effects.start_node(action.target, like=args["like"], wait_s=args["wait_s"])
        case "node stop":
            return await effects.stop_node(action.target, grace_s=args["grace_s"], force=args["force"])
        case "cordon":
            return await effects.cordon(action.target)
        case "uncordon":
            return await effects.uncordon(action.target)
        case "drain":
            return await effects.drain(action.target, deadline_s=args["deadline_s"])
        case "restart":
            return await effects.restart_node(action.target, wait_s=args["wait_s"])
    raise AssertionError(f"{action.verb} is in VERBS and has no effect")
