"""A Hugging Face model directory or a GGUF file, checked before anything is loaded: configuration, weights, checksums.

Everything that can be wrong with the files is found here, with the path and the remedy, before memory is taken.
Free of torch: the API process and `fleetctl-node check` read directories too.

    BadModelError   ValueError: the directory can't be served as it is
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.gguf.header import BadGgufError, find_gguf
from engine.model.config import BadConfigError, ModelConfig, parse_config
from engine.model.gguf_model import open_gguf
from engine.model.packed_weights import PackedFormat, Parts, packed_format, packed_shape, why_no_scales
from engine.model.safetensors_header import BadHeaderError, TensorInfo, read_header
from engine.model.tensor_names import CLASSES, PREFIX, expected_tensors, unexpected_tensors

MANIFEST = "manifest.json"
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
FLOAT_DTYPES = {"F32", "F16", "BF16", "F64"}
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
KV_CODES = ("int8", "fp8")  # a byte each, and two for the scale of a token's head: `kernels.kv_codes`
KV_SCALE_BYTES = 2
MAX_JSON_BYTES = 64 << 20
_NAMED_TENSORS = 3  # of those that are too many
FETCH_AGAIN = "copy or download the model again"

Progress = Callable[[str, float], None]


class BadModelError(ValueError):
    """This directory can't be served. `path` is the file at fault, `remedy` what to do about it."""

    def __init__(self, path: Path, problem: str, remedy: str) -> None:
        super().__init__(f"{path}: {problem}; {remedy}")
        self.path = path
        self.problem = problem
        self.remedy = remedy


@dataclass(frozen=True, slots=True)
class ModelDir:
    """A checked directory or GGUF file. `files` maps each tensor that loading reads to the file that holds it."""

    path: Path
    config: ModelConfig
    files: Mapping[str, Path]
    weight_bytes: int  # as stored
    revision: str  # 12 hex digits that change when any file's content (with a manifest) or size changes
    is_verified: bool  # a manifest was there and every checksum agreed
    packed: PackedFormat | None = None  # how the matrices lie that have `parts`
    parts: Mapping[str, Parts] = field(default_factory=dict)  # of a matrix, by its name; they are in `files`
    is_bare: bool = False  # names in the files lack their `PREFIX`, as of models that were saved without a head

    def stored_name(self, name: str) -> str:
        """What a tensor is called in its file."""
        return name.removeprefix(PREFIX) if self.is_bare else name


def open_model(path: Path | str, *, verify: bool = True, progress: Progress | None = None) -> ModelDir:
    """Checks a directory or a GGUF file and returns what loading needs. Takes no memory for weights.

    `verify` compares every file in `manifest.json` with its sha256, when there is a manifest; `progress` is called
    with ("verifying", 0 to 1). Raises BadModelError.
    """
    directory = Path(path)
    if not directory.is_dir() and not directory.is_file():
        raise BadModelError(
            directory,
            "no such directory",
            "give a Hugging Face model directory or a GGUF file, or make one: fleetctl-node make-model",
        )
    manifest = checked_manifest(directory, verify, progress) if directory.is_dir() else None
    try:
        gguf = find_gguf(directory)
    except BadGgufError as exc:
        raise BadModelError(directory, str(exc), "give the one to serve itself") from exc
    if gguf is not None:
        return _open_gguf(gguf, is_verified=manifest is not None and verify)
    if not directory.is_dir():
        raise BadModelError(directory, "no model: a file that is served ends in .gguf", FETCH_AGAIN)
    config, packed = _read_config(directory)
    files, tensors = find_tensors(directory)
    is_bare = f"{PREFIX}norm.weight" not in tensors and "norm.weight" in tensors
    if is_bare:
        files = {name if name == CLASSES else f"{PREFIX}{name}": path for name, path in files.items()}
        tensors = {name if name == CLASSES else f"{PREFIX}{name}": info for name, info in tensors.items()}
    whole, parts = _joined(config, packed, tensors, files)
    first_files = {name: files[next(iter(own.values()))] for name, own in parts.items()}
    _check_tensors(directory, config, {**files, **first_files}, whole)
    needed = [part for name in expected_tensors(config) for part in parts.get(name, {name: name}).values()]
    wanted = {name: files[name] for name in needed}
    return ModelDir(
        path=directory,
        config=config,
        files=wanted,
        weight_bytes=sum(tensors[name].num_bytes for name in needed),
        revision=_revision(directory, manifest, set(files.values())),
        is_verified=manifest is not None and verify,
        packed=packed,
        parts=parts,
        is_bare=is_bare,
    )


def _open_gguf(path: Path, *, is_verified: bool) -> ModelDir:
    try:
        model = open_gguf(path)
    except (BadGgufError, BadConfigError, OSError) as exc:
        raise BadModelError(path, str(exc), "copy or convert the file again, or serve another one") from exc
    files = dict.fromkeys(expected_tensors(model.config), path)
    _check_tensors(path, model.config, files, model.tensors, "its metadata")
    return ModelDir(path, model.config, files, model.weight_bytes, model.revision, is_verified)


