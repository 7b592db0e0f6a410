"""Whatever a manifest names of ours exists: commands, options, settings, paths, ports, files; and times add up."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer.main
import yaml

from engine import drain_command, serve
from engine.__main__ import _parser as node_parser
from engine.api.openapi import OPERATIONS
from fleetctl.cli.app import build
from fleetctl.gateway.workers import supervisor, taken_address
from fleetctl.kit.reserved_port import reserve_port
from fleetctl.kit.tls import NO_TLS
from fleetctl.settings.document import setting_docs
from fleetctl.settings.load import load_settings
from tests.fixtures import ROOT
from tests.fixtures.contained import contained, give_away, is_possible, open_folder
from tests.fixtures.controller_process import eventually
from tests.fixtures.engine import tiny_model_dir
from tests.fixtures.manifests import (
    Manifest,
    charted,
    kustomized,
    of_kind,
    pod_templates,
    settings_of,
)

OVERLAYS = ("small", "ha", "attach")
CONTROL_PLANE = ("controller", "gateway")
TOKEN = "a-token-of-a-test"
RIGHTS = {  # what each verb is for: docs/kubernetes.md
    "pods": {"get", "list", "watch", "patch"},
    "pods/status": {"patch"},
    "pods/eviction": {"create"},
    "poddisruptionbudgets": {"list"},
    "pods/log": {"get"},
    "events": {"get", "list"},
    "deployments": {"get", "list", "watch", "patch"},
    "statefulsets": {"get", "list", "watch", "patch"},
    "leaderworkersets": {"get", "list", "watch", "patch"},
    "replicasets": {"get", "list", "watch"},
    "controllerrevisions": {"get", "list", "watch"},
}


def containers(manifests: list[Manifest]) -> dict[str, Manifest]:
    return {
        one["name"]: one for template in pod_templates(manifests).values() for one in template["spec"]["containers"]
    }


def hooks(container: Manifest) -> list[list[str]]:
    return [hook["exec"]["command"] for hook in container.get("lifecycle", {}).values()]


def probes(container: Manifest) -> Iterator[Manifest]:
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        yield container[name]["httpGet"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_command_and_option_can_be_typed(overlay: str) -> None:
    found = containers(kustomized(overlay))
    assert set(found) >= {"controller", "gateway"}
    for name, container in found.items():
        commands = [*hooks(container)]
        commands.append([("fleetctl-node" if name == "engine" else "fleetctl"), *container["args"]])
        for program, *words in commands:
            if program == "fleetctl-node":
                node_parser().parse_args(words)
            elif program == "fleetctl":
                can_be_typed(words)
            else:
                assert program == "sleep", program


def can_be_typed(words: list[str]) -> None:
    command: Any = typer.main.get_command(build())
    while hasattr(command, "commands"):
        command = command.commands[words[0]]
        words = words[1:]
    command.make_context(command.name, list(words))


def test_an_option_that_does_not_exist_is_noticed() -> None:
    with pytest.raises(SystemExit):
        node_parser().parse_args(["drain", "--admin-token-file=f", "--grace=3"])
    with pytest.raises(KeyError):
        can_be_typed(["controller", "start"])


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_settings_are_ones_that_exist_in_file_and_environment(
    overlay: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifests = kustomized(overlay, ("cordon-hosts",) if overlay == "ha" else ())
    path = tmp_path / "fleetctl.yaml"
    path.write_text(yaml.safe_dump(settings_of(manifests)))
    known = {"FLEETCTL_CONFIG", *(doc.variable for doc in setting_docs())}
    for name in CONTROL_PLANE:
        variables = {one["name"]: one for one in containers(manifests)[name]["env"]}
        assert {one for one in variables if one.startswith("FLEETCTL_")} <= known
        with monkeypatch.context() as patched:
            for variable, one in variables.items():
                patched.setenv(variable, filled(one))
            settings = load_settings(path)
        assert settings.log.format == "json"
        assert not settings.controller.restart_gateway
        pods = settings.providers.kubernetes
        assert pods is not None
        assert pods.namespaces == (("vllm",) if overlay == "attach" else ())
        assert pods.may_cordon_hosts is (overlay == "ha" and name == "controller")
        assert str(settings.node_token_file) in {mount["mountPath"] for mount in mounts(manifests, name)}


def filled(variable: Manifest) -> str:
    secrets = {"controller.token": TOKEN, "gateway.token": TOKEN, "url": "postgresql+psycopg://u:p@db/fleetctl"}
    source = variable.get("valueFrom", {})
    if "secretKeyRef" in source:
        return secrets[source["secretKeyRef"]["key"]]
    if "fieldRef" in source:
        return "fleetctl-controller-0"
    return str(variable["value"]).replace("$(POD_NAME)", "fleetctl-controller-0")


def mounts(manifests: list[Manifest], name: str) -> list[Manifest]:
    return containers(manifests)[name]["volumeMounts"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_gateway_and_controller_is_known_by_the_name_of_its_pod(overlay: str) -> None:
    manifests = kustomized(overlay)
    settings, sets = settings_of(manifests), {one["metadata"]["name"]: one for one in of_kind(manifests, "StatefulSet")}

    def addresses(name: str, port: int) -> list[str]:
        spec = sets[name]["spec"]
        return [f"http://{name}-{number}.{spec['serviceName']}:{port}" for number in range(spec["replicas"])]

    assert settings["controller"]["gateways"] == addresses("fleetctl-gateway", 7800)
    assert f"http://{settings['gateway']['host']}:7800" == settings["controller"]["gateways"][0]
    several = addresses("fleetctl-controller", 7700)
    assert settings["controller"].get("peers", several) == several
    headless = {one["metadata"]["name"] for one in of_kind(manifests, "Service") if one["spec"].get("clusterIP")}
    assert {one["spec"]["serviceName"] for one in sets.values()} <= headless


def test_ports_are_those_that_the_programs_listen_on() -> None:
    found = containers(kustomized("small"))
    settings = load_settings(None)
    told = {name: container["ports"][0]["containerPort"] for name, container in found.items()}
    assert told == {"controller": settings.controller.port, "gateway": settings.gateway.port, "engine": 8000}
    assert "--port=8000" in found["engine"]["args"]
    services = {
        one["metadata"]["name"]: one["spec"]["ports"][0]["port"] for one in of_kind(kustomized("small"), "Service")
    }
    assert services["fleetctl-controller"] == told["controller"]
    assert services["fleetctl-gateway"] == told["gateway"]


def test_what_is_asked_of_the_engine_is_answered() -> None:
    engine = containers(kustomized("small"))["engine"]
    answered = {operation.path for operation in OPERATIONS if operation.method == "GET"}
    assert {probe["path"] for probe in probes(engine)} <= answered
    assert "/metrics" in answered


def test_nothing_is_restarted_for_what_it_waits_for() -> None:
    """A node may load for half an hour, a gateway waits for its first node: only what does not answer is ended."""
    found = containers(kustomized("small"))
    engine, gateway = found["engine"], found["gateway"]
    assert engine["startupProbe"]["httpGet"]["path"] == engine["readinessProbe"]["httpGet"]["path"] == "/health/ready"
    assert engine["startupProbe"]["periodSeconds"] * engine["startupProbe"]["failureThreshold"] >= 1800
    assert engine["livenessProbe"]["httpGet"]["path"] == "/health/live"
    assert {gateway[name]["httpGet"]["path"] for name in ("startupProbe", "livenessProbe")} == {"/gateway/status"}
    assert gateway["readinessProbe"]["httpGet"]["path"] == "/health"


@pytest.mark.parametrize("deadline_s", [60, 300])
def test_a_node_has_the_time_to_drain_to_hand_off_and_to_stop(deadline_s: int) -> None:
    (deployment,) = of_kind(charted({"engine": {"drainSeconds": deadline_s}}), "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    ((_, *words),) = hooks(container)
    hook, served = node_parser().parse_args(words), node_parser().parse_args(container["args"])
    assert hook.deadline == served.drain_timeout == deadline_s
    after = 2 * serve.HANDOFF_GRACE_S + serve.CLOSE_GRACE_S + serve.FLUSH_GRACE_S
    assert pod["terminationGracePeriodSeconds"] >= deadline_s + drain_command.WAIT_BEYOND_DEADLINE_S + after


def test_a_gateway_has_the_time_to_let_requests_finish() -> None:
    pod = pod_templates(kustomized("small"))["fleetctl-gateway"]["spec"]
    (hook,) = hooks(pod["containers"][0])
    assert (
        pod["terminationGracePeriodSeconds"]
        >= float(hook[1]) + supervisor.END_LIMIT_S + taken_address.LEFTOVERS_LIMIT_S
    )


def test_every_folder_that_a_process_writes_to_is_a_volume() -> None:
    for name, container in containers(kustomized("small")).items():
        writable = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
        assert "/tmp" in writable
        assert ("/var/cache/fleetctl" if name == "engine" else "/var/lib/fleetctl") in writable


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_controller_has_the_rights_that_it_needs_and_no_other(overlay: str) -> None:
    manifests = kustomized(overlay)
    roles = {one["metadata"]["name"]: one for one in of_kind(manifests, "Role")}
    assert set(roles) == {"fleetctl-fleet"}
    assert granted(roles["fleetctl-fleet"]) == RIGHTS
    assert roles["fleetctl-fleet"]["metadata"]["namespace"] == ("vllm" if overlay == "attach" else "fleetctl")
    (wide,) = of_kind(manifests, "ClusterRole")
    assert granted(wide) == {"nodes": {"get", "list", "watch"}}
    for binding in (*of_kind(manifests, "RoleBinding"), *of_kind(manifests, "ClusterRoleBinding")):
        assert binding["roleRef"]["name"] == binding["metadata"]["name"]
        (subject,) = binding["subjects"]
        assert (subject["name"], subject["namespace"]) == ("fleetctl-controller", "fleetctl")


def test_only_who_asks_for_it_lets_the_controller_cordon_machines() -> None:
    rights = [granted(one) for one in of_kind(kustomized("ha", ("cordon-hosts",)), "ClusterRole")]
    assert {"nodes": {"patch"}} in rights
    assert [granted(one) for one in of_kind(charted({}), "ClusterRole")] == [{"nodes": {"get", "list", "watch"}}]


def granted(role: Manifest) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for rule in role["rules"]:
        assert "*" not in (*rule["apiGroups"], *rule["resources"], *rule["verbs"])
        for resource in rule["resources"]:
            found.setdefault(resource, set()).update(rule["verbs"])
    return found


def test_what_prometheus_scrapes_are_ports_and_paths_that_are_there() -> None:
    manifests = kustomized("small", ("monitoring",))
    ports = {port["name"] for container in containers(manifests).values() for port in container["ports"]}
    labels = [template["metadata"]["labels"] for template in pod_templates(manifests).values()]
    monitors = of_kind(manifests, "PodMonitor")
    assert len(monitors) == 3
    for monitor in monitors:
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        assert (endpoint["path"], endpoint["port"] in ports) == ("/metrics", True)
        wanted = monitor["spec"]["selector"]
        exists = {one["key"] for one in wanted.get("matchExpressions", ())}
        fitting = [
            one for one in labels if wanted.get("matchLabels", {}).items() <= one.items() and exists <= one.keys()
        ]
        assert len(fitting) == 1, monitor["metadata"]["name"]


@contextmanager
def started(manifests: list[Manifest], name: str, folder: Path, port: int, **instead: str) -> Iterator[str]:
    """A container's command with its environment, settings and rights, as a process of this machine.

    Volumes lie in the folder, and addresses are this machine's; where a read-only root can't be made, it has its own.
    """
    state, scratch, settings = folder / name, folder / f"{name}.tmp", folder / f"{name}.yaml"
    state.mkdir()
    scratch.mkdir()
    (state / "node.token").write_text(TOKEN)
    alone = {key: value for key, value in settings_of(manifests).items() if key != "providers"}  # no cluster is here
    settings.write_text(yaml.safe_dump(alone))
    container = containers(manifests)[name]
    told = {one["name"]: filled(one) for one in container["env"]} | {"HOME": str(state), "TMPDIR": str(scratch)}
    if name == "engine":
        words = [sys.executable, "-m", "fleetctl.node", *here(container["args"], folder, port)]
    else:
        words = [sys.executable, "-m", "fleetctl.cli", *container["args"]]
        told |= {
            "FLEETCTL_CONFIG": str(settings),
            "FLEETCTL_STATE_DIR": str(state),
            f"FLEETCTL_{name.upper()}__HOST": "127.0.0.1",
            f"FLEETCTL_{name.upper()}__PORT": str(port),
        }
    if is_possible():
        give_away(state)
        give_away(scratch)
        words = contained(words, [state, scratch])
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", **told, **instead}
    log = folder / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(words, stdout=output, stderr=output, env=env, cwd=folder)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)
        assert process.returncode == 0, log.read_text()[-3000:]


def here(args: list[str], folder: Path, port: int) -> list[str]:
    """A node's arguments on this machine: without a GPU, with a model and a token of the test."""
    places = {
        "--model=": str(tiny_model_dir()),
        "--host=": "127.0.0.1",
        "--port=": str(port),
        "--admin-token-file=": str(folder / "engine" / "node.token"),
        "--golden-file=": str(folder / "engine" / "golden.json"),
        "--node-name=": "fleetctl-engine-0",
    }
    changed = [next((f"{key}{value}" for key, value in places.items() if one.startswith(key)), one) for one in args]
    return [*changed, "--runner=fake"]


