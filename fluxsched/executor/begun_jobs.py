"""Jobs that a keeper begins by itself, noted in a file beside its socket, which outlives it.

Law: a job is noted before its process is spawned, so a job without a note and without a record has never run. A note is
a write and no more, which whatever kills the keeper leaves as it is. A crash of the system may lose it, but not the
head of the file, which names the boot: where that is an earlier one, any job may have been noted. The place of a note
is used again once the end of its job is stored; a note on a job that has ended says nothing.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

from fluxsched.system.files import new_private_file, sync
from fluxsched.system.processes import boot_id, job_path

AHEAD: Final = "ahead"
"""Key of a record that names the process which is about to start the job, not yet a process of it."""
PREFIX: Final = "keeper-"
"""Prefix of the names of keepers' sockets; a number follows."""
SUFFIX: Final = ".begun"
"""What follows that in the names of their notes."""
_PLACE = struct.Struct("=Q")


def ahead_record(own: Mapping[str, Any], jobid: int) -> dict[str, Any]:
    """Return the record of a job that a keeper is about to start; `own` is the keeper's, whose path is that of the job
    that it is in.
    """
    return {**own, "path": job_path(jobid, own["path"]), AHEAD: True}


class BegunJobs:
    """The notes of one keeper. Owns its file."""

    def __init__(self, socket_path: str, own: Mapping[str, Any]) -> None:
        """Make the file, which is on disk then; `own` is the record of this process. Raises OSError."""
        self._path = Path(socket_path + SUFFIX)
        head = json.dumps(own).encode() + b"\n"
        self._begin = len(head)
        self._places: dict[int, int] = {}
        self._free: list[int] = []
        draft = self._path.with_name(f".{self._path.name}")
        new_private_file(draft)
        draft.write_bytes(head)
        sync(draft)
        draft.rename(self._path)
        sync(self._path.parent)
        self._fd = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)

    def note(self, jobid: int) -> bool:
        """Note that a job is about to be begun; return False if that is impossible, so that its record must be stored
        first.
        """
        place = self._free.pop() if self._free else len(self._places)
        try:
            os.pwrite(self._fd, _PLACE.pack(jobid), self._begin + place * _PLACE.size)
        except OSError:  # no room, for one
            self._free.append(place)
            return False
        self._places[jobid] = place
        return True

    def forget(self, jobid: int) -> None:
        """Give up the note on a job whose end is stored, if there is one."""
        place = self._places.pop(jobid, None)
        if place is not None:
            self._free.append(place)

    def close(self, *, removes: bool) -> None:
        """Close the file, and remove it if no job needs its note."""
        os.close(self._fd)
        if removes:
            self._path.unlink(missing_ok=True)


def begun_jobs(directory: Path | str, jobids: Collection[int] | None = None) -> dict[int, dict[str, Any]]:
    """Return the records of those of these jobs that a keeper may have begun by itself; of all that are noted in this
    boot if None are named. A file that cannot be read may name any job: its record is empty.
    """
    found: dict[int, dict[str, Any]] = {}
    boot = boot_id()
    for path in sorted(Path(directory).glob(f"{PREFIX}*{SUFFIX}")):
        try:
            head, _, places = path.read_bytes().partition(b"\n")
            own = json.loads(head)
            is_of_boot = own["boot_id"] == boot
            noted = {jobid for (jobid,) in _PLACE.iter_unpack(places[: len(places) // _PLACE.size * _PLACE.size])}
        except (OSError, ValueError, TypeError, LookupError):
            found |= {jobid: {} for jobid in jobids or ()}
            continue
        some = noted if jobids is None else noted.intersection(jobids)
        found |= {jobid: ahead_record(own, jobid) for jobid in (some if is_of_boot else jobids or ())}
    return found
