"""`sim run` at the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fluxsched.cli import studies
from tests.cli.conftest import Cli


def test_what_is_written_after_the_simulation_is_said(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace, page, jobs = (tmp_path / name for name in ("t.jsonl", "t.html", "jobs.csv"))
    assert cli("sim", "gen", "--jobs", "3", "-o", str(trace)).code == 0
    said = []

    @contextmanager
    def working(text: str) -> Iterator[None]:
        said.append(text)
        yield
        said.append("done" if (page if text.startswith("drawing") else jobs).exists() else "nothing written")

    monkeypatch.setattr(studies, "working", working)
    assert cli("sim", "run", str(trace), "--jobs-out", str(jobs), "--html", str(page)).code == 0
    assert said == ["writing the results", "done", f"drawing {page}", "done"]
