"""`make bench-diagnosis`: every case through the real chain, and the page with its figures.

python -m diagnostics.bench                         all built-in cases; prints the figures
python -m diagnostics.bench my-incident.yaml DIR    your own
python -m diagnostics.bench --write                 and docs/diagnosis-benchmark.md with its plot
python -m diagnostics.bench --check FILE            reads the case, and runs nothing
python -m diagnostics.bench --random 100 --seed 7   cases that nobody has looked at
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from diagnostics.bench.case import BadCaseError, Case, builtin_cases, load_cases
from diagnostics.bench.engine_under_test import Under
from diagnostics.bench.judging import Bench, Result
from diagnostics.bench.random_cases import random_cases
from diagnostics.bench.report import page, reliability, reliability_svg, said

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "diagnosis-benchmark.md"
PLOT = ROOT / "docs" / "diagnosis-reliability.svg"
BEGIN, END = "<!-- figures -->", "<!-- /figures -->"
_benches: list[Bench] = []  # of this process


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0, 1 when a case is judged wrong (of own cases), 2 for a case that cannot be read."""
    parser = argparse.ArgumentParser(
        prog="python -m diagnostics.bench", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("cases", nargs="*", type=Path, help="case files or folders; default: the built-in ones")
    parser.add_argument(
        "--random", type=int, default=0, metavar="N", help="in place of files: random fleets and faults"
    )
    parser.add_argument("--seed", type=int, default=1, help="of those")
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    parser.add_argument("--tuned", action="store_true", help="without those that are held out")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)} and its plot")
    parser.add_argument("--check", action="store_true", help="read the cases, and run nothing")
    parser.add_argument("--json", type=Path, help="write each verdict there too")
    options = parser.parse_args(arguments)
    try:
        if options.random:
            cases = random_cases(options.random, options.seed)
        else:
            cases = load_cases(options.cases) if options.cases else builtin_cases()
        cases = [one for one in cases if options.only in one.name and not (options.tuned and one.held_out)]
        if not cases:
            sys.stderr.write("no case\n")
            return 2
        if options.check:
            sys.stdout.write(f"{len(cases)} cases can be read\n")
            return 0
        results = []
        with ProcessPoolExecutor(options.jobs) as processes:
            for result in map(run_case, cases) if options.jobs == 1 else processes.map(run_case, cases):
                results.append(result)
                sys.stdout.write(f"{line(result)}\n")
                sys.stdout.flush()
    except BadCaseError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    figures = page(results, "make bench-diagnosis")
    if options.json:
        options.json.write_text(json.dumps([as_json(one) for one in results], indent=1), "utf-8")
    if options.write and not options.random:
        write_page(figures)
        PLOT.write_text(reliability_svg(reliability(results)), "utf-8")
    sys.stdout.write(figures.partition("### By case")[0])
    is_all_right = all(one.is_right(verdict) for one in results for verdict in one.judged)
    return 0 if is_all_right or not (options.cases or options.random) else 1


def run_case(case: Case) -> Result:
    """With the bench of this process, made once."""
    if not _benches:
        under = Under()
        _benches.append(Bench(under, under.remedy_words))
    return _benches[0].run_case(case)


def line(result: Result) -> str:
    """One case in one line."""
    words = []
    for one in result.verdicts:
        is_judged = one.age_s >= result.case.expect.from_s
        mark = ("+" if result.is_right(one) else "2" if result.is_near(one) else "-") if is_judged else " "
        sure = f" {one.probability:.2f}" if one.probability is not None else ""
        words.append(f"{mark}{one.age_s:.0f}s {said(one)}{sure}")
    pages = f"  PAGE {result.false_pages[0]}" if result.false_pages else ""
    return f"{result.case.name:32} {'; '.join(words)}{pages}"


def as_json(result: Result) -> dict[str, object]:
    """What a program reads of it."""
    return {
        "case": result.case.name,
        "held_out": result.case.held_out,
        "expected": sorted(result.case.expect.causes),
        "first_alert_s": result.first_alert_s,
        "pages": list(result.pages),
        "verdicts": [
            {
                "age_s": one.age_s,
                "causes": list(one.causes),
                "second": list(one.second),
                "probability": one.probability,
                "is_right": result.is_right(one),
                "is_near": result.is_near(one),
                "title": one.title,
                "took_s": one.took_s,
            }
            for one in result.verdicts
        ],
    }


def write_page(figures: str) -> None:
    """Puts the figures between their marks."""
    text = PAGE.read_text("utf-8")
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    PAGE.write_text(f"{head}{BEGIN}\n\n{figures}\n{END}{tail}", "utf-8")


if __name__ == "__main__":
    sys.exit(main())
