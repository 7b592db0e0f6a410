"""The tenants file of a fleet that wants keys: two tenants with a key each."""

from __future__ import annotations

import json
from pathlib import Path

from fleetctl.kit.api_key import digest_of, new_key
from fleetctl.kit.whole_file import write_whole

NAMES = ("web", "batch")


class Tenants:
    """Keys of the users and of the tenant beside them, and the file that the gateway reads."""

    def __init__(self, path: Path) -> None:
        """Writes the file."""
        self.path = path
        self.key, self.other_key = new_key("first-night-"), new_key("first-night-")
        path.parent.mkdir(parents=True, exist_ok=True)
        self.write()

    def write(self, text: str = "", *, requests_per_min: int | None = None) -> None:
        """The file anew: with this text instead of tenants, or with a limit for the users' own."""
        limits = {} if requests_per_min is None else {"limits": {"requests_per_min": requests_per_min, "burst_s": 5}}
        keys = {name: [{"sha256": digest_of(key.encode()).hex()}] for name, key in zip(NAMES, self._keys, strict=True)}
        users, others = NAMES
        tenants = {users: {"keys": keys[users], **limits}, others: {"keys": keys[others], "class": "batch"}}
        write_whole(self.path, text or json.dumps({"tenants": tenants}, indent=1))  # YAML too

    @property
    def _keys(self) -> tuple[str, str]:
        return self.key, self.other_key
