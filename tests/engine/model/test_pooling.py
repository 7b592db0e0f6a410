"""How a directory says what becomes of a text's hidden states; what is not clear is refused by its file."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from engine.model.config import ModelConfig, parse_config
from engine.model.directory import BadModelError
from engine.model.pooling import read_pooling
from tests.fixtures.engine import tiny_model_dir

TYPES = "sentence_transformers.models."
MODULES = [
    {"path": "", "type": f"{TYPES}Transformer"},
    {"path": "pooled", "type": f"{TYPES}Pooling"},
    {"path": "2_Normalize", "type": f"{TYPES}Normalize"},
]


def model(directory: Path, modules: Any = None, pooling: Any = None, **changes: Any) -> tuple[Path, ModelConfig]:
    tree = json.loads((tiny_model_dir() / "config.json").read_text()) | {"architectures": ["LlamaModel"]} | changes
    (directory / "config.json").write_text(json.dumps(tree))
    if modules is not None:
        (directory / "modules.json").write_text(json.dumps(modules))
    if pooling is not None:
        (directory / "pooled").mkdir()
        (directory / "pooled" / "config.json").write_text(json.dumps(pooling))
    return directory, parse_config(tree)


@pytest.mark.parametrize(
    ("modules", "pooling", "kind", "is_normalised"),
    [
        (None, None, "last", True),
        (MODULES, {"pooling_mode_mean_tokens": True, "pooling_mode_lasttoken": False}, "mean", True),
        (MODULES[:2], {"pooling_mode_lasttoken": True}, "last", False),
        (MODULES[:1], None, "last", False),
    ],
)
def test_the_modules_say_how(tmp_path: Path, modules: Any, pooling: Any, kind: str, is_normalised: bool) -> None:
    found = read_pooling(*model(tmp_path, modules, pooling))
    assert found is not None
    assert (found.task, found.kind, found.is_normalised) == ("embed", kind, is_normalised)
    chosen = read_pooling(*model(tmp_path), kind="mean")
    assert chosen is not None
    assert chosen.kind == "mean", "the operator's word wins"


def test_a_gguf_file_gives_vectors_when_told_to(tmp_path: Path) -> None:
    found = read_pooling(tmp_path / "model.gguf", model(tmp_path, architectures=["LlamaForCausalLM"])[1], task="embed")
    assert found is not None
    assert (found.kind, found.is_normalised, found.dimensions) == ("last", True, ())


@pytest.mark.parametrize(
    ("modules", "pooling", "changes", "said"),
    [
        ({"0": {}}, None, {}, "modules.json: not a list of modules"),
        (["Transformer"], None, {}, "modules.json: not a list of modules"),
        ([{"type": f"{TYPES}Dense"}], None, {}, "modules.json: module Dense is not known here"),
        (MODULES, [], {}, "pooled/config.json: not a JSON object"),
        (MODULES, None, {}, "pooled/config.json: can't be read"),
        (MODULES, {"pooling_mode_cls_token": True}, {}, "pooled/config.json: pools by pooling_mode_cls_token"),
        (MODULES, {}, {}, "pooled/config.json: pools by nothing"),
        (None, None, {"matryoshka_dimensions": "64"}, "config.json: matryoshka_dimensions: '64'"),
    ],
)
def test_what_is_not_known_is_refused_by_file(
    tmp_path: Path, modules: Any, pooling: Any, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(BadModelError, match=re.escape(said)):
        read_pooling(*model(tmp_path, modules, pooling, **changes))
