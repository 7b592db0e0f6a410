"""Labels of a Prometheus that is not ours, as our signals want them."""

from __future__ import annotations

import numpy as np
import pytest

from alerts.history.fleet_labels import FleetLabels
from alerts.history.prometheus_source import RangeSeries
from alerts.labels import LabelSet


def row(name: str, **labels: str) -> RangeSeries:
    return RangeSeries(LabelSet.of({"__name__": name, **labels}), np.array([0]), np.array([1.0]))


def test_engine_node_pool_and_model_are_read_off_what_is_scraped() -> None:
    rows = [
        row("up", job="chat", instance="10.0.0.1:8000"),
        row("vllm:num_requests_running", job="chat", instance="10.0.0.1:8000", model_name="llama", engine="0"),
        row("up", job="chat", instance="10.0.0.2:8000"),
        row("sglang:num_running_reqs", job="chat", instance="10.0.0.2:8000", model_name="llama"),
        row("up", job="other", instance="10.0.0.9:9100"),
    ]
    label = FleetLabels(rows)

    up = label(rows[0].labels).as_dict()
    assert (up["engine"], up["node"], up["pool"], up["model"]) == ("vllm", "10.0.0.1:8000", "chat", "llama")
    assert label(rows[1].labels).get("exported_engine") == "0"
    assert label(rows[3].labels).get("engine") == "sglang"
    assert label(rows[4].labels) == rows[4].labels


def test_pods_on_one_machine_are_nodes_of_their_own() -> None:
    rows = [
        row("vllm:num_requests_running", job="v", instance=f"10.0.0.{i}:8000", pod=f"v-{i}", node="machine-1")
        for i in (1, 2)
    ]

    assert [FleetLabels(rows)(one.labels).get("node") for one in rows] == ["v-1", "v-2"]


def test_a_gpu_exporter_belongs_to_the_only_engine_on_its_host() -> None:
    rows = [
        row("vllm:num_requests_running", job="v", instance="host-1:8000", pod="v-1"),
        row("DCGM_FI_DEV_GPU_TEMP", job="dcgm", instance="host-1:9400", gpu="0"),
    ]
    label = FleetLabels(rows)

    assert label(rows[1].labels).get("node") == label(rows[0].labels).get("node") == "v-1"
    assert label(rows[1].labels).get("engine") == "dcgm"


def test_what_node_exporter_tells_is_told_of_the_only_engine_on_its_host() -> None:
    rows = [
        row("vllm:num_requests_running", job="v", instance="host-1:8000", pod="v-1"),
        row("node_load1", job="node-exporter", instance="host-1:9100", pod="node-exporter-x7"),
        row("node_load1", job="node-exporter", instance="host-2:9100", pod="node-exporter-k2"),
        row("up", job="node-exporter", instance="host-1:9100", pod="node-exporter-x7"),
    ]
    label = FleetLabels(rows)

    load = label(rows[1].labels)
    assert (load.get("node"), load.get("pool"), load.get("engine")) == ("v-1", "v", "")
    assert [label(one.labels) for one in rows[2:]] == [one.labels for one in rows[2:]]


@pytest.mark.parametrize("name", ["exported_pod", "pod"])
def test_a_card_belongs_to_the_pod_that_uses_it_also_beside_others_on_its_host(name: str) -> None:
    rows = [
        *(row("vllm:num_requests_running", job="v", instance=f"10.1.0.{i}:8000", pod=f"v-{i}") for i in (1, 2)),
        row("DCGM_FI_DEV_GPU_TEMP", job="dcgm", instance="10.1.0.9:9400", gpu="3", **{name: "v-2"}),
    ]
    card = FleetLabels(rows)(rows[2].labels)
    assert (card.get("node"), card.get("pool")) == ("v-2", "v")


def test_pods_have_the_host_that_kubernetes_tells() -> None:
    rows = [
        row("vllm:num_requests_running", job="v", instance="10.1.0.7:8000", pod="v-1"),
        row("DCGM_FI_DEV_GPU_TEMP", job="dcgm", instance="10.1.0.9:9400", gpu="0"),
        row("node_load1", job="node-exporter", instance="192.0.2.4:9100"),
        *(
            row("kube_pod_info", job="kube", instance="10.1.0.2:8080", pod=pod, pod_ip=ip, host_ip="192.0.2.4")
            for pod, ip in (("v-1", "10.1.0.7"), ("dcgm-exporter-b", "10.1.0.9"))
        ),
    ]
    label = FleetLabels(rows)

    assert [label(one.labels).get("node") for one in rows[:3]] == ["v-1"] * 3
    assert [label(one.labels).get("pool") for one in rows[:3]] == ["v"] * 3
    assert label(rows[3].labels) == rows[3].labels


def test_labels_that_are_stated_win_and_ours_stand() -> None:
    theirs = row("vllm:num_requests_running", job="v", instance="h:1", namespace="chat")
    ours = row(
        "vllm:num_requests_running", job="v", instance="h:2", node="node-1", pool="code", engine="fleetctl", model="m"
    )

    assert FleetLabels([theirs], {"pool": "$namespace", "zone": "a"})(theirs.labels).get("pool") == "chat"
    assert FleetLabels([ours])(ours.labels) == ours.labels