def kv_bytes_per_token(config: ModelConfig, dtype: str) -> int:
    """Bytes of KV cache that one token takes: 2 x layers x KV heads x bytes of a head, with its scale if it has one."""
    head = config.head_dim + KV_SCALE_BYTES if dtype in KV_CODES else config.head_dim * dtype_bytes(dtype)
    return 2 * config.num_layers * config.num_kv_heads * head


def size_kv(config: ModelConfig, dtype: str, *, block_size: int, budget_bytes: int) -> int:
    """How many KV blocks of `block_size` tokens fit in a byte budget; 0 when not even one does."""
    return max(budget_bytes, 0) // (kv_bytes_per_token(config, dtype) * block_size)


def weight_bytes(config: ModelConfig, dtype: str) -> int:
    """Bytes that the weights take once loaded in `dtype`."""
    count = 0
    for shape in expected_tensors(config).values():
        size = 1
        for side in shape:
            size *= side
        count += size
    return count * dtype_bytes(dtype)


def step_bytes(config: ModelConfig, dtype: str, *, num_tokens: int, num_rows: int) -> int:
    """At most what a step takes on a GPU beside weights and KV, `num_rows` of its tokens being sampled.

    Of a layer: what is added to, a norm's result, query, key and value, and gate and up with their product. Logits in
    their own type, in float32, and once more where they are sampled; those of captured steps stay. Weights in blocks
    are expanded for long prompts, one at a time.
    """
    heads = config.num_heads + 2 * config.num_kv_heads
    of_token = 4 * config.hidden_size + 2 * heads * config.head_dim + 3 * config.intermediate_size
    logits = num_rows * config.vocab_size * (2 * dtype_bytes(dtype) + 4 + 4 + 4)
    largest = 2 * config.intermediate_size * config.hidden_size
    return (num_tokens * of_token + largest) * dtype_bytes(dtype) + logits


def sha256_of(path: Path, read: Callable[[int], None] | None = None) -> str:
    """Hex digest of a file; `read` is told the bytes of each piece."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 22):
            digest.update(piece)
            if read is not None:
                read(len(piece))
    return digest.hexdigest()


def dtype_bytes(dtype: str) -> int:
    """Bytes of one number. Raises ValueError for a type that nothing is computed in."""
    if dtype not in DTYPE_BYTES:
        raise ValueError(f"dtype {dtype!r} is not supported; supported are {', '.join(DTYPE_BYTES)}")
    return DTYPE_BYTES[dtype]


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file. Raises BadModelError."""
    if not path.is_file():
        raise BadModelError(path, "missing", FETCH_AGAIN)
    if path.stat().st_size > MAX_JSON_BYTES:
        raise BadModelError(path, f"larger than {MAX_JSON_BYTES >> 20} MiB", FETCH_AGAIN)
    try:
        tree = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as exc:
        raise BadModelError(path, f"not JSON: {exc}", FETCH_AGAIN) from exc
    if not isinstance(tree, dict):
        raise BadModelError(path, "not a JSON object", FETCH_AGAIN)
    return tree


def _joined(
    config: ModelConfig, packed: PackedFormat | None, tensors: Mapping[str, TensorInfo], files: Mapping[str, Path]
) -> tuple[dict[str, TensorInfo], dict[str, Parts]]:
    """The tensors as loading gives them, and the parts of those that are packed."""
    parts: dict[str, Parts] = {}
    whole = dict(tensors)
    if packed is None:
        return whole, parts
    for name, wanted in expected_tensors(config).items():
        own = packed.parts(name, tensors)
        if not own:
            continue
        first, codes = next(iter(own.items()))
        scales = next(part for ending, part in own.items() if "scale" in ending)
        shape = packed_shape(packed, tensors[codes].shape, wanted, first)
        if shape == wanted and (problem := why_no_scales(packed, shape, tensors[scales].shape)) is not None:
            raise BadModelError(files[scales], f"tensor {scales}: {problem}", "config and weights must be of one model")
        parts[name] = own
        stored = sum(whole.pop(part).num_bytes for part in own.values())
        whole[name] = TensorInfo("F32", shape, stored)
    return whole, parts


def _read_config(directory: Path) -> tuple[ModelConfig, PackedFormat | None]:
    path = directory / "config.json"
    try:
        tree = read_json(path)
        return parse_config(tree), packed_format(tree)
    except BadConfigError as exc:
        raise BadModelError(path, str(exc), "serve another model, or correct the file") from exc


def _inside(directory: Path, name: Any, source: Path) -> Path:
    """A file named by the directory's own files; never one outside of it."""
    if not isinstance(name, str) or not name or Path(name).is_absolute() or ".." in Path(name).parts:
        raise BadModelError(source, f"names the file {name!r}, which is not inside the directory", FETCH_AGAIN)
    return directory / name


