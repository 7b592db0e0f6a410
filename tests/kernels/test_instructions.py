"""What FLEETCTL_CPU_KERNELS says is what is used."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from kernels.cpu.instructions import OPTION, Instructions, read

FOUND = """
import torch
from kernels.cpu import amx, instructions
from kernels.linear import pack, row_linear
x, weight = torch.ones(3, 64).bfloat16(), torch.ones(70, 64).bfloat16()
matrix = pack(weight)
assert (row_linear(x, matrix) == 64).all()
print(type(matrix).__name__, instructions.has_avx512(), instructions.has_dot(), amx.has_amx())
print(instructions.byte_dots() >= instructions.ByteDots.VNNI_256)
"""


@pytest.mark.parametrize(
    ("said", "wanted"), [(None, "AMX"), ("", "AMX"), ("dot", "DOT"), ("Vectors", "VECTORS"), ("avx2", "AVX2")]
)
def test_the_option_names_the_most_that_is_used(said: str | None, wanted: str) -> None:
    assert read(said) is Instructions[wanted]


def test_another_word_is_refused_with_those_that_it_takes() -> None:
    with pytest.raises(ValueError, match="FLEETCTL_CPU_KERNELS=fast: it takes avx2, vectors, dot, amx"):
        read("fast")


@pytest.mark.parametrize("said", ["avx2", "vectors"])
def test_a_process_computes_with_no_more_than_it_was_told(said: str) -> None:
    told = subprocess.run(
        [sys.executable, "-c", FOUND], env={**os.environ, OPTION: said}, capture_output=True, text=True, check=True
    )
    matrix, has_avx512, has_dot, has_amx, has_vnni = told.stdout.split()
    assert (matrix, has_dot, has_amx, has_vnni) == ("VectorMatrix", "False", "False", "False")
    assert said == "vectors" or has_avx512 == "False"
