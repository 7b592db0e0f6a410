"""What a row that is not right waits for: said beside it in docs/first-night.md."""

from __future__ import annotations

from collections.abc import Mapping

KNOWN_GAPS: Mapping[str, str] = {
    "slow-tokenizer": (
        "The verdict says so itself (no known cause fits): what the API process spends before the queue is no signal "
        "yet. A later version measures it and names it."
    ),
}
