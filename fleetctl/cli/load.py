"""`load`: traffic by rate, shape or trace against anything that speaks the API, with its numbers as they come."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fleetctl.cli.context import current, gateway_url
from fleetctl.cli.duration_option import duration_s
from fleetctl.cli.output import DATA, Output, OutputOption, print_data, print_fields, seconds, stderr, stdout
from fleetctl.kit.errors import BadInputError, FleetctlError, UnreachableError
from fleetctl.kit.http_url import is_http_url
from fleetctl.load.rate_shape import RateShape, shaped

if TYPE_CHECKING:
    from fleetctl.load.client import LoadRun, LoadSettings
    from fleetctl.load.ledger import Percentiles, Report
    from fleetctl.load.shape import RequestShape

TOLD_EVERY_S = 10.0  # without a terminal
DRAWN_EVERY_S = 0.5


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command("load")
    def load(
        url: Annotated[
            str, typer.Argument(help="Where requests go: a gateway, a node, any OpenAI-compatible server.")
        ] = "",
        rate: Annotated[
            float | None,
            typer.Option(
                "--rate", min=0.01, max=10_000, help="Requests per second; a trace's own without it.", show_default="4"
            ),
        ] = None,
        shape: Annotated[RateShape, typer.Option("--shape", help="How the rate goes.")] = RateShape.steady,
        trace: Annotated[
            Path | None, typer.Option("--trace", help="Times and lengths of this trace: Mooncake JSONL or Azure CSV.")
        ] = None,
        lasts: Annotated[str, typer.Option("--for", help="How long, e.g. 30s, 10m.")] = "1m",
        model: Annotated[str, typer.Option("--model", help="The model; default: the first that is served.")] = "",
        prompt_tokens: Annotated[int, typer.Option("--prompt-tokens", min=1, help="Median of prompts.")] = 64,
        output_tokens: Annotated[int, typer.Option("--output-tokens", min=1, help="Median of answers.")] = 32,
        long_share: Annotated[
            float, typer.Option("--long-share", min=0, max=1, help="Share of requests with long prompts.")
        ] = 0.0,
        long_tokens: Annotated[int, typer.Option("--long-tokens", min=1, help="Length of long prompts.")] = 2048,
        max_prompt: Annotated[
            int | None, typer.Option("--max-prompt-tokens", min=1, help="Longer ones of a trace are cut.")
        ] = None,
        max_output: Annotated[
            int | None, typer.Option("--max-output-tokens", min=1, help="Longer answers of a trace are cut.")
        ] = None,
        max_in_flight: Annotated[
            int, typer.Option("--max-in-flight", min=1, help="Arrivals beyond it are counted, not sent.")
        ] = 256,
        api_key_file: Annotated[
            Path | None, typer.Option("--api-key-file", help="File with the API key of a tenant.")
        ] = None,
        plain: Annotated[
            bool, typer.Option("--openai", help="Send OpenAI's fields alone; tried by itself where others are refused.")
        ] = False,
        seed: Annotated[int, typer.Option("--seed", help="The same traffic for the same seed.")] = 0,
        output: OutputOption = Output.table,
    ) -> None:
        """Send traffic and say what became of each request. Ctrl-C stops sending and waits for what is in flight."""
        from fleetctl.load.client import LoadSettings

        target = (url or gateway_url(current().settings())).rstrip("/").removesuffix("/v1")
        if not is_http_url(target):
            raise BadInputError(f"{url!r} is no HTTP URL", remedy="give one like http://127.0.0.1:7800")
        lasts_s = duration_s("--for", lasts, "a run")
        if trace is None:
            shapes = _generated(rate or 4.0, prompt_tokens, output_tokens, long_share, long_tokens, seed)
        else:
            shapes = _of_trace(trace, rate, max_prompt, max_output)
        key = _read_key(api_key_file)
        served = model or first_model(target, key)
        is_exact, chars = asyncio.run(_calibrated(target, served, key, is_exact=not plain))
        settings = LoadSettings(
            url=target,
            model=served,
            seed=seed,
            max_in_flight=max_in_flight,
            chars_per_token=chars,
            api_key=key,
            is_exact=is_exact,
        )
        how = f"trace {trace}" if trace is not None else f"{rate or 4.0:g}/s"
        stderr().print(f"{target}, model {served}: {how}, {shape}, for {lasts}; Ctrl-C ends it", markup=False)
        report = asyncio.run(_run(settings, shaped(shapes, shape, lasts_s=lasts_s, seed=seed), output, lasts_s))
        _print_end(report, output)


def _generated(
    rate: float, prompt_tokens: int, output_tokens: int, long_share: float, long_tokens: int, seed: int
) -> Iterable[RequestShape]:
    from fleetctl.load.generated_shapes import TrafficKind, generate_shapes

    return generate_shapes(
        TrafficKind(
            rate_per_s=rate,
            prompt_tokens_median=prompt_tokens,
            max_prompt_tokens=8 * prompt_tokens,
            output_tokens_median=output_tokens,
            max_output_tokens=4 * output_tokens,
            long_share=long_share,
            long_prompt_tokens=long_tokens,
            seed=seed,
        )
    )


def _of_trace(path: Path, rate: float | None, max_prompt: int | None, max_output: int | None) -> Iterable[RequestShape]:
    """The trace at its own pace, or at this mean rate. Raises BadInputError for one that can't be read."""
    from fleetctl.load.shape import Scale, scale_shapes
    from fleetctl.load.trace import load_trace

    found = load_trace(path)
    span_s = max(found[-1].at_s - found[0].at_s, 1e-3)
    pace = 1.0 if rate is None else max((len(found) / span_s) / rate, 1e-9)
    return scale_shapes(found, Scale(time_ratio=pace, max_prompt_tokens=max_prompt, max_output_tokens=max_output))


