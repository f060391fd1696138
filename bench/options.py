"""Options that several commands of the front door take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
Placement = Annotated[
    str | None,
    typer.Option(help="device, managed, pinned, pageable: the memory a GPU's copies work on."),
]
Timer = Annotated[
    str | None, typer.Option(help="events, events-ungated, graph or cupti; wall on the CPU.")
]
Threshold = Annotated[str, typer.Option(help="Relative change of time that matters.")]
Markdown = Annotated[bool, typer.Option("--markdown", help="Markdown instead of text.")]
Strict = Annotated[bool, typer.Option("--strict", help="Any ambiguous case is inconclusive.")]
AllowMissing = Annotated[
    bool, typer.Option("--allow-missing", help="Cases that are no longer there are no failure.")
]
Runs = Annotated[list[Path], typer.Argument(help="Run folders, or folders that hold runs.")]
Implementation = Annotated[
    str | None, typer.Option(help="cuda, torch, cuda:unfused, 'cuda:*'; several: a,b.")
]
DTypes = Annotated[str | None, typer.Option(help="float32, float16, bfloat16; several: a,b.")]
