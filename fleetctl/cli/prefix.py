"""`prefix`: what keeps prompts from sharing KV blocks, in the traffic of a gateway and between two prompt files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from fleetctl.cli.context import current, gateway_url
from fleetctl.cli.output import DATA, Output, OutputOption, print_data, print_table, stdout, visible
from fleetctl.cli.plain_request import ask_json
from fleetctl.kit.errors import BadInputError, UnreachableError

TITLES = ("template", "tenant", "requests", "lost/req", "from", "kind", "remedy")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(help="What keeps prompts from sharing KV blocks.", no_args_is_help=True)
    app.add_typer(group, name="prefix")

    @group.command("report")
    def report(
        gateway: Annotated[str | None, typer.Option("--gateway", help="URL of the gateway; default: ours.")] = None,
        output: OutputOption = Output.table,
    ) -> None:
        """Say which templates carry fields early that differ in every request, and what that costs.

        Tokens of a prompt that stood behind such a field and were equal again are lost to the prefix cache.
        """
        url = (gateway or gateway_url(current().settings())).rstrip("/")
        rows: list[dict[str, Any]] = ask_json(f"{url}/gateway/prefix-report")["templates"]
        if output in DATA:
            print_data(rows, output)
        else:
            print_table(TITLES, [_cells(row) for row in rows], empty="no prompt was looked at yet")

    @group.command("check")
    def check(
        old: Annotated[Path, typer.Argument(metavar="OLD", help="A prompt: text, or a chat request as JSON.")],
        new: Annotated[Path, typer.Argument(metavar="NEW", help="The same after a change.")],
        min_tokens: Annotated[
            int | None,
            typer.Option("--min-tokens", min=1, help="Must be equal; default: all of the shorter prompt."),
        ] = None,
        tokenizer_url: Annotated[
            str | None,
            typer.Option("--tokenizer-url", help="A node whose /tokenize counts; default: 4 characters a token."),
        ] = None,
        output: OutputOption = Output.table,
    ) -> None:
        """Say how many tokens two prompts share from the start. Exit 1 when they are fewer than --min-tokens."""
        from fleetctl.gateway.prompts.divergence import diverge

        prompts = [_read_prompt(old), _read_prompt(new)]
        before, after = (_text(prompt) for prompt in prompts)
        tokens = None
        if tokenizer_url is not None:
            ids = [_token_ids(tokenizer_url.rstrip("/"), prompt) for prompt in prompts]
            tokens = (ids[0], ids[1])
        found = diverge(before, after, tokens=tokens)
        wanted = min(found.old_tokens, found.new_tokens) if min_tokens is None else min_tokens
        is_enough = found.tokens >= wanted
        line = before.count("\n", 0, found.chars) + 1
        if output in DATA:
            said: dict[str, Any] = {"is_enough": is_enough, "wanted_tokens": wanted, "equal_tokens": found.tokens}
            said |= {"old_tokens": found.old_tokens, "new_tokens": found.new_tokens}
            said |= {"is_estimated": tokens is None, "kind": found.kind.value if found.kind else None}
            print_data(said | {"line": line if found.kind else None}, output)
        else:
            how = "estimated at 4 characters a token" if tokens is None else "counted by the node's tokenizer"
            stdout().print(
                f"first {found.tokens:,} tokens equal, of {found.old_tokens:,} and {found.new_tokens:,} ({how})"
            )
            if found.kind is not None:
                stdout().print(f"line {line}: {found.kind.value.replace('_', ' ')} differs", markup=False)
                for mark, text in (("-", found.old_context), ("+", found.new_context)):
                    stdout().print(visible(f"  {mark} {_one_line(found.before)}|{_one_line(text or '')}"), markup=False)
            if not is_enough:
                stdout().print(f"fewer than {wanted:,} tokens are equal")
        if not is_enough:
            raise typer.Exit(1)


def _cells(row: dict[str, Any]) -> list[str]:
    start = row["first_difference_tokens"]
    return [
        str(row["template"]),
        str(row["tenant"]),
        str(row["requests"]),
        f"{row['lost_tokens_per_request']:,.0f}",
        "-" if start is None else str(start),
        str(row["kind"] or "-").replace("_", " "),
        str(row["remedy"] or "") if row["lost_tokens_per_request"] else "",
    ]


def _one_line(text: str) -> str:
    return text.replace("\r", "\\r").replace("\n", "\\n")


def _read_prompt(path: Path) -> str | dict[str, Any]:
    """A chat request or a text. Raises BadInputError naming the file."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "not UTF-8 text"
        raise BadInputError(f"{path}: {why}", remedy="name a file with a prompt: text, or a chat request") from error
    if path.suffix != ".json":
        return text
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadInputError(f"{path}: not JSON: {error}", remedy="name plain text .txt") from error
    value = {"messages": value} if isinstance(value, list) else value
    from fleetctl.gateway.prompts.messages import messages_of

    if not isinstance(value, dict) or (messages_of(value) is None and not isinstance(value.get("prompt"), str)):
        remedy = "give a list of messages, or an object with `messages` or `prompt`"
        raise BadInputError(f"{path}: no chat request", remedy=remedy)
    return value


def _text(prompt: str | dict[str, Any]) -> str:
    from fleetctl.gateway.prompts.messages import prompt_text

    return prompt if isinstance(prompt, str) else prompt_text(prompt)


def _token_ids(url: str, prompt: str | dict[str, Any]) -> list[int]:
    """The prompt's tokens, with the model's own template around a chat."""
    keys = ("model", "messages", "tools", "prompt")
    question = {"prompt": prompt} if isinstance(prompt, str) else {key: prompt[key] for key in keys if key in prompt}
    tokens = ask_json(f"{url}/tokenize", question).get("tokens")
    if not isinstance(tokens, list) or not all(isinstance(one, int) for one in tokens):
        raise UnreachableError(f"{url}/tokenize: no token ids in the answer", remedy="leave --tokenizer-url out")
    return tokens
