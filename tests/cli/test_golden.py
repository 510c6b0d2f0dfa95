"""What commands print, word for word: each command of `golden/NAME.txt` at its site of `sites.py`, in a directory with
the files of `golden/NAME/`.
"""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from fluxsched.system.clock import SystemClock
from tests import golden

from .conftest import Cli
from .sites import NOW_S, SITES

FILES = sorted(Path(__file__).with_name("golden").glob("*.txt"))
ROWS = [(path, row) for path in FILES for row in golden.rows(path)]


@pytest.fixture(scope="module")
def written() -> Iterator[defaultdict[Path, dict[int, str]]]:
    """What to write into the golden files when all have been read."""
    found: defaultdict[Path, dict[int, str]] = defaultdict(dict)
    yield found
    for path, texts in found.items():
        golden.write(path, texts)


@pytest.mark.parametrize(("path", "row"), ROWS, ids=[f"{path.stem}-{row.at}-{row.line}" for path, row in ROWS])
def test_golden(
    cli: Cli, path: Path, row: golden.Row, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    written: defaultdict[Path, dict[int, str]],
) -> None:  # fmt: skip
    monkeypatch.setattr(SystemClock, "wall_s", staticmethod(lambda: NOW_S))
    monkeypatch.chdir(tmp_path)
    for file in path.with_suffix("").glob("*"):
        shutil.copy(file, tmp_path)
    found = golden.shown(cli(*row.words, answers=SITES[row.site]())).replace(str(tmp_path), "HERE")
    if golden.WRITES:
        written[path][row.at] = found
    else:
        assert found == row.want


def test_an_error_of_usage_comes_after_the_usage(cli: Cli) -> None:
    done = cli("resource", "drain", "-f")
    assert golden.USAGE.match(done.err)
    assert done.err.startswith("Usage: fluxsched resource drain ")
