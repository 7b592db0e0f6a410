"""Quantised checkpoints of Hugging Face directories: which tensors hold a matrix, and what `quantization_config` says.

AWQ and GPTQ keep a matrix transposed, `[width, rows]`, as integers in 32-bit words beside a scale and a zero for each
group of columns: GPTQ packs eight columns of a row in a word, AWQ eight rows of a column, in an order of its own.
compressed-tensors keeps `[rows, width]`: eight columns of a row in a word, or numbers of 8 bits, whole or E4M3. FP8
files of DeepSeek and Qwen3 are the latter, with scales of squares. Free of torch.

    BadConfigError   ValueError: `quantization_config` says something else
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from engine.model.config import BadConfigError
from engine.model.safetensors_header import TensorInfo

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # which of eight rows each four bits of a word belong to
METHODS = ("awq", "gptq", "compressed-tensors", "fp8")
FORMATS = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized")
_ENDINGS = {"awq": ("qweight", "qzeros", "scales"), "gptq": ("qweight", "qzeros", "scales", "g_idx")}
_SCALES = ("weight_scale", "weight_scale_inv")
_OPTIONAL = ("weight_zero_point", "weight_g_idx", "input_scale", "input_zero_point")
_CODES = {"compressed-tensors": ("I8", "F8_E4M3"), "fp8": ("F8_E4M3",)}
_REMEDY = "serve the model in another rounding, or the unquantised one with --quantization"

ByteInputs = Literal["w8a8", "w8a8 asymmetric", "w8a8 static"]
Parts = Mapping[str, str]  # what a part is ("weight_scale") to the tensor's whole name; the codes first


@dataclass(frozen=True, slots=True)
class PackedFormat:
    """What `quantization_config` says. `zero_shift`: what is added to a stored zero (GPTQ stores one less)."""

    method: Literal["awq", "gptq", "compressed-tensors", "fp8"]
    bits: tuple[int, ...] = (8,)  # of whole numbers in words; of compressed-tensors one for each group of matrices
    zero_shift: int = 0
    block: tuple[int, int] | None = None  # rows and columns of a square with one scale
    inputs: ByteInputs | None = None  # how whole numbers of 8 bits want what they are multiplied with to be rounded

    def parts(self, name: str, stored: Mapping[str, TensorInfo]) -> Parts:
        """The tensors that hold a matrix `...weight`; none if it is stored as it is."""
        stem = name.removesuffix("weight")

        def of(*endings: str) -> Parts:
            return {ending: stem + ending for ending in endings}

        if not name.endswith(".weight"):
            return {}
        if self.method in _ENDINGS:
            found = of(*_ENDINGS[self.method])
            return found if name not in stored and all(part in stored for part in found.values()) else {}
        scale = next((ending for ending in _SCALES if stem + ending in stored), _SCALES[0])
        others = (scale, *(ending for ending in _OPTIONAL if stem + ending in stored))
        if self.method == "compressed-tensors" and f"{stem}weight_packed" in stored:
            found = of("weight_packed", *others)
        elif name in stored and stored[name].dtype in _CODES[self.method]:
            found = of("weight", *others)
        else:
            return {}
        return found if all(part in stored for part in found.values()) else {}


def packed_format(tree: Mapping[str, Any]) -> PackedFormat | None:
    """Of a decoded `config.json`; None for one that is not quantised. Raises BadConfigError."""
    told = tree.get("quantization_config") or tree.get("compression_config")  # the name before 2024's end
    if not told:
        return None
    method = told.get("quant_method") if isinstance(told, dict) else None
    if method not in METHODS:
        raise _refused("quant_method", method, f"{', '.join(METHODS)} are, and GGUF files")
    if method == "compressed-tensors":
        return _compressed_tensors(told)
    if method == "fp8":
        return _fp8(told)
    bits = told.get("bits", 4)
    if bits not in ((4,) if method == "awq" else (4, 8)):
        raise BadConfigError(f"quantization_config.bits: {bits!r} is not supported with {method}")
    if method == "awq" and str(told.get("version", "gemm")).lower() != "gemm":
        raise _refused("version", told["version"], "gemm is")
    is_shifted = method == "gptq" and told.get("checkpoint_format", "gptq") != "gptq_v2"
    return PackedFormat(method, (bits,), int(is_shifted))


def packed_shape(fmt: PackedFormat, codes: tuple[int, ...], wanted: tuple[int, ...], part: str) -> tuple[int, ...]:
    """`[rows, width]` of the matrix whose codes have this shape; `wanted` where several are possible and it is one."""
    if len(codes) != 2 or part == "weight":
        return codes
    if fmt.method == "awq":
        return codes[1] * (32 // fmt.bits[0]), codes[0]
    if fmt.method == "gptq":
        return codes[1], codes[0] * (32 // fmt.bits[0])
    if bits_in_words(fmt, codes, wanted) is not None:
        return codes[0], wanted[1]
    return codes[0], codes[1] * (32 // fmt.bits[0])


def bits_in_words(fmt: PackedFormat, codes: tuple[int, ...], shape: tuple[int, ...]) -> int | None:
    """Bits of a number in the words of a `weight_packed`, for a matrix of this shape."""
    return next((bits for bits in fmt.bits if codes[1] == -(-shape[1] * bits // 32)), None)


def why_no_scales(fmt: PackedFormat, shape: tuple[int, ...], scales: tuple[int, ...]) -> str | None:
    """Why scales of this shape can't be those of a matrix; None if they can. Of AWQ and GPTQ it is not asked."""
    if fmt.method in _ENDINGS or scale_block(fmt, shape, scales) is not None:
        return None
    square = "" if fmt.block is None else f" in squares of {fmt.block[0]} x {fmt.block[1]}"
    return f"scales {list(scales)} fit no matrix {list(shape)}{square}"


