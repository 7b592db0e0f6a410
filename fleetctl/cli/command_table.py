"""Which file a command is in, and its line of help: what `fleetctl --help` and completion need, without those files.

A command's line is its own first one; a group's is written here. tests/fleetctl/cli/test_command_table.py holds both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Entry:
    """One word after `fleetctl`: its help, and the modules of this folder that make it."""

    help: str
    modules: Sequence[str]


def _of(help: str, *modules: str) -> Entry:
    return Entry(help, modules)


PANELS: Mapping[str, Mapping[str, Entry]] = {
    "See": {
        "status": _of(
            "Show the controller's state: its loops, and what it sends to and gets from Alertmanager.", "status"
        ),
        "get": _of("List nodes, pools, gateways, alerts, incidents, runs, or things of another kind.", "get"),
        "describe": _of(
            "Show one node, pool, revision, rollout, gateway, incident, run, receipt or runbook with all of it.",
            "describe",
        ),
        "top": _of("Open the cockpit: the fleet live, incidents with evidence, approvals by one key.", "top"),
        "events": _of(
            "Print what happened, oldest first: nodes, alerts, incidents, runs, people; -f goes on as it happens.",
            "events",
        ),
        "logs": _of("Print the last lines that a node wrote, wherever it runs.", "logs"),
        "diagnose": _of("Say what is wrong here and why, with the evidence; or that nothing is.", "diagnose"),
        "incident": _of("Incidents: evidence, actions, timeline, post-mortem.", "incident"),
        "audit": _of("List who changed what, when, why and with which outcome, the newest last.", "audit"),
        "receipt": _of("Receipts of drains: what became of each request.", "receipt"),
        "explain": _of("Say what can be listed, and what each field of it means.", "explain"),
        "diff": _of(
            "Show what differs between two revisions: model directory, engine arguments, adapters, prompt template.",
            "diff",
        ),
        "discover": _of(
            "Look once at everything that fleet.targets lists: who answers, which engine it is, what is wrong.",
            "discover",
        ),
        "hosts": _of(
            "Look once at every node of providers.hosts: whether its unit runs. No controller is needed.", "hosts"
        ),
    },
    "Act": {
        "drain": _of("Cordon a node, let its requests finish or move, and show the receipt.", "act"),
        "cordon": _of("Send no new requests to a node; what runs there goes on.", "act"),
        "uncordon": _of("Let a cordoned or drained node take requests again.", "act"),
        "restart": _of("Stop and start a drained node under its own name.", "act"),
        "replace": _of(
            "Start a replacement, wait until it is ready, then drain and stop the node (runbook replace-node).", "act"
        ),
        "scale": _of("Give a pool more nodes, or drain and stop some of its nodes.", "act"),
        "limits": _of("Change limits of a running node: how many requests and tokens it takes at once.", "act"),
        "sleep": _of("Let a drained node give the memory of its weights and KV cache back.", "act"),
        "wake": _of("Let a node that sleeps load its weights again, and send it requests once it is ready.", "act"),
        "reset-prefix-cache": _of("Let a node forget its cached prompts.", "act"),
        "runbook": _of("Runbooks: pages that people read and automation runs.", "runbook"),
        "rollout": _of("Roll a revision out to a pool, step by step, and back.", "act", "rollout"),
        "freeze": _of(
            "Let no automation act, and people only with --override REASON. What is under way goes on to its end.",
            "freeze",
        ),
        "unfreeze": _of(
            "End a freeze, or all of them, now. What automation would have run starts, where its cause still stands.",
            "freeze",
        ),
        "silence": _of("Mute alerts for a time, in Alertmanager or here.", "act", "silence"),
        "notify": _of(
            "Tell a receiver of the settings (notifications.receivers), with run and incident.", "act", "notify"
        ),
        "ask": _of("Ask a person, and wait for the answer: runbook approve is yes, runbook deny is no.", "act"),
        "wait": _of("Wait until an expression holds for a while.", "act"),
        "exec": _of("Call an executable of the settings (actions.programs), without a shell.", "act"),
        "evidence": _of("Write down what a node says of itself.", "act"),
        "adapter": _of("Give running nodes LoRA adapters, and take them away.", "act"),
        "profile": _of("Let a node's engine record what it does.", "act"),
        "node": _of("Start, stop and read single nodes.", "act", "servers"),
        "pool": _of("Say who may set a pool's size.", "act"),
        "host": _of("Keep new nodes from a machine, or let them on it again.", "act"),
        "autoscale": _of("What the autoscaler would do, or does, with each pool.", "autoscale"),
    },
    "Traffic": {
        "route": _of("Where requests go.", "route"),
        "reroute": _of("Give some requests nodes of their own, for a time.", "act", "route"),
        "canary": _of(
            "Send a share of the sessions to a pool or revision, and all others elsewhere, for a time.", "act", "route"
        ),
        "shadow": _of(
            "Send copies of a share of the requests to a pool or revision, and compare the answers, for a time.",
            "act",
            "shadow",
        ),
        "shed": _of("Turn requests of less important classes away at the gateways, for a time.", "act", "route"),
        "overflow": _of("Whether requests may go out of the house, and how long.", "act", "route"),
        "gateway": _of("Run and restart gateways, and keep their keys.", "act", "servers"),
        "prefix": _of("What keeps prompts from sharing KV blocks.", "prefix"),
    },
    "Content": {
        "alerts": _of("Check, test, explain, backtest and export alert rules.", "alerts"),
        "tree": _of("Decision trees: what is asked, in which order, and what it says.", "tree"),
        "content": _of("Rules, trees, causes and pages: ours and your own.", "content"),
        "replay": _of(
            "Run a recorded incident again: alerts, verdicts and their times, by content as it is or as you edited it.",
            "replay",
        ),
    },
    "Installation": {
        "up": _of("Start a fleet on this machine and wait until every node is ready.", "lifecycle"),
        "down": _of("Stop every process of this machine's fleet. State and incidents stay.", "lifecycle"),
        "demo": _of(
            "Start a fleet, slow one node down, and mend it: a guided tour on a terminal, by itself elsewhere.", "demo"
        ),
        "doctor": _of(
            "Look at this installation and all that it reaches, and say how to mend what is wrong.", "doctor"
        ),
        "load": _of(
            "Send traffic and say what became of each request. Ctrl-C stops sending and waits for what is in flight.",
            "load",
        ),
        "drill": _of("Break a node on purpose, where nodes were started for it, and mend it again.", "drill"),
        "config": _of("Settings: in force, and explained.", "config"),
        "token": _of("Named tokens: who may ask the controller for what.", "token"),
        "manifests": _of(
            "Write manifests for Kubernetes: kustomize overlays and a Helm chart, with the rules in force.",
            "manifests",
        ),
        "controller": _of("The controller process.", "servers"),
    },
}

COMMANDS: Mapping[str, Entry] = {name: entry for panel in PANELS.values() for name, entry in panel.items()}
PANEL_OF: Mapping[str, str] = {name: panel for panel, entries in PANELS.items() for name in entries}
MODULES: Sequence[str] = tuple(dict.fromkeys(module for entry in COMMANDS.values() for module in entry.modules))