def _read_key(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        return path.read_text("ascii").strip()
    except OSError as error:
        raise BadInputError(f"--api-key-file {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise BadInputError(f"--api-key-file {path}: no key in it: not ASCII") from error


def first_model(url: str, key: str | None) -> str:
    """The first model that is served there. Raises UnreachableError, and BadInputError when there is none."""
    import httpx

    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        answer = httpx.get(f"{url}/v1/models", headers=headers, timeout=10.0, trust_env=False)
        names = [one["id"] for one in answer.json()["data"]]
    except httpx.ConnectError as error:
        raise UnreachableError(f"{url}: nothing answers there", remedy="fleetctl up, or name a URL") from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise UnreachableError(
            f"{url}: {str(error) or type(error).__name__}", remedy="fleetctl up, or name a URL"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise BadInputError(f"{url}/v1/models: no list of models", remedy="name one with --model") from error
    if not names:
        raise BadInputError(f"{url} serves no model", remedy="fleetctl get nodes")
    return str(names[0])


async def _calibrated(url: str, model: str, key: str | None, *, is_exact: bool) -> tuple[bool, float]:
    """Whether our own fields are taken there, and how many characters make a token of this model."""
    from fleetctl.load.client import CalibrationError, measure_chars_per_token

    try:
        return is_exact, await measure_chars_per_token(url, model, key, is_exact=is_exact)
    except CalibrationError as error:
        if not is_exact:
            raise UnreachableError(
                f"no usable answer: {error}", remedy="fleetctl get nodes, or another --model"
            ) from error
    return await _calibrated(url, model, key, is_exact=False)


async def _run(settings: LoadSettings, shapes: Iterable[RequestShape], output: Output, lasts_s: float) -> Report:
    """Send until the shapes end or Ctrl-C is pressed; a second Ctrl-C hangs up on what is in flight."""
    from fleetctl.load.client import LoadRun

    run, stop = LoadRun(settings), asyncio.Event()
    sending = asyncio.ensure_future(run.send_all(shapes, stop))

    def interrupt() -> None:
        if stop.is_set():
            sending.cancel()
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupt)
    telling = asyncio.ensure_future(_tell(run, stop, output, lasts_s))
    try:
        await asyncio.wait({sending})
        return run.report()
    finally:
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


async def _tell(run: LoadRun, stop: asyncio.Event, output: Output, lasts_s: float) -> None:
    """The numbers as they come: a table that stays in its place on a terminal, else a line now and then."""
    if output in DATA or not sys.stderr.isatty():
        while True:
            await asyncio.sleep(TOLD_EVERY_S)
            stderr().print(_line(run.report()), markup=False)
    from rich.live import Live
    from rich.table import Table

    from fleetctl.tui.held_logs import held_logs

    # Each request that went wrong is logged, which would tear the table; the end counts them by reason.
    with held_logs(logging.ERROR), Live(console=stderr(), transient=True, refresh_per_second=4) as live:
        while True:
            report = run.report()
            table = Table.grid(padding=(0, 2, 0, 0))
            for name, value in (("for", f"{report.duration_s:.0f}s of {lasts_s:.0f}s"), *_rows(report)[1:]):
                table.add_row(name, value)
            if stop.is_set():
                table.add_row("", "waiting for what is in flight; Ctrl-C again hangs up")
            live.update(table)
            await asyncio.sleep(DRAWN_EVERY_S)


def _line(report: Report) -> str:
    return ", ".join(f"{name} {value}" for name, value in _rows(report))


def _rows(report: Report) -> list[tuple[str, str]]:
    def of(values: Percentiles) -> str:
        return " / ".join(seconds(one) for one in (values.p50, values.p95, values.p99))

    rates = report.output_tokens_per_s
    counts = {
        "sent": report.sent,
        "in flight": report.in_flight,
        "finished": report.finished,
        "refused": report.refused,
        "lost": report.lost,
        "duplicated": report.duplicated,
        "held back": report.held_back,
        "moved": report.moved,
    }
    needed = {"sent", "in flight", "finished", "refused", "lost"}
    return [
        ("for", f"{report.duration_s:.0f}s"),
        *((name, str(count)) for name, count in counts.items() if count or name in needed),
        ("tokens/s", "-" if rates is None else f"{rates:.0f}"),
        ("TTFT 50/95/99", of(report.ttft_s)),
        ("ITL 50/95/99", of(report.itl_s)),
    ]


def _print_end(report: Report, output: Output) -> None:
    """The numbers, and exit code 1 when a request that was taken in got no right answer."""
    if output in DATA:
        print_data(report.as_json(), output)
    else:
        print_fields("load", _rows(report))
        for reason, count in sorted(report.reasons.items(), key=lambda one: -one[1]):
            stdout().print(f"  {count} ended with {reason.replace('_', ' ')}", markup=False)
    wrong = report.lost + report.duplicated
    if wrong:
        remedy = "fleetctl get incidents; fleetctl events"
        if report.reasons.get("http_400"):
            remedy = "the server takes no such requests: perhaps they are too long, see --max-prompt-tokens"
        raise FleetctlError(f"{wrong} of {report.sent} requests got no right answer", remedy=remedy)
    if not report.sent and not report.held_back:
        raise FleetctlError("no request of this traffic came in that time", remedy="a higher --rate, or a longer --for")
