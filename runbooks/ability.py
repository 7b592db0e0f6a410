"""What a node may be able to do: verbs say what they need of it, the fleet says what it lacks and why."""

from __future__ import annotations

from enum import StrEnum


class Ability(StrEnum):
    """One thing that can be done to a node, by its engine or by whoever runs it."""

    DEEP_CHECK = "deep check"  # tells wrong output from right
    CORDON = "cordon"
    DRAIN = "drain"
    MOVE = "move streams"  # what it answers goes on elsewhere
    SLEEP = "sleep"
    ADAPTERS = "adapters"
    RESET_PREFIX_CACHE = "reset prefix cache"
    LIMITS = "limits"
    PROFILE = "profile"
    START = "start"  # another node like it: replace, scale and rollouts need it
    STOP = "stop"
    RESTART = "restart"
    LOGS = "logs"
    CORDON_HOST = "cordon machine"  # no other node is placed on its machine
