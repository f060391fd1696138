"""What set-up says and chooses, before anything is installed."""

import ast
import ctypes
import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / ".setup" / "install.py"


@pytest.fixture
def install() -> Any:
    spec = importlib.util.spec_from_file_location("install", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def program(folder: Path, name: str, text: str = "#!/bin/sh\n") -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


def driver(version: int, devices: int = 1, init: int = 0) -> Callable[[str], Any]:
    """A stand-in for libcuda that answers three calls."""

    class Driver:
        def cuInit(self, flags: int) -> int:  # noqa: N802
            return init

        def cuDeviceGetCount(self, count: Any) -> int:  # noqa: N802
            count._obj.value = devices
            return 0

        def cuDriverGetVersion(self, number: Any) -> int:  # noqa: N802
            number._obj.value = version
            return 0

    return lambda name: Driver()


@pytest.mark.parametrize("keeps", [True, False])
def test_bytecode_is_made_at_set_up_only_where_none_is_kept(
    keeps: bool, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", not keeps)
    assert ("--no-compile" in request.getfixturevalue("install").PIP_INSTALL) == keeps


def test_an_old_python_can_read_the_script() -> None:
    ast.parse(SCRIPT.read_text(), feature_version=(3, 6))
    with pytest.raises(SyntaxError):
        ast.parse("if n := 1: pass", feature_version=(3, 6))


@pytest.mark.parametrize(
    ("manager", "command"),
    [
        ("apt-get", "apt-get install g++ python3.99 python3.99-dev python3.99-venv"),
        ("dnf", "dnf install gcc-c++ python3.99 python3.99-devel"),
        ("pacman", "pacman -S gcc python"),
    ],
)
def test_everything_missing_is_named_at_once(
    install: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, manager: str, command: str
) -> None:
    program(tmp_path / "bin", manager)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(install, "OLDEST_PYTHON", (3, 99))
    message = install.advice(install.missing_requirements())
    assert message.endswith(f"install: {command}")
    for named in ("Python 3.99 or newer", "ensurepip", "Python.h", "g++"):
        assert named in message


def test_an_unknown_distribution_gets_every_command(
    install: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    message = install.advice(["g++"])
    assert message.count("\ninstall: ") == 3


def test_set_up_stops_before_it_touches_anything(tmp_path: Path) -> None:
    (tmp_path / ".setup").mkdir()
    script = shutil.copy(SCRIPT, tmp_path / ".setup")
    program(tmp_path / "bin", "apt-get")
    ran = subprocess.run(
        [sys.executable, script],
        env={"PATH": str(tmp_path / "bin")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1
    assert ran.stdout.endswith("install: apt-get install g++\n")
    assert ran.stderr == ""
    assert not (tmp_path / ".venv").exists()


def test_nothing_is_missing_here(install: Any) -> None:
    assert install.missing_requirements() == []


@pytest.mark.parametrize(
    ("cuda", "machine", "extra"),
    [
        (None, "x86_64", "cpu"),
        ((11, 8), "x86_64", "cpu"),
        ((12, 4), "x86_64", "cuda12"),
        ((12, 8), "aarch64", "cpu"),
        ((13, 0), "x86_64", "cuda13"),
        ((13, 0), "aarch64", "cuda13"),
        ((14, 1), "x86_64", "cuda13"),
    ],
)
def test_the_driver_chooses_the_extra(
    install: Any,
    capsys: pytest.CaptureFixture[str],
    cuda: tuple[int, int] | None,
    machine: str,
    extra: str,
) -> None:
    assert install.choose_extra(cuda, machine) == extra
    said = capsys.readouterr().out
    assert said.count("\n") == 1
    if (cuda, machine) == ((12, 8), "aarch64"):
        assert install.CUDA12_INDEX in said


@pytest.mark.parametrize(
    ("libcuda", "cuda"),
    [
        (driver(13000), (13, 0)),
        (driver(12080), (12, 8)),
        (driver(13020, devices=0), None),
        (driver(13020, init=100), None),
    ],
)
def test_libcuda_is_asked(
    install: Any,
    monkeypatch: pytest.MonkeyPatch,
    libcuda: Callable[[str], Any],
    cuda: tuple[int, int] | None,
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", libcuda)
    assert install.cuda_from_driver() == cuda


@pytest.mark.parametrize(
    ("printed", "cuda"),
    [
        ("| Driver Version: 580.95.05      CUDA Version: 13.0     |", (13, 0)),
        ("NVIDIA-SMI has failed", None),
        (None, None),
    ],
)
def test_nvidia_smi_is_the_second_source(
    install: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    printed: str | None,
    cuda: tuple[int, int] | None,
) -> None:
    def no_libcuda(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", no_libcuda)
    monkeypatch.setenv("PATH", str(tmp_path))
    if printed is not None:
        program(tmp_path, "nvidia-smi", f"#!/bin/sh\necho '{printed}'\n")
    assert install.cuda_from_driver() == cuda


def test_an_interrupted_set_up_leaves_no_stamp(
    install: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupted(*_: object) -> None:
        raise subprocess.CalledProcessError(7, "pip")

    stamps = {"RUN_STAMP": tmp_path / "run", "TEST_STAMP": tmp_path / "test"}
    for name, path in stamps.items():
        monkeypatch.setattr(install, name, path)
    monkeypatch.setattr(install, "make_venv", lambda extra: None)
    monkeypatch.setattr(sys, "argv", ["install.py", "--test"])

    monkeypatch.setattr(install, "install", interrupted)
    assert install.main() == 1
    assert not any(path.exists() for path in stamps.values())

    monkeypatch.setattr(install, "install", lambda extra, for_tests: None)
    assert install.main() == 0
    assert all(path.exists() for path in stamps.values())


def test_another_extra_means_another_venv(
    install: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    venv = tmp_path / ".venv"
    monkeypatch.setattr(install, "VENV", venv)
    monkeypatch.setattr(install, "PYTHON", venv / "bin" / "python")
    made: list[str] = []

    def make(command: list[str]) -> None:
        made.append(command[-1])
        (venv / "bin").mkdir(parents=True, exist_ok=True)
        (venv / "bin" / "python").touch()

    monkeypatch.setattr(subprocess, "check_call", make)
    install.make_venv("cpu")
    install.make_venv("cpu")
    assert len(made) == 1
    install.make_venv("cuda13")
    assert len(made) == 2


def test_the_cpu_index_is_tried_once_and_then_said(
    install: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tried: list[list[str]] = []

    def unreachable(command: list[str], **_: object) -> subprocess.CompletedProcess[bytes]:
        tried.append(command)
        return subprocess.CompletedProcess(command, 1)

    monkeypatch.setattr(subprocess, "run", unreachable)
    monkeypatch.setattr(subprocess, "check_call", tried.append)
    install.install_cpu_torch()
    assert [install.CPU_INDEX in command for command in tried] == [True, False]
    assert tried[0][-4:] == ["--retries", "0", "--timeout", "10"]
    assert "may be the CUDA build" in capsys.readouterr().out


def test_pip_settings_of_this_machine_stay_out_of_the_repository() -> None:
    tracked = [ROOT / "pyproject.toml", ROOT / "Makefile", *(ROOT / ".setup").glob("*.*")]
    for path in tracked:
        text = path.read_text()
        for setting in ("PIP_CONSTRAINT", "extra-index-url", "find-links", "file://"):
            assert setting not in text, path
