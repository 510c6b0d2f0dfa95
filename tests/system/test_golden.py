"""What commands print in an instance, one after the other: each site of `golden/*.txt` is started with these options.

`{1}` is the first job that was submitted there, `{2}` the second, in commands and in what they print; JOBID is any
other. What commands show may come a moment after the one that brought it about, so it is waited for.
"""

from __future__ import annotations

import re
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from tests import golden

FILES = sorted(Path(__file__).with_name("golden").glob("*.txt"))
SESSIONS = [
    (path, options, [*rows]) for path in FILES for options, rows in groupby(golden.rows(path), key=lambda row: row.site)
]
LOOKS = ("jobs", "job why", "resource status", "resource list", "resource groups", "queue list", "queue status")
"""Commands that change nothing."""


def typed(text: str, jobs: list[str]) -> str:
    return re.sub(r"\{(\d+)\}", lambda found: jobs[int(found[1]) - 1], text)


def masked(text: str, jobs: list[str]) -> str:
    """What a golden file says of a text: jobs by their numbers, and nothing that differs from run to run."""
    for at, job in enumerate(jobs, 1):
        text = re.sub(rf"{job}\b", f"{{{at}}}", text)
    return re.sub(r"ƒ\w{5,}", "JOBID", text)


@pytest.mark.parametrize(
    ("path", "options", "rows"), SESSIONS, ids=[f"{path.stem} {options}" for path, options, _ in SESSIONS]
)
def test_session(user: Any, daemon: Any, until: Any, path: Path, options: str, rows: list[golden.Row]) -> None:
    if path.with_suffix(".toml").exists():
        (user.directory / "site.toml").write_text(path.with_suffix(".toml").read_text())
    here, jobs = daemon(*options.split()), list[str]()
    found = {}

    def printed(row: golden.Row) -> str:
        done = here(*(typed(word, jobs) for word in row.words), status=None)
        if row.words[0] == "submit" and done.status == 0:
            jobs.extend(done.out.split())
        return masked(golden.shown(done), jobs).replace(str(user.directory), "HERE")

    for row in rows:
        found[row.at] = printed(row)
        if " ".join(row.words).startswith(LOOKS) and not golden.WRITES:
            with suppress(AssertionError):
                until(lambda row=row: printed(row) == row.want)
            found[row.at] = printed(row)
    if golden.WRITES:
        golden.write(path, found)
    else:
        assert found == {row.at: row.want for row in rows}
