"""The files of one source of content: the package's own, or a folder of a user's.

DIR/signals/*.yaml objectives/*.yaml rules/*.yaml     Prometheus rule files
DIR/cases/*.yaml                                      promtool unit tests of those rules
DIR/trees/*.yaml questions/*.yaml causes/*.yaml       decision trees, the questions that they share, causes
DIR/policies/*.yaml                                   what happens with a cause's page
DIR/pages/*.md                                        runbook pages
DIR/no_tree.yaml                                      alerts that no tree explains, and what to do instead
DIR/metrics_catalog.yaml                              metrics of engines that the linter does not know
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from alerts.evaluation.builtin import builtin_case_files, builtin_rule_files, builtin_signal_files
from diagnostics.cause import builtin_cause_files
from diagnostics.content_file import nearest
from diagnostics.evidence.question_file import builtin_question_files
from diagnostics.tree_file import NO_TREE_FILE, builtin_no_tree_file, builtin_tree_files
from fleetctl.controller.content.content import BUILT_IN, ContentProblem
from runbooks.page import builtin_page_files

FOLDERS = ("signals", "objectives", "rules", "cases", "trees", "questions", "causes", "pages", "policies")
CATALOG_FILE = "metrics_catalog.yaml"
_TOP_FILES = (NO_TREE_FILE, CATALOG_FILE)


@dataclass(frozen=True, slots=True)
class Source:
    """Where content is from, and its files by the folder that they are in."""

    name: str
    files: Mapping[str, tuple[Path, ...]]
    no_tree: Path | None


def builtin_source() -> Source:
    """The files of the package."""
    return Source(
        BUILT_IN,
        {
            "signals": tuple(builtin_signal_files()),
            "objectives": (),
            "rules": tuple(builtin_rule_files()),
            "cases": tuple(builtin_case_files()),
            "trees": tuple(builtin_tree_files()),
            "questions": tuple(builtin_question_files()),
            "causes": tuple(builtin_cause_files()),
            "pages": tuple(builtin_page_files()),
            "policies": (),
        },
        builtin_no_tree_file(),
    )


def user_source(folder: Path) -> tuple[Source, list[ContentProblem]]:
    """The files of a user's folder, and what lies there that would silently not be read."""
    no_tree = folder / NO_TREE_FILE
    if not folder.is_dir():
        reason = "not a folder" if folder.exists() else "no such folder"
        problem = _error(folder, reason, "make it, or correct `content` of the settings")
        return Source(str(folder), dict.fromkeys(FOLDERS, ()), None), [problem]
    try:
        strays = list(_strays(folder))
    except OSError as error:
        problem = _error(folder, f"can't be read: {error.strerror or error}", "let the controller's user read it")
        return Source(str(folder), dict.fromkeys(FOLDERS, ()), None), [problem]
    files = {name: tuple(_files_in(folder / name, "*.md" if name == "pages" else "*.yaml")) for name in FOLDERS}
    source = Source(str(folder), files, no_tree if no_tree.is_file() else None)
    return source, strays


def watched_files(folder: Path) -> dict[str, tuple[int, int]]:
    """Path to modification time (ns) and size of everything that is read: what changes when content does."""
    found: dict[str, tuple[int, int]] = {}
    paths = [folder / name for name in _TOP_FILES]
    paths += [path for name in FOLDERS for path in (folder / name).glob("*")]
    for path in paths:
        try:
            stat = path.stat()
        except OSError:
            continue
        found[str(path)] = (stat.st_mtime_ns, stat.st_size)
    return found


def shown_file(path: Path) -> str:
    """A built-in file as its package calls it; a user's as given."""
    root = Path(__file__).parents[3]
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)


def _files_in(folder: Path, pattern: str) -> Iterator[Path]:
    for path in sorted(folder.glob(pattern)):
        if path.name != "README.md" and not path.name.startswith("."):
            yield path


def _strays(folder: Path) -> Iterator[ContentProblem]:
    for path in sorted(folder.iterdir()):
        if path.is_dir() and path.name not in FOLDERS and (meant := nearest(path.name, FOLDERS)):
            yield _error(path, f'unknown folder, did you mean "{meant}"?', f"rename it to {meant}")
        elif path.is_file() and path.name not in _TOP_FILES and path.suffix in (".yaml", ".yml"):
            meant = nearest(path.name, _TOP_FILES) or f"{path.stem} in one of {', '.join(FOLDERS)}"
            yield ContentProblem("warning", str(path), 0, "", "is not read here", f"perhaps {meant}")
    for name in FOLDERS:
        wanted = ".md" if name == "pages" else ".yaml"
        for path in sorted((folder / name).glob("*")):
            if path.is_file() and path.suffix in (".yml", ".yaml", ".md") and path.suffix != wanted:
                if path.name == "README.md" or path.name.startswith("."):
                    continue
                yield _error(path, f"files of {name} end in {wanted}", f"rename it to {path.stem}{wanted}")


def _error(path: Path, reason: str, remedy: str) -> ContentProblem:
    return ContentProblem("error", str(path), 0, "", reason, remedy)
