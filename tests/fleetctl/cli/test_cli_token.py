"""`fleetctl token` as it is typed."""

from __future__ import annotations

import pytest

from fleetctl.cli.app import run
from fleetctl.wire.base import Problem
from fleetctl.wire.identity import MadeToken, TokenInfo, TokenRole
from tests.fixtures.recorded_controller import recorded_controller

NOW = 1_800_000_000.0
ANN = TokenInfo(
    name="ann",
    role=TokenRole.OPERATOR,
    id="0123456789ab",
    is_valid=True,
    created_at=NOW,
    created_by="admin (says root)",
    expires_at=NOW + 3600,
)


def test_token_is_printed_alone_when_it_is_made_and_never_again(capsys: pytest.CaptureFixture[str]) -> None:
    made = MadeToken(**ANN.model_dump(), token="flt-secret")
    with recorded_controller({"/v1/tokens": made}) as controller:
        asked = ["--controller", controller.url, "token", "create", "ann", "--role", "operator", "--expires", "90d"]
        assert run(asked) == 0
    said = capsys.readouterr()
    assert said.out == "flt-secret\n"
    assert "shown only now" in said.err
    assert "flt-secret" not in repr(made)
    with recorded_controller({"/v1/tokens": [ANN], "/v1/tokens/ann": ANN}) as controller:
        assert run(["--controller", controller.url, "token", "list"]) == 0
        assert run(["--controller", controller.url, "token", "revoke", "ann"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert listed[1].split()[:3] == ["ann", "operator", "active"]
    assert max(len(line) for line in listed) <= 80
    assert listed[-1] == "token of ann (operator) revoked"


def test_role_that_does_not_suffice_is_exit_code_3_with_who_could(capsys: pytest.CaptureFixture[str]) -> None:
    problem = Problem(error="val has the role viewer; this needs admin", remedy="ask cat (admin)", exit_code=3)
    with recorded_controller({"/v1/tokens": problem}) as controller:
        controller.statuses["/v1/tokens"] = 403
        assert run(["--controller", controller.url, "token", "create", "x", "--role", "viewer"]) == 3
    assert "ask cat (admin)" in capsys.readouterr().err