@pytest.mark.e2e
@pytest.mark.waits
def test_all_three_start_from_what_is_rendered_as_another_user_on_a_read_only_root_and_answer_their_probes() -> None:
    manifests = kustomized("small")
    found = containers(manifests)
    asked = httpx.Client(verify=NO_TLS, timeout=5, trust_env=False)

    def answers(url: str, path: str) -> bool:
        try:
            answer = asked.get(url + path)
        except httpx.HTTPError:
            return False
        # Without a node there is no routing table, and a gateway without one is not ready; the process is well.
        is_not_ready = path == "/health" and answer.status_code == 503 and answer.json()["ready"] is False
        return answer.status_code == 200 or is_not_ready

    def all_answered(url: str, name: str) -> None:
        for path in (*(probe["path"] for probe in probes(found[name])), "/metrics"):
            eventually(partial(answers, url, path), f"{name}'s {path}", 90)

    with asked, open_folder() as folder:
        with started(manifests, "controller", folder, reserve_port()) as controller:
            all_answered(controller, "controller")
            with started(manifests, "gateway", folder, reserve_port(), FLEETCTL_CONTROLLER__URL=controller) as gateway:
                all_answered(gateway, "gateway")
        with started(manifests, "engine", folder, reserve_port()) as engine:
            all_answered(engine, "engine")
