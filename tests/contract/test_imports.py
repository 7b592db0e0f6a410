"""What the import graph can't show: what is really loaded when a command starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures.engine import tiny_model_dir

BLOCK = (
    "import sys\n"
    "class Blocked:\n"
    "    def find_spec(self, name, path=None, target=None):\n"
    "        if name.split('.')[0] in {names!r}: raise ModuleNotFoundError(f'{{name}} is not installed')\n"
    "sys.meta_path.insert(0, Blocked())\n"
)
ENGINE_ONLY = {"torch", "triton", "tokenizers", "safetensors", "pynvml", "transformers", "engine", "kernels"}


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)


@pytest.mark.parametrize(
    "module",
    ["fleetctl.cli", "fleetctl.cli.app", "fleetctl.controller.app", "fleetctl.gateway.app", "fleetctl.tui.app"],
)
def test_control_plane_imports_without_the_engine_and_torch(module: str) -> None:
    done = python(BLOCK.format(names=ENGINE_ONLY) + f"import {module}")
    assert done.returncode == 0, done.stderr


def test_help_loads_no_server_no_screen_and_no_numbers() -> None:
    code = (
        "import sys\nfrom fleetctl.cli.app import run\nrun(['--help'])\n"
        "heavy = {'textual', 'sqlalchemy', 'numpy', 'starlette', 'uvicorn', 'aiohttp', 'torch'} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)"
    )
    done = python(code)
    assert done.returncode == 0, done.stderr


def test_node_api_process_does_not_load_torch() -> None:
    """Each node would pay for it twice: the core has its own process."""
    done = python("import sys\nimport engine.api.app\nsys.exit('torch' in sys.modules)")
    assert done.returncode == 0, done.stderr or "engine.api.app loaded torch"


def test_a_core_that_warmed_up_on_a_cpu_has_loaded_no_compiler_of_torchs() -> None:
    """It is 90 MB and a second of every start; the kernels are compiled by another one."""
    code = (
        "import sys\nfrom engine.core.runner_loader import load_runner\n"
        "from engine.protocol.core_config import CoreConfig\n"
        f"config = CoreConfig(model_dir={str(tiny_model_dir())!r}, runner='torch', num_kv_blocks=64, device='cpu')\n"
        "load_runner(config, lambda phase, share: None).runner.warm_up()\n"
        "heavy = {'torch._dynamo', 'torch._inductor', 'sympy', 'triton'} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)"
    )
    done = python(code)
    assert done.returncode == 0, done.stderr


def test_controller_process_loads_nothing_of_a_terminal_and_one_http_client(tmp_path: Path) -> None:
    """It runs for months: these are 15 MB that it never uses."""
    code = (
        "import sys\nfrom fleetctl.controller.__main__ import main\n"
        f"code = main(['--state-dir', {str(tmp_path)!r}])\n"
        "assert code == 2, 'it should have found no token there'\n"
        "heavy = {'rich', 'typer', 'textual', 'aiohttp', 'pygments'} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)"
    )
    done = python(code)
    assert done.returncode == 0, done.stderr


def test_rules_and_store_load_no_validation_library() -> None:
    code = (
        "import sys\nimport alerts.evaluation.engine, alerts.evaluation.rules, alerts.series.store\n"
        "heavy = {'pydantic', 'pandas', 'numpy.ma'} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)"
    )
    done = python(code)
    assert done.returncode == 0, done.stderr
