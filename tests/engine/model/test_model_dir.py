from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from engine.model.config import BadConfigError, parse_config
from engine.model.directory import BadModelError, kv_bytes_per_token, open_model, size_kv, weight_bytes
from engine.model.make import make_model

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "vocab_size": 100,
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "small")


@pytest.fixture
def model(whole: Path, tmp_path: Path) -> Path:
    """A copy to damage, without a manifest, which would find everything first."""
    shutil.copytree(whole, tmp_path / "model")
    (tmp_path / "model" / "manifest.json").unlink()
    return tmp_path / "model"


def _edit(path: Path, **changes: Any) -> None:
    tree = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in tree.items() if value is not None}))


def _resave(model: Path, change: Callable[[dict[str, Any]], None]) -> None:
    tensors = load_file(model / "model.safetensors")
    change(tensors)
    save_file(tensors, model / "model.safetensors")


def _rewrite(model: Path, change: Callable[[bytes], bytes]) -> None:
    path = model / "model.safetensors"
    path.write_bytes(change(path.read_bytes()))


def _change_shape(tensors: dict[str, Any]) -> None:
    tensors["lm_head.weight"] = tensors["lm_head.weight"][:-1]


def _change_dtype(tensors: dict[str, Any]) -> None:
    tensors["model.norm.weight"] = tensors["model.norm.weight"].astype(np.int8)


