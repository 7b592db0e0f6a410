"""A GGUF file computes the logits of its dequantised weights; what can't be served is refused by file and remedy."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import save_file
from structlog.testing import capture_logs

from engine.__main__ import main
from engine.model.directory import BadModelError, open_model
from engine.model.gguf_tensors import GgufTensors
from engine.model.make import make_model
from engine.model.weights import DenseWeights, ExpertWeights, load_weights
from kernels.block_weight import BlockWeight
from kernels.cpu.block_matrix import BlockMatrix
from kernels.cpu.expert_matrices import ExpertMatrices
from tests.engine.model.test_model_logits import FAMILIES, Paged, _make, _prompt
from tests.fixtures.gguf_model import Type, write_dequantised, write_gguf

TYPES = ("F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
# Their scaling is said otherwise there: by factors that only Llama 3's own numbers are read from.
SAID_OTHERWISE = {"llama 3.1 rope", "qwen2 window on some layers", "qwen3 moe"}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows that are whole blocks of every type."""
    path = tmp_path_factory.mktemp("wide")
    config = transformers.LlamaConfig(
        vocab_size=96,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.05,
        architectures=["LlamaForCausalLM"],
    )
    torch.manual_seed(3)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "small")


def _logits(path: Path) -> torch.Tensor:
    paged = Paged(path)
    tokens = _prompt(1, 30)
    return torch.cat([paged.logits({0: tokens}, [(0, 0, 29)]), paged.logits({0: tokens}, [(0, 29, 1)])]).clone()


@pytest.mark.parametrize("kind", TYPES)
def test_logits_are_those_of_the_dequantised_weights(wide: Path, tmp_path: Path, kind: str) -> None:
    found = _logits(write_gguf(wide, tmp_path / "model.gguf", Type[kind]))
    wanted = _logits(write_dequantised(wide, tmp_path / "plain", Type[kind]))
    assert wanted.std() > 0.05
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("family", sorted(set(FAMILIES) - SAID_OTHERWISE))
def test_every_family_has_the_logits_of_its_hugging_face_directory(tmp_path: Path, family: str) -> None:
    _make(tmp_path / "plain", family)
    found = _logits(write_gguf(tmp_path / "plain", tmp_path / "model.gguf"))
    assert torch.equal(found, _logits(tmp_path / "plain"))


def test_experts_of_qwen3_are_found_in_the_tensors_of_all(tmp_path: Path) -> None:
    name, extra = FAMILIES["qwen3 moe"]
    FAMILIES["qwen3 moe, all layers"] = (name, {**extra, "mlp_only_layers": []})
    try:
        _make(tmp_path / "plain", "qwen3 moe, all layers")
    finally:
        del FAMILIES["qwen3 moe, all layers"]
    found = _logits(write_gguf(tmp_path / "plain", tmp_path / "model.gguf"))
    assert torch.equal(found, _logits(tmp_path / "plain"))


