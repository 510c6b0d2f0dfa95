"""What is kept in the repository is source: nothing that builds, fuzzers or people's tools leave behind."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from .source import ROOT


@pytest.mark.skipif(shutil.which("git") is None or not (ROOT / ".git").exists(), reason="not a clone")
def test_nothing_that_is_to_be_ignored_is_tracked() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--ignored", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    assert (listed.returncode, listed.stdout) == (0, "")