DAMAGES: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "no config": (lambda m: (m / "config.json").unlink(), "config.json", "missing"),
    "config is no JSON": (lambda m: (m / "config.json").write_text("{"), "config.json", "not JSON"),
    "config is a list": (lambda m: (m / "config.json").write_text("[]"), "config.json", "not a JSON object"),
    "unknown architecture": (
        lambda m: _edit(m / "config.json", architectures=["GPT2LMHeadModel"]),
        "config.json",
        "supported are LlamaForCausalLM",
    ),
    "an encoder": (
        lambda m: _edit(m / "config.json", architectures=["BertModel"]),
        "config.json",
        "['BertModel'] is an encoder: vectors and scores come from decoders here",
    ),
    "windows and norms of another family": (
        lambda m: _edit(m / "config.json", architectures=["Gemma3ForCausalLM"]),
        "config.json",
        "['Gemma3ForCausalLM'] is not supported",
    ),
    "no weights": (lambda m: (m / "model.safetensors").unlink(), "model.safetensors", "missing"),
    "weights cut off": (lambda m: _rewrite(m, lambda raw: raw[:-1]), "model.safetensors", "cut off"),
    "weights cut off in the header": (lambda m: _rewrite(m, lambda raw: raw[:90]), "model.safetensors", "cut off"),
    "empty weights": (lambda m: _rewrite(m, lambda raw: b""), "model.safetensors", "not a safetensors file"),
    "bytes after the end": (lambda m: _rewrite(m, lambda raw: raw + b"x"), "model.safetensors", "1 bytes too many"),
    "header is no JSON": (lambda m: _rewrite(m, lambda raw: raw[:8] + b"!" + raw[9:]), "model.safetensors", "not JSON"),
    "a tensor is missing": (
        lambda m: _resave(m, lambda t: t.pop("model.layers.3.mlp.up_proj.weight")),
        "model",
        "no tensor model.layers.3.mlp.up_proj.weight",
    ),
    "a tensor of another shape": (lambda m: _resave(m, _change_shape), "model.safetensors", "lm_head.weight is"),
    "a quantised tensor": (lambda m: _resave(m, _change_dtype), "model.safetensors", "model.norm.weight is I8"),
    "more weights than layers": (
        lambda m: _edit(m / "config.json", num_hidden_layers=3),
        "model.safetensors",
        "model.layers.3.input_layernorm.weight",
    ),
    "a weight that its layer has no place for": (
        lambda m: _resave(m, lambda t: t.update({"model.layers.0.self_attn.q_proj.bias": np.ones(4, np.float32)})),
        "model.safetensors",
        "1 tensors that config.json does not call for (4 layers): model.layers.0.self_attn.q_proj.bias",
    ),
    "more layers than weights": (lambda m: _edit(m / "config.json", num_hidden_layers=5), "model", "layers.4"),
    "an index of other files": (
        lambda m: (m / "model.safetensors.index.json").write_text('{"weight_map": {"a": "x.safetensors"}}'),
        "x.safetensors",
        "missing, though",
    ),
    "an index that leaves the directory": (
        lambda m: (m / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../x.safetensors"}}'),
        "model.safetensors.index.json",
        "not inside the directory",
    ),
    "an index with a wrong place": (
        lambda m: (m / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model.safetensors"}}'),
        "model.safetensors",
        "does not hold a",
    ),
    "a manifest without files": (lambda m: (m / "manifest.json").write_text("{}"), "manifest.json", "no table 'files'"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_directory_names_the_file_and_the_fault(model: Path, damage: str) -> None:
    harm, name, words = DAMAGES[damage]
    harm(model)
    with pytest.raises(BadModelError) as caught:
        open_model(model)
    assert caught.value.path.name == name
    assert words in caught.value.problem
    assert caught.value.remedy
    assert str(caught.value.path) in str(caught.value)


def test_overlapping_tensors_are_refused(model: Path) -> None:
    header = {n: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]} for n in ("a", "b")}
    raw = json.dumps(header).encode()
    (model / "model.safetensors").write_bytes(len(raw).to_bytes(8, "little") + raw + b"0000")
    with pytest.raises(BadModelError, match="a gap or an overlap"):
        open_model(model)


def test_a_missing_directory_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(BadModelError, match="no such directory; give a Hugging Face"):
        open_model(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_one_changed_byte_is_found_by_the_manifest(whole: Path, tmp_path: Path, name: str) -> None:
    model = Path(shutil.copytree(whole, tmp_path / "m"))
    raw = bytearray((model / name).read_bytes())
    raw[-20] ^= 1
    (model / name).write_bytes(raw)
    with pytest.raises(BadModelError, match="sha256 differs") as caught:
        open_model(model)
    assert caught.value.path == model / name


def test_a_listed_file_that_is_missing_is_found(whole: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(whole, tmp_path / "m"))
    (model / "tokenizer.json").unlink()
    with pytest.raises(BadModelError, match="missing, though manifest"):
        open_model(model)


def test_opening_tells_progress_and_what_is_there(whole: Path) -> None:
    seen: list[float] = []
    found = open_model(whole, progress=lambda phase, done: seen.append(done))
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
    assert found.is_verified
    assert found.weight_bytes == weight_bytes(found.config, "float32")
    assert not open_model(whole, verify=False).is_verified
    assert open_model(whole, verify=False).revision == found.revision


def test_the_revision_follows_the_content(whole: Path, model: Path) -> None:
    before = open_model(model).revision
    _edit(model / "config.json", rms_norm_eps=1e-6)
    assert len({before, open_model(model).revision, open_model(whole).revision}) == 3


def test_kv_bytes_are_two_times_layers_heads_and_size(whole: Path) -> None:
    config = open_model(whole).config
    assert kv_bytes_per_token(config, "float32") == 2 * 4 * 2 * 32 * 4
    assert kv_bytes_per_token(config, "bfloat16") == 2 * 4 * 2 * 32 * 2
    with pytest.raises(ValueError, match="float8"):
        kv_bytes_per_token(config, "float8")


@pytest.mark.parametrize(("budget", "blocks"), [(-1, 0), (0, 0), (32_767, 0), (32_768, 1), (65_535, 1), (1 << 20, 32)])
def test_blocks_fill_the_budget_and_never_more(whole: Path, budget: int, blocks: int) -> None:
    config = open_model(whole).config
    assert size_kv(config, "float32", block_size=16, budget_bytes=budget) == blocks


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architectures": None}, "architectures"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"num_hidden_layers": None}, "num_hidden_layers"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_hidden_layers": True}, "num_hidden_layers"),
        ({"hidden_size": "64"}, "hidden_size"),
        ({"vocab_size": 10**12}, "vocab_size"),
        ({"num_key_value_heads": 3}, "no multiple"),
        ({"head_dim": 15}, "odd"),
        ({"rms_norm_eps": -1}, "rms_norm_eps"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rope_type"),
        ({"rope_scaling": {"type": "linear"}}, "factor"),
        ({"rope_scaling": {"type": "llama3", "factor": 2, "low_freq_factor": 4, "high_freq_factor": 1}}, "low_freq"),
        ({"rope_parameters": {"full_attention": {}, "sliding_attention": {}}}, "rope_parameters"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"eos_token_id": ["</s>"]}, "eos_token_id"),
        ({"architectures": ["Qwen3MoeForCausalLM"], "num_experts": 4, "num_experts_per_tok": 5}, "num_experts_per_tok"),
    ],
    ids=str,
)
def test_a_config_we_can_not_run_names_its_key(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(BadConfigError, match=words):
        parse_config({**LLAMA, **changes})


def test_tensors_that_change_no_answer_are_left_out(model: Path) -> None:
    unused = ("model.layers.0.self_attn.rotary_emb.inv_freq", "model.layers.9.self_attn.k_scale", "score.weight")
    _resave(model, lambda tensors: tensors.update({name: np.ones(4, np.float32) for name in unused}))
    assert not set(open_model(model).files) & set(unused)


@pytest.mark.parametrize(
    ("scaling", "longest"),
    [
        (None, 256),
        ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}, 1024),
        ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 200}, 800),
        ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}, 256),
        ({"type": "yarn", "factor": 2.5}, 640),
        ({"type": "linear", "factor": 4.0}, 1024),
        ({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 32}, 256),
    ],
    ids=str,
)
def test_scaled_positions_lengthen_the_context_as_vllm_derives_it(scaling: dict[str, Any] | None, longest: int) -> None:
    assert parse_config({**LLAMA, "rope_scaling": scaling}).max_position_embeddings == longest


def test_a_factor_beyond_all_positions_is_refused() -> None:
    with pytest.raises(BadConfigError, match=r"rope_parameters\.factor"):
        parse_config({**LLAMA, "rope_scaling": {"type": "linear", "factor": 1e6}})


def test_old_and_new_spellings_of_rope_mean_the_same() -> None:
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    old = {**LLAMA, "rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **scaling}}
    new = {**LLAMA, "rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **scaling}}
    assert parse_config(old) == parse_config(new)


def test_a_window_that_is_switched_off_is_no_window() -> None:
    qwen = {**LLAMA, "architectures": ["Qwen2ForCausalLM"], "sliding_window": 32, "max_window_layers": 1}
    assert parse_config({**qwen, "use_sliding_window": False}).window_of(1) is None
    assert [parse_config({**qwen, "use_sliding_window": True}).window_of(i) for i in (0, 1)] == [None, 32]
