"""What the provider is told of the cluster: the settings `providers.kubernetes`, checked and with their defaults."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesOptions:
    """Field by field `fleetctl.settings.kubernetes.KubernetesSettings`, which says what each one means."""

    kubeconfig: Path | None
    context: str | None
    namespaces: tuple[str, ...]
    selector: str
    pool_labels: tuple[str, ...]
    model_labels: tuple[str, ...]
    engine_labels: tuple[str, ...]
    api_key_labels: tuple[str, ...]
    api_key: str
    zone_labels: tuple[str, ...]
    sku_labels: tuple[str, ...]
    stale_after_s: float
    may_cordon_hosts: bool
