"""Mutation testing: changes the code one token at a time and reports which changes no test notices.

`make mutants` runs every target of `mutants.yaml`; `TARGET=scheduler,gateway` some of them, `BASE=main~5` only lines
changed since a revision, `SAMPLE=200 SEED=7` as many drawn at random, `AGAIN=1` what the last run left alive. mutmut
makes the mutants and forks a pytest for each; what this file adds is targets, choice, equivalents and the table.

Exit codes: 0 each target reached the goal, 1 one did not, 2 bad input.
"""

from __future__ import annotations

import argparse
import ast
import fnmatch
import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("alerts", "diagnostics", "engine", "fleetctl", "kernels", "runbooks")
# Not mutated: what is logged, and asserts, which hold our own mistakes and which no test can reach through a door.
UNCHANGED_LINES = (r"^\s*(self\._)?log\.", r"^\s*assert ")
# mutmut's verdicts by pytest's exit code. A fork that crashed was noticed; one that no test reaches was not.
KILLED, SURVIVED, UNREACHED, TIMEOUT = "killed", "survived", "unreached", "timeout"
VERDICTS = {0: SURVIVED, 5: UNREACHED, 33: UNREACHED, -24: TIMEOUT, 24: TIMEOUT, 152: TIMEOUT, 255: TIMEOUT}


class BadTargetsError(ValueError):
    """`mutants.yaml` or the command line names what does not exist."""


@dataclass(frozen=True, slots=True)
class Target:
    """Files that are mutated together, and the tests that are to notice."""

    name: str
    files: tuple[str, ...]
    tests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Equivalent:
    """Mutants that change nothing anybody could see: lines without indentation, where `*` matches any text."""

    file: str
    old: str
    new: tuple[str, ...]
    why: str

    def is_about(self, mutant: Mutant) -> bool:
        """Whether `mutant` is one of these."""
        return (
            fnmatch.fnmatchcase(mutant.file, self.file)
            and _matches(mutant.old, self.old)
            and any(_matches(mutant.new, new) for new in self.new)
        )


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change. `lines` are those of the source file that it replaces."""

    name: str
    file: str
    function: str
    lines: tuple[int, ...]
    old: str
    new: str
    verdict: str | None = None
    is_equivalent: bool = False

    @property
    def change(self) -> tuple[str, str, str, str]:
        """What it is, whatever number mutmut gives it next time."""
        return self.file, self.function, self.old, self.new

    @property
    def is_alive(self) -> bool:
        """Whether no test noticed it, and it could have been noticed."""
        return self.verdict in (SURVIVED, UNREACHED) and not self.is_equivalent


def _matches(text: str, pattern: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text, re.DOTALL) is not None


def read_plan(path: Path, root: Path) -> tuple[float, list[Target], list[Equivalent]]:
    """The goal, the targets with their globs resolved, and the equivalents. Raises BadTargetsError."""
    tree: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    targets = []
    for name, entry in tree["targets"].items():
        files = [str(file.relative_to(root)) for glob in entry["files"] for file in sorted(root.glob(glob))]
        missing = [glob for glob in entry["files"] if not list(root.glob(glob))]
        missing += [test for test in entry["tests"] if not (root / test).exists()]
        if missing:
            raise BadTargetsError(f"{path.name}: targets.{name}: no such file: {', '.join(missing)}")
        targets.append(Target(name, tuple(f for f in files if (root / f).stat().st_size), tuple(entry["tests"])))
    equivalents = []
    for entry in tree["equivalent"] or ():
        new = entry["new"] if isinstance(entry["new"], list) else [entry["new"]]
        equivalents.append(Equivalent(entry["file"], entry["old"], tuple(new), entry["why"]))
    return float(tree["goal"]), targets, equivalents


def prepare_copy(target: Target, root: Path, work: Path) -> None:
    """A copy of what git would commit, with mutmut's settings for this target: runs never touch the clone."""
    shutil.rmtree(work, ignore_errors=True)
    listing = ("git", "ls-files", "--cached", "--others", "--exclude-standard")
    listed = subprocess.run(listing, cwd=root, check=True, capture_output=True, text=True).stdout.splitlines()
    for name in listed:
        if name.startswith((*(f"{package}/" for package in PACKAGES), "tests/", "pyproject.toml")):
            source, copy = root / name, work / name
            if source.is_file():
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, copy)
    settings = {
        "source_paths": [package for package in PACKAGES if (work / package).is_dir()],
        "only_mutate": list(target.files),
        "do_not_mutate_patterns": list(UNCHANGED_LINES),
        "pytest_add_cli_args_test_selection": list(target.tests),
        "pytest_add_cli_args": ["-p", "no:cacheprovider", "-m", "not serial and not gpu and not e2e", "--timeout=60"],
        "timeout_constant": 3.0,  # seconds of the clock, and generous: a loaded machine must not look like a kill
        "timeout_multiplier": 10.0,
        "use_git_change_detection": False,
    }
    table = "\n".join(f"{key} = {json.dumps(value)}" for key, value in settings.items())
    with (work / "pyproject.toml").open("a", encoding="utf-8") as file:
        file.write(f"\n[tool.mutmut]\n{table.replace('False', 'false')}\n")


