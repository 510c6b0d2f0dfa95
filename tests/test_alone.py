"""Tests that fork without an exec, as a keeper does: in a process that has no threads, which a worker may have."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ALONE

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("file", ["tests/executor/test_user.py", "tests/system/test_users.py"])
def test_all_of_the_file_passes(file: str) -> None:
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    words = [sys.executable, "-m", "pytest", "-q", "-m", "alone", "-p", "no:cacheprovider", file]
    done = subprocess.run(words, cwd=ROOT, env={**own, ALONE: "1"}, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    if " passed" not in done.stdout:
        pytest.skip(next(line for line in done.stdout.splitlines() if line.startswith("SKIPPED")))
