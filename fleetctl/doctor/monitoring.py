"""Checks of a Prometheus and of Alertmanagers: our rules there, and whether our webhook is one of their receivers."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import httpx

from fleetctl.doctor.finding import Finding, Health
from fleetctl.kit.errors import BadInputError
from fleetctl.kit.tls import client_tls
from fleetctl.settings.remote import RemoteServer
from fleetctl.settings.tree import Settings

LIMIT_S = 5.0
WEBHOOK_PATH = "/webhooks/alertmanager"
_NOTIFICATIONS = re.compile(
    r"^alertmanager_notifications(?P<failed>_failed)?_total\{(?P<labels>[^}]*)\} (?P<value>\S+)$", re.MULTILINE
)


def check_monitoring(settings: Settings, rules: Callable[[], Collection[str]]) -> Iterator[Finding]:
    """Ask whom the settings name. `rules` gives the names of our alerts: reading them takes a second."""
    prometheus = settings.signals.prometheus
    if prometheus is None:
        yield Finding("Prometheus", Health.unused, "signals.prometheus is not set: we scrape and judge rules ourselves")
    else:
        answer = _ask(prometheus, "/api/v1/rules?type=alert")
        yield from [answer] if isinstance(answer, Finding) else judge_rules(prometheus.url, answer.json(), rules())
    for peer in settings.alertmanagers:
        status, metrics = _ask(peer, "/api/v2/status"), _ask(peer, "/metrics")
        if isinstance(status, Finding):
            yield status
            continue
        told = metrics.text if isinstance(metrics, httpx.Response) else ""
        yield judge_receivers(peer.url, str(status.json().get("config", {}).get("original", "")), told)


def _ask(server: RemoteServer, path: str) -> httpx.Response | Finding:
    name = "Prometheus" if "rules" in path else "Alertmanager"
    try:
        token, basic = server.token(), server.basic()
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        answer = httpx.get(
            f"{server.url}{path}",
            headers=headers,
            auth=basic,
            timeout=LIMIT_S,
            trust_env=False,
            verify=server.tls() or client_tls(),
        )
        answer.raise_for_status()
    except httpx.HTTPStatusError as error:
        mend = "see the credentials in the settings: fleetctl config show"
        return Finding(name, Health.bad, f"{server.url}{path}: answers {error.response.status_code}", mend)
    except (httpx.HTTPError, httpx.InvalidURL, BadInputError) as error:
        return Finding(
            name,
            Health.bad,
            f"{server.url}: {str(error) or type(error).__name__}",
            "see that it runs and the URL is right",
        )
    return answer


def judge_rules(url: str, body: Mapping[str, Any], rules: Collection[str]) -> Iterator[Finding]:
    """Whether that Prometheus has our alerts, and can judge them."""
    groups = (body.get("data") or {}).get("groups") or []
    loaded = {rule.get("name"): rule for group in groups for rule in group.get("rules", [])}
    ours = sorted(set(rules) & set(loaded))
    failing = [f"{name}: {loaded[name].get('lastError')}" for name in ours if loaded[name].get("health") == "err"]
    if failing:
        yield Finding("rules", Health.bad, f"{url}: {failing[0][:200]}", "fleetctl alerts check; then load them again")
    missing = len(set(rules)) - len(ours)
    export = "fleetctl alerts export --to rules; name the folder in rule_files and reload Prometheus"
    if not ours:
        yield Finding("rules", Health.doubtful, f"{url} has none of our {len(set(rules))} alerts", export)
    elif missing:
        yield Finding("rules", Health.doubtful, f"{url} lacks {missing} of our {len(set(rules))} alerts", export)
    elif not failing:
        yield Finding("rules", Health.good, f"{url} has all {len(ours)} alerts")


def judge_receivers(url: str, config: str, metrics: str) -> Finding:
    """Whether that Alertmanager tells us, by its configuration and its own counts of webhooks that failed."""
    if WEBHOOK_PATH not in config:
        return Finding(
            "webhook",
            Health.doubtful,
            f"{url} has no receiver with {WEBHOOK_PATH}: its alerts open no incidents",
            "add the receiver of docs/alertmanager.md",
        )
    sent = failed = 0.0
    for match in _NOTIFICATIONS.finditer(metrics):
        if 'integration="webhook"' in match["labels"]:
            sent, failed = (
                (sent, failed + float(match["value"])) if match["failed"] else (sent + float(match["value"]), failed)
            )
    if failed and failed >= sent / 2:
        return Finding(
            "webhook",
            Health.bad,
            f"{url}: {failed:g} of {sent:g} webhooks failed",
            f"see that Alertmanager's machine reaches the controller's {WEBHOOK_PATH}, and the credentials",
        )
    return Finding("webhook", Health.good, f"{url} tells us; {sent:g} webhooks sent, {failed:g} failed")
