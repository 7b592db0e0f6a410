"""What kustomize and helm render: the Kubernetes API takes it, both render the same, and pods may do little."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.fixtures.manifests import (
    CHART,
    Key,
    Manifest,
    by_key,
    charted,
    faults_of,
    helm_template,
    kustomized,
    of_kind,
    pod_templates,
    run_kube_tool,
)

EVERYTHING = {"podMonitors": True, "rules": True, "dashboards": True}
HA = {
    "controller": {"replicas": 2, "database": {"existingSecret": "fleetctl-database"}},
    "gateway": {"replicas": 2},
}
FLEET = {
    "namespaces": ["vllm"],
    "selector": "app=vllm",
    "engine_labels": ["fleetctl.dev/engine", "app"],
    "pool_labels": ["fleetctl.dev/pool"],
    "model_labels": ["fleetctl.dev/model", "model"],
}
ATTACH = {"engine": {"enabled": False}, "fleet": FLEET}
SAME = [  # overlay, components, values of the chart that choose the same
    pytest.param("small", (), {}, id="small"),
    pytest.param("ha", (), HA, id="ha"),
    pytest.param("attach", (), ATTACH, id="attach"),
    pytest.param("small", ("monitoring",), {"monitoring": EVERYTHING}, id="monitoring"),
    pytest.param("ha", ("cordon-hosts",), {**HA, "cordonHosts": True}, id="cordon-hosts"),
]
ONLY_HELMS = ("app.kubernetes.io/managed-by", "helm.sh/chart")
CLUSTER_WIDE = {"Namespace", "ClusterRole", "ClusterRoleBinding"}


@pytest.mark.parametrize(("overlay", "components", "values"), SAME)
def test_the_api_takes_every_object_and_no_field_is_unknown_to_it(
    overlay: str, components: tuple[str, ...], values: dict[str, Any]
) -> None:
    for one in (*kustomized(overlay, components), *charted(values)):
        assert faults_of(one) == [], one["metadata"]["name"]


def test_a_field_that_the_api_does_not_know_is_noticed() -> None:
    workload = copy.deepcopy(of_kind(kustomized("small"), "Deployment")[0])
    workload["spec"]["template"]["spec"]["containers"][0]["livenessprobe"] = {}
    assert faults_of(workload) != []
    rule = {"apiVersion": "monitoring.coreos.com/v1", "kind": "PodMonitor", "metadata": {"name": "a"}}
    assert faults_of({**rule, "spec": {"selector": {}, "endpoints": []}}) != []


@pytest.mark.parametrize(("overlay", "components", "values"), SAME)
def test_helm_renders_what_kustomize_renders_for_the_same_choices(
    overlay: str, components: tuple[str, ...], values: dict[str, Any]
) -> None:
    of_kustomize = plain(one for one in kustomized(overlay, components) if one["kind"] != "Namespace")
    of_helm = plain(charted(values))
    assert of_helm.keys() == of_kustomize.keys()
    for key, one in of_helm.items():
        assert one == of_kustomize[key], key


def plain(manifests: Any) -> dict[Key, Manifest]:
    """Without what one of both adds on purpose: Helm's own labels and its checksum, the hash in a ConfigMap's name."""
    return by_key(_plain(one) for one in manifests)


def _plain(manifest: Manifest) -> Manifest:
    one = copy.deepcopy(manifest)
    for label in ONLY_HELMS:
        one["metadata"].get("labels", {}).pop(label, None)
    template = one.get("spec", {}).get("template")
    if template is not None:
        template["metadata"].get("annotations", {}).pop("checksum/settings", None)
        if not template["metadata"].get("annotations", True):
            del template["metadata"]["annotations"]
        for volume in template["spec"]["volumes"]:
            if "configMap" in volume:
                volume["configMap"]["name"] = _unhashed(volume["configMap"]["name"])
        template["spec"]["volumes"].sort(key=lambda volume: volume["name"])
    for claim in one.get("spec", {}).get("volumeClaimTemplates", ()):
        for key in ("apiVersion", "kind"):
            claim.pop(key, None)
    if one["kind"] == "ConfigMap":
        one["metadata"]["name"] = _unhashed(one["metadata"]["name"])
        if "fleetctl.yaml" in one["data"]:
            one["data"]["fleetctl.yaml"] = yaml.safe_load(one["data"]["fleetctl.yaml"])
    return one


def _unhashed(name: str) -> str:
    return re.sub(r"^(fleetctl-settings)-[a-z0-9]{10}$", r"\1", name)


def test_changed_settings_roll_the_pods_out() -> None:
    before, after = (pod_templates(charted({"settings": {"log": {"level": level}}})) for level in ("info", "debug"))
    for name in ("fleetctl-controller", "fleetctl-gateway"):
        assert before[name] != after[name]
    assert before["fleetctl-engine"] == after["fleetctl-engine"]
    names = {volume["configMap"]["name"] for volume in volumes(kustomized("small")) if "configMap" in volume}
    assert all(_unhashed(name) != name for name in names)


def test_secrets_of_receivers_are_files_of_the_controller_alone() -> None:
    made = charted({"controller": {"receivers": {"existingSecret": "oncall"}}})
    assert [fault for one in made for fault in faults_of(one)] == []
    mounts = {
        name: [one["mountPath"] for one in container["volumeMounts"] if one["name"] == "receivers"]
        for name, template in pod_templates(made).items()
        for container in template["spec"]["containers"]
    }
    assert mounts == {
        "fleetctl-controller": ["/etc/fleetctl-receivers"],
        "fleetctl-gateway": [],
        "fleetctl-engine": [],
    }
    secrets = [one["secret"]["secretName"] for one in volumes(made) if one["name"] == "receivers"]
    assert secrets == ["oncall"]


def volumes(manifests: list[Manifest]) -> Iterator[Manifest]:
    for template in pod_templates(manifests).values():
        yield from template["spec"]["volumes"]


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"controler": {}}, "controler"),
        ({"engine": {"replicas": -1}}, "/engine/replicas"),
        ({"controller": {"replicas": 2}}, "existingSecret"),
        ({"engine": {"model": {"path": "/elsewhere"}}}, "/engine/model/path"),
    ],
)
def test_values_that_can_not_work_are_refused_by_name(values: dict[str, Any], told: str) -> None:
    done = helm_template(values)
    assert done.returncode != 0
    assert told in done.stderr


def test_the_chart_has_nothing_that_helms_linter_minds() -> None:
    done = run_kube_tool("helm", "lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout


def test_two_releases_in_one_cluster_share_no_object() -> None:
    both = [by_key(charted(HA, release=release)) for release in ("fleet-a", "fleet-b")]
    assert not both[0].keys() & both[1].keys()


@pytest.mark.parametrize("overlay", ["small", "ha", "attach"])
def test_every_object_has_its_namespace_and_every_label_that_selects(overlay: str) -> None:
    for kind, namespace, name in by_key(kustomized(overlay)):
        assert (namespace == "") == (kind in CLUSTER_WIDE), (kind, name)
    for template in pod_templates(kustomized(overlay)).values():
        assert set(template["metadata"]["labels"]) >= {
            "app.kubernetes.io/name",
            "app.kubernetes.io/instance",
            "app.kubernetes.io/component",
        }


@pytest.mark.parametrize("overlay", ["small", "ha", "attach"])
def test_what_selects_pods_selects_those_of_one_workload(overlay: str) -> None:
    manifests = kustomized(overlay)
    templates = pod_templates(manifests)
    selectors = {
        (one["kind"], one["metadata"]["name"]): one["spec"]["selector"].get("matchLabels", one["spec"]["selector"])
        for kind in ("Service", "PodDisruptionBudget", "StatefulSet", "Deployment")
        for one in of_kind(manifests, kind)
    } | {
        ("NetworkPolicy", one["metadata"]["name"]): one["spec"]["podSelector"]["matchLabels"]
        for one in of_kind(manifests, "NetworkPolicy")
    }
    for (kind, name), selector in selectors.items():
        selected = [
            workload
            for workload, template in templates.items()
            if selector.items() <= template["metadata"]["labels"].items()
        ]
        assert selected == [name.removesuffix("-pods")], (kind, name)


@pytest.mark.parametrize("overlay", ["small", "ha", "attach"])
def test_pods_have_no_right_that_they_do_not_need(overlay: str) -> None:
    for name, template in pod_templates(kustomized(overlay)).items():
        pod = template["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] >= 10_000
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is (name == "fleetctl-controller")
        assert pod["serviceAccountName"] == name
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
        for key in ("hostNetwork", "hostPID", "hostIPC"):
            assert key not in pod
        assert not [volume for volume in pod["volumes"] if "hostPath" in volume]


@pytest.mark.parametrize("overlay", ["small", "ha", "attach"])
def test_secrets_are_named_and_never_written_down(overlay: str) -> None:
    manifests = kustomized(overlay)
    assert of_kind(manifests, "Secret") == []
    for template in pod_templates(manifests).values():
        for container in template["spec"]["containers"]:
            for variable in container["env"]:
                if variable["name"].endswith(("TOKEN", "DATABASE_URL")):
                    assert set(variable["valueFrom"]) == {"secretKeyRef"}
                    assert not variable["valueFrom"]["secretKeyRef"].get("optional", False)


def test_the_rules_keep_their_templates_in_the_chart() -> None:
    (rule,) = [one for one in charted({"monitoring": EVERYTHING}) if one["metadata"]["name"] == "fleetctl-rules-node"]
    rules = [each for group in rule["spec"]["groups"] for each in group["rules"]]
    texts = [each.get("annotations", {}).get("summary", "") for each in rules]
    assert any("{{ $labels.node }}" in text for text in texts)
