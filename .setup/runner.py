"""`make runner`: what a CI job on a GPU runner does, and what it says of it.

doctor, a run, its report for the job's page, then the gate against the newest clean run of this
device under --store. The last line names the conclusion:

    success       nothing is slower beyond the threshold
    failure       something is, or is wrong, or what the baseline measured is gone
    inconclusive  neither can be said: contention, throttling, another driver, too much noise
    no-baseline   no clean run of this device to hold it to: commit the one just made

Exit status: 1 for a failure, that of doctor or of a run that left nothing, else 0. In
GitHub Actions the page, the outputs `conclusion`, `reason` and `run`, and a warning where nothing
could be said are written as well.
"""

import argparse
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from linked import link, membound

CONCLUSIONS = {0: "success", 5: "inconclusive"}
"""Of a gate's exit status; every other one is a failure."""
ENVIRONMENT = "environment.json"


def say(variable: str, text: str) -> None:
    """Append to the file that GitHub Actions names by `variable`; nowhere else is there one."""
    if path := os.environ.get(variable):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(text)


def told(*arguments: str) -> tuple[int, str]:
    """Exit status of a membound command and what it printed, which is shown as well."""
    command = [sys.executable, "-P", "-m", "membound.cli", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    print(done.stdout, end="", flush=True)
    return done.returncode, done.stdout


def newest_run(folder: Path) -> Path | None:
    """The run under `folder` whose name, which begins with its time, is the last."""
    runs = (found.parent for found in folder.glob(f"*/*/{ENVIRONMENT}"))
    return max(runs, key=lambda run: run.name, default=None)


def gate(run: Path, store: Path, threshold: str) -> tuple[str, str]:
    """Conclusion and reason."""
    known = store / run.parent.name
    if not any(known.glob(f"*/{ENVIRONMENT}")):
        return "no-baseline", f"no run of {run.parent.name} under {store}: commit {run} to make one"
    status, text = told(
        "gate", str(run), "--store", str(store), "--threshold", threshold, "--markdown"
    )
    say("GITHUB_STEP_SUMMARY", f"\n{text}\n")
    if status == 3 and not text.strip():  # it has told why it takes none of them
        return "no-baseline", f"no clean run of {run.parent.name} under {store}: commit {run}"
    lines = text.strip().splitlines()
    return CONCLUSIONS.get(status, "failure"), lines[-1] if lines else f"gate ended with {status}"


def check(conclusion: str, reason: str) -> None:
    """A check run named `membound` on the commit; neutral where nothing can be said."""
    token, repository = os.environ.get("GH_TOKEN"), os.environ.get("GITHUB_REPOSITORY")
    if not (token and repository):
        return
    content = {
        "name": "membound",
        "head_sha": os.environ.get("HEAD_SHA") or os.environ.get("GITHUB_SHA"),
        "status": "completed",
        "conclusion": conclusion if conclusion in ("success", "failure") else "neutral",
        "output": {"title": conclusion, "summary": reason},
    }
    request = urllib.request.Request(
        f"{os.environ.get('GITHUB_API_URL', 'https://api.github.com')}/repos/{repository}/check-runs",
        json.dumps(content).encode(),
        {"Authorization": f"Bearer {token}", "Accept": "application/vnd.github+json"},
    )
    try:
        urllib.request.urlopen(request, timeout=30).close()
    except (urllib.error.URLError, OSError) as error:  # the job's own status still tells it
        print(f"::warning title=membound::no check was left on the commit: {error}")


def conclude(conclusion: str, reason: str, run: Path) -> int:
    """Say it where people and workflows look; the exit status."""
    say("GITHUB_STEP_SUMMARY", f"\n**{conclusion}**: {reason}\n")
    say("GITHUB_OUTPUT", f"conclusion={conclusion}\nreason={reason}\nrun={run}\n")
    if conclusion != "success" and "GITHUB_ACTIONS" in os.environ:
        level = "error" if conclusion == "failure" else "warning"
        print(f"::{level} title=membound::{reason}")
    check(conclusion, reason)
    print(f"{conclusion}: {reason}")
    return 1 if conclusion == "failure" else 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make runner RUNNER=…", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--store", type=Path, default=Path("results"), help="baselines")
    parser.add_argument("--out", type=Path, default=Path("build/runner"), help="the new run")
    parser.add_argument("--threshold", default="3%")
    parser.add_argument("run", nargs="*", help="what else `membound run` is given")
    given = parser.parse_args(arguments)
    device = ["--device", given.device]
    if status := membound("doctor", *device):
        return status
    before = newest_run(given.out)
    status = membound("run", *device, "--out", str(given.out), *given.run)
    run = newest_run(given.out)
    if run is None or run == before:
        print(f"no new run under {given.out}", file=sys.stderr)
        return status or 1
    _, page = told("report", str(run), "--markdown")
    say("GITHUB_STEP_SUMMARY", page)
    membound("report", str(run), "--output", str(given.out / "report.html"))
    if status:  # a wrong result, or nothing that could be measured: the report has the reasons
        return conclude("failure", f"membound run ended with {status}", run)
    return conclude(*gate(run, given.store, given.threshold), run)


if __name__ == "__main__":
    link()
    sys.exit(main())
