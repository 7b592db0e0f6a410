"""Where people find more about an incident: its page, and the dashboards of its place and time. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote, urlencode

from fleetctl.settings.notifications import LinkSettings

NODE_DASHBOARD, FLEET_DASHBOARD = "fleetctl-node", "fleetctl-fleet"  # `uid` in alerts/dashboards
LEAD_S = 1800.0  # what a dashboard shows from before the onset, and after the end


def incident_link(links: LinkSettings, base_url: str, incident_id: str) -> str:
    """The incident's page: the one of the settings, else the controller's own."""
    if links.incident_url is not None:
        return links.incident_url.replace("{incident}", quote(incident_id, safe=""))
    return f"{base_url.rstrip('/')}/v1/incidents/{quote(incident_id, safe='')}/postmortem?format=html"


def dashboard_link(links: LinkSettings, scope: Mapping[str, str], since: float, until: float | None) -> str:
    """Our dashboard of the incident's node, or of its pool and model, in its time; "" without a Grafana."""
    if links.grafana_url is None:
        return ""
    names = ("node",) if scope.get("node") else ("pool", "model")
    uid = NODE_DASHBOARD if scope.get("node") else FLEET_DASHBOARD
    query = {f"var-{name}": scope[name] for name in names if scope.get(name)}
    query |= {
        "from": str(int((since - LEAD_S) * 1000)),
        "to": "now" if until is None else str(int((until + LEAD_S) * 1000)),
    }
    return f"{links.grafana_url.rstrip('/')}/d/{uid}?{urlencode(query)}"
