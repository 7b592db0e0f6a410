"""A tree as a Mermaid flowchart, for documents: the drawing is made from the file that is walked."""

from __future__ import annotations

from diagnostics.tree import CONTINUE, END, Tree

BRANCHES = (("if_yes", "yes"), ("if_no", "no"), ("if_unknown", "unknown"))


def mermaid(tree: Tree) -> str:
    """Questions as diamonds with their limit, verdicts as boxes with their cause.

    Branches to the same place share one arrow ("no, unknown").
    """
    lines = ["flowchart TD"]
    for index, question in enumerate(tree.questions):
        lines.append(f'  {question.id}{{"{mermaid_text(question.ask)}<br/>{mermaid_text(question.threshold)}"}}')
        following = tree.questions[index + 1].id if index + 1 < len(tree.questions) else END
        words: dict[str, list[str]] = {}
        for branch, word in BRANCHES:
            target = getattr(question, branch)
            words.setdefault(following if target == CONTINUE else target, []).append(word)
        for target, labels in words.items():
            lines.append(f"  {question.id} -->|{', '.join(labels)}| {_node(tree, target)}")
    lines += [f'  v_{verdict.id}["{mermaid_text(verdict.cause)}"]' for verdict in tree.verdicts.values()]
    if any(line.endswith(" no_cause") for line in lines):
        lines.append('  no_cause(["no cause named"])')
    return "\n".join(lines) + "\n"


def _node(tree: Tree, target: str) -> str:
    """Verdicts get a prefix: `end` is a word of Mermaid's own, and a verdict may share a name with one."""
    if target == END:
        return "no_cause"
    return f"v_{target}" if target in tree.verdicts else target


def mermaid_text(text: str) -> str:
    """What may stand between the quotes of a Mermaid label."""
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;")