def scale_block(fmt: PackedFormat, shape: tuple[int, ...], scales: tuple[int, ...]) -> tuple[int, int] | None:
    """Rows and columns that share a scale: all, one row, some columns of a row, or a square."""
    grid = (*scales, *(1,) * (2 - len(scales)))
    if len(grid) > 2:
        return None
    square = fmt.block or (0, 0)
    sides = []
    for size, count, side in zip(shape, grid, square, strict=True):
        if count == 1:
            sides.append(size)
        elif side and count == -(-size // side):
            sides.append(side)
        elif size % count == 0:
            sides.append(size // count)
        else:
            return None
    return sides[0], sides[1]


def _compressed_tensors(told: Mapping[str, Any]) -> PackedFormat:
    """Schemes of whole numbers of 4 and 8 bits and of E4M3, of any granularity."""
    groups = told.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        raise _refused("config_groups", groups, "a table of schemes is called for")
    for name, found in (("format", told.get("format")), *_formats(groups)):
        if found is not None and found not in FORMATS:
            raise _refused(name, found, f"{', '.join(FORMATS)} are")
    sparse = told.get("sparsity_config") or {}
    if sparse.get("format", "dense") != "dense":
        raise _refused("sparsity_config.format", sparse["format"], "dense is")
    if told.get("transform_config"):
        raise _refused("transform_config", "rotations", "models without any are")
    bits, block, inputs = set(), None, set()
    for name, group in groups.items():
        scheme = group.get("weights") if isinstance(group, dict) else None
        scheme = scheme if isinstance(scheme, dict) else {}
        kind = (scheme.get("type", "int"), scheme.get("num_bits"))
        if kind not in (("int", 4), ("int", 8), ("float", 8)):
            raise _refused(
                f"config_groups.{name}.weights", f"{kind[1]} bits {kind[0]}", "4 and 8 bits int, 8 float are"
            )
        bits.add(kind[1])
        if kind == ("int", 8):
            inputs.add(_byte_inputs(group.get("input_activations")))
        block = _block(f"config_groups.{name}.weights.block_structure", scheme.get("block_structure")) or block
    # Which matrix is of which scheme is not read: where several want whole numbers of 8 bits, they want the same.
    wanted = inputs.pop() if len(inputs) == 1 else None
    return PackedFormat("compressed-tensors", tuple(sorted(bits)), block=block, inputs=wanted)


def _byte_inputs(told: Any) -> ByteInputs | None:
    """None: inputs stay as they are. So do those of a scale for a whole batch: it would make a row depend on others."""
    if not isinstance(told, dict) or (told.get("type", "int"), told.get("num_bits")) != ("int", 8):
        return None
    is_dynamic, strategy = told.get("dynamic", False), told.get("strategy")
    if is_dynamic is True and strategy == "token":
        return "w8a8" if told.get("symmetric", True) else "w8a8 asymmetric"
    return "w8a8 static" if is_dynamic is False and strategy in ("tensor", None) else None


def _formats(groups: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [
        (f"config_groups.{n}.format", group.get("format")) for n, group in groups.items() if isinstance(group, dict)
    ]


def _fp8(told: Mapping[str, Any]) -> PackedFormat:
    if told.get("fmt", "e4m3") not in ("e4m3", "float8_e4m3fn"):
        raise _refused("fmt", told["fmt"], "e4m3 is")
    return PackedFormat("fp8", block=_block("weight_block_size", told.get("weight_block_size")))


def _block(name: str, told: Any) -> tuple[int, int] | None:
    if told is None:
        return None
    if isinstance(told, str):  # as in "128x128"
        told = [int(side) if side.isdigit() else 0 for side in told.split("x")]
    if not isinstance(told, list) or len(told) != 2 or not all(isinstance(side, int) and side > 0 for side in told):
        raise _refused(name, told, "two whole numbers are, rows and columns")
    return told[0], told[1]


def _refused(name: str, found: Any, supported: str) -> BadConfigError:
    return BadConfigError(f"quantization_config.{name}: {found!r} is not supported; {supported}; {_REMEDY}")
