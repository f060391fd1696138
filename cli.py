"""The front door: `membound doctor | list | run | report | compare | gate | ab | audit | export`.

The only file that knows both bench and analysis. Nothing heavy is imported before a command needs
it. Exit codes: 0 good; 1 slower, wrong result or damaged file; 2 usage; 3 nothing comparable; 4 no
such device or nothing could be measured; 5 inconclusive; 130 interrupted, resumable.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from .bench import arguments
from .bench.endings import fail, usage_errors
from .bench.endings import run as run_program
from .bench.options import (
    AllowMissing,
    Device,
    DTypes,
    Implementation,
    Json,
    Kernels,
    Markdown,
    Peak,
    PeakSource,
    Placement,
    Runs,
    Selection,
    Strict,
    Threshold,
    Timer,
)

app = typer.Typer(
    help=(
        "How close do the memory-bound layers of a neural network get to the memory of this "
        "machine, and what does fusing them buy?"
    ),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.command()
def doctor(
    device: Device = None,
    peak: Peak = None,
    peak_source: PeakSource = None,
    as_json: Json = False,
) -> None:
    """Say what this machine is, what its memory can do, and what can be measured on it."""
    with usage_errors():
        from .bench import doctor as diagnosis

        found = diagnosis.diagnose(device, peak, peak_source)
        if as_json:
            _print_json(found.as_json())
        else:
            diagnosis.show(found)
    raise typer.Exit(found.exit_code)


@app.command("list")
def list_(
    selection: Selection = None,
    as_json: Json = False,
    device: Device = None,
    kernels: Kernels = None,
) -> None:
    """List operations and implementations, and why some cannot run here."""
    with usage_errors():
        from .bench import listing
        from .bench.device.select import select
        from .kernels.discovery import discover

        target = select(device).target
        found = list(listing.entries(discover(kernels or ()), target, selection or ()))
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
    implementation: Implementation = None,
    dtype: DTypes = None,
    cache: Annotated[str | None, typer.Option(help="cold, steady, or both: a,b.")] = None,
    processes: Annotated[
        int | None, typer.Option(min=1, max=1000, help="Fresh worker processes.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Seed of the inputs.")] = 0,
    out: Annotated[Path, typer.Option(help="Where results/ is.")] = Path("results"),
    time_limit: Annotated[
        str | None, typer.Option(help="90s, 10m, 1h: cases not reached are recorded as skipped.")
    ] = None,
    timer: Timer = None,
    placement: Placement = None,
    kernels: Kernels = None,
    peak: Peak = None,
    peak_source: PeakSource = None,
    resume: Annotated[
        Path | None, typer.Option(help="A run folder to complete, with the same options.")
    ] = None,
) -> None:
    """Verify and measure, write a run under results/, and print its table."""
    with usage_errors():
        from .bench.presets import Selection as Chosen
        from .bench.run import Request, measure
        from .bench.run import resume as complete
        from .bench.show import Progress

        request = Request(
            selection=Chosen(
                preset=preset,
                operations=tuple(selection or ()),
                directions=arguments.several(direction),
                implementations=arguments.several(implementation),
                dtypes=arguments.several(dtype),
                caches=arguments.caches(cache),
                placements=arguments.placements(placement),
            ),
            device=device,
            peak=peak,
            peak_source=peak_source,
            processes=processes,
            seed=seed,
            out=out,
            time_limit=arguments.seconds(time_limit),
            timer=timer,
            kernels=tuple(kernels or ()),
            command=("membound", *sys.argv[1:]),
        )
        with Progress() as progress:
            outcome = complete(resume, request, progress) if resume else measure(request, progress)
    _show_run(outcome.folder)
    raise typer.Exit(outcome.exit_code)


@app.command()
def report(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(help="Run folders, or folders that hold runs. The newest in results/."),
    ] = None,
    markdown: Markdown = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write to this file; .html is a page, .md Markdown."),
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(help="Write every figure to this folder, as SVG and PNG.")
    ] = None,
) -> None:
    """Show what runs say: device, ceilings, achieved bandwidth, what fusing buys, failures."""
    with usage_errors():
        from .analysis.report import form_of
        from .analysis.report import report as made
        from .results.reading import find_runs

        found = made(
            runs or find_runs([Path("results")])[-1:],
            form_of(output, markdown),
            color=output is None and _colorful(),
            figures=figures,
            output=output,
        )
        if output is None:
            typer.echo(found.text, nl=False)
        else:
            _write(output, found.text)
            for problem in found.problems:
                typer.echo(problem, err=True)
    raise typer.Exit(found.exit_code)


@app.command()
def compare(
    base: Annotated[str, typer.Argument(help="Run, folder of runs or glob.")],
    current: Annotated[str, typer.Argument(help="Run, folder of runs or glob.")],
    threshold: Threshold = "3%",
    across_devices: Annotated[
        bool,
        typer.Option("--across-devices", help="Compare in percent of each device's own ceiling."),
    ] = False,
    strict: Strict = False,
    allow_missing: AllowMissing = False,
    markdown: Markdown = False,
    as_json: Json = False,
) -> None:
    """Compare two sides case by case: medians of processes, intervals, and a verdict each."""
    with usage_errors():
        from .analysis.compare import compare as compared
        from .analysis.loading import read
        from .analysis.script import complain, conclude, sides

        limit = arguments.share(threshold)
        ours, theirs = sides(read([base]), read([current]))
        found = compared(ours, theirs, threshold=limit, across_devices=across_devices)
        code = conclude(found, strict, allow_missing, markdown, as_json, _colorful())
        code = complain([*ours, *theirs]) or code
    raise typer.Exit(code)


@app.command()
def gate(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="[BASELINE] CURRENT",
            help="Without BASELINE the newest clean run of this device in --store.",
        ),
    ],
    store: Annotated[Path, typer.Option(help="Where baselines are.")] = Path("results"),
    threshold: Threshold = "3%",
    strict: Strict = False,
    allow_missing: AllowMissing = False,
    markdown: Markdown = False,
    as_json: Json = False,
) -> None:
    """Fail where a run is slower than its baseline beyond the threshold, or cannot tell."""
    if len(runs) > 2:
        fail(f"gate takes [BASELINE] CURRENT, got {len(runs)}; quote a glob of several runs", 2)
    with usage_errors():
        from .analysis.compare import compare as compared
        from .analysis.gate import baseline
        from .analysis.loading import read
        from .analysis.script import complain, conclude, sides
        from .results.checked import printable

        limit = arguments.share(threshold)
        current = read([runs[-1]])
        base = read([runs[0]]) if len(runs) == 2 else [baseline(current, store)]
        base, current = sides(base, current)
        names = ", ".join(printable(str(run.path)) for run in base)
        typer.echo(f"baseline: {names}", err=as_json)
        found = compared(base, current, threshold=limit)
        code = conclude(found, strict, allow_missing, markdown, as_json, _colorful())
        code = complain([*base, *current]) or code
    raise typer.Exit(code)


@app.command()
def ab(
    revision: Annotated[
        str, typer.Argument(metavar="REV", help="Commit, branch or tag to compare with.")
    ],
    selection: Selection = None,
    implementation: Implementation = None,
    dtype: DTypes = None,
    device: Device = None,
    kernels: Kernels = None,
    threshold: Threshold = "3%",
    time_limit: Annotated[
        str, typer.Option(help="90s, 10m, 1h: what is undecided then is ambiguous.")
    ] = "10m",
    restarts: Annotated[
        int, typer.Option(min=2, max=1000, help="Fresh pairs of processes before the first look.")
    ] = 5,
    strict: Strict = False,
    allow_missing: AllowMissing = False,
    markdown: Markdown = False,
    as_json: Json = False,
) -> None:
    """Measure the working tree against a revision, both live and alternating."""
    with usage_errors("interrupted; nothing is kept of an A/B comparison"):
        from .analysis.script import conclude
        from .analysis.sequential import Sequential
        from .bench.ab import ab as compared
        from .bench.ab_side import TIME_LIMIT_SECONDS, Comparing
        from .bench.presets import Selection as Chosen

        request = Comparing(
            revision,
            Chosen(
                operations=tuple(selection or ()),
                implementations=arguments.several(implementation),
                dtypes=arguments.several(dtype),
                ceilings=False,
            ),
            device=device,
            kernels=tuple(kernels or ()),
            time_limit=arguments.seconds(time_limit) or TIME_LIMIT_SECONDS,
        )
        found = compared(
            request,
            Sequential(restarts, arguments.share(threshold)),
            lambda line: typer.echo(line, err=True),
        )
        code = conclude(found, strict, allow_missing, markdown, as_json, _colorful())
    raise typer.Exit(code)


@app.command()
def audit(
    selection: Selection = None,
    arch: Annotated[
        str, typer.Option(help="sm_121; several: a,b; all of them: all.")
    ] = "sm_75,sm_90,sm_121",
    kernels: Kernels = None,
    as_json: Json = False,
) -> None:
    """Judge the machine code of CUDA C++ kernels, without a GPU; exit 1 where there is a fault.

    Each kernel is compiled for each architecture and read as it would be launched at the shapes of
    its layers: registers, spills, access width, launch limits, occupancy, instructions and special
    functions per byte, bytes in flight. A fault that is listed with a reason is exempt; one of
    instructions is issue-bound, with the remedy that was tried.
    """
    with usage_errors():
        from .bench.cases import matching
        from .kernels.audit.run import audit as audited
        from .kernels.audit.show import show
        from .kernels.discovery import discover

        archs = arguments.architectures(arch)
        catalogue = discover(kernels or ())
        chosen = matching(catalogue, selection or ["*"])
        found = audited(catalogue, chosen, archs, say=lambda line: typer.echo(line, err=True))
        if as_json:
            _print_json([row.as_json() for row in found.rows])
        else:
            show(found)
    if not found.rows:
        fail("nothing to audit: these operations launch no kernel of CUDA C++ there", 4)
    raise typer.Exit(1 if found.faults else 0)


@app.command()
def export(
    runs: Runs,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="File ending in .csv, .parquet or .json.")
    ],
    format: Annotated[
        str | None,
        typer.Option(help="csv, parquet or pytest-benchmark (of one run), whatever the suffix."),
    ] = None,
) -> None:
    """Write runs for other programs: a table (columns: results/README.md) or pytest-benchmark's."""
    with usage_errors():
        from .analysis.export import export as exported
        from .analysis.export import told

        done = exported(runs, output, format)
    raise typer.Exit(told(done))


def _show_run(folder: Path) -> None:
    from .analysis.report import run_table

    typer.echo(run_table(folder, color=_colorful()))
    typer.echo(f"The run is in {folder}")


def _colorful() -> bool:
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ


def _write(path: Path, text: str) -> None:
    from .results.checked import printable
    from .results.store import StoreError

    try:
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror}") from error
    typer.echo(f"wrote {printable(str(path))}")


def _print_json(value: object) -> None:
    typer.echo(json.dumps(value, indent=2, allow_nan=False))


def main() -> None:
    # To be asked to end is to be interrupted: whatever was started or checked out is cleaned up.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    run_program(app)


if __name__ == "__main__":
    main()
