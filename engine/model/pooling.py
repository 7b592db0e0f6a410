"""How a text's hidden states become one vector, as the directory says it: sentence-transformers' files, or vLLM's rule.

Free of torch: the API process asks it what it may answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from engine.model.config import ModelConfig
from engine.model.directory import BadModelError

PoolingKind = Literal["last", "mean"]
Task = Literal["generate", "embed", "classify"]
POOLING_MODULE = "1_Pooling"


@dataclass(frozen=True, slots=True)
class Pooling:
    """What a node that answers with vectors does with a text."""

    task: Literal["embed", "classify"]
    kind: PoolingKind  # which hidden states: the last token's, or the mean of all
    is_normalised: bool = True  # to length 1
    dimensions: tuple[int, ...] | None = ()  # that a vector may be cut to (Matryoshka); None: any, empty: none
    size: int = 0  # of a vector, or how many classes there are


def read_pooling(
    directory: Path, config: ModelConfig, *, task: Task | None = None, kind: PoolingKind | None = None
) -> Pooling | None:
    """None for a model that generates. `task` and `kind`: what an operator wants; None: as the directory says.

    Raises BadModelError.
    """
    own: Task = "generate" if config.head == "lm" else "classify" if config.head == "classes" else "embed"
    task = task or own
    if task == "generate":
        if own != "generate":
            raise BadModelError(
                directory / "config.json", f"{own} model: it has no head to generate with", "leave out --task"
            )
        return None
    if task == "classify":
        if config.head != "classes":
            remedy = "use --task embed, or serve a ...ForSequenceClassification"
            raise BadModelError(directory / "config.json", "the model has no head for classes", remedy)
        return Pooling("classify", "last", is_normalised=False, size=config.num_labels)
    path = directory / "config.json"
    tree = _read(path) if path.is_file() else {}  # a GGUF file has none
    found, is_normalised = _modules(directory)
    return Pooling("embed", kind or found, is_normalised, _dimensions(tree, directory), config.hidden_size)


def _modules(directory: Path) -> tuple[PoolingKind, bool]:
    """By `modules.json`; without one the last token's state, normalised, as vLLM has it."""
    path = directory / "modules.json"
    if not path.is_file():
        return "last", True
    modules = _read(path)
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise BadModelError(path, "not a list of modules", "copy or download the model again")
    kinds = [str(module.get("type", "")).rpartition(".")[2] for module in modules]
    unknown = [kind for kind in kinds if kind not in ("Transformer", "Pooling", "Normalize")]
    if unknown:
        remedy = "serve a model of Transformer, Pooling and Normalize alone"
        raise BadModelError(path, f"module {unknown[0]} is not known here", remedy)
    places = [module.get("path", "") for module in modules]
    where = dict(zip(kinds, places, strict=True)).get("Pooling") or POOLING_MODULE
    pooling = directory / str(where) / "config.json"
    facts = _read(pooling) if "Pooling" in kinds else {"pooling_mode_lasttoken": True}
    if not isinstance(facts, dict):
        raise BadModelError(pooling, "not a JSON object", "copy or download the model again")
    modes = {name for name, value in facts.items() if name.startswith("pooling_mode_") and value is True}
    if modes == {"pooling_mode_lasttoken"}:
        return "last", "Normalize" in kinds
    if modes == {"pooling_mode_mean_tokens"}:
        return "mean", "Normalize" in kinds
    raise BadModelError(
        pooling,
        f"pools by {', '.join(sorted(modes)) or 'nothing'}; the last token and the mean are known here",
        "say --pooling-type last or mean if one of them is meant, and correct the file",
    )


def _dimensions(tree: Mapping[str, Any], directory: Path) -> tuple[int, ...] | None:
    named = tree.get("matryoshka_dimensions")
    if named is None:
        return None if tree.get("is_matryoshka") is True else ()
    if not isinstance(named, list) or not all(isinstance(one, int) and one > 0 for one in named):
        raise BadModelError(directory / "config.json", f"matryoshka_dimensions: {named!r}", "give whole numbers")
    return tuple(named)


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as exc:
        raise BadModelError(path, f"can't be read: {exc}", "copy or download the model again") from exc
