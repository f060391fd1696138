"""CI jobs on GPU runners: the workflows are sound, and every ending of a job is told."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from membound.tests.generated import device, environment, processes, run

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
ACTIONLINT = Path(sys.executable).with_name("actionlint")
DONE = {"finished_at": "2026-01-02T03:09:05Z"}
STEADY = [0.001, 0.001001, 0.000999, 0.0010005, 0.0009995, 0.001]


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(ROOT / ".setup"))
    import runner as module  # type: ignore[import-not-found]

    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT", "GH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    yield module
    sys.modules.pop("runner")


def lint(*files: Path) -> subprocess.CompletedProcess[str]:
    if not ACTIONLINT.exists():
        pytest.skip("actionlint is not installed")
    return subprocess.run(
        [ACTIONLINT, *files], capture_output=True, text=True, check=False, cwd=ROOT
    )


def test_the_workflows_are_clean() -> None:
    done = lint(*WORKFLOWS)
    assert done.returncode == 0, done.stdout


def test_a_workflow_that_is_wrong_is_found(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yml"
    text = (ROOT / ".github" / "workflows" / "gpu.yml").read_text()
    wrong.write_text(text.replace("needs: measure", "needs: measured"))
    assert lint(wrong).returncode != 0


def test_every_step_is_a_target_of_the_makefile() -> None:
    phony = re.findall(r"^\.PHONY: (.*)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    targets = " ".join(phony).split()
    steps = [line for file in WORKFLOWS for line in re.findall(r"\brun: (.*)", file.read_text())]
    assert len(steps) >= 5
    for step in steps:
        command, target, *_ = step.split()
        assert (command, target in targets) == ("make", True), step


def test_no_stranger_reaches_a_runner_and_no_pull_request_a_baseline() -> None:
    text = (ROOT / ".github" / "workflows" / "gpu.yml").read_text()
    measure, refresh = text.split("  refresh:")
    same = "github.event.pull_request.head.repo.full_name == github.repository"
    assert f"github.event_name != 'pull_request' ||\n      {same}" in measure
    assert "pull_request_target" not in text
    assert "contents: write" not in measure
    assert "github.ref == 'refs/heads/main' &&" in refresh


def test_no_input_is_pasted_into_shell() -> None:
    for file in (*WORKFLOWS, ROOT / "action.yml"):
        for line in re.findall(r"\brun: (.*)", file.read_text()):
            assert "${{" not in line, line


def gated(
    runner: ModuleType, tmp_path: Path, base: list[Any] | None, current: list[Any], **changes: Any
) -> tuple[str, str]:
    """The gate's conclusion on a run of `current` against a store with a run of `base`."""
    store = tmp_path / "store"
    name = "generated"
    if base is not None:
        made = run(tmp_path / "made", base, env=environment(**DONE, host={"wsl": "no"}))
        (store / name).mkdir(parents=True)
        shutil.move(made, store / name / "20260101T000000Z-0000000")
    new = run(tmp_path / "new", current, env=environment(**DONE, **changes))
    (tmp_path / "out" / name).mkdir(parents=True)
    shutil.move(new, tmp_path / "out" / name / "20260102T000000Z-0000000")
    found = runner.newest_run(tmp_path / "out")
    assert found is not None
    conclusion, reason = runner.gate(found, store, "3%")
    return conclusion, reason


def test_the_same_code_is_a_success(runner: ModuleType, tmp_path: Path) -> None:
    assert gated(runner, tmp_path, processes(STEADY), processes(STEADY))[0] == "success"


def test_slower_code_is_a_failure(runner: ModuleType, tmp_path: Path) -> None:
    slower = processes([1.2 * s for s in STEADY])
    conclusion, reason = gated(runner, tmp_path, processes(STEADY), slower)
    assert (conclusion, reason) == ("failure", "1 of 1 cases are slower")


def test_a_case_that_is_gone_is_a_failure(runner: ModuleType, tmp_path: Path) -> None:
    base = [*processes(STEADY), *processes(STEADY, operation="add")]
    assert gated(runner, tmp_path, base, processes(STEADY))[0] == "failure"


def test_another_driver_is_inconclusive(runner: ModuleType, tmp_path: Path) -> None:
    slower = processes([1.2 * s for s in STEADY])
    conclusion, reason = gated(
        runner, tmp_path, processes(STEADY), slower, device=device(driver="999.1")
    )
    assert conclusion == "inconclusive"
    assert "driver" in reason