def in_copy(work: Path, *words: str) -> None:
    """This file again, in the copy: mutmut works on its working directory and changes its own process for good."""
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    env |= {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, str(Path(__file__).resolve()), *words]
    if subprocess.run(command, cwd=work, env=env).returncode != 0:
        raise BadTargetsError(f"{work.name}: mutmut could not run (see above): do its tests pass?")


def generate() -> None:
    """In the copy: write all mutants."""
    import mutmut.__main__ as engine

    _drop_operators()
    engine.set_mutant_under_test("mutant_generation")
    Path("mutants").mkdir(exist_ok=True)
    with engine.CatchOutput():  # it names every file
        engine.copy_src_dir()
        engine.copy_also_copy_files()
        engine.setup_source_paths()
        engine.create_mutants(1)


def judge(names: Sequence[str], jobs: int) -> None:
    """In the copy: run the tests against these mutants."""
    import mutmut.__main__ as engine

    _drop_operators()
    engine._run(tuple(names), jobs)


def _drop_operators() -> None:
    """Texts are left alone: messages are asserted where their words matter, and each string would be three mutants."""
    from mutmut.mutation import mutators

    kept = [pair for pair in mutators.mutation_operators if pair[1] is not mutators.operator_string]
    mutators.mutation_operators[:] = kept  # type: ignore[index]  # a list behind a Sequence


def read_mutants(target: Target, work: Path) -> Iterator[Mutant]:
    """What mutmut wrote for this target, verdicts included."""
    from mutmut.mutation.diff_apply import get_diff_for_mutant
    from mutmut.utils.format_utils import orig_function_and_class_names_from_key

    os.chdir(work)  # mutmut reads its files there
    try:
        for file in target.files:
            meta = work / "mutants" / f"{file}.meta"
            if not meta.exists():
                continue
            starts = _function_starts((work / file).read_text(encoding="utf-8"))
            for name, code in json.loads(meta.read_text(encoding="utf-8"))["exit_code_by_key"].items():
                function, owner = orig_function_and_class_names_from_key(name)
                qualified = f"{owner}.{function}" if owner else function
                old, new, offsets = _read_diff(get_diff_for_mutant(name, path=file))
                lines = tuple(starts.get(qualified, 0) + offset for offset in offsets)
                verdict = None if code is None else VERDICTS.get(code, KILLED)
                yield Mutant(name, file, qualified, lines, old, new, verdict)
    finally:
        os.chdir(work.parent)


def _function_starts(source: str) -> dict[str, int]:
    """The line of each function's first decorator or `def`, by qualified name."""
    starts = {}
    for node in ast.parse(source).body:
        owner = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
        for function in node.body if isinstance(node, ast.ClassDef) else (node,):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                first = min([function.lineno, *(each.lineno for each in function.decorator_list)])
                starts[owner + function.name] = first
    return starts


