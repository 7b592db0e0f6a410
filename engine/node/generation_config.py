"""How a model wants to be sampled when a request does not say: its generation_config.json."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from engine.config import BadConfigError

FILE = "generation_config.json"
MAX_BYTES = 2**20
REMEDY = "correct the file, or leave it out with --generation-config vllm"


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """For what a request leaves open; a request's own values win. These here change nothing."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # keeps all
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_new_tokens: int | None = None  # of chat answers; None: what the context has room for

    def changes(self) -> dict[str, float]:
        """What differs from a model that says nothing."""
        plain = asdict(SamplingDefaults())
        return {name: value for name, value in asdict(self).items() if value != plain[name]}


# Lowest and highest value; the field names are Hugging Face's.
_RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0.0, 100.0),
    "top_p": (1e-9, 1.0),
    "top_k": (-1, 2**31 - 1),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (1e-3, 1000.0),
    "max_new_tokens": (1, 2**31 - 1),
}
_WHOLE = {"top_k", "max_new_tokens"}


def read_sampling_defaults(directory: Path) -> SamplingDefaults:
    """What the directory's file says; nothing when there is none. Other fields of it are not ours, `do_sample` too:
    as in vLLM, only `temperature` 0 makes a model greedy. Raises BadConfigError."""
    path = directory / FILE
    if not path.is_file():
        return SamplingDefaults()
    try:
        if path.stat().st_size > MAX_BYTES:
            raise BadConfigError(f"{path}: larger than {MAX_BYTES} bytes; {REMEDY}")
        tree = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as exc:
        if isinstance(exc, BadConfigError):
            raise
        raise BadConfigError(f"{path}: not JSON ({exc}); {REMEDY}") from exc
    if not isinstance(tree, dict):
        raise BadConfigError(f"{path}: not a JSON object; {REMEDY}")
    found = {name: _checked(path, name, tree[name]) for name in _RANGES if tree.get(name) is not None}
    if "top_k" in found:
        found["top_k"] = max(0, found["top_k"])
    return SamplingDefaults(**found)


def _checked(path: Path, name: str, value: Any) -> Any:
    lowest, highest = _RANGES[name]
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or not lowest <= value <= highest or (name in _WHOLE and value != int(value)):
        kind = "a whole number" if name in _WHOLE else "a number"
        raise BadConfigError(f"{path}: {name}: must be {kind} from {lowest:g} to {highest:g}; {REMEDY}")
    return int(value) if name in _WHOLE else float(value)
