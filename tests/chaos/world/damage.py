"""Damage of the state that a dead instance has left: of copies, which the start's own check must refuse.

Law: a file that has changed on the disk is noticed, or nothing is lost by it. What the intact state and the damaged one
say is read here by SQLite alone, row by row.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

from fluxsched.store.repair import fault_at_start
from fluxsched.system.files import COMMIT_SUFFIX, DATABASE_NAME

LOG_NAME = f"{DATABASE_NAME}-wal"
INDEX_NAME = f"{DATABASE_NAME}-shm"
RECORD_NAME = f"{DATABASE_NAME}{COMMIT_SUFFIX}"
HEADER_BYTES, FRAME_BYTES = 32, 24 + 4096
"""Of a log."""
FLIPPED_MAX = 3
Rows = dict[str, list[tuple[Any, ...]]]


def _lose(path: Path, chance: Random) -> str:
    path.unlink()
    return "was removed"


def _cut(path: Path, chance: Random) -> str:
    data = path.read_bytes()
    kept = chance.choice((0, 32, chance.randrange(len(data))))
    path.write_bytes(data[:kept])
    return f"was cut to {kept} of {len(data)} bytes"


def _flip(path: Path, chance: Random, begin: int = 0, end: int | None = None) -> str:
    data = bytearray(path.read_bytes())
    bits = range(8 * begin, 8 * (len(data) if end is None else end))
    places = [chance.choice(bits) for _ in range(chance.randint(1, FLIPPED_MAX))]
    for place in places:
        data[place >> 3] ^= 1 << (place & 7)
    path.write_bytes(data)
    return f"has other bits at {', '.join(map(str, sorted(places)))}"


def _overwrite(path: Path, chance: Random) -> str:
    data = bytearray(path.read_bytes())
    at = chance.randrange(len(data))
    data[at : at + 512] = bytes(len(data[at : at + 512]))
    path.write_bytes(data)
    return f"has zeros from {at} on"


def _flip_earlier(path: Path, chance: Random) -> str:
    """Within transactions that another follows, and without the record of how many there were, as after a crash of the
    system: the log alone shows that they were complete.
    """
    data = path.read_bytes()
    salts, commits = data[16:24], list[int]()
    for end in range(HEADER_BYTES + FRAME_BYTES, len(data) + 1, FRAME_BYTES):
        frame = data[end - FRAME_BYTES : end]
        if frame[8:16] != salts:
            break
        if frame[4:8] != bytes(4):
            commits.append(end)
    if len(commits) < 2:
        return _lose(path, chance)
    path.with_name(RECORD_NAME).unlink(missing_ok=True)
    return _flip(path, chance, HEADER_BYTES, commits[-2])


DAMAGES: tuple[Callable[[Path, Random], str], ...] = (_lose, _cut, _flip, _overwrite, _flip_earlier, _flip_earlier)


def unnoticed_damage(state: Path, chance: Random) -> str:
    """Damage a copy of the log in a state directory: what is lost by that and not noticed at a start; empty if nothing.
    """
    if not (state / LOG_NAME).exists() or not (state / LOG_NAME).stat().st_size:
        return ""
    damaged, intact = (state.with_name(f"{state.name}-{name}") for name in ("damaged", "intact"))
    try:
        for copy in (damaged, intact):
            copy.mkdir(mode=0o700)
            for path in state.glob(f"{DATABASE_NAME}*"):
                if path.name != INDEX_NAME:
                    shutil.copy(path, copy / path.name)
        what = chance.choice(DAMAGES)(damaged / LOG_NAME, chance)
        if fault_at_start(damaged / DATABASE_NAME, has_jobs=True) is not None:
            return ""
        lost = _differences(_rows(intact / DATABASE_NAME), _rows(damaged / DATABASE_NAME))
        return lost and f"the log {what}, and a start does not notice: {lost}"
    finally:
        for copy in (damaged, intact):
            shutil.rmtree(copy, ignore_errors=True)


def _rows(path: Path) -> Rows:
    """What SQLite reads after its own recovery."""
    with closing(sqlite3.connect(path)) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: connection.execute(f"SELECT * FROM {name}").fetchall() for name in sorted(tables)}


def _differences(intact: Rows, damaged: Rows) -> str:
    return ", ".join(
        f"{len(rows)} rows of {name}, and {len(damaged.get(name, []))} of them are left or others"
        for name, rows in intact.items()
        if damaged.get(name) != rows
    )
