"""The front door: `membound doctor | list | run | report | compare | export`.

The only file that knows both bench and analysis. Nothing heavy is imported before a command needs
it. Exit codes: 0 good; 1 slower, wrong result or damaged file; 2 usage; 3 nothing comparable; 4 no
such device or nothing could be measured; 5 inconclusive; 130 interrupted, resumable.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NoReturn

import typer

app = typer.Typer(
    help=(
        "How close do the memory-bound layers of a neural network get to the memory of this "
        "machine, and what does fusing them buy?"
    ),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Selection = Annotated[
    list[str] | None,
    typer.Argument(
        help="Operations or families; patterns as 'rms_*'. All of the preset's if none."
    ),
]
Device = Annotated[str | None, typer.Option(help="cuda, cuda:1 or cpu. The GPU if there is one.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Kernels = Annotated[
    list[Path] | None,
    typer.Option(help="A folder with operations of your own, beside ours. May be repeated."),
]
Peak = Annotated[float | None, typer.Option(help="Peak bandwidth in GB/s (1e9 bytes) to trust.")]
PeakSource = Annotated[str | None, typer.Option(help="Where --peak is from; kept in the run.")]
Runs = Annotated[list[Path], typer.Argument(help="Run folders, or folders that hold runs.")]


@app.command()
def doctor(
    device: Device = None,
    peak: Peak = None,
    peak_source: PeakSource = None,
    as_json: Json = False,
) -> None:
    """Say what this machine is, what its memory can do, and what can be measured on it."""
    with _usage_errors():
        from .bench import doctor as diagnosis

        found = diagnosis.diagnose(device, peak, peak_source)
        if as_json:
            _print_json(found.as_json())
        else:
            diagnosis.show(found)
    raise typer.Exit(found.exit_code)


@app.command("list")
def list_(
    as_json: Json = False,
    device: Device = None,
    kernels: Kernels = None,
) -> None:
    """List operations and implementations, and why some cannot run here."""
    with _usage_errors():
        from .bench import listing
        from .bench.device.select import select
        from .kernels.discovery import discover

        target = select(device).target
        found = list(listing.entries(discover(kernels or ()), target))
        if as_json:
            _print_json([entry.as_json() for entry in found])
            return
        from .bench.show import show_listing

        show_listing(found)


@app.command()
def run(
    selection: Selection = None,
    preset: Annotated[str, typer.Option(help="quick, standard or full.")] = "quick",
    device: Device = None,
    direction: Annotated[str | None, typer.Option(help="forward, backward, or both: a,b.")] = None,
    implementation: Annotated[
        str | None, typer.Option(help="cuda, torch, cuda:unfused, …; several: a,b.")
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="float32, float16, bfloat16; several: a,b.")
    ] = None,
    cache: Annotated[str | None, typer.Option(help="cold, steady, or both: a,b.")] = None,
    processes: Annotated[int | None, typer.Option(min=1, help="Fresh worker processes.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the inputs.")] = 0,
    out: Annotated[Path, typer.Option(help="Where results/ is.")] = Path("results"),
    time_limit: Annotated[
        str | None, typer.Option(help="90s, 10m, 1h: cases not reached are recorded as skipped.")
    ] = None,
    timer: Annotated[str | None, typer.Option(help="events or graph; wall on the CPU.")] = None,
    kernels: Kernels = None,
    peak: Peak = None,
    peak_source: PeakSource = None,
    resume: Annotated[
        Path | None, typer.Option(help="A run folder to complete, with the same options.")
    ] = None,
) -> None:
    """Verify and measure, write a run under results/, and print its table."""
    with _usage_errors():
        from .bench.cases import Selection as Chosen
        from .bench.run import Request, measure
        from .bench.run import resume as complete
        from .bench.show import Progress

        request = Request(
            selection=Chosen(
                preset=preset,
                operations=tuple(selection or ()),
                directions=_several(direction),
                implementations=_several(implementation),
                dtypes=_several(dtype),
                caches=_caches(cache),
            ),
            device=device,
            peak=peak,
            peak_source=peak_source,
            processes=processes,
            seed=seed,
            out=out,
            time_limit=_seconds(time_limit),
            timer=timer,
            kernels=tuple(kernels or ()),
            command=("membound", *sys.argv[1:]),
        )
        with Progress() as progress:
            outcome = complete(resume, request, progress) if resume else measure(request, progress)
    _show_run(outcome.folder)
    raise typer.Exit(_exit_code(outcome.counts))


def _exit_code(counts: dict[str, int]) -> int:
    """1 where a result is wrong, 4 where nothing was measured, else 0."""
    if counts.get("wrong"):
        return 1
    return 0 if counts.get("ok") else 4


def _show_run(folder: Path) -> None:
    typer.echo(f"records: {folder}")


def _several(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip()) if text else ()


def _caches(text: str | None) -> tuple:
    names = _several(text)
    for name in names:
        if name not in ("cold", "steady"):
            _fail(f"unknown cache state {name!r}; valid: cold, steady", 2)
    return names


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    units = {"s": 1.0, "m": 60.0, "h": 3600.0}
    number = text[:-1] if text[-1:] in units else text
    try:
        seconds = float(number) * units.get(text[-1:], 1.0)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < 1e7:
        _fail(f"--time-limit {text!r} is not a duration; write 90s, 10m or 1h", 2)
    return seconds


def _print_json(value: object) -> None:
    typer.echo(json.dumps(value, indent=2, allow_nan=False))


def _fail(message: str, code: int) -> NoReturn:
    typer.echo(f"membound: {message}", err=True)
    raise typer.Exit(code)


@contextmanager
def _usage_errors() -> Iterator[None]:
    """What a user can do wrong, or a machine can lack, as one line and its exit code."""
    from .bench.device.peaks import BadPeak
    from .bench.device.select import NoSuchDevice, UnknownDevice
    from .kernels.discovery import BrokenKernels

    try:
        yield
    except (UnknownDevice, BadPeak, BrokenKernels) as error:
        _fail(str(error), 2)
    except NoSuchDevice as error:
        _fail(str(error), 4)
    except KeyboardInterrupt:
        _fail("interrupted; complete it with --resume and the run's folder", 130)
    except ImportError as error:
        _fail(f"{error}; install membound with an extra: cpu, cuda12 or cuda13", 4)


def main() -> None:
    app()


if __name__ == "__main__":
    main()