def _dequantised(source: Path, file: Path, target: Path) -> Path:
    """The file's numbers as a directory in float32."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.safetensors", "manifest.json"))
    tensors = GgufTensors(file)
    numbers = {name: tensors.get_tensor(name).float().contiguous() for name in open_model(file).files}
    save_file(numbers, target / "model.safetensors", metadata={"format": "pt"})
    return target


def test_matrices_of_several_types_are_one_of_a_kind_that_holds_all(wide: Path, tmp_path: Path) -> None:
    """As in files called Q4_K_M: values and the last product of a layer have more bits than the rest."""
    others = {"attn_v": Type.Q6_K, "ffn_down": Type.Q6_K, "ffn_up": Type.Q5_0, "token_embd": Type.Q6_K}
    file = write_gguf(wide, tmp_path / "model.gguf", Type.Q4_K, others=others)
    weights = load_weights(open_model(file), dtype=torch.float32, device="cpu")
    layer = weights.layers[0]
    assert isinstance(layer.mlp, DenseWeights)
    matrices = {"qkv": layer.qkv, "output": layer.output, "gate_up": layer.mlp.gate_up, "down": layer.mlp.down}
    assert {name: matrix.kind for name, matrix in matrices.items() if isinstance(matrix, BlockWeight)} == {
        "qkv": "int8 by sixteens with wide offsets",
        "output": "int4 with wide offsets",
        "gate_up": "int8 by sixteens with wide offsets",
        "down": "int8 by sixteens",
    }
    assert torch.equal(_logits(file), _logits(_dequantised(wide, file, tmp_path / "plain")))


@pytest.mark.parametrize("kind", ["Q4_0", "Q6_K"])
def test_experts_are_computed_from_their_blocks(tmp_path: Path, kind: str) -> None:
    name, extra = FAMILIES["mixtral"]
    FAMILIES["wide mixtral"] = (name, {**extra, "hidden_size": 256, "intermediate_size": 256})
    try:
        _make(tmp_path / "source", "wide mixtral")
    finally:
        del FAMILIES["wide mixtral"]
    file = write_gguf(tmp_path / "source", tmp_path / "model.gguf", Type[kind])
    weights = load_weights(open_model(file), dtype=torch.float32, device="cpu")
    weights.pack()
    mlp = weights.layers[0].mlp
    assert isinstance(mlp, ExpertWeights)
    assert isinstance(mlp.gate_up, ExpertMatrices)
    assert all(isinstance(matrix, BlockMatrix) for matrix in mlp.gate_up.matrices)
    assert torch.equal(_logits(file), _logits(_dequantised(tmp_path / "source", file, tmp_path / "plain")))


def test_a_start_says_which_blocks_were_kept(wide: Path, tmp_path: Path) -> None:
    file = write_gguf(wide, tmp_path / "model.gguf", Type.Q4_K, others={"ffn_down": Type.Q2_K})
    with capture_logs() as said:
        load_weights(open_model(file), dtype=torch.float32, device="cpu")
    (line,) = [entry for entry in said if entry["event"] == "weights.quantised"]
    assert line["scheme"] == "gguf"
    assert set(line["kept_bytes"]) == {"int4 with wide offsets"}
    assert line["expanded_bytes"] == 2 * 256 * 512 * 4 + 96 * 256 * 4  # of two layers, and the embedding's rows


@pytest.mark.parametrize(("others", "is_told"), [({}, True), ({"ffn_down": Type.F16}, False)], ids=["all", "some"])
def test_rounding_what_is_quantised_already_is_told_as_nothing(
    wide: Path, tmp_path: Path, others: dict[str, Type], is_told: bool
) -> None:
    file = write_gguf(wide, tmp_path / "model.gguf", Type.Q8_0, others=others)
    with capture_logs() as said:
        load_weights(open_model(file), dtype=torch.float32, device="cpu", quantization="int4")
    assert [entry["quantization"] for entry in said if entry["event"] == "quantization.not_applied"] == (
        ["int4"] if is_told else []
    )


def test_a_directory_that_holds_one_is_as_good_as_the_file(wide: Path, tmp_path: Path) -> None:
    file = write_gguf(wide, tmp_path / "model.gguf", Type.Q4_0)
    of_directory, of_file = open_model(tmp_path), open_model(file)
    assert (of_directory.config, of_directory.revision) == (of_file.config, of_file.revision)
    write_gguf(wide, tmp_path / "other.gguf", Type.Q8_0)
    with pytest.raises(BadModelError, match=r"2 GGUF files: model\.gguf, other\.gguf; give the one"):
        open_model(tmp_path)


def test_check_says_what_it_holds(small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write_gguf(small, tmp_path / "small.gguf")
    assert main(["check", str(file)]) == 0
    said = capsys.readouterr().out
    assert "LlamaForCausalLM" in said
    assert re.search(r"chat template +yes", said)


def _cut(raw: bytes) -> bytes:
    return raw[:-100]


DAMAGES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "cut off in the data": (_cut, r"cut off: tensor .* ends at byte"),
    "cut off in the header": (lambda raw: raw[:1000], "cut off"),
    "empty": (lambda raw: b"", "too short"),
    "another format": (lambda raw: b"PK" + raw[2:], "does not begin with GGUF"),
    "another version": (lambda raw: raw[:4] + struct.pack("<I", 9) + raw[8:], "version 9 is not supported"),
    "too many tensors": (lambda raw: raw[:8] + b"\xff" * 8 + raw[16:], "damaged"),
    "another architecture": (
        lambda raw: raw.replace(b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0mamba", 1),
        "'mamba' is not supported; supported are llama",
    ),
    "no tokenizer": (lambda raw: raw.replace(b"ggml.tokens", b"ggml.t0kens"), "no tokenizer in its metadata"),
    "another pre-tokenizer": (
        lambda raw: raw.replace(b"\x05\0\0\0\0\0\0\0gpt-2", b"\x05\0\0\0\0\0\0\0gpt-9"),
        "'gpt-9' is not supported; supported are gpt-2",
    ),
    "another tokenizer": (
        lambda raw: raw.replace(b"\x04\0\0\0\0\0\0\0gpt2", b"\x04\0\0\0\0\0\0\0bert"),
        "'bert' is not supported",
    ),
    "a tensor that is missing": (lambda raw: raw.replace(b"blk.1.attn_k.", b"blk.9.attn_k."), "does not call for"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_bad_files_are_told_in_one_line(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    file = write_gguf(small, tmp_path / "small.gguf")
    change, message = DAMAGES[damage]
    file.write_bytes(change(file.read_bytes()))
    assert main(["check", str(file)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {file}: ")
    assert len(said.splitlines()) == 1
    assert re.search(message, said)


def test_a_bad_file_ends_a_start(tmp_path: Path) -> None:
    file = tmp_path / "small.gguf"
    file.write_bytes(b"PK")
    # A process of its own: a start configures logging.
    command = [sys.executable, "-m", "engine", "serve", "--model", str(file), "--port", "0"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith(f"error: {file}: ")


def test_an_unknown_type_is_named(wide: Path, tmp_path: Path) -> None:
    file = write_gguf(wide, tmp_path / "model.gguf", Type.Q4_0)
    raw, name = file.read_bytes(), b"blk.0.attn_q.weight"
    at = raw.index(name) + len(name) + 4 + 16
    file.write_bytes(raw[:at] + struct.pack("<I", 77) + raw[at + 4 :])
    with pytest.raises(BadModelError, match=r"model\.gguf: tensor blk\.0\.attn_q\.weight: type 77 is not supported"):
        open_model(file)
