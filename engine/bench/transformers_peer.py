"""transformers in a process of its own, so that it has the machine for itself and can be stopped.

This module is that process as well: `python -m engine.bench.transformers_peer` reads a task from stdin and prints its
answers. See `transformers_methods.py` for how transformers is asked.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

from engine.bench.figures import Figures, RequestTiming, figures_of
from engine.bench.workload import BenchRequest

METHODS = ("generate", "continuous")
STARTING_S = 120.0  # importing, loading, the first two requests
STOPPING_S = 60.0  # the step that the limit falls into may be long


class PeerError(RuntimeError):
    """transformers gave no figures; the message says why."""


def missing() -> str | None:
    """Why transformers is left out, or None."""
    return None if find_spec("transformers") else "transformers: not installed"


def run_transformers(
    model_dir: Path,
    dtype: str,
    method: str,
    requests: Sequence[BenchRequest],
    concurrency: int,
    num_threads: int,
    limit_s: float,
) -> Figures:
    """Figures of one method, cut off after `limit_s`. Raises PeerError when it ended, hung or gave too few tokens."""
    task = {
        "model_dir": str(model_dir),
        "dtype": dtype,
        "method": method,
        "requests": [asdict(request) for request in requests],
        "concurrency": concurrency,
        "num_threads": num_threads,
        "limit_s": limit_s,
    }
    patience_s = STARTING_S + limit_s + STOPPING_S
    try:
        done = subprocess.run(
            (sys.executable, "-m", __name__),
            input=json.dumps(task),
            capture_output=True,
            text=True,
            timeout=patience_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise PeerError(f"no result after {patience_s:.0f} s") from None
    if done.returncode != 0:
        said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise PeerError(f"{said[-1] if said else 'it said nothing'} (code {done.returncode})"[-300:])
    result = json.loads(done.stdout.splitlines()[-1])
    answers = [RequestTiming(a["sent_at"], tuple(a["chunk_times"]), a["output_tokens"]) for a in result["answers"]]
    return figures_of(answers, result["seconds"], cut_tokens=result["cut_tokens"])


def main() -> int:
    """The peer's process: reads a job from stdin, writes its result to stdout as JSON."""
    from engine.bench.transformers_methods import answer_requests

    task = json.loads(sys.stdin.read())
    requests = [BenchRequest(tuple(r["prompt"]), r["output_tokens"], r["has_prefix"]) for r in task.pop("requests")]
    result = answer_requests(requests=requests, **task)
    sys.stdout.write("\n" + json.dumps(asdict(result)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