def _read_diff(diff: str) -> tuple[str, str, list[int]]:
    """Removed text, added text, and the offsets of the removed lines from the function's first line.

    mutmut shows comments above a function as part of it; they begin before the line that `_function_starts` names.
    """
    old, new, removed, line, leading, in_head = [], [], [], 0, 0, True
    for text in diff.splitlines()[2:]:
        if text.startswith("@@"):
            line = int(re.findall(r"-(\d+)", text)[0]) - 1
            continue
        if in_head and line == leading and text[1:].lstrip().startswith("#"):
            leading += 1
        elif text[1:].strip():
            in_head = False
        if text.startswith("-"):
            old.append(text[1:].strip())
            removed.append(line)
        elif text.startswith("+"):
            new.append(text[1:].strip())
            continue
        line += 1
    return "\n".join(old), "\n".join(new), [line - leading for line in removed]


def changed_lines(base: str, files: Iterable[str], root: Path) -> dict[str, set[int]]:
    """The lines of each file that differ from revision `base`. Raises BadTargetsError without such a revision."""
    command = ("git", "diff", "-U0", base, "--", *files)
    done = subprocess.run(command, cwd=root, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise BadTargetsError(f"BASE={base}: {done.stderr.strip()}")
    changed: dict[str, set[int]] = {}
    file = ""
    for text in done.stdout.splitlines():
        if text.startswith("+++ "):
            file = text.removeprefix("+++ b/")
        elif hunk := re.match(r"@@ \S+ \+(\d+)(?:,(\d+))? @@", text):
            first, count = int(hunk[1]), int(hunk[2] or 1)
            changed.setdefault(file, set()).update(range(first, first + count))
    return changed


def run_target(target: Target, equivalents: Sequence[Equivalent], options: argparse.Namespace) -> list[Mutant]:
    """Verdicts on the chosen mutants of one target; with `again`, the last run with its survivors judged anew."""
    root: Path = options.root
    work, kept = root / ".mutants" / target.name, root / ".mutants" / f"{target.name}.json"
    settled: list[Mutant] = []
    prepare_copy(target, root, work)
    in_copy(work, "--generate")
    mutants = list(read_mutants(target, work))
    if options.again:
        last = _read_kept(kept)
        settled = [mutant for mutant in last if not mutant.is_alive]
        alive = {mutant.change for mutant in last if mutant.is_alive}
        chosen = [mutant for mutant in mutants if mutant.change in alive]
    else:
        chosen = choose(mutants, target, options)
    if chosen:
        names = [] if len(chosen) == len(mutants) else [mutant.name for mutant in chosen]
        (work / "chosen.json").write_text(json.dumps(names), encoding="utf-8")
        in_copy(work, "--judge", "chosen.json", "--jobs", str(options.jobs))
    wanted = {mutant.name for mutant in chosen}
    judged = [*settled, *(mutant for mutant in read_mutants(target, work) if mutant.name in wanted)]
    judged = [_with_equivalence(mutant, equivalents) for mutant in judged]
    kept.write_text(json.dumps([asdict(mutant) for mutant in judged], indent=1), encoding="utf-8")
    return judged


def choose(mutants: Sequence[Mutant], target: Target, options: argparse.Namespace) -> list[Mutant]:
    """Those of changed lines, or a sample, or all."""
    chosen = list(mutants)
    if options.base:
        changed = changed_lines(options.base, target.files, options.root)
        chosen = [mutant for mutant in mutants if changed.get(mutant.file, set()) & set(mutant.lines)]
    if options.sample and len(chosen) > options.sample:
        chosen = random.Random(f"{options.seed}/{target.name}").sample(chosen, options.sample)
    return chosen


def _read_kept(path: Path) -> list[Mutant]:
    if not path.exists():
        raise BadTargetsError(f"AGAIN: {path.name} is not there: run the target once without it")
    return [
        Mutant(**{**entry, "lines": tuple(entry["lines"])}) for entry in json.loads(path.read_text(encoding="utf-8"))
    ]


def _with_equivalence(mutant: Mutant, equivalents: Sequence[Equivalent]) -> Mutant:
    if mutant.verdict in (SURVIVED, TIMEOUT, UNREACHED) and any(entry.is_about(mutant) for entry in equivalents):
        return Mutant(**{**asdict(mutant), "is_equivalent": True})
    return mutant


def unmatched(equivalents: Iterable[Equivalent], mutants: Sequence[Mutant]) -> list[Equivalent]:
    """Entries about these mutants' files that fit none of them: the code has changed, or a test kills them now."""
    files = {mutant.file for mutant in mutants}
    about = [entry for entry in equivalents if any(fnmatch.fnmatchcase(file, entry.file) for file in files)]
    return [entry for entry in about if not any(m.is_equivalent and entry.is_about(m) for m in mutants)]


def killed_share(mutants: Sequence[Mutant]) -> float:
    """Killed of those that could be; 1 when there was none."""
    real = [mutant for mutant in mutants if not mutant.is_equivalent]
    return sum(not mutant.is_alive for mutant in real) / len(real) if real else 1.0


def show(by_target: dict[str, list[Mutant]]) -> str:
    """Survivors as diffs, then one row of figures a file."""
    lines = []
    for mutant in (each for mutants in by_target.values() for each in mutants if each.is_alive):
        at = f"{mutant.file}:{mutant.lines[0]}" if mutant.lines else mutant.file
        lines += [f"{at} {mutant.function} {mutant.verdict}  ({mutant.name})"]
        lines += [f"  - {text}" for text in mutant.old.splitlines()] + [
            f"  + {text}" for text in mutant.new.splitlines()
        ]
    lines += ["", "| module | mutants | killed | timeout | survived | unreached | equivalent | share |"]
    lines += ["|---|---:|---:|---:|---:|---:|---:|---:|"]
    for mutants in by_target.values():
        for file in sorted({mutant.file for mutant in mutants}):
            lines.append(_row(file, [mutant for mutant in mutants if mutant.file == file]))
    everything = [mutant for mutants in by_target.values() for mutant in mutants]
    return "\n".join([*lines, _row("all", everything)])


def _row(name: str, mutants: Sequence[Mutant]) -> str:
    real = [mutant.verdict for mutant in mutants if not mutant.is_equivalent]
    counts = [len(mutants), *(real.count(verdict) for verdict in (KILLED, TIMEOUT, SURVIVED, UNREACHED))]
    cells = [*counts, len(mutants) - len(real), f"{killed_share(mutants):.1%}"]
    return f"| {name} | {' | '.join(map(str, cells))} |"


def main(argv: Sequence[str]) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("--target", help="names from mutants.yaml, with commas between")
    parser.add_argument("--base", help="only mutants of lines that changed since this revision")
    parser.add_argument("--sample", type=int, help="at most so many of each target, drawn at random")
    parser.add_argument("--seed", default="0", help="of the sample")
    parser.add_argument("--again", action="store_true", help="only those the last run left alive")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--root", type=Path, default=ROOT, help="the repository (%(default)s)")
    parser.add_argument("--plan", type=Path, default=Path(__file__).with_suffix(".yaml"), help="targets (%(default)s)")
    parser.add_argument("--generate", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--judge", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.generate:
        generate()
        return 0
    if options.judge:
        judge(json.loads(Path(options.judge).read_text(encoding="utf-8")), options.jobs)
        return 0
    try:
        goal, targets, equivalents = read_plan(options.plan, options.root)
        asked = options.target.split(",") if options.target else [target.name for target in targets]
        if unknown := set(asked) - {target.name for target in targets}:
            raise BadTargetsError(f"TARGET={','.join(sorted(unknown))}: one of {', '.join(t.name for t in targets)}")
        by_target = {t.name: run_target(t, equivalents, options) for t in targets if t.name in asked}
    except BadTargetsError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    sys.stdout.write(f"{show(by_target)}\n")
    if not (options.base or options.sample or options.again):
        for entry in unmatched(equivalents, [mutant for mutants in by_target.values() for mutant in mutants]):
            sys.stdout.write(f"equivalent: {entry.file}: no mutant of {entry.old!r} is {entry.new}: drop the entry\n")
    return 0 if all(killed_share(mutants) >= goal for mutants in by_target.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
