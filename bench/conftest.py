"""`pytest bench`: options, one test per planned case, one measurement for the session.

pytest loads this file under another name, so it imports `membound.…`, and only when a case is
planned: `pytest bench --help` does not wait for torch.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from membound.analysis.export_pytest import Replay
    from membound.bench.run import Planned, Request


@dataclass(frozen=True)
class _Scope:
    """What the options ask for, and what that comes to on this machine."""

    request: Request
    planned: Planned


_COLUMNS = ("min", "max", "mean", "stddev", "median", "iqr", "outliers", "rounds")
_SCOPE = pytest.StashKey[_Scope]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("membound", "membound: what `pytest bench` measures")
    group.addoption(
        "--membound-preset", metavar="NAME", default="quick", help="quick, standard or full"
    )
    group.addoption(
        "--membound-device", metavar="NAME", help="cuda, cuda:1 or cpu; the GPU if there is one"
    )
    group.addoption(
        "--membound-processes", metavar="N", type=_positive, help="fresh worker processes per case"
    )
    group.addoption(
        "--membound-kernels",
        metavar="PATH",
        type=Path,
        action="append",
        default=[],
        help="a folder with operations of your own, beside ours; may be repeated",
    )
    group.addoption(
        "--membound-out",
        metavar="DIR",
        type=Path,
        help="keep the run here, for membound report; else it goes to pytest's temporary folder",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Before pytest-benchmark reads anything: files to compare with are whole; no OPS column
    unless asked for, since in files it is of another estimator than in the table."""
    _check_compared(config)
    if getattr(config.option, "benchmark_columns", ()) is None:
        config.option.benchmark_columns = list(_COLUMNS)


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    """`pytest .` measures nothing: bench is collected where it is named."""
    here = Path(__file__).resolve().parent
    named = (config.invocation_params.dir / argument.split("::")[0] for argument in config.args)
    return None if any(path.resolve().is_relative_to(here) for path in named) else True


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Plan before anything is collected, so that a wrong option is one line."""
    if not session.config.pluginmanager.hasplugin("benchmark"):
        raise pytest.UsageError("pytest bench needs pytest-benchmark: the `test` extra brings it")
    _scope(session.config)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" not in metafunc.fixturenames:
        return
    from membound.bench.replay import ScriptedClock

    tests = []
    for group in _scope(metafunc.config).planned.groups:
        for implementation in group.implementations:
            for cache in group.caches:
                name = group.case(implementation, cache)
                marks = [pytest.mark.benchmark(timer=ScriptedClock(), group=group.stem)]
                if implementation in group.skips:
                    marks.append(pytest.mark.skip(reason=group.skips[implementation]))
                tests.append(pytest.param(name, id=name, marks=marks))
    metafunc.parametrize("case", tests)


@pytest.fixture(scope="session")
def measured(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Replay]:
    """What -k and the like have left, and the ceilings it is held to, by the name of the case."""
    from membound.bench import cases
    from membound.bench.replay import replays
    from membound.bench.run import NothingToMeasure, measure
    from membound.bench.show import Progress
    from membound.bench.supervisor import WorkerCannotStart
    from membound.results.store import StoreError

    scope = _scope(request.config)
    groups = scope.planned.groups
    wanted = cases.ceiling_cases(groups, scope.planned.selected.target.kind)
    wanted |= {
        str(item.callspec.params["case"])
        for item in request.session.items
        if isinstance(item, pytest.Function) and "case" in item.fixturenames
    }
    planned = replace(scope.planned, groups=cases.only(groups, wanted))
    out = request.config.getoption("membound_out") or tmp_path_factory.mktemp("membound")
    try:
        with _terminal(request.config), Progress() as progress:
            outcome = measure(replace(scope.request, out=out), progress, planned)
        return replays(outcome.folder)
    except (NothingToMeasure, StoreError, WorkerCannotStart) as error:
        pytest.exit(str(error), returncode=4)


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_machine_info(
    config: pytest.Config, machine_info: dict[str, Any]
) -> None:
    from membound.bench.replay import machine

    machine_info.update(machine(_scope(config).planned.selected, machine_info))


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_json(output_json: dict[str, Any]) -> None:
    """`ops`, which CI tools plot, is of the estimator that membound compares."""
    for entry in output_json["benchmarks"]:
        info = entry["extra_info"]
        if "case" in info and "seconds" in info:
            entry["stats"]["ops"] = 1 / info["seconds"]


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_compare_machine_info(
    config: pytest.Config, compared_benchmark: dict[str, Any]
) -> None:
    """Times of another device are shown beside these, and decide nothing."""
    if not config.getoption("benchmark_compare_fail"):
        return
    from membound.bench.replay import other_device

    selected = _scope(config).planned.selected
    different = other_device(compared_benchmark.get("machine_info"), selected)
    if different:
        raise pytest.UsageError(
            f"--benchmark-compare-fail: saved on another device ({'; '.join(different)})"
        )


def _check_compared(config: pytest.Config) -> None:
    """Raises UsageError where a file to compare with is damaged: it would be left out in silence,
    or its NaN would pass every limit."""
    compared: str | bool | None = config.getoption("benchmark_compare", None)
    storage: str = config.getoption("benchmark_storage", "")
    if not compared or storage.startswith("elasticsearch+"):
        return
    from membound.results.benchmark_file import problems
    from pytest_benchmark.utils import get_machine_id, load_storage

    options = {"logger": None, "netrc": "", "default_machine_id": get_machine_id()}  # type: ignore[no-untyped-call,unused-ignore]
    store = load_storage(storage, **options)  # type: ignore[no-untyped-call,unused-ignore]
    with suppress(ValueError):  # no such pattern: pytest-benchmark says so
        files = store.query()[-1:] if compared is True else store.query(compared)
        found = [problem for file in files for problem in problems(file)]
        if found:
            raise pytest.UsageError("--benchmark-compare: " + "\n".join(found))


def _scope(config: pytest.Config) -> _Scope:
    """Planned once for the session. Raises UsageError where the options name what is not there."""
    known = config.stash.get(_SCOPE, None)
    if known is None:
        known = config.stash[_SCOPE] = _plan(config)
    return known


def _plan(config: pytest.Config) -> _Scope:
    from membound.bench.device.select import NoSuchDevice, UnknownDevice
    from membound.bench.presets import Selection, UnknownName
    from membound.bench.run import Request, planned
    from membound.kernels.discovery import BrokenKernels

    request = Request(
        selection=Selection(config.getoption("membound_preset")),
        device=config.getoption("membound_device"),
        processes=config.getoption("membound_processes"),
        kernels=tuple(config.getoption("membound_kernels")),
        command=("pytest", *(str(argument) for argument in config.invocation_params.args)),
    )
    try:
        return _Scope(request, planned(request))
    except (UnknownName, UnknownDevice, NoSuchDevice, BrokenKernels) as error:
        raise pytest.UsageError(str(error)) from None


@contextmanager
def _terminal(config: pytest.Config) -> Iterator[None]:
    """Measuring takes minutes: its progress is shown, not captured."""
    reporter = config.pluginmanager.getplugin("terminalreporter")
    capture = config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled() if capture else nullcontext():
        if reporter:
            reporter.ensure_newline()
        yield


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of processes; write 1 or more")
    return int(text)
