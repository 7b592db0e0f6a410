"""A page per action, written from its declaration: what it takes, does, guards, verifies and undoes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from runbooks.command import parse_command
from runbooks.page import Page
from runbooks.verb import Action, Option, Verb

INDEX = "README.md"
MADE_BY = (
    "<!-- Made by `fleetctl content docs docs/actions --of actions` from the verbs: change those, not this page. -->"
)
PAGE_FOLDER = "../../runbooks/library"  # from docs/actions
_ELSEWHERE = (
    ("replace NODE", "a runbook: start a replacement, wait until it is ready, drain and stop", "replace-node.md"),
    ("freeze, unfreeze", "let no automation act for a time", "../guards.md#freeze"),
    ("rollout status, rollout history", "look at a rollout", "../rollouts.md"),
    ("gateway keys", "the gateways' keys", "../gateway.md"),
)


def verb_pages(verbs: Mapping[str, Verb], library: Mapping[str, Page]) -> dict[str, str]:
    """File name to text: one per verb, and the index."""
    pages = {page_name(verb): "\n".join(_page(verb, library)) + "\n" for verb in verbs.values()}
    return {INDEX: "\n".join(_index(verbs.values())) + "\n", **pages}


def page_name(verb: Verb) -> str:
    """`rollout-start.md`."""
    return verb.name.replace(" ", "-") + ".md"


def _index(verbs: Iterable[Verb]) -> Iterator[str]:
    yield "# Actions"
    yield ""
    yield MADE_BY
    yield ""
    yield "What people, pages, the cockpit and scripts can do to a fleet. Each is a command, a step of a runbook, and a"
    yield '`POST /v1/actions` with `{"command": "..."}`; each is written to the journal and the audit before it acts.'
    yield "Those that change something take `--dry-run`, ask on a terminal (`--yes` in a script), and are refused by a"
    yield "guard with its figures (exit code 3): [guards](../guards.md). How to write one into a page:"
    yield "[runbooks](../runbooks.md)."
    yield ""
    yield "| action | what it does | to the nodes that serve | undone by |"
    yield "|---|---|---|---|"
    for verb in verbs:
        undo = f"`{_undo(verb)}`" if verb.undo else "-"
        yield f"| [`{verb.name}`]({page_name(verb)}) | {_cell(verb.help)} | {verb.capacity.label} | {undo} |"
    for name, what, link in _ELSEWHERE:
        target = f"{PAGE_FOLDER}/{link}" if "/" not in link else link
        yield f"| [`{name}`]({target}) | {what} | | |"


def _page(verb: Verb, library: Mapping[str, Page]) -> Iterator[str]:
    action = parse_command(verb.example)
    yield f"# {verb.name}"
    yield ""
    yield MADE_BY
    yield ""
    yield verb.help
    yield ""
    yield "```console"
    yield f"fleetctl {verb.example}{' --dry-run' if verb.mutates else ''}"
    yield f"fleetctl {verb.example}"
    yield "```"
    yield ""
    yield f"Usage: `{verb.usage}`"
    if verb.options:
        yield ""
        yield "| option | takes | default | |"
        yield "|---|---|---|---|"
        yield from (_option_row(option) for option in verb.options)
    yield ""
    yield "| | |"
    yield "|---|---|"
    yield f"| acts on | {' or '.join(kind.value for kind in verb.kinds)}{_selected(verb)} |"
    yield f"| the nodes that serve | {verb.capacity.label}{_guarded(verb)} |"
    yield f"| its dry run says | {_cell(action.predicted)} |"
    yield f"| called again | {_cell(verb.idempotency)} |"
    yield f"| verified | {_verified(action)} |"
    yield f"| undone by | {f'`{_undo(verb)}`' if verb.undo else 'nothing: a run of this one command is not undone'} |"
    if verb.shortcuts:
        keys = ", ".join(f"`{one.key}` {one.label}" for one in verb.shortcuts)
        yield f"| keys in the cockpit | {keys} |"
    if used := sorted(name for name, page in library.items() if _uses(page, verb)):
        yield f"| pages that do it | {', '.join(f'[{name}]({PAGE_FOLDER}/{name}.md)' for name in used)} |"


def _option_row(option: Option) -> str:
    default = "required" if option.required else f"`{option.default_text}`" if option.default_text is not None else ""
    return f"| `{option.name}` | {option.kind} | {default} | {_cell(option.help)} |"


def _selected(verb: Verb) -> str:
    return "; several by labels (`--pool chat -l zone=a --at-once 2`)" if verb.takes_selector else ""


def _guarded(verb: Verb) -> str:
    moves = "; its requests finish or move to others first" if verb.moves_requests else ""
    return (
        f"{moves}; refused below the [capacity floor](../operate.md#act)" if "removes" in verb.capacity.label else moves
    )


def _verified(action: Action) -> str:
    if action.verb.verify is None:
        return "by its own receipt"
    found = action.verb.verify(action)
    return f"{_cell(found.words)}, for {found.settle_s:g} s within {found.within_s:g} s; else it is undone"


def _undo(verb: Verb) -> str:
    return "fleetctl " + verb.undo.replace("{target}", str(parse_command(verb.example).target))


def _uses(page: Page, verb: Verb) -> bool:
    name = verb.name
    return any(step.command == name or step.command.startswith(f"{name} ") for step in (*page.steps, *page.undo))


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
