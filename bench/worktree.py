"""Another revision of this checkout, in a folder of its own for as long as it is needed."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class NoRevision(ValueError):
    """A revision that cannot be checked out; the message is what git said."""

    exit_code = 2


@contextmanager
def checked_out(root: Path, revision: str) -> Iterator[Path]:
    """The tree of `revision`, a commit, branch or tag of the checkout at `root`.

    However the block is left, the tree and what git notes of it are removed. Raises NoRevision.
    """
    if not (root / ".git").exists():
        raise NoRevision(
            f"{root} is not a git checkout: there is no other revision to compare with"
        )
    with tempfile.TemporaryDirectory(prefix="membound-ab-") as folder:
        tree = Path(folder).resolve() / "tree"
        try:
            # Without hooks: what a user's checkout sets off is not wanted here.
            _git(
                root, "-c", "core.hooksPath=/dev/null",
                "worktree", "add", "--detach", "--", str(tree), revision,
            )  # fmt: skip
            yield tree
        finally:
            _git(root, "worktree", "remove", "--force", "--force", str(tree), check=False)


def commit_of(tree: Path) -> str:
    """The full hash of the commit that is checked out at `tree`."""
    return _git(tree, "rev-parse", "HEAD")


def _git(root: Path, *arguments: str, check: bool = True) -> str:
    # GIT_DIR and its like, as in a hook, would name another repository.
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments],
            env={**clean, "LC_ALL": "C"},
            capture_output=True,
            text=True,
        )
    except OSError as error:
        raise NoRevision(f"git cannot be run: {error.strerror}") from error
    if check and done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise NoRevision(f"git: {lines[-1].removeprefix('fatal: ')}")
    return done.stdout.strip()
