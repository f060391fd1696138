"""Which interrupted runs may be completed; whole ones are in test_run.py and test_faults.py."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest
from membound.bench.environment import Revision, changed_since, revision
from membound.bench.resuming import CannotResume, check_code, check_device
from membound.results.reading import Run
from membound.tests.generated import device, environment


@pytest.mark.parametrize(
    ("then", "now", "refused"),
    [
        (Revision("a" * 40, False, None), Revision("a" * 40, False, None), None),
        (Revision("a" * 40, False, None), Revision("b" * 40, False, None), "other code"),
        (Revision("--output=x", False, None), Revision("b" * 40, False, None), "other code"),
        (Revision("a" * 40, False, None), Revision("a" * 40, True, None), "this has changes"),
        (Revision("a" * 40, True, None), Revision("a" * 40, True, None), None),
        (Revision(None, None, "no git"), Revision("b" * 40, True, None), None),
    ],
)
def test_other_code_does_not_complete_a_run(
    then: Revision, now: Revision, refused: str | None
) -> None:
    known = environment(commit=then.commit, dirty=then.dirty)
    with pytest.raises(CannotResume, match=refused) if refused else nullcontext():
        check_code(Path("gpu/run"), known, now)


def test_another_driver_does_not_complete_a_run() -> None:
    known = Run(Path("gpu/run"), environment(device=device(driver="570.86.15")), [])
    with pytest.raises(CannotResume, match=r"with driver 570\.86\.15; this is 580\.95\.05"):
        check_device(known.path, known, device())
    assert check_device(known.path, known, device(driver=None)) is known.environment


def test_what_changed_since_a_commit() -> None:
    assert changed_since("f" * 40) and changed_since("HEAD")  # git cannot tell, or is not asked
    here = revision().commit
    assert here is None or not changed_since(here)
