"""A page per cause, written from its YAML: what it is, how it shows, what it is told apart by, what to do. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from diagnostics.cause import Cause
from diagnostics.evidence.question import Question
from diagnostics.expectation import Expectation

INDEX = "README.md"
MADE_BY = "<!-- Made by `fleetctl content docs` from the causes and questions: change those, not this page. -->"
PAGE_FOLDER = "../../runbooks/library"  # from docs/causes
NOT_NAMED = 0.1  # how often a cause that says nothing of a question has a yes to it


def cause_pages(causes: Mapping[str, Cause], questions: Mapping[str, Question]) -> dict[str, str]:
    """File name to text: one per cause that says what it expects, and the index."""
    told = {name: one for name, one in sorted(causes.items()) if one.expects is not None}
    pages = {f"{name}.md": _lines(_page(one, told, questions)) for name, one in told.items()}
    return {INDEX: _lines(_index(told.values())), **pages}


def _lines(lines: Iterable[str]) -> str:
    return "\n".join(lines) + "\n"


def _index(causes: Iterable[Cause]) -> Iterator[str]:
    yield "# Causes"
    yield ""
    yield MADE_BY
    yield ""
    yield "What a diagnosis can name, and what treats it. All are scored against the same evidence:"
    yield "[diagnostics](../../diagnostics/README.md)."
    yield ""
    yield "| cause | what it is | where it may show | treated by |"
    yield "|---|---|---|---|"
    for one in causes:
        assert one.expects is not None
        trees = ", ".join(sorted(one.expects.explains))
        yield f"| [`{one.name}`]({one.name}.md) | {one.title} | {trees} | {_remedy_word(one)} |"


def _page(cause: Cause, causes: Mapping[str, Cause], questions: Mapping[str, Question]) -> Iterator[str]:
    expects = cause.expects
    assert expects is not None
    yield f"# {cause.title}"
    yield ""
    yield MADE_BY
    yield ""
    yield f"`{cause.name}`: {cause.means}"
    yield ""
    if expects.lasts_s:
        yield f"It is confirmed once it has gone on for {expects.lasts_s:.0f} s: what passes by itself is shorter."
        yield ""
    if expects.at_most == "likely":
        yield "Its evidence only coincides, so that a diagnosis never calls it more than likely."
        yield ""
    yield "## Tell-tale signs"
    yield ""
    yield "| sign | question | yes |"
    yield "|---|---|---|"
    for word, name in _signs(expects):
        yield f"| {word} | `{name}` {questions[name].ask} | {questions[name].threshold} |"
    yield ""
    yield f"It shows in {', '.join(f'`{signal}`' for signal in cause.signals)}."
    yield ""
    if neighbours := [name for name in cause.confused_with if name in causes]:
        yield "## What looks like it"
        yield ""
        for name in neighbours:
            yield _apart(cause.name, expects, causes[name], questions)
        yield ""
    yield "## What to do"
    yield ""
    yield from _remedy(cause)


def _signs(expects: Expectation) -> Iterator[tuple[str, str]]:
    for group in expects.must:
        word = "must be" if len(group) == 1 else "one of these must be"
        yield from ((word, name) for name in group)
    for word, names in (("mostly", expects.often), ("may be", expects.may), ("never", expects.never)):
        yield from ((word, name) for name in names)
    yield from (("hurts where", name) for name in expects.hurts if name not in expects.yes_rates)


def _apart(name: str, expects: Expectation, other: Cause, questions: Mapping[str, Question]) -> str:
    link = f"- [{other.title}]({other.name}.md) (`{other.name}`)"
    question, is_ours = telling_answer(expects, other, name)
    if not question:
        return f"{link}."
    yes, no = (name, other.name) if is_ours else (other.name, name)
    return f"{link}: {questions[question].ask} Yes: `{yes}`, no: `{no}`."


def telling_answer(expects: Expectation, other: Cause, name: str) -> tuple[str, bool]:
    """The question that tells the two apart best, and whether a yes speaks for the first; "" without one."""
    theirs = other.expects
    assert theirs is not None
    mine, others = expects.yes_rates, theirs.yes_rates
    gaps = {key: mine.get(key, NOT_NAMED) - others.get(key, NOT_NAMED) for key in (*mine, *others)}
    named = expects.tell_apart.get(other.name) or theirs.tell_apart.get(name)
    question = named or max(gaps, key=lambda key: abs(gaps[key]), default="")
    return question, gaps.get(question, 0.0) >= 0


def _remedy(cause: Cause) -> Iterator[str]:
    if cause.not_by_deploy:
        yield "No deploy brings it about: where it is confirmed, no rollback is proposed, also right after a rollout."
        yield ""
    if cause.expects is not None and cause.expects.acts_on:
        needed = ", ".join(f"`{name}`" for name in cause.expects.acts_on)
        yield f"Its page is proposed once one of {needed} is answered with yes; until then is said:"
        yield f"{cause.expects.awaits}."
        yield ""
    for name, why in cause.expects.left_while.items() if cause.expects is not None else ():
        yield f"It is not proposed while `{name}` is answered with yes: {why}."
        yield ""
    if cause.page:
        yield (
            f"Page [`{cause.page}`]({PAGE_FOLDER}/{cause.page}.md) treats it. A diagnosis proposes it; by hand:"
            f" `fleetctl runbook run {cause.page}`, or what stands on it, step by step."
        )
    else:
        yield f"Nothing is proposed. By hand: {cause.no_page}."


def _remedy_word(cause: Cause) -> str:
    return f"[`{cause.page}`]({PAGE_FOLDER}/{cause.page}.md)" if cause.page else "by hand"
