"""`route explain`: where a prompt would go and why; lists of traffic rules by kind, which verbs make and end."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from fleetctl.cli.context import call, command_group, current, gateway_url
from fleetctl.cli.kinds import VIEWS, Kind
from fleetctl.cli.output import (
    DATA,
    ListOutput,
    ListOutputOption,
    Output,
    OutputOption,
    print_data,
    print_rows,
    print_table,
    stdout,
)
from fleetctl.cli.plain_request import ask_json
from fleetctl.kit.errors import BadInputError

MAX_PROMPT_BYTES = 16 * 1024 * 1024
LISTED_KINDS = {
    "reroute": "reroutes",
    "shed": "orders to shed",
    "canary": "canaries",
    "overflow": "orders about overflow",
}
TITLES = ("node", "cost", "cached", "waiting", "to prefill", "seats", "recent", "KV", "adapter")
KEYS = ("node", "cost", "cached_tokens", "waiting", "uncached", "seats", "recent", "kv", "adapter")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(help="Where requests go.", no_args_is_help=True)
    app.add_typer(group, name="route")

    @group.command("explain")
    def explain(
        prompt_file: Annotated[
            Path, typer.Option("--prompt-file", help="The prompt: text, or a completion request as JSON.")
        ],
        model: Annotated[str | None, typer.Option("--model", help="The model; default: what the file says.")] = None,
        tenant: Annotated[
            str | None, typer.Option("--tenant", help="Whose request it is: the `user` that rules go by.")
        ] = None,
        gateway: Annotated[str | None, typer.Option("--gateway", help="URL of the gateway; default: ours.")] = None,
        output: OutputOption = Output.table,
    ) -> None:
        """Say which node the gateway would choose for a prompt, what each would cost, and who is left out and why.

        Nothing is sent to a node. Costs are in tokens of prefill.
        """
        url = (gateway or gateway_url(current().settings())).rstrip("/")
        told = ask_json(f"{url}/gateway/route/explain", request_of(prompt_file, model, tenant))
        if output in DATA:
            print_data(told, output)
        else:
            _show(told)

    for kind, nouns in LISTED_KINDS.items():
        command_group(app, kind).command(
            "list", help=f"List the {nouns} in force; `get traffic-rules` lists all kinds."
        )(rule_list(kind, nouns))


def rule_list(kind: str, nouns: str) -> Callable[..., None]:
    """The command that lists the traffic rules of one kind."""

    def list_rules(output: ListOutputOption = ListOutput.table) -> None:
        view = VIEWS[Kind.traffic_rules]
        rules = [rule for rule in call(lambda client: client.traffic_rules()) if rule.kind == kind]
        print_rows(rules, view.columns, output, empty=f"no {nouns}", name=view.name)

    return list_rules


def request_of(prompt_file: Path, model: str | None, tenant: str | None) -> dict[str, Any]:
    """The completion request that a file stands for. Raises BadInputError."""
    try:
        data = prompt_file.read_bytes()
        text = data.decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadInputError(f"{prompt_file}: can't be read: {reason}", remedy="name a text file in UTF-8") from error
    if len(data) > MAX_PROMPT_BYTES:
        raise BadInputError(f"{prompt_file}: larger than {MAX_PROMPT_BYTES >> 20} MiB", remedy="give a shorter prompt")
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    request = value if isinstance(value, dict) and {"messages", "prompt"} & set(value) else {"prompt": text}
    given = {"model": model, "user": tenant}
    return {**request, **{key: one for key, one in given.items() if one is not None}}


def _worker_words(told: dict[str, Any]) -> str:
    """Which worker of the gateway says so, and where a request goes that another one takes."""
    same = (told["node"], told["reason"])
    others = [f"worker {one['worker']}: {one['node'] or 'none'} ({one['reason']})" for one in told["workers"]]
    differ = [words for words, one in zip(others, told["workers"], strict=True) if (one["node"], one["reason"]) != same]
    by = f"by worker {told['worker']} of {len(others)}, which sent most of this prompt before"
    return f"{by}; {'; '.join(differ) or 'the others choose the same'}"


def _show(told: dict[str, Any]) -> None:
    node = told["node"] or "no node"
    out = stdout()
    out.print(f"{node} ({told['reason']})", markup=False)
    asked = f" (asked for as {told['asked_model']})" if told["asked_model"] != told["model"] else ""
    size = f"{told['input_tokens']} tokens in, {told['output_tokens']} out"
    out.print(f"  model {told['model'] or '-'}{asked}, {size}, {told['num_nodes']} nodes", markup=False)
    for line in (told["refused"], told["note"], ", ".join(told["rules"]) and f"rules: {', '.join(told['rules'])}"):
        if line:
            out.print(f"  {line}", markup=False)
    if len(told["workers"]) > 1:
        out.print(f"  {_worker_words(told)}", markup=False)
    rows = [[str(one[key]) for key in KEYS] for one in told["candidates"]]
    print_table(TITLES, rows, empty="no candidates")
    for one in told["left_out"]:
        out.print(f"left out: {one['node']}: {one['reason']}", markup=False)
