"""The number of the last transaction, kept outside of the database, so that a log (WAL) that is lost or cut is noticed.

Law: the number is never ahead of what is on disk. Each transaction has its number in the database itself; when it is on
disk, the number is written to a file of its own, without a sync. Whatever kills the instance leaves that file as it was
written, and a crash of the system leaves this number or an earlier one. So a database whose number is lower than the
file's has lost transactions, and one whose number is equal or higher has lost none that the file knows of.
"""

from __future__ import annotations

import os
import sqlite3
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Final

from fluxsched.runtime.system.log import logger
from fluxsched.runtime.system.private_files import COMMIT_SUFFIX, private_file

log = logger("store")

COMMIT: Final = ("instance", "commit")
"""The row of `saved` that has the number of the transaction that wrote it."""
DIGITS: Final = 20
"""Of a number, behind which its checksum follows."""


class CommitRecord:
    """The file beside the database at `path`."""

    def __init__(self, path: Path) -> None:
        self._path = record_path(path)
        private_file(self._path)
        self._fd = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
        self._failed = False

    def write(self, number: int) -> None:
        """Note that the transaction of this number is on disk. A number that cannot be written is logged, once."""
        try:
            os.pwrite(self._fd, _encode(number), 0)
        except OSError as fault:
            if not self._failed:
                log.warning("%s cannot be written: %s: a loss of the log might not be noticed", self._path, fault)
            self._failed = True

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def record_path(path: Path) -> Path:
    """Return the path of the record of the database at `path`."""
    return path.with_name(path.name + COMMIT_SUFFIX)


def recorded_commit(path: Path) -> int | None:
    """Return the number that was recorded for the database at `path`; None if there is none that can be read."""
    with suppress(OSError, ValueError):
        text = record_path(path).read_bytes()
        number = int(text[:DIGITS])
        if text == _encode(number):
            return number
    return None


def stored_commit(connection: sqlite3.Connection) -> int:
    """Return the number of the last numbered transaction in a database; 0 if it has none."""
    try:
        row = connection.execute("SELECT value FROM saved WHERE kind = ? AND key = ?", COMMIT).fetchone()
        return 0 if row is None else int(row[0])
    except (sqlite3.Error, TypeError, ValueError):
        return 0


def _encode(number: int) -> bytes:
    digits = b"%0*d" % (DIGITS, number)
    return b"%s %08x\n" % (digits, zlib.crc32(digits))
