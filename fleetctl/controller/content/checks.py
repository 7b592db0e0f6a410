"""What one object of content says of another must be there: causes, pages, alerts, trees and signals fit together."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from typing import Literal

from alerts.errors import BadExpressionError
from alerts.promql import parse
from diagnostics.content_file import nearest, unknown
from diagnostics.expectation import TITLE_NAMES
from diagnostics.query import PLACEHOLDER
from fleetctl.controller.content.content import (
    BUILT_IN,
    Content,
    ContentObject,
    ContentProblem,
    Kind,
    alert_names,
    recorded_names,
)
from runbooks.page import Page, PageStep
from runbooks.verbs import VERBS

_SIGNAL = re.compile(r"\bllm:[a-zA-Z0-9_:]*[a-zA-Z0-9_]")


def check_content(content: Content, failed: Collection[str] = ()) -> list[ContentProblem]:
    """Everything that does not fit. What refers to a kind in `failed`, which could not be read, is not judged."""
    objects = {(one.kind, one.name): one for one in content.objects}
    has_rules = not {"signals", "objectives", "rules"} & set(failed)
    found: list[ContentProblem] = []
    if "causes" not in failed and "pages" not in failed:
        found += _causes(content, objects)
        found += _page_causes(content, objects)
        found += _page_steps(content, objects)
        found += _policies(content, objects)
    if not {"causes", "questions", "trees"} & set(failed):
        found += _expectations(content)
        found += _asked(content, objects)
    if has_rules:
        found += _signals(content, objects)
    if has_rules and "trees" not in failed:
        found += _alerts(content, objects)
        found += _unused(content, objects)
    return found


def _causes(content: Content, objects: dict[tuple[Kind, str], ContentObject]) -> Iterator[ContentProblem]:
    for cause in content.causes.values():
        place = f"cause {cause.name}"
        for other in cause.confused_with:
            if other not in content.causes:
                reason, remedy = unknown("cause", other, content.causes)
                yield ContentProblem("error", cause.file, cause.line, f"{place}: confused_with", reason, remedy)
        if not cause.page:
            continue
        if cause.page not in content.pages:
            reason, remedy = unknown("page", cause.page, content.pages)
            remedy = remedy or "or write `no_page` with a sentence why there is none"
            yield ContentProblem("error", cause.file, cause.line, place, reason, remedy)
        elif cause.name not in content.pages[cause.page].causes:
            reason = f"its page {cause.page} does not say that it treats it"
            remedy = f"add {cause.name} to `causes` of that page"
            # A page of one's own in place of ours need not know each cause that a later version names.
            is_ours = objects["cause", cause.name].source == BUILT_IN
            yield ContentProblem("warning" if is_ours else "error", cause.file, cause.line, place, reason, remedy)


def _expectations(content: Content) -> Iterator[ContentProblem]:
    """What causes name is there: questions, trees, and the causes that they are told apart from."""
    for cause in content.causes.values():
        if cause.expects is None:
            continue
        known = {*content.questions, *TITLE_NAMES}
        named = [
            ("", "question", sorted(cause.expects.names), content.questions),
            (": explains", "tree", sorted(cause.expects.explains), content.trees),
            (": tell_apart", "cause", sorted(cause.expects.tell_apart), content.causes),
            (": says", "placeholder", PLACEHOLDER.findall(cause.expects.says), known),
        ]
        for key, kind, names, there in named:
            for name in names:
                if name not in there:
                    reason, remedy = unknown(kind, name, there)
                    yield ContentProblem("error", cause.file, cause.line, f"cause {cause.name}{key}", reason, remedy)


def _asked(content: Content, objects: dict[tuple[Kind, str], ContentObject]) -> Iterator[ContentProblem]:
    for tree in content.trees.values():
        for name in tree.ask:
            if name not in content.questions:
                reason, remedy = unknown("question", name, content.questions)
                yield ContentProblem(
                    "error", objects["tree", tree.name].file, 0, f"tree {tree.name}: ask", reason, remedy
                )


def _page_causes(content: Content, objects: dict[tuple[Kind, str], ContentObject]) -> Iterator[ContentProblem]:
    for page in content.pages.values():
        file = objects["page", page.name].file
        for name in page.causes:
            if name not in content.causes:
                reason, remedy = unknown("cause", name, content.causes)
                remedy = remedy or "add the cause to a file in causes/"
                yield ContentProblem("error", file, 0, "causes", reason, remedy)
            elif (chosen := content.page_for_cause(name)) is not None and chosen.name != page.name:
                if objects["page", page.name].source == BUILT_IN:
                    continue
                reason = f"{name} is treated by {chosen.name}, which comes before this page"
                remedy = f"to propose this one, override cause {name} with `page: {page.name}`"
                yield ContentProblem("warning", file, 0, "causes", reason, remedy)


def _page_steps(content: Content, objects: dict[tuple[Kind, str], ContentObject]) -> Iterator[ContentProblem]:
    """Expressions must be PromQL, and pages that steps run must be there, take their inputs, and not come back."""
    for page in content.pages.values():
        file = objects["page", page.name].file
        for place, expression, line in page.expressions:
            try:
                parse(expression)
            except BadExpressionError as error:
                yield ContentProblem(
                    "error", file, line, place, f"not PromQL: {error}", "write it as a rule of alerts is written"
                )
        for step in page.steps:
            if step.is_sub_page:
                yield from _sub_page(content, page, step, file, objects)
        if circle := _circle(content, page.name, ()):
            reason = f"{' -> '.join(circle)}: a page that runs itself"
            yield ContentProblem("error", file, 0, "steps", reason, "break the circle")


def _sub_page(
    content: Content, page: Page, step: PageStep, file: str, objects: dict[tuple[Kind, str], ContentObject]
) -> Iterator[ContentProblem]:
    sub = page.sub_page(step)
    inner = content.pages.get(sub.name)
    if inner is None:
        reason, remedy = unknown("page", sub.name, content.pages)
        yield ContentProblem("error", file, step.line, step.title, reason, remedy)
        return
    if inner.is_by_hand:
        yield ContentProblem("error", file, step.line, step.title, f"{sub.name} has no steps", "name another page")
    # Who puts a page of theirs in the place of ours is told that ours does not fit it; theirs is used all the same.
    is_ours = objects["page", page.name].source == BUILT_IN != objects["page", sub.name].source
    severity: Literal["error", "warning"] = "warning" if is_ours else "error"
    given = {*sub.inputs, *({"node"} if sub.selector is not None else ())}
    for name in sorted(given - inner.inputs.keys()):
        reason, remedy = unknown("input", name, inner.inputs)
        yield ContentProblem(severity, file, step.line, step.title, f"{sub.name}: {reason}", remedy)
    for name, spec in inner.inputs.items():
        if spec.default is None and name not in given:
            reason = f"{sub.name} needs input {name!r}"
            yield ContentProblem(severity, file, step.line, step.title, reason, f"add {name}={{{{{name}}}}}")


def _circle(content: Content, name: str, path: tuple[str, ...]) -> tuple[str, ...]:
    """The way from a page back to itself; empty when there is none."""
    if name in path:
        return (*path, name) if name == path[0] else ()
    page = content.pages.get(name)
    ways = (_circle(content, sub, (*path, name)) for sub, _ in page.sub_pages) if page is not None else ()
    return next((way for way in ways if way), ())


def _policies(content: Content, objects: dict[tuple[Kind, str], ContentObject]) -> Iterator[ContentProblem]:
    for cause, policy in content.policies.items():
        if policy == "run" and content.page_for_cause(cause) is None:
            file = objects["policy", cause].file
            yield ContentProblem("warning", file, 0, f"policy {cause}", "no page treats it, so nothing can run")
    actions = {*content.pages, *VERBS}
    for name, rule in content.approvals.items():
        for action in rule.actions - actions if ("approval", name) in objects else ():
            reason, remedy = unknown("action", action, actions)
            yield ContentProblem("error", objects["approval", name].file, 0, f"approval {name}", reason, remedy)


def _alerts(content: Content, objects: dict[tuple[Kind, str], ContentObject]) -> Iterator[ContentProblem]:
    explained = {alert for tree in content.trees.values() for alert in tree.symptoms} | content.no_tree.keys()
    known = alert_names(content.groups)
    for group in content.signals:
        for name in alert_names([group]):
            place, remedy = f"group {group.name}, {name}", "put it into a file in rules/"
            yield ContentProblem("error", group.file, 0, place, "an alert among the signals", remedy)
    for name in sorted(alert_names(content.rules) - explained):
        remedy = "name it in `symptoms` of a tree, or in no_tree.yaml with what to do instead"
        yield ContentProblem("error", objects["rule", name].file, 0, f"alert {name}", "no tree explains it", remedy)
    for tree in content.trees.values():
        file = objects["tree", tree.name].file
        for name in tree.symptoms:
            if name not in known:
                yield _unknown_alert(file, f"tree {tree.name}: symptoms", name, known)
    for name in content.no_tree:
        if name not in known:
            yield _unknown_alert(objects["no_tree", name].file, "", name, known)


def _unknown_alert(file: str, place: str, name: str, known: Iterable[str]) -> ContentProblem:
    """Only a warning: it may come from an Alertmanager."""
    near = nearest(name, known)
    reason = f"no rule here gives alert {name}; it counts when an Alertmanager sends it"
    return ContentProblem("warning", file, 0, place, reason, f'did you mean "{near}"?' if near else "")


def _signals(content: Content, objects: dict[tuple[Kind, str], ContentObject]) -> Iterator[ContentProblem]:
    """`llm:` series that no rule records give no value, and so no answer, for ever."""
    recorded = recorded_names(content.groups)
    used: list[tuple[str, int, str, str]] = []
    for cause in content.causes.values():
        used += [(cause.file, cause.line, f"cause {cause.name}: signals", text) for text in cause.signals]
    for tree in content.trees.values():
        file = objects["tree", tree.name].file
        for question in tree.questions:
            used.append((file, 0, f"question {question.id}", f"{question.query} {question.pool_query or ''}"))
    for one in content.questions.values():
        used.append((one.file, one.line, f"question {one.id}", f"{one.query} {one.pool_query or ''}"))
    for page in content.pages.values():
        file = objects["page", page.name].file
        used += [(file, line, place, expression) for place, expression, line in page.expressions]
    for file, line, place, text in used:
        for name in dict.fromkeys(_SIGNAL.findall(text)):
            if name not in recorded:
                near = nearest(name, recorded)
                remedy = f'did you mean "{near}"?' if near else "record it in a file in signals/ or rules/"
                yield ContentProblem("error", file, line, place, f'no rule records "{name}"', remedy)


def _unused(content: Content, objects: dict[tuple[Kind, str], ContentObject]) -> Iterator[ContentProblem]:
    named = {verdict.cause for tree in content.trees.values() for verdict in tree.verdicts.values()}
    for cause in content.causes.values():
        if cause.expects is None and cause.name not in named and objects["cause", cause.name].source != BUILT_IN:
            place = f"cause {cause.name}"
            yield ContentProblem("warning", cause.file, cause.line, place, "no tree ends in it", "add a verdict to one")
