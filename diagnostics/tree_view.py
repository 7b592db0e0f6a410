"""A tree as a person reads it, in a terminal or as a Mermaid flowchart: drawn from what is judged by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from diagnostics.drawing import BRANCHES, mermaid_text
from diagnostics.drawing import mermaid as walked_mermaid
from diagnostics.evidence.knowledge import Knowledge
from diagnostics.evidence.question import Question
from diagnostics.expectation import Expectation
from diagnostics.tree import CONTINUE, END, Tree


def ascii_view(tree: Tree, knowledge: Knowledge) -> str:
    """Its alerts, what it asks in which order, and what each answer says of which cause."""
    head = [
        f"{tree.name}: {tree.title}",
        f"  alerts: {', '.join(tree.symptoms)}",
        *([f"  alone:  {', '.join(sorted(tree.stands_alone))}"] if tree.stands_alone else []),
        *(f"  begins: where {query} changes" for query in tree.onset),
        "",
    ]
    return "\n".join([*head, *(_judged(tree, knowledge) if tree.is_judged else _walked(tree))]) + "\n"


def mermaid(tree: Tree, knowledge: Knowledge) -> str:
    """Questions in their order, and for each cause what must (thick), often (thin) and never (crossed) be seen."""
    if not tree.is_judged:
        return walked_mermaid(tree)
    asked = [knowledge.questions[name] for name in tree.ask if name in knowledge.questions]
    lines = ["flowchart LR"]
    lines += [f'  q_{one.id}{{"{mermaid_text(one.ask)}<br/>{mermaid_text(one.threshold)}"}}' for one in asked]
    lines += [f"  q_{first.id} -.- q_{second.id}" for first, second in pairwise(asked)]
    names = {one.id for one in asked}
    for cause, expects in causes_of(tree, knowledge):
        lines.append(f'  c_{cause}["{mermaid_text(cause)}"]')
        for question, relation in _relations(expects).items():
            if question in names and relation != "may":
                arrow = {"must": "==>|yes|", "one of": "==>|yes|", "often": "-->|yes|", "never": "--x|yes|"}[relation]
                lines.append(f"  q_{question} {arrow} c_{cause}")
    return "\n".join(lines) + "\n"


def causes_of(tree: Tree, knowledge: Knowledge) -> list[tuple[str, Expectation]]:
    """The causes that can be behind the tree's alerts, the most common first."""
    fitting = [(name, one) for name, one in knowledge.expectations.items() if tree.name in one.explains]
    return sorted(fitting, key=lambda pair: (-pair[1].prior, pair[0]))


def _judged(tree: Tree, knowledge: Knowledge) -> Iterable[str]:
    causes = causes_of(tree, knowledge)
    yield "asks, in this order; every cause is scored by all answers:"
    for number, name in enumerate(tree.ask, 1):
        question = knowledge.questions.get(name)
        if question is None:
            yield f"  {number:2}. {name}: there is no such question"
            continue
        yield f"  {number:2}. {name}  {question.ask}  {_limits(question)}"
        yield f"      because {question.because}"
        for relation in ("must", "one of", "often", "never"):
            found = [cause for cause, expects in causes if _relations(expects).get(name) == relation]
            if found:
                yield f"      {'rules out' if relation == 'never' else relation}: {', '.join(found)}"
    yield ""
    yield "causes that can be behind it, the most common first:"
    for cause, expects in causes:
        yield f"  {cause}{_qualities(expects)}"
        must = " and ".join(" or ".join(group) for group in expects.must)
        yield f"      must {must}" + (f"; often {', '.join(expects.often)}" if expects.often else "")
        if expects.never:
            yield f"      never {', '.join(expects.never)}"


def _walked(tree: Tree) -> Iterable[str]:
    for index, question in enumerate(tree.questions):
        following = tree.questions[index + 1].id if index + 1 < len(tree.questions) else END
        yield f"{question.id}  {question.ask}  {question.threshold}"
        for number, (branch, word) in enumerate(BRANCHES):
            target = getattr(question, branch)
            target = following if target == CONTINUE else target
            verdict = tree.verdicts.get(target)
            shown = f"[{verdict.cause}]" if verdict is not None else "(no cause)" if target == END else target
            yield f"  {'└' if number == len(BRANCHES) - 1 else '├'}─ {word}: {shown}"


def _relations(expects: Expectation) -> Mapping[str, str]:
    """Each question that the cause names, to what it says of it."""
    found: dict[str, str] = {**dict.fromkeys(expects.may, "may"), **dict.fromkeys(expects.often, "often")}
    found |= dict.fromkeys(expects.never, "never")
    for group in expects.must:
        found |= dict.fromkeys(group, "must" if len(group) == 1 else "one of")
    return found


def _limits(question: Question) -> str:
    parts = [question.threshold]
    if question.unless is not None:
        parts.append(f"no: {question.unless.comparison} {question.unless.bound:g}")
    parts += ["not everybody can tell"] if question.optional else []
    return f"({', '.join(parts)})"


def _qualities(expects: Expectation) -> str:
    parts = [f"prior {expects.prior:g}"] if expects.prior != 1 else []
    parts += [f"at most {expects.at_most}"] if expects.at_most != "confirmed" else []
    parts += [f"only of a {' or '.join(sorted(expects.where))}"] if len(expects.where) < 3 else []
    return f"  ({', '.join(parts)})" if parts else ""


def unused_questions(trees: Iterable[Tree], knowledge: Knowledge) -> Sequence[str]:
    """Questions that no tree asks and no cause speaks of, and that are no symptom either."""
    named = {name for tree in trees for name in tree.ask}
    named |= {name for one in knowledge.expectations.values() for name in one.names}
    return sorted(name for name, one in knowledge.questions.items() if name not in named and not one.symptom)
