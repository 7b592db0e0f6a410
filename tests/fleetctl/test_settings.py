"""Settings: one tree from file, environment and flags, with errors that name the place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fleetctl.cli.app import run
from fleetctl.controller.config import initial_fleet
from fleetctl.kit.errors import BadInputError
from fleetctl.providers.spec import words_from_options
from fleetctl.settings.document import markdown, setting_docs
from fleetctl.settings.load import load_settings


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import os

    monkeypatch.setenv("COLUMNS", "200")
    for key in [key for key in os.environ if key.startswith("FLEETCTL_")]:
        monkeypatch.delenv(key)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)


def test_flags_win_over_environment_and_environment_over_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text("controller: {port: 1, policy: ask, scrape_interval_s: 3}\n")
    monkeypatch.setenv("FLEETCTL_CONTROLLER__PORT", "2")
    monkeypatch.setenv("FLEETCTL_CONTROLLER__POLICY", "run")
    settings = load_settings(path, {"controller": {"port": 3}})
    assert settings.controller.port == 3
    assert settings.controller.policy == "run"
    assert settings.controller.scrape_interval_s == 3


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("controller: {prot: 1}", "f.yaml: controller.prot"),
        ("controller: {port: abc}", "f.yaml: controller.port"),
        ("controller: {policy: propose}", "it meant the same as 'ask'; write ask"),
        ("notifications: {receivers: {chat: {kind: slack}}}", "f.yaml: notifications.receivers: must be a list"),
        ("fleet: 3", "f.yaml: fleet: must be a mapping"),
        ("notifications: {receivers: [{kind: webhook}]}", "notifications.receivers.0.name: missing"),
        ("- 1", "f.yaml: expected a mapping"),
        ("a: [", "f.yaml: not YAML"),
        ("controller: {port: 1}\nfleet: {}\ncontroller: {policy: run}", "f.yaml:3: 'controller' is given twice"),
        ("controller: {port: 1, port: 2}", "f.yaml:1: 'controller.port' is given twice"),
        ('signals: {prometheus: {url: "http://host:99999"}}', "url: expected a URL like http://prometheus:9090"),
        ("\xff", "f.yaml: not UTF-8 (at byte 0)"),
    ],
)
def test_bad_file_names_the_file_and_the_key(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "f.yaml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(BadInputError) as error:
        load_settings(path)
    assert words in error.value.message
    if key := (error.value.remedy or "").partition("fleetctl config explain ")[2]:
        assert setting_docs(key.strip()) != [], "what it says to try works"


def test_a_merged_mapping_may_bring_a_key_that_is_written_too(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text("controller: &usual {port: 1, policy: run}\ngateway: {port: 2}\n")
    assert load_settings(path).gateway.port == 2
    receivers = "{kind: webhook, url: 'http://a'}"
    path.write_text(f"notifications: {{receivers: [&a {{<<: {receivers}, name: a, url: 'http://b'}}]}}\n")
    assert load_settings(path).notifications.receivers[0].name == "a"


def test_a_token_file_that_is_damaged_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "controller.token").write_bytes(b"\x91\x00")
    assert run(["--state-dir", str(tmp_path), "get", "nodes"]) == 2
    assert "controller.token: no token in it" in capsys.readouterr().err


def test_a_variable_of_no_setting_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEETCTL_CONTROLER__TOKEN", "x")
    with pytest.raises(BadInputError, match="FLEETCTL_CONTROLER__TOKEN: there is no such setting"):
        load_settings()


def test_pods_can_only_want_a_key_that_there_is(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text("providers: {kubernetes: {api_key: chat}}\n")
    with pytest.raises(BadInputError, match=r"providers\.kubernetes\.api_key: fleet\.api_keys has no chat"):
        load_settings(path)
    path.write_text("providers: {kubernetes: {api_key: chat}}\nfleet: {api_keys: {chat: {env: CHAT_KEY}}}\n")
    pods = load_settings(path).providers.kubernetes
    assert pods is not None
    assert pods.api_key == "chat"


def test_config_show_masks_secrets(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("FLEETCTL_CONTROLLER__TOKEN", "hunter2")
    monkeypatch.setenv("FLEETCTL_CONTROLLER__DATABASE_URL", "postgresql+psycopg://ops:pa55@db/fleet")
    assert run(["config", "show", "-o", "json"]) == 0
    text = capsys.readouterr().out
    assert "hunter2" not in text
    assert "pa55" not in text
    assert json.loads(text)["controller"]["database_url"] == "postgresql+psycopg://ops:***@db/fleet"


def test_missing_config_file_is_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--config", "nope.yaml", "config", "show"]) == 2
    assert "nope.yaml" in capsys.readouterr().err


def test_an_error_names_where_the_value_comes_from_and_how_to_read_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "f.yaml"
    path.write_text("incidents: {resolve_quiet_s: 1}\n")
    monkeypatch.setenv("FLEETCTL_FLEET__NODES", "99")
    with pytest.raises(BadInputError) as error:
        load_settings(path)
    assert error.value.message.startswith("FLEETCTL_FLEET__NODES: fleet.nodes: ")
    assert error.value.remedy == "fleetctl config explain fleet.nodes"
    monkeypatch.delenv("FLEETCTL_FLEET__NODES")
    with pytest.raises(BadInputError, match=r"^flag: controller\.policy: "):
        load_settings(path, {"controller": {"policy": "never"}})


def test_every_value_says_where_it_comes_from(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "f.yaml"
    path.write_text("incidents: {resolve_quiet_s: 1}\nexternal_labels: {cluster: a}\n")
    monkeypatch.setenv("FLEETCTL_CONTROLLER__PORT", "7701")
    assert run(["--config", str(path), "--log-level", "error", "config", "show"]) == 0
    text = capsys.readouterr().out
    origins = {line.split(":")[0].strip(): line.rpartition("  # ")[2] for line in text.splitlines() if "  # " in line}
    assert origins["resolve_quiet_s"] == str(path)
    assert origins["external_labels"] == str(path)
    assert origins["port"] in ("FLEETCTL_CONTROLLER__PORT", "default")
    assert "port: 7701" in text
    assert "FLEETCTL_CONTROLLER__PORT" in text
    assert origins["level"] == "flag"
    assert origins["diagnose_for_s"] == "default"
    again = tmp_path / "again.yaml"
    again.write_text(text)
    same = load_settings(path, {"log": {"level": "error"}})
    assert load_settings(again).model_dump() == same.model_dump()


def test_every_limit_of_the_controller_can_be_set(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text(
        "controller: {policy: run, policy_causes: [slow_node], probe_interval_s: 2}\n"
        "actions: {drain_grace_s: 7}\nincidents: {blackbox_lead_s: 8}\ndelivery: {resend_s: 9}\n"
    )
    settings = load_settings(path)
    assert settings.controller.policy_causes == {"slow_node"}
    assert (settings.actions.drain_grace_s, settings.incidents.blackbox_lead_s) == (7, 8)
    assert (settings.delivery.resend_s, settings.controller.probe_interval_s) == (9, 2)


def test_secrets_reach_our_own_processes_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text("alertmanagers: [{url: 'http://am:9093', bearer_token: hunter2}]\nwebhook: {bearer_token: pa55}\n")
    effective = tmp_path / "effective.json"
    effective.write_text(json.dumps(load_settings(path).revealed()))
    read = load_settings(effective)
    assert read.alertmanagers[0].token() == "hunter2"
    assert read.webhook.token() == "pa55"


def test_options_of_nodes_are_passed_on_also_from_a_file_of_before(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text("fleet: {node_args: [--max-num-seqs, '8', --no-enable-prefix-caching, --api-key-file=k]}\n")
    (spec, *_) = initial_fleet(load_settings(path))
    assert words_from_options(spec.options)[2:] == [
        "--max-num-seqs",
        "8",
        "--no-enable-prefix-caching",
        "--api-key-file",
        "k",
    ]
    path.write_text("fleet: {node_options: {max_num_seqs: 8, enable_prefix_caching: false, runner: fake}}\n")
    (spec, *_) = initial_fleet(load_settings(path))
    assert words_from_options(spec.options)[2:] == [
        "--max-num-seqs",
        "8",
        "--no-enable-prefix-caching",
        "--runner",
        "fake",
    ]


def test_every_setting_is_described_in_one_line_and_has_its_unit_in_its_name() -> None:
    numbers_without_unit = {
        "port",
        "nodes",
        "max_alerts",
        "max_active",
        "max_resends",
        "max_waiting",
        "max_outstanding_per_node",
        "probe_failures",
        "max_connections",
        "max_headers",
        "max_connections_per_address",
        "max_half_open_per_address",
        "max_events",
        "max_deep_checks",
        "max_unavailable",
        "surge",
        "min_samples",
        "floor",
        "max_templates",
        "workers",
        "per_node",
        "per_pool",
        "per_zone",
        "per_fleet",
        "max_useless",
        "max_start_failures",
        "max_incidents",
        "max_messages",
        "smtp_port",
        "most",
        "max_runs",
        "max_rows",
        "queue_per_node",
        "warm_nodes",
        "max_step",
        "max_nodes",
        # Prometheus' own words: `refresh_interval: 30s`
        "refresh_interval",
        "modulus",
    }
    for one in setting_docs():
        assert one.description, one.key
        assert "\n" not in one.description, one.key
        name = one.key.rpartition(".")[2]
        if one.kind == "number":
            assert name.endswith(("_s", "_ratio", "_cost")) or name in numbers_without_unit, one.key
        if one.kind == "whole number":
            assert name.endswith(("_mb", "_bytes", "_tokens", "_per_minute")) or name in numbers_without_unit, one.key
        if one.kind in ("number", "whole number"):
            assert one.bounds, f"{one.key} has no bounds"


def test_the_page_of_settings_is_what_the_tree_says() -> None:
    page = Path(__file__).parents[2] / "docs" / "settings.md"
    assert page.read_text() == markdown(), "fleetctl config explain --markdown > docs/settings.md"


def test_explain_tells_a_setting_a_section_or_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "explain", "controller.policy", "-o", "json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert (told["default"], told["variable"]) == ("ask", "FLEETCTL_CONTROLLER__POLICY")
    assert run(["config", "explain", "alertmanagers", "-o", "json"]) == 0
    assert "alertmanagers[].url" in capsys.readouterr().out
    assert run(["config", "explain"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 100
    assert [line for line in lines if len(line) > 80] == []
    assert run(["config", "explain", "controller.prot"]) == 2
    assert "controller.port" in capsys.readouterr().err


def test_flags_have_the_help_and_the_bounds_of_their_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["up", "--help"]) == 0
    assert "Number of nodes of a new fleet that are started here." in capsys.readouterr().out
    assert run(["up", "--nodes", "65"]) == 2


def test_content_folders_lie_beside_the_file_that_names_them_and_a_variable_has_them_as_a_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "etc" / "f.yaml"
    path.parent.mkdir()
    path.write_text("content: [mine, /srv/team]\n")
    assert load_settings(path).content == (tmp_path / "etc" / "mine", Path("/srv/team"))
    for value in ("/srv/a:/srv/b", '["/srv/a", "/srv/b"]'):
        monkeypatch.setenv("FLEETCTL_CONTENT", value)
        assert load_settings(path).content == (Path("/srv/a"), Path("/srv/b"))


def test_controllers_that_share_one_file_do_not_wait_for_themselves(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text("controller: {peers: ['http://ctl-0:7700', 'http://ctl-1:7700/'], url: 'http://ctl-1:7700'}\n")
    assert load_settings(path).controller.other_controllers == ("http://ctl-0:7700",)
    other = load_settings(path, {"controller": {"url": "http://ctl-0:7700/"}})
    assert other.controller.other_controllers == ("http://ctl-1:7700",)


def test_no_node_is_started_here_where_pods_are_nodes_unless_somebody_says_how_many(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text("providers: {kubernetes: {}}\n")
    assert initial_fleet(load_settings(path)) == []
    path.write_text("providers: {kubernetes: {}}\nfleet: {nodes: 1}\n")
    assert len(initial_fleet(load_settings(path))) == 1
    path.write_text("{}\n")
    assert len(initial_fleet(load_settings(path))) == 3