def _read_manifest(directory: Path) -> dict[str, tuple[str, int]] | None:
    """File name to (sha256, bytes); None without a manifest."""
    path = directory / MANIFEST
    if not path.exists():
        return None
    listed = read_json(path).get("files")
    if not isinstance(listed, dict):
        raise BadModelError(path, "has no table 'files'", "make the manifest again, or remove it to serve unverified")
    found: dict[str, tuple[str, int]] = {}
    for name, entry in listed.items():
        _inside(directory, name, path)
        digest, size = (entry.get("sha256"), entry.get("bytes")) if isinstance(entry, dict) else (None, None)
        if not isinstance(digest, str) or len(digest) != 64 or not isinstance(size, int):
            raise BadModelError(path, f"files.{name}: expected sha256 and bytes", "make the manifest again")
        found[name] = (digest.lower(), size)
    return found


def checked_manifest(directory: Path, verify: bool, progress: Progress | None) -> dict[str, tuple[str, int]] | None:
    """What `manifest.json` says, once it was compared with the files; None without one. Raises BadModelError."""
    manifest = _read_manifest(directory)
    if manifest is not None:
        _check_manifest(directory, manifest, verify, progress)
    return manifest


def _check_manifest(
    directory: Path, manifest: Mapping[str, tuple[str, int]], verify: bool, progress: Progress | None
) -> None:
    total = max(sum(size for _, size in manifest.values()), 1)
    done = 0

    def read(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress("verifying", min(done / total, 1.0))

    for name, (digest, size) in manifest.items():
        path = directory / name
        if not path.is_file():
            raise BadModelError(path, f"missing, though {MANIFEST} lists it", FETCH_AGAIN)
        if path.stat().st_size != size:
            raise BadModelError(path, f"{path.stat().st_size} bytes, {MANIFEST} says {size}", FETCH_AGAIN)
        if verify and sha256_of(path, read) != digest:
            raise BadModelError(path, f"sha256 differs from {MANIFEST}: the file was changed or damaged", FETCH_AGAIN)


def find_tensors(directory: Path, single: str = SINGLE) -> tuple[dict[str, Path], dict[str, TensorInfo]]:
    """Where each tensor is, by the index when there is one, and what its file's header says.

    `single` is the file that holds all of them where there is no index. Raises BadModelError.
    """
    index = directory / INDEX
    claimed: dict[str, Path] = {}
    if index.is_file():
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise BadModelError(index, "has no table 'weight_map'", FETCH_AGAIN)
        claimed = {name: _inside(directory, file, index) for name, file in weight_map.items()}
        shards = sorted(set(claimed.values()))
    else:
        shards = [directory / single]
    headers = {shard: _header(shard, index if claimed else None) for shard in shards}
    files = claimed or dict.fromkeys(headers[shards[0]], shards[0])
    for name, shard in claimed.items():
        if name not in headers[shard]:
            raise BadModelError(shard, f"does not hold {name}, though {INDEX} says so", FETCH_AGAIN)
    return files, {name: headers[shard][name] for name, shard in files.items()}


def _header(shard: Path, index: Path | None) -> dict[str, TensorInfo]:
    if not shard.is_file():
        why = f"missing, though {INDEX} names it" if index else "missing: weights must be safetensors"
        raise BadModelError(shard, why, FETCH_AGAIN)
    try:
        return read_header(shard)
    except BadHeaderError as exc:
        raise BadModelError(shard, str(exc), FETCH_AGAIN) from exc


def _check_tensors(
    directory: Path,
    config: ModelConfig,
    files: Mapping[str, Path],
    tensors: Mapping[str, TensorInfo],
    source: str = "config.json",
) -> None:
    for name, shape in expected_tensors(config).items():
        found = tensors.get(name)
        if found is None:
            raise BadModelError(directory, f"no tensor {name}, which {source} calls for", FETCH_AGAIN)
        if found.shape != shape:
            problem = f"tensor {name} is {list(found.shape)}, {source} calls for {list(shape)}"
            raise BadModelError(files[name], problem, "config and weights must be of one model")
        if found.dtype not in FLOAT_DTYPES:
            remedy = "serve the unquantised model, or one whose config.json says how it is quantised and has its scales"
            raise BadModelError(files[name], f"tensor {name} is {found.dtype}", remedy)
    if left_out := unexpected_tensors(config, tensors):
        named = ", ".join(left_out[:_NAMED_TENSORS]) + (", ..." if len(left_out) > _NAMED_TENSORS else "")
        problem = f"{len(left_out)} tensors that config.json does not call for ({config.num_layers} layers): {named}"
        raise BadModelError(files[left_out[0]], problem, "config and weights must be of one model")


def _revision(directory: Path, manifest: Mapping[str, tuple[str, int]] | None, shards: set[Path]) -> str:
    digest = hashlib.sha256((directory / "config.json").read_bytes())
    if manifest is not None:
        digest.update(json.dumps(sorted(manifest.items())).encode())
    else:
        digest.update(json.dumps(sorted((shard.name, shard.stat().st_size) for shard in shards)).encode())
    return digest.hexdigest()[:12]


__all__ = [
    "BadModelError",
    "ModelDir",
    "checked_manifest",
    "dtype_bytes",
    "find_tensors",
    "kv_bytes_per_token",
    "open_model",
    "read_json",
    "sha256_of",
    "size_kv",
    "weight_bytes",
]
