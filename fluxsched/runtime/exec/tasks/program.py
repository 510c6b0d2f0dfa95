"""What the tasks of a job run, and the files that its jobspec brings along.

Law: a job's own files are written to its temporary directory (`tmpdir`) before any task is spawned, and are removed
with it. A nested instance (`core.nested`) is one task with all resources of R, whatever number of slots was requested:
this program in the place of the `flux broker` that its command names.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Sequence
from pathlib import Path

from fluxsched.core.archive import ArchivedFile, parse_archive
from fluxsched.core.idset import EMPTY
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.nested import is_nested, parse_nested
from fluxsched.core.resources import Children, ResourceSet
from fluxsched.errors import Refused
from fluxsched.runtime.exec.base import JobLaunch
from fluxsched.runtime.exec.tasks.layout import JobTasks, TaskBlock, blocks

TMPDIR_TAG = "{{tmpdir}}"
"""What a command says for the job's temporary directory (Flux's mustache)."""
INTERPRETER = (sys.executable, "-E", "-P", "-m", "fluxsched", "start", "--nested")
"""Neither the user's Python variables nor the job's directory decide which modules an instance is made of."""


def is_instance(jobspec: Jobspec) -> bool:
    """Whether a job is an instance of its own; no part of several is."""
    return is_nested(jobspec.command) and not jobspec.request.parts


def program_of(job: JobLaunch, resources: ResourceSet) -> JobTasks:
    """Where the tasks are, and the words that each runs. Raises FluxschedError where there are none."""
    jobspec = job.jobspec
    if not is_instance(jobspec):
        return JobTasks(blocks(jobspec, resources), by_target=jobspec.request.elastic)
    nested = parse_nested(jobspec.command)
    ranks = list(resources.ranks)
    if not ranks:
        raise Refused("the job's R has no ranks: there is nowhere to run")
    all_of_it = Children()
    for rank in ranks:
        all_of_it |= resources.children(rank)
    config = () if nested.config is None else ("--config", nested.config)
    stays = ("--stays",) if nested.stays else ()
    if jobspec.request.elastic:  # it will have other cores
        all_of_it = Children(EMPTY, all_of_it.gpus, all_of_it.extra, all_of_it.amounts)
    words = [*INTERPRETER, *config, *stays, "--", *nested.command]
    return JobTasks([TaskBlock(ranks[0], 0, 1, all_of_it, words)], by_target=False)


def unpack(job: JobLaunch, tmpdir: str | None) -> None:
    """Write the files that the job brings along into its directory. Raises FluxschedError."""
    if tmpdir is not None and job.jobspec.files:
        try:
            _write(parse_archive(job.jobspec.files), Path(tmpdir))
        except OSError as exc:
            raise Refused(f"cannot write the job's files: {os.strerror(exc.errno or 0)}", exc.errno) from exc


def in_directory(words: Sequence[str], tmpdir: str | None) -> Sequence[str]:
    """The words of a command, with the job's directory where they name it."""
    if tmpdir is None:
        return words
    return [word.replace(TMPDIR_TAG, tmpdir) if TMPDIR_TAG in word else word for word in words]


def _write(files: Sequence[ArchivedFile], directory: Path) -> None:
    for one in files:
        path = directory / one.path
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        kind = stat.S_IFMT(one.mode)
        if kind == stat.S_IFDIR:
            path.mkdir(mode=one.mode & 0o777 | 0o700, exist_ok=True)
            continue
        if kind == stat.S_IFLNK:
            path.symlink_to(os.fsdecode(one.data))
            continue
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, one.mode & 0o700)
        with os.fdopen(fd, "wb") as file:
            file.write(one.data)
