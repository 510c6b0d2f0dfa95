"""What the tasks of leased jobs print, copied into the spool directory here, so that everything that shows output does.

Law: a copy begins with the first byte whenever it begins, since what was copied before a loss is not known exactly.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fluxsched.runtime.clusters.link import ClusterLink
from fluxsched.runtime.exec.base import spool_directory, spool_name
from fluxsched.runtime.system.log import logger

log = logger("clusters")


@dataclass(slots=True)
class _Copy:
    cluster: str
    is_complete: bool = False
    then: Callable[[], None] | None = None


class OutputCopy:
    """Copies under way, by job. `wants`: whether a job's output is kept in the spool directory at all."""

    def __init__(self, spool: Path, wants: Callable[[int], bool]) -> None:
        self._spool = spool
        self._wants = wants
        self._copies: dict[int, _Copy] = {}

    def follow(self, cluster: str, jobid: int, there: int, link: ClusterLink) -> None:
        """Copy what the job there prints from now on, and what it has printed."""
        if jobid in self._copies or not self._wants(jobid):
            return
        copy = self._copies[jobid] = _Copy(cluster)
        directory = spool_directory(self._spool, jobid)
        shutil.rmtree(directory, ignore_errors=True)
        files: dict[str, int] = {}

        def take(stream: str, data: bytes, task: int) -> None:
            if self._copies.get(jobid) is copy:
                self._append(directory, files, stream, data, task)

        def ended(fault: str | None) -> None:
            if fault is not None:
                log.warning("output of job %d in cluster %s: %s", jobid, cluster, fault)
            copy.is_complete = True
            if copy.then is not None and self._copies.get(jobid) is copy:
                del self._copies[jobid]
                copy.then()

        link.output(there, take, ended)

    def finish(self, cluster: str, jobid: int, there: int, link: ClusterLink, then: Callable[[], None]) -> None:
        """`then`, once all that the job has printed is here."""
        self.follow(cluster, jobid, there, link)
        copy = self._copies.get(jobid)
        if copy is None or copy.is_complete:
            self._copies.pop(jobid, None)
            then()
        else:
            copy.then = then

    def lost(self, cluster: str) -> None:
        """The connection is lost: what is copied is copied anew when there is another."""
        for jobid in [jobid for jobid, copy in self._copies.items() if copy.cluster == cluster]:
            del self._copies[jobid]

    def _append(self, directory: Path, files: dict[str, int], stream: str, data: bytes, task: int) -> None:
        """The files of tasks are made in the order of their numbers: that is how they are found."""
        try:
            os.makedirs(directory, mode=0o700, exist_ok=True)
            for number in range(files.get(stream, -1) + 1, task + 1):
                (directory / spool_name(stream, number)).touch(mode=0o600)
                files[stream] = number
            with (directory / spool_name(stream, task)).open("ab") as file:
                file.write(data)
        except OSError as exc:
            log.warning("%s cannot be written: %s", directory, exc)