def test_a_device_without_a_baseline_is_neither(runner: ModuleType, tmp_path: Path) -> None:
    conclusion, reason = gated(runner, tmp_path, None, processes(STEADY))
    assert conclusion == "no-baseline"
    assert "commit" in reason


def test_runs_that_may_not_serve_are_no_baseline(runner: ModuleType, tmp_path: Path) -> None:
    unclean = environment(finished_at=None)
    made = run(tmp_path / "made", processes(STEADY), env=unclean)
    known = tmp_path / "store" / "generated"
    known.mkdir(parents=True)
    shutil.move(made, known / "20260101T000000Z-0000000")
    conclusion, reason = gated(runner, tmp_path, None, processes(STEADY))
    assert (conclusion, "no clean run of generated" in reason) == ("no-baseline", True)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"processes_after": ["7 python"]}, "other compute processes after the run: 7 python"),
        ({"before": {"clocks_slowed_by": "thermal (hardware)"}}, "held back: thermal (hardware)"),
        ({"host": {"wsl": "yes"}}, "platform: WSL and Linux"),
    ],
)
def test_a_runner_that_is_not_itself_is_inconclusive(
    runner: ModuleType, tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    base = processes(STEADY)
    conclusion, reason = gated(runner, tmp_path, base, [*base], **changes)
    assert conclusion == "inconclusive"
    assert said in reason
    calm = {"before": {"clocks_slowed_by": "power cap"}, "host": {"wsl": "no"}}
    assert gated(runner, tmp_path / "calm", base, [*base], **calm)[0] == "success"


@pytest.mark.parametrize(
    ("conclusion", "status", "told"),
    [
        ("success", 0, ""),
        ("failure", 1, "::error title=membound::why\n"),
        ("inconclusive", 0, "::warning title=membound::why\n"),
        ("no-baseline", 0, "::warning title=membound::why\n"),
    ],
)
def test_every_conclusion_is_told_to_the_job(
    runner: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    conclusion: str,
    status: int,
    told: str,
) -> None:
    for name in ("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    assert runner.conclude(conclusion, "why", Path("a/run")) == status
    assert capsys.readouterr().out == f"{told}{conclusion}: why\n"
    outputs = (tmp_path / "GITHUB_OUTPUT").read_text()
    assert outputs == f"conclusion={conclusion}\nreason=why\nrun=a/run\n"
    assert f"**{conclusion}**: why" in (tmp_path / "GITHUB_STEP_SUMMARY").read_text()


@pytest.mark.parametrize(
    ("status", "leaves", "ended", "conclusion"),
    [(0, True, 0, "no-baseline"), (1, True, 1, "failure"), (4, True, 1, "failure"),
     (4, False, 4, None), (0, False, 1, None)],
)  # fmt: skip
def test_whatever_a_run_leaves_is_reported(
    runner: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    leaves: bool,
    ended: int,
    conclusion: str | None,
) -> None:
    """An older run below --out is not taken for this job's."""
    out = tmp_path / "out"
    for name in ("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT"):
        monkeypatch.setenv(name, str(tmp_path / name))

    def left(stamp: str) -> None:
        made = run(tmp_path / "made", processes(STEADY), env=environment(**DONE))
        (out / "generated").mkdir(parents=True, exist_ok=True)
        shutil.move(made, out / "generated" / f"{stamp}-0000000")

    def membound(command: str, *arguments: str) -> int:
        if command == "run" and leaves:
            left("20260103T000000Z")
        return status if command == "run" else 0

    left("20260101T000000Z")
    monkeypatch.setattr(runner, "membound", membound)
    store = str(tmp_path / "store")
    assert runner.main(["--out", str(out), "--store", store, "--device", "cpu"]) == ended
    said = tmp_path / "GITHUB_OUTPUT"
    assert said.exists() == (conclusion is not None)
    if conclusion is not None:
        assert f"conclusion={conclusion}\n" in said.read_text()
        assert "20260103T000000Z" in said.read_text()
        assert "Achieved bandwidth" in (tmp_path / "GITHUB_STEP_SUMMARY").read_text()


@pytest.fixture
def github(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, dict[str, Any]]]]:
    """A server that takes check runs; what it was sent."""
    sent: list[tuple[str, dict[str, Any]]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            sent.append((self.path, json.loads(self.rfile.read(length))))
            self.send_response(201)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            return

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("GH_TOKEN", "token")
    monkeypatch.setenv("GITHUB_REPOSITORY", "someone/somewhere")
    monkeypatch.setenv("HEAD_SHA", "abc")
    monkeypatch.setenv("GITHUB_API_URL", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    yield sent
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("conclusion", "shown"),
    [("success", "success"), ("failure", "failure"), ("inconclusive", "neutral")],
)
def test_the_check_on_the_commit_can_be_neutral(
    runner: ModuleType, github: list[tuple[str, dict[str, Any]]], conclusion: str, shown: str
) -> None:
    runner.check(conclusion, "why")
    ((path, content),) = github
    assert path == "/repos/someone/somewhere/check-runs"
    assert (content["conclusion"], content["head_sha"]) == (shown, "abc")


def test_a_check_that_cannot_be_left_is_a_warning(
    runner: ModuleType,
    github: list[tuple[str, dict[str, Any]]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("GITHUB_API_URL", "http://127.0.0.1:9")
    runner.check("success", "why")
    assert "no check was left" in capsys.readouterr().out


def test_the_action_measures_somebody_elses_kernels_on_the_cpu(
    runner: ModuleType, tmp_path: Path
) -> None:
    """The whole of action.yml's step, with the interpreter that is there; text is no shell."""
    inputs = {
        "SYSTEM_PYTHON": sys.executable,
        "KERNELS": str(ROOT / "docs" / "example"),
        "SELECTION": "gated_residual",
        "DEVICE": "cpu",
        "PROCESSES": "1",
        "STORE": f"$(touch {tmp_path}/run-as-shell)",
        "GITHUB_OUTPUT": str(tmp_path / "outputs"),
    }
    clean = {k: v for k, v in os.environ.items() if not k.startswith("GITHUB_")}
    done = subprocess.run(
        [ROOT / ".ci" / "action"],
        env=clean | inputs,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no-baseline" in (tmp_path / "outputs").read_text()
    assert (tmp_path / "build" / "runner" / "report.html").exists()
    assert not (tmp_path / "run-as-shell").exists()


def test_the_target_of_the_gpu_job_runs_on_the_cpu(tmp_path: Path) -> None:
    """`make runner` as gpu.yml calls it, of one plain stream and its ceilings."""
    rest = "-- mix_0r1w --implementation cpu --processes 1"
    places = f"--out {tmp_path / 'out'} --store {tmp_path / 'store'}"
    command = ["make", "runner", "SYSTEM=1", f"PYTHON={sys.executable}"]
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("GITHUB_", "MAKE"))}
    summary = tmp_path / "summary"
    done = subprocess.run(
        [*command, f"RUNNER=--device cpu {places} {rest}"],
        env=clean | {"GITHUB_STEP_SUMMARY": str(summary)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no-baseline" in done.stdout.splitlines()[-1]
    assert "Achieved bandwidth" in summary.read_text()
    assert (tmp_path / "out" / "report.html").exists()


def test_a_baseline_is_committed_and_pushed(tmp_path: Path) -> None:
    def git(*arguments: str, at: Path) -> str:
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(at), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    origin, clone = tmp_path / "origin.git", tmp_path / "clone"
    subprocess.run(["git", "init", "-q", "--bare", "-b", "main", str(origin)], check=True)
    subprocess.run(["git", "clone", "-q", str(origin), str(clone)], check=True, capture_output=True)
    (clone / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "baseline", clone / ".ci")
    shutil.copy(ROOT / "Makefile", clone)
    git("add", ".", at=clone)
    git("commit", "-q", "-m", "all", at=clone)
    git("push", "-q", "-u", "origin", "HEAD:main", at=clone)
    nothing = subprocess.run(["make", "-C", str(clone), "baseline"], capture_output=True, text=True)
    assert nothing.returncode != 0
    assert "make runner makes one" in nothing.stderr
    made = run(tmp_path / "made", processes(STEADY), env=environment(**DONE))
    target = clone / "build" / "runner" / "gpu" / "20260102T000000Z-0000000"
    shutil.copytree(made, target)
    subprocess.run(["make", "-C", str(clone), "baseline"], check=True, capture_output=True)
    pushed = git("ls-tree", "-r", "--name-only", "main", at=origin)
    assert "results/gpu/20260102T000000Z-0000000/measurements.jsonl" in pushed
