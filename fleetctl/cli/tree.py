"""`tree`: what is asked when an alert fires, what each answer says of which cause, and what is wrong with that.

It works on content, without a controller.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fleetctl.cli import output as out
from fleetctl.cli.context import current
from fleetctl.cli.output import DATA, Output, OutputOption, print_data, print_table
from fleetctl.kit.errors import BadInputError

if TYPE_CHECKING:
    from diagnostics.tree import Tree
    from fleetctl.controller.content.content import Content

Folders = Annotated[
    list[Path] | None,
    typer.Option(
        "--content", help="Content folders in place of those of the settings. Repeatable.", show_default=False
    ),
]
TreeName = Annotated[str, typer.Argument(help="Its name, or an alert's; `fleetctl tree list` lists them.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(help="Decision trees: what is asked, in which order, and what it says.", no_args_is_help=True)
    app.add_typer(group, name="tree")

    @group.command("list")
    def list_trees(folders: Folders = None, output: OutputOption = Output.table) -> None:
        """List trees: the alerts that each explains, what it asks, and the causes that it can find."""
        from diagnostics.tree_view import causes_of

        content = _content(folders)
        found = [
            (tree, [name for name, _ in causes_of(tree, content.knowledge)] if tree.is_judged else _leaves(tree))
            for tree in content.trees.values()
        ]
        if output in DATA:
            print_data(
                [
                    {
                        "name": tree.name,
                        "title": tree.title,
                        "alerts": list(tree.symptoms),
                        "asks": _asked(tree),
                        "causes": causes,
                        "by": _judged_by(tree),
                    }
                    for tree, causes in found
                ],
                output,
            )
            return
        words = [
            [tree.name, str(len(tree.symptoms)), str(len(_asked(tree))), str(len(causes)), _judged_by(tree), tree.title]
            for tree, causes in found
        ]
        print_table(["name", "alerts", "asks", "causes", "by", "title"], words, empty="no trees")

    @group.command("show")
    def show(
        name: TreeName,
        mermaid: Annotated[bool, typer.Option("--mermaid", help="As a Mermaid flowchart, for a page.")] = False,
        folders: Folders = None,
    ) -> None:
        """Show one tree: its questions with their limits and reasons, and what each says of which cause."""
        from diagnostics import tree_view

        content = _content(folders)
        tree = _named(content, name)
        draw = tree_view.mermaid if mermaid else tree_view.ascii_view
        out.stdout().print(draw(tree, content.knowledge), markup=False, soft_wrap=True, highlight=False, end="")

    @group.command("lint")
    def lint(folders: Folders = None, output: OutputOption = Output.table) -> None:
        """Find what loads and misleads: questions that nobody asks or no engine answers, limits without a reason,
        causes that nothing can name, without a page, or that nothing tells apart, branches that nothing leads to.

        Exit code 1 when there is an error.
        """
        from alerts.review.coverage import answering_engines
        from diagnostics.tree_lint import lint_trees

        content = _content(folders)
        engines_of = answering_engines(content.groups)
        findings = lint_trees(content.trees, content.causes, content.knowledge, engines_of)
        if output in DATA:
            print_data([dataclasses.asdict(one) for one in findings], output)
        else:
            for one in findings:
                out.stdout().print(out.visible(str(one)), markup=False, soft_wrap=True)
            errors = sum(one.severity == "error" for one in findings)
            told = f"{len(content.trees)} trees, {len(content.questions)} questions, {len(content.causes)} causes"
            out.stderr().print(f"{told}: {errors} errors, {len(findings) - errors} warnings")
        if any(one.severity == "error" for one in findings):
            raise typer.Exit(1)

    @group.command("test")
    def test(
        files: Annotated[list[Path], typer.Argument(help="Incidents' files, or folders of them.", show_default=False)],
        folders: Folders = None,
        step: Annotated[str, typer.Option("--step", help="Simulated time between two evaluations.")] = "5s",
        output: OutputOption = Output.table,
    ) -> None:
        """Run recorded incidents again: is the last verdict what a person said that it was, else what was named then?

        Exit code 1 when one is not.
        """
        from fleetctl.cli.duration_option import duration_s
        from fleetctl.cli.replay import SUFFIX, read_box, recorded_cause, replayed

        step_s = duration_s("--step", step, "an evaluation")
        paths = [one for path in files for one in (sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else [path])]
        if not paths:
            raise BadInputError("no incident's file there", remedy="fleetctl incident export ID")
        content = _content(folders)
        rows: list[tuple[Path, str | None, str | None]] = []
        for path in paths:
            box = read_box(path)
            found = replayed(box, content, step_s).diagnosis_for(box.incident)
            rows.append((path, recorded_cause(box), found.cause if found is not None else None))
        if output in DATA:
            print_data([{"file": str(path), "expected": wanted, "said": said} for path, wanted, said in rows], output)
        else:
            words = [
                [path.name, wanted or "none", said or "none", "ok" if wanted == said else "WRONG"]
                for path, wanted, said in rows
            ]
            print_table(["file", "expected", "said", ""], words, empty="none")
        if any(wanted != said for _, wanted, said in rows):
            raise typer.Exit(1)


def _asked(tree: Tree) -> list[str]:
    return list(tree.ask) if tree.is_judged else [one.id for one in tree.questions]


def _leaves(tree: Tree) -> list[str]:
    return sorted({one.cause for one in tree.verdicts.values()})


def _judged_by(tree: Tree) -> str:
    return "evidence" if tree.is_judged else "branches"


def _content(folders: list[Path] | None) -> Content:
    from fleetctl.controller.content.load import load_content

    return load_content(folders if folders else list(current().settings().content))


def _named(content: Content, name: str) -> Tree:
    from diagnostics.content_file import unknown
    from diagnostics.tree import tree_for_alert

    tree = content.trees.get(name) or tree_for_alert(content.trees, name)
    if tree is None:
        reason, remedy = unknown("tree", name, content.trees)
        raise BadInputError(reason, remedy=remedy or "fleetctl tree list")
    return tree
