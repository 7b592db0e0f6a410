"""A drain's receipt from the node to the file that a person verifies offline."""

from __future__ import annotations

import json
import stat
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fleetctl.cli.app import run
from fleetctl.controller.controller import Controller
from fleetctl.controller.nodes.node_answers import NodeDrain
from fleetctl.controller.nodes.node_client import NodeClient
from fleetctl.kit.errors import BadInputError
from tests.fixtures.controller import kill, make_config, running_fleet, stop_all, tell_node

pytest.importorskip("cryptography")
from fleetctl.kit.signed_document import SigningKey, why_not_signed

pytestmark = pytest.mark.anyio


@pytest.fixture
async def controller(tmp_path: Path) -> AsyncIterator[Controller]:
    try:
        async with running_fleet(make_config(tmp_path, gateway_url="http://127.0.0.1:1")) as opened:
            yield opened
    finally:
        stop_all(tmp_path)


def fates_are(monkeypatch: pytest.MonkeyPatch, fate: dict[str, Any] | None) -> None:
    async def request_fate(self: NodeClient, gateway_url: str, request_id: str) -> dict[str, Any] | None:
        return fate

    monkeypatch.setattr(NodeClient, "request_fate", request_fate)


async def test_drain_ends_with_a_signed_receipt_that_names_each_request(
    controller: Controller, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fates_are(monkeypatch, {"fate": "in_flight", "moves": [{"from": "node-1", "to": "node-2", "tokens": 4}]})
    await tell_node(controller, "node-1", held=2)
    step = await controller.effects.drain("node-1", deadline_s=0.1)
    assert step["summary"] == "finished 0, moved 2 to node-2, refused 0, aborted 0, lost 0"
    stored = await controller.receipts.document(step["receipt"])
    assert stored is not None
    assert [(line["request_id"], line["outcome"], line["moved_to"]) for line in stored["lines"]] == [
        ("held-0", "moved", "node-2"),
        ("held-1", "moved", "node-2"),
    ]
    assert [(line["tokens_before"], line["tokens_after"]) for line in stored["lines"]] == [(3, 4), (3, 4)]
    assert stored["is_complete"]
    (listed,) = await controller.receipts.listing()
    assert (listed.id, listed.lines) == (step["receipt"], [])
    key_file = controller.config.settings.receipt_key_file
    assert stat.S_IMODE(key_file.stat().st_mode) == 0o600
    file, public = tmp_path / "receipt.json", tmp_path / "key.pem"
    file.write_text(json.dumps(dict(stored), indent=2))
    public.write_text(controller.receipts.public_key)
    assert run(["receipt", "verify", str(file), "--key", str(public)]) == 0
    file.write_text(json.dumps({**stored, "lines": stored["lines"][1:]}))
    assert run(["receipt", "verify", str(file), "--key", str(public)]) == 1
    assert "not as it was signed" in capsys.readouterr().err
    again = await controller.effects.drain("node-1", deadline_s=0.1)
    assert again["receipt"] == step["receipt"], "one drain, one receipt"
    assert 'controller_drained_requests_total{outcome="moved"} 2.0' in controller.exposition().decode()
    drain = await controller.receipts.begin("node-2", "its instance", [])
    closed = await controller.receipts.close(drain, [], state="drained", uncounted_refusals=3)
    assert (closed.sums["refused"], closed.notes) == (3, ["3 refused without a line: the node did not name them"])


async def test_the_counts_of_a_step_are_those_of_its_receipt_whatever_a_node_whose_core_died_counts(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own "moved 0, aborted 11" stood beside the receipt's "moved 11"."""
    fates_are(monkeypatch, {"fate": "in_flight", "moves": [{"from": "node-1", "to": "node-2", "tokens": 4}]})
    drain_state = NodeClient.drain_state

    async def miscounted(self: NodeClient, url: str, **options: Any) -> NodeDrain:
        told = await drain_state(self, url, **options)
        return replace(told, receipt={**told.receipt, "moved": 0, "aborted": 2}) if told.state == "drained" else told

    monkeypatch.setattr(NodeClient, "drain_state", miscounted)
    await tell_node(controller, "node-1", held=2)
    step = await controller.effects.drain("node-1", deadline_s=0.1)
    assert step["summary"].startswith("finished 0, moved 2 to node-2")
    assert (step["moved"], step["aborted"]) == (2, 0)


async def test_receipt_has_the_word_of_the_gateway_that_a_client_came_again_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = {
        "http://127.0.0.1:1": {"fate": "failed", "reason": "worker_died", "node": "node-1", "started_at": 1.0},
        "http://127.0.0.1:2": {"fate": "in_flight", "node": "node-2", "started_at": 2.0},
    }

    async def request_fate(self: NodeClient, gateway_url: str, request_id: str) -> dict[str, Any]:
        return words[gateway_url]

    monkeypatch.setattr(NodeClient, "request_fate", request_fate)
    try:
        config = make_config(tmp_path, gateway_url="http://127.0.0.1:1", gateways=["http://127.0.0.1:2"])
        async with running_fleet(config) as controller:
            await tell_node(controller, "node-1", held=2)
            step = await controller.effects.drain("node-1", deadline_s=0.1)
        assert step["summary"] == "finished 0, moved 2 to node-2, refused 0, aborted 0, lost 0"
    finally:
        stop_all(tmp_path)


async def test_what_a_dead_node_held_is_unknown_and_never_finished(controller: Controller, tmp_path: Path) -> None:
    await tell_node(controller, "node-1", held=2)
    view = controller.provider.observe("node-1")
    await controller.effects.account.begin("node-1", view.url, view.instance, is_new=True)
    kill(tmp_path, "node-1")
    step = await controller.effects.drain("node-1", deadline_s=0.1)
    assert step["unknown"] == 2
    stored = await controller.receipts.document(step["receipt"])
    assert stored is not None
    assert not stored["is_complete"]
    assert stored["sums"]["finished"] == 0
    assert "its process ended before it was drained" in stored["notes"]


def test_document_is_signed_as_a_whole_by_its_own_key(tmp_path: Path) -> None:
    key = SigningKey.opened(tmp_path / "a.key")
    signed = key.sign({"lines": [1.5, "é"], "id": "x"})
    assert why_not_signed(json.loads(json.dumps(signed)), key.public_pem) == ""
    assert SigningKey.opened(tmp_path / "a.key").key_id == key.key_id
    for changed in (
        {**signed, "id": "y"},
        {**signed, "more": 1},
        {**signed, "key_id": "0"},
        {**signed, "signature": "x"},
    ):
        assert why_not_signed(changed, key.public_pem)
    assert why_not_signed({"id": "x"}, key.public_pem) == "it has no signature"
    assert why_not_signed(signed, SigningKey.opened(tmp_path / "b.key").public_pem)
    (tmp_path / "c.key").write_text("no key")
    with pytest.raises(BadInputError, match=r"c\.key: no signing key"):
        SigningKey.opened(tmp_path / "c.key")
