"""`/openapi.json` tells the truth: every route is in it, and requests generated from it get what it documents."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from starlette.routing import Route

from engine.api.app import build_app
from engine.api.openapi import OPERATIONS, document
from engine.config import NodeConfig
from engine.node.metrics import NodeMetrics
from engine.node.node import ServingNode
from engine.node.served_model import ModelFacts
from engine.protocol.core_config import CoreConfig
from engine.text.tokenizer import load_tokenizer
from fleetctl.kit.tls import NO_TLS
from tests.fixtures.engine import TOKEN, EngineNode, start_node, tiny_model_dir

SETTINGS = Path(__file__).with_name("schemathesis.toml")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineNode]:
    # Short answers: what is proven here is the shape of answers, not how long they are.
    args = ("--max-model-len", "512", "--max-output-tokens", "16")
    with start_node(tmp_path_factory.mktemp("openapi"), extra_args=args) as running:
        yield running


def test_every_route_and_method_is_documented_and_no_other() -> None:
    config = NodeConfig(tiny_model_dir(), ("m",), "n1")
    tokenizer = load_tokenizer(config.model_dir)
    facts = ModelFacts(tokenizer.vocab_size, 512, (), "r1")
    node = ServingNode(
        config, CoreConfig(model_dir="."), tokenizer, facts, NodeMetrics(model_name="m", max_model_len=512)
    )
    routes = [r for r in build_app(node).routes if isinstance(r, Route)]
    served = {(m, r.path.replace(":path}", "}")) for r in routes for m in r.methods or () if m != "HEAD"}
    documented = {(operation.method, operation.path) for operation in OPERATIONS}
    assert documented == served, "engine/api/openapi.py has one row of OPERATIONS for each route and method"


def test_guarded_routes_are_shown_to_those_who_may_use_them(node: EngineNode) -> None:
    shown = node.http.get("/openapi.json").json()
    public = httpx.get(f"{node.url}/openapi.json", verify=NO_TLS).json()
    guarded = {path for path in shown["paths"] if path.startswith(("/admin/", "/internal/"))}
    assert guarded
    assert set(shown["paths"]) - set(public["paths"]) == guarded
    assert shown == document(with_guarded=True)


def test_limits_are_in_the_document() -> None:
    body = document(with_guarded=False)["components"]["schemas"]["CompletionBody"]["properties"]
    choices = next(form for form in body["n"]["anyOf"] if form["type"] == "integer")
    assert (choices["minimum"], choices["maximum"]) == (1, 8)
    biases = next(form for form in body["logit_bias"]["anyOf"] if form["type"] == "object")
    assert biases["maxProperties"] == 1024
    assert biases["additionalProperties"] is False


def run_schemathesis(node: EngineNode, work_dir: Path, *args: str) -> None:
    """Fails with the tool's own report, which holds a curl command for each finding."""
    command = [
        *(shutil.which("st", path=str(Path(sys.executable).parent)) or "st", "--config-file", str(SETTINGS)),
        *("run", f"{node.url}/openapi.json", "--phases", "examples,coverage,fuzzing"),
        *("--seed", "4", "--generation-database", "none", "--no-color"),
        *("--request-timeout", "60", "--suppress-health-check", "all"),
        *args,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=580, cwd=work_dir)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{node.log_text()[-3000:]}"
    assert "Supports" in done.stdout, done.stdout  # it reached the node
    assert not node.events("request.crashed")


@pytest.mark.e2e
@pytest.mark.timeout(600)  # on a quarter of a core it takes more than three minutes
def test_generated_requests_of_clients_get_documented_answers(node: EngineNode, tmp_path: Path) -> None:
    run_schemathesis(node, tmp_path, "--max-examples", "60", "--exclude-path-regex", "^/(admin|internal)/")


@pytest.mark.e2e
@pytest.mark.timeout(600)  # on a quarter of a core it takes more than three minutes
def test_generated_requests_of_operators_get_documented_answers(tmp_path: Path) -> None:
    """On a node of its own: it ends drained, with every fault on."""
    with start_node(tmp_path, extra_args=("--max-model-len", "512", "--max-output-tokens", "16")) as own:
        run_schemathesis(
            own,
            tmp_path,
            *("--max-examples", "40", "--include-path-regex", "^/(admin|internal)/"),
            *("--header", f"Authorization: Bearer {TOKEN}"),
        )
        assert own.http.get("/health/live").status_code == 200
