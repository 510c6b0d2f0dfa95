"""Parts are compressed on disk; what is read is what was written, and a damaged one takes no memory without end."""

from __future__ import annotations

import errno
import shutil
import sqlite3
import zlib
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fluxsched.core.jobspec import Jobspec
from fluxsched.errors import Refused
from fluxsched.runtime.instance.backup import restore
from fluxsched.runtime.storage.compression import COMPRESSED_BYTES_MIN, EXPANDED_BYTES_MAX, compressed, expanded
from fluxsched.runtime.storage.jobs import read_job
from fluxsched.runtime.storage.salvage import salvage

ENVIRONMENT = {f"VARIABLE_{number}": f"/opt/software/{number}/lib" for number in range(100)}
JSON = st.sampled_from([b"{", b"[", b'"', b"-", b"7", b"t", b"f", b"n"])


@settings(max_examples=50)
@given(JSON, st.binary(max_size=64), st.integers(1, 200))
@example(b'"', b"x" * COMPRESSED_BYTES_MIN, 1)
def test_what_is_read_is_what_was_written_whether_compressed_or_not(first: bytes, rest: bytes, times: int) -> None:
    text = first + rest * times
    assert expanded(compressed(text)) == text
    assert expanded(text) == text, "as an earlier version kept it"
    assert len(compressed(text)) <= len(text)


def test_small_and_very_large_ones_stay_as_they_are() -> None:
    small, large = b"{" * (COMPRESSED_BYTES_MIN - 1), b"{" * (EXPANDED_BYTES_MAX + 1)
    assert compressed(small) == small
    assert compressed(large) == large
    assert len(compressed(large[1:])) < EXPANDED_BYTES_MAX // 100
    assert expanded(compressed(large[1:])) == large[1:]


WHOLE = zlib.compress(b"{" * 4096)


@pytest.mark.parametrize(
    ("kept", "why"),
    [
        (zlib.compress(b"{" * (EXPANDED_BYTES_MAX + 1)), f"it expands to more than {EXPANDED_BYTES_MAX} bytes"),
        (WHOLE[:-1], "its end is missing"),
        (WHOLE[:-1] + bytes([WHOLE[-1] ^ 1]), "incorrect data check"),
        (b"x", "its end is missing"),
    ],
)  # fmt: skip
def test_a_damaged_part_is_refused(kept: bytes, why: str) -> None:
    with pytest.raises(Refused, match=why) as raised:
        expanded(kept)
    assert raised.value.errnum == errno.EIO


@pytest.fixture
async def left(world: Any) -> tuple[Path, int]:
    """The state of an instance that has ended, and a job of it with an environment that was compressed."""
    statedir = world.directory / "state"
    site = await world.bare(fake="1x1", statedir=statedir)
    jobspec = Jobspec.from_command(["true"], environment=ENVIRONMENT, cwd="/")
    jobid = (await world.second(site).ok("job-manager.submit", {"jobspec": jobspec.to_json()}))["id"]
    await world.stop(site)
    return statedir / "state.sqlite", jobid


def environment_of(job: Any) -> object:
    return job["jobspec"]["attributes"]["system"]["environment"]


async def test_an_environment_is_kept_compressed_and_found_again_after_restore_and_salvage(
    world: Any, left: tuple[Path, int], tmp_path: Path
) -> None:
    path, jobid = left
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT length(value) FROM part").fetchone()[0] < len(str(ENVIRONMENT)) // 4
        assert environment_of(read_job(connection.execute, jobid)) == ENVIRONMENT
    assert salvage(path, tmp_path / "salvaged").lost == []
    restore(Path(shutil.copy(tmp_path / "salvaged", tmp_path / "saved")), tmp_path / "restored")
    site = await world.bare(fake="1x1", statedir=tmp_path / "restored")
    found = await world.second(site).ok("job-manager.lookup", {"id": jobid, "keys": ["jobspec"]})
    assert environment_of(found) == ENVIRONMENT


async def test_salvage_leaves_out_a_job_whose_environment_expands_without_end(
    left: tuple[Path, int], tmp_path: Path
) -> None:
    path, jobid = left
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE part SET value = ?", (zlib.compress(b"{" * (EXPANDED_BYTES_MAX + 1)),))
        connection.commit()
    assert salvage(path, tmp_path / "salvaged").lost == ["1 jobs of which parts are missing"]
    with closing(sqlite3.connect(tmp_path / "salvaged")) as connection:
        assert read_job(connection.execute, jobid) is None
