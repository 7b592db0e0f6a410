"""Weights that a GPU keeps in blocks: a model's logits, and the bytes that are reckoned with."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.model.directory import open_model, weight_bytes
from engine.model.weights import kept_bytes
from tests.engine.model.test_gguf_model import wide  # noqa: F401
from tests.engine.model.test_model_logits import Paged, _prompt
from tests.fixtures.gguf_model import Type, write_gguf
from tests.fixtures.gpu_kernels import ON_DEVICES, runner

pytest.importorskip("triton", reason="needs Triton")


@pytest.mark.parametrize("device", ON_DEVICES)
def test_a_model_in_blocks_has_the_logits_on_a_gpu_that_it_has_on_a_cpu(
    wide: Path,  # noqa: F811
    tmp_path: Path,
    device: str,
) -> None:
    path, tokens = write_gguf(wide, tmp_path / "model.gguf", Type.Q4_1), _prompt(1, 5)
    wanted = Paged(path).logits({0: tokens}, [(0, 0, 5)])
    found = runner(device)("tests.fixtures.gpu_blocks:logits", torch.tensor(tokens), str(path))
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)


def test_memory_for_kv_reckons_with_blocks_as_a_gpu_keeps_them(wide: Path, tmp_path: Path) -> None:  # noqa: F811
    kept = {
        kind: kept_bytes(
            open_model(write_gguf(wide, tmp_path / f"{kind}.gguf", Type[kind])), dtype=torch.bfloat16, device="cuda"
        )
        for kind in ("F16", "Q8_0", "Q4_0")
    }
    assert kept["F16"] == weight_bytes(open_model(wide).config, "bfloat16")
    assert 0.5 < kept["Q8_0"] / kept["F16"] < 0.6
    assert 0.28 < kept["Q4_0"] / kept["F16"] < 0.35
