"""Surroundings of a task: its target and number, environment (FLUX_..., CUDA_VISIBLE_DEVICES), program, temporary
directory, values of tags.

Law: tasks are numbered in blocks along the ranks of R, part by part; tasks of targets that a job gets while it runs
follow, and no number is used twice. The environment has first the variables of the jobspec, then what the instance
adds, then what makes a task know itself (FLUX_...); the later wins, so that no jobspec can impersonate another job, and
nothing of the instance's own environment gets in. Each job has a temporary directory: there before its tasks, theirs
alone, and gone with them; what is removed is what was made here, by name below one directory of ours, no symbolic link
is followed, and rm(1) removes large trees in the background. A job's own files are written there before any task is
spawned. A nested instance (`core.batch`) is one task with all resources of R.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import sys
import tempfile
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from fluxsched.core.batch import ArchivedFile, is_nested, parse_archive, parse_nested
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.jobid import HOSTFILE, fill, format_f58, id_tag, tags_of
from fluxsched.core.jobspec import JobPart, Jobspec
from fluxsched.core.request import Request
from fluxsched.core.resources import Children, ResourceSet
from fluxsched.core.topology import parts_of
from fluxsched.errors import InvalidValue, LimitExceeded, Refused
from fluxsched.executor.base import JobLaunch
from fluxsched.executor.kept_directories import KeptDirectories
from fluxsched.system.files import KEY_VARIABLE
from fluxsched.system.loop import ExitWatch
from fluxsched.system.processes import PATH_VARIABLE

STALE = frozenset((
    "PMI_FD", "PMI_RANK", "PMI_SIZE", "PMI_SPAWNED", "PMI_PORT", "PMI_ID", "PMI_CONTROL_PORT", "PMI_CONTROL_FD",
    "PMI_VERSION", "PMI_SUBVERSION", "PMIX_NAMESPACE", "PMIX_RANK", "PMIX_SERVER_URI", "PMIX_SERVER_URI2",
    "PMIX_SERVER_URI21", "PMIX_SERVER_URI3", "PMIX_SERVER_URI4", "PMIX_SERVER_URI41",
))  # fmt: skip
"""Set by a process manager around the submitter for its own task, which no task of ours is."""
LEFT_OUT = STALE | {KEY_VARIABLE}
"""Variables that are not passed to a job: it finds its instance at a socket that needs no key, so the path of its
user's key is omitted.
"""
FLUX_LIBRARY = "FLUX_PMI_LIBRARY_PATH"
NO_FLUX_LIBRARY = {"OMPI_MCA_schizo": "^flux", "OMPI_MCA_pmix_flux_priority": "0"}
"""FLUX_JOB_ID has Open MPI 4 look for Flux's PMI library, and fail where there is none; so it must not."""
PART = b"FLUXSCHED_PART"
"""The label of its part, for a task of a job that has several."""
NO_GPUS = b"-1"
"""CUDA_VISIBLE_DEVICES of a task without GPUs, as in Flux: some programs take an empty value for all GPUs."""


def system_bytes(text: str) -> bytes:
    """Return the text in UTF-8, with the bytes that Python represents as lone surrogates.

    Raises InvalidValue for other lone surrogates: they are not text.
    """
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise InvalidValue(f"{text[:80]!r} of the jobspec has a lone surrogate: no program can be given it") from None


def job_environment(job: JobLaunch, path: str, tasks: Sequence[TaskBlock], tmpdir: str | None) -> dict[bytes, bytes]:
    """Return the environment that is common to all tasks of a job that start together; `path` is the job's path,
    `tasks` are all that it has by then, `tmpdir` is its own directory.

    Tags in values are not filled in yet: `own_templates` says in which.
    """
    given = {**job.jobspec.environment, **job.jobspec.templates}
    ours = {
        **job.settings.environment,
        **({} if tmpdir is None else variables(tmpdir, given)),
        PATH_VARIABLE: path,
        "FLUX_JOB_ID": format_f58(job.beside or job.jobid),
        "FLUX_JOB_SIZE": str(count_tasks(tasks)),
        "FLUX_JOB_NNODES": str(len(tasks)),
    }
    return _GIVEN.encoded(given) | _encoded(ours)


def _encoded(environment: Mapping[str, str | None]) -> dict[bytes, bytes]:
    return {system_bytes(name): system_bytes(value) for name, value in environment.items() if value is not None}


class _Given:
    """The environment that the last job has brought along, as bytes: many jobs in a row have the same."""

    def __init__(self) -> None:
        self._text: dict[str, str | None] = {}
        self._bytes = _encoded(NO_FLUX_LIBRARY)

    def encoded(self, given: dict[str, str | None]) -> dict[bytes, bytes]:
        """Return the given environment as bytes, without the variables in LEFT_OUT. Raises InvalidValue."""
        if given != self._text:
            library = {} if FLUX_LIBRARY in given else NO_FLUX_LIBRARY
            found = _encoded({**library, **{name: value for name, value in given.items() if name not in LEFT_OUT}})
            self._text, self._bytes = given, found
        return self._bytes


_GIVEN = _Given()

Templates = Mapping[bytes, str]


def own_templates(job: JobLaunch, common: Mapping[bytes, bytes]) -> Templates:
    """Return the values with tags that are in the job's environment: those that the instance has not replaced."""
    found = {system_bytes(name): value for name, value in job.jobspec.templates.items()}
    return {name: value for name, value in found.items() if common.get(name) == system_bytes(value)}


def task_environment(
    common: Mapping[bytes, bytes], templates: Templates, tags: Tags, block: TaskBlock, local: int
) -> dict[bytes, bytes]:
    """Return the environment of the task with local id `local` on the target of `block`."""
    found = {
        **common,
        **{name: system_bytes(tags.fill(value, block.first + local)) for name, value in templates.items()},
        b"FLUX_TASK_RANK": str(block.first + local).encode(),
        b"FLUX_TASK_LOCAL_ID": str(local).encode(),
        b"CUDA_VISIBLE_DEVICES": ",".join(map(str, block.children.gpus)).encode() or NO_GPUS,
    }
    if block.part:
        found[PART] = block.part.encode()
    return found


# ---- temporary directories

MODE = 0o700
PASSABLE = 0o711
"""Mode of the directory above those of users: its names are not shown to them, and each reaches its own."""
INLINE_MAX = 16
"""Files of a directory without directories that are removed at once; for more a process is worth its cost."""
REMOVE = 'rm -rf -- "$1" || { [ -L "$1" ] || chmod -R u+rwx -- "$1"; exec rm -rf -- "$1"; }'
"""Directories that their owner may not enter are made enterable; chmod -R follows no links either."""
REMOVE_AS_ROOT = 'exec rm -rf -- "$1"'
"""Root enters all, and must change no mode where another user may put a link meanwhile; rm(1) is safe against that."""
OWN, TMPDIR = "FLUX_JOB_TMPDIR", "TMPDIR"


def make(scratch: Path, jobid: int, kept: KeptDirectories | None = None, userid: int | None = None) -> str:
    """Make an empty directory for the job, or take a kept one, and return its path. Another user who is named gets a
    new one, which that user owns and can reach without seeing others. Raises Refused.
    """
    path = f"{scratch}/{format_f58(jobid, ascii=True)}"
    try:
        try:
            _check(scratch)
        except FileNotFoundError:  # a cleaner of /tmp was here
            os.mkdir(scratch, MODE)
        if kept is None or userid is not None or not kept.take(path):
            os.mkdir(path, MODE)
        if userid is not None:
            os.chmod(scratch, PASSABLE)
            os.chown(path, userid, -1, follow_symlinks=False)
    except OSError as exc:
        raise Refused(f"cannot make the job's temporary directory {path}: {os.strerror(exc.errno or 0)}") from exc
    return path


def _check(scratch: Path) -> None:
    found = os.lstat(scratch)
    if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o066 or not stat.S_ISDIR(found.st_mode):
        raise PermissionError(1, "not ours")


def variables(path: str, given: Mapping[str, str | None]) -> dict[str, str]:
    """Return the variables that name the job's directory; `given` is the environment that the job brings along."""
    wanted = given.get(TMPDIR)
    is_own = wanted is not None and wanted not in (tempfile.gettempdir(), given.get(OWN))
    return {OWN: path} if is_own else {OWN: path, TMPDIR: path}


def remove(path: str) -> None:
    """Remove the directory of a job without processes; a large one in the background."""
    try:
        os.rmdir(path)
    except FileNotFoundError:
        return
    except OSError:
        if not _remove_files(path):
            _remove_in_background(path)


def _remove_files(path: str) -> bool:
    """Remove a directory that holds a few files and no directory; return whether it was one."""
    try:
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        with os.scandir(directory) as entries:
            few = list(islice(entries, INLINE_MAX + 1))
            if len(few) > INLINE_MAX or any(entry.is_dir(follow_symlinks=False) for entry in few):
                return False
            for entry in few:
                os.unlink(entry.name, dir_fd=directory)
        os.rmdir(path)
        return True
    except OSError:
        return False
    finally:
        os.close(directory)


def _remove_in_background(path: str) -> None:
    """Remove a directory by another process; if none can be started, the directory is removed with the keeper."""
    with contextlib.suppress(OSError):
        nothing = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in range(3)]
        environment = {"PATH": os.environ.get("PATH", os.defpath), PATH_VARIABLE: os.environ.get(PATH_VARIABLE, "")}
        script = REMOVE if os.geteuid() else REMOVE_AS_ROOT
        pid = os.posix_spawn("/bin/sh", ["sh", "-c", script, "sh", path], environment, file_actions=nothing)
        ExitWatch(asyncio.get_running_loop(), pid, lambda: _reap(pid))


def _reap(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


# ---- layout of tasks on cores

TASKS_JOB_MAX = 4096
"""Tasks of one job on this machine: beyond this a typing error is likelier than intent.

The gate's pipe takes a byte a task and is never smaller than this.
"""


class TaskBlock(NamedTuple):
    """The tasks of one rank: `ntasks` of them, from task rank `first` on, with what R gives that rank."""

    rank: int
    first: int
    ntasks: int
    children: Children
    command: Sequence[str] = ()
    part: str = ""
    """The label of its part, where the job has several."""


class JobTasks:
    """Places of the tasks of a job, current and former: tasks of targets that the job has given back keep their
    numbers.
    """

    __slots__ = ("_gone", "_own", "blocks", "by_target")

    def __init__(self, blocks: list[TaskBlock], *, by_target: bool, own: Idset | None = None) -> None:
        """`by_target`: the tasks of a target end when it is given back. `own` are the targets whose tasks run on this
        host, None if all do; the others are here because all are numbered together.
        """
        self.blocks = blocks
        self.by_target = by_target
        self._own = own
        self._gone: set[int] = set()

    @property
    def next(self) -> int:
        """Return the number of the next task: as many as there have been."""
        return self.blocks[-1].first + self.blocks[-1].ntasks if self.blocks else 0

    @property
    def current(self) -> list[TaskBlock]:
        """Return the blocks of the targets that the job has."""
        gone = self._gone
        return [block for at, block in enumerate(self.blocks) if at not in gone] if gone else self.blocks

    def own_of(self, found: list[TaskBlock]) -> list[TaskBlock]:
        """Return those of these blocks whose tasks run on this host."""
        return found if self._own is None else own_blocks(found, self._own)

    def remove(self, ranks: Idset) -> None:
        """Mark the blocks of these targets as given back."""
        self._gone |= {at for at, block in enumerate(self.blocks) if block.rank in ranks}


def count_tasks(found: Iterable[TaskBlock]) -> int:
    """Return the number of tasks in these blocks."""
    return sum([block.ntasks for block in found])


def tasks_of(found: Iterable[TaskBlock]) -> Idset:
    """Return the numbers of the tasks in these blocks."""
    return Idset.of([block.first + local for block in found for local in range(block.ntasks)])


def own_blocks(found: list[TaskBlock], own: Idset) -> list[TaskBlock]:
    """Return those of these blocks that have tasks and are on these targets."""
    return [block for block in found if block.ntasks and block.rank in own]


def blocks(jobspec: Jobspec, resources: ResourceSet, own: Idset | None = None, first: int = 0) -> list[TaskBlock]:
    """Return the tasks of a job that begins, rank by rank, part by part, numbered from `first` on; those on the targets
    `own` run on this host, all if that is None.

    Raises LimitExceeded if more than TASKS_JOB_MAX are to run here, InvalidValue if there are none at all.
    """
    if not resources.ranks:
        raise InvalidValue("the job's R has no ranks: there is nowhere to run")
    if not jobspec.request.parts:
        found, nslots = _of_part(jobspec, resources, resources.nslots, first)
    else:
        found, nslots = _of_parts(jobspec, resources, first)
    here = count_tasks(found if own is None else own_blocks(found, own))
    if here > TASKS_JOB_MAX:
        raise LimitExceeded(f"the job has {here} tasks: one machine runs at most {TASKS_JOB_MAX} a job")
    if not count_tasks(found):
        raise InvalidValue(f"the job's {nslots} slots result in no task: check tasks[0].count of the jobspec")
    return found


def more_blocks(jobspec: Jobspec, resources: ResourceSet, tasks: JobTasks, first: int | None = None) -> list[TaskBlock]:
    """Return the tasks that a job gets with the targets of `resources`, which it does not have yet, numbered from
    `first` on; None: after those that it has had.

    A part that has a fixed number of tasks gets none. Raises LimitExceeded if it would have more than TASKS_JOB_MAX.
    """
    first = tasks.next if first is None else first
    if jobspec.request.parts:
        found, _ = _of_parts(jobspec, resources, first, grows=True)
    elif jobspec.ntasks_total is None:
        found, _ = _of_part(jobspec, resources, None, first)
    else:
        found = []
    ntasks = count_tasks(tasks.own_of(found)) + count_tasks(tasks.own_of(tasks.current))
    if ntasks > TASKS_JOB_MAX:
        raise LimitExceeded(f"the job would have {ntasks} tasks: one machine runs at most {TASKS_JOB_MAX} a job")
    return [block for block in found if block.ntasks]


def _of_parts(
    jobspec: Jobspec, resources: ResourceSet, first: int, *, grows: bool = False
) -> tuple[list[TaskBlock], int]:
    """Return the tasks of all parts, and the number of their slots.

    Raises InvalidValue if R does not assign the resources to parts.
    """
    of_part = parts_of(resources.scheduling, resources.ranks)
    found: list[TaskBlock] = []
    nslots, known = 0, EMPTY
    for part in jobspec.parts:
        ranks = of_part.get(part.label, EMPTY)
        known |= ranks
        if ranks and not (grows and part.ntasks_total is not None):
            some, slots = _of_part(part, resources.restrict(ranks), None, first)
            found += [block._replace(part=part.label) for block in some]
            first, nslots = first + count_tasks(some), nslots + slots
    if lost := resources.ranks - known:
        raise InvalidValue(f"the job's R assigns ranks {lost} to no part (scheduling.parts)")
    return found, nslots


def _of_part(
    part: Jobspec | JobPart, resources: ResourceSet, nslots: int | None, first: int
) -> tuple[list[TaskBlock], int]:
    """Return the tasks of a part that has all of `resources`, and the number of their slots."""
    children = [resources.children(rank) for rank in resources.ranks]
    slots = slots_of(part.request, children, nslots)
    nslots = sum(slots)
    ntasks = part.ntasks(nslots)
    found, before, begun = [], 0, 0
    for rank, given, own in zip(resources.ranks, slots, children, strict=True):
        before += given
        until = -(-before * ntasks // nslots)
        found.append(TaskBlock(rank, first + begun, until - begun, own, part.command))
        begun = until
    return found, nslots


def slots_of(request: Request, children: list[Children], nslots: int | None) -> list[int]:
    """Return the number of slots on each rank. R gives their sum at most (`nslots`, RFC 20), never their places.

    With nodes asked for they are spread evenly, as asked; else a rank has as many as its children make, unless that
    contradicts `nslots`.
    """
    room = [_room(request, part) for part in children]
    if nslots is None and request.nodes is None:
        return room
    if nslots is None:
        nslots = len(room) * min(request.slots.min, min(room))
    if request.nodes is None and sum(room) == nslots:
        return room
    each, more = divmod(nslots, len(room))
    return [each + (at < more) for at in range(len(room))]


def _room(request: Request, part: Children) -> int:
    fits = []
    if request.cores:
        fits.append(len(part.cores) // request.cores)
    if request.gpus:
        fits.append(len(part.gpus) // request.gpus)
    return max(1, min(fits, default=1))


def processing_units(cores: Idset, topology: Sequence[Idset]) -> set[int] | None:
    """Return the PUs of these core ids, or None if one of them is not a core of this machine."""
    if cores and cores.max() >= len(topology):
        return None
    return {unit for core in cores for unit in topology[core]}


# ---- tags in paths and variables


class Tags:
    """Tags of one job whose tasks are placed according to `blocks`; `r` is its R as JSON, `tmpdir` its own directory.

    `current` are the blocks that the job still has after giving others back.
    """

    def __init__(
        self,
        jobid: int,
        jobspec: Jobspec,
        blocks: Sequence[TaskBlock],
        r: Mapping[str, Any],
        tmpdir: str | None = None,
        current: Sequence[TaskBlock] | None = None,
    ) -> None:
        self._jobid = jobid
        self._jobspec = jobspec
        self._blocks = blocks
        self._current = blocks if current is None else current
        self._r = r
        self.tmpdir = tmpdir
        self._firsts = [block.first for block in blocks]

    @cached_property
    def resources(self) -> ResourceSet:
        """Return the job's R; it is parsed when a tag asks for it, since few do."""
        return ResourceSet.parse(self._r)

    @property
    def hosts(self) -> str:
        """Return the text of the job's hostfile: the host of each task, a line each, in the order of their numbers."""
        return "".join(f"{self.resources.host(block.rank)}\n" * block.ntasks for block in self._current)

    def fill(self, template: str, task: int = 0) -> str:
        """Return the text of `template` for the task of this number."""
        return fill(template, lambda tag: self._value(tag, task)) if "{{" in template else template

    def _value(self, tag: str, task: int) -> str | None:
        name, dot, part = tag.partition(".")
        if dot and name in _PARTS:
            index = max(0, bisect_right(self._firsts, task) - 1)
            if index >= len(self._blocks):  # it never ran here
                return None
            value = _PARTS[name].get(part)
            return None if value is None else value(self, index, self._blocks[index], task)
        match tag:
            case "tmpdir":
                return self.tmpdir
            case "hostfile":
                return self.tmpdir and f"{self.tmpdir}/{HOSTFILE}"
            case "name":
                return job_name(self._jobspec)
            case "nnodes":
                return str(len(self._current))
            case "size" | "ntasks":
                return str(count_tasks(self._current))
            case "taskid":
                return str(task)
        return id_tag(tag, self._jobid)


def job_name(jobspec: Jobspec) -> str:
    """Return the job's name, by default that of its program."""
    return jobspec.job_name or os.path.basename(jobspec.command[0])


_Value = Callable[[Tags, int, TaskBlock, int], str]
_NODE: Mapping[str, _Value] = {
    "id": lambda tags, index, block, task: str(index),
    "name": lambda tags, index, block, task: tags.resources.host(block.rank),
    "broker_rank": lambda tags, index, block, task: str(block.rank),
    "cores": lambda tags, index, block, task: str(block.children.cores),
    "gpus": lambda tags, index, block, task: str(block.children.gpus),
    "ncores": lambda tags, index, block, task: str(len(block.children.cores)),
}
_TASK: Mapping[str, _Value] = {
    **dict.fromkeys(("id", "rank"), lambda tags, index, block, task: str(task)),
    **dict.fromkeys(("index", "localid"), lambda tags, index, block, task: str(task - block.first)),
}
_PARTS = {"node": _NODE, "task": _TASK}


# ---- programs of tasks

TMPDIR_TAG = "{{tmpdir}}"
"""Tag in a command for the job's temporary directory (Flux's mustache)."""
INTERPRETER = (sys.executable, "-E", "-P", "-m", "fluxsched", "start", "--nested")
"""Neither the user's Python variables nor the job's directory decide which modules an instance is made of."""


def is_instance(jobspec: Jobspec) -> bool:
    """Return whether a job is an instance of its own; no part of several is."""
    return is_nested(jobspec.command) and not jobspec.request.parts


def program_of(job: JobLaunch, resources: ResourceSet) -> JobTasks:
    """Return the places of the tasks, and the words that each runs. Raises FluxschedError if there are none."""
    jobspec = job.jobspec
    if not is_instance(jobspec):
        found = blocks(jobspec, resources, job.ranks, job.first)
        return JobTasks(found, by_target=jobspec.request.elastic, own=job.ranks)
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


def unpack(job: JobLaunch, tags: Tags) -> None:
    """Write into the job's directory the files that it brings along, and the hostfile if a variable has its tag.

    Raises FluxschedError.
    """
    if tags.tmpdir is None or not (job.jobspec.files or job.jobspec.templates):
        return
    files = list(parse_archive(job.jobspec.files))
    is_wanted = any(HOSTFILE in tags_of(value) for value in job.jobspec.templates.values())
    if is_wanted and all(file.path != HOSTFILE for file in files):
        files.append(ArchivedFile(HOSTFILE, stat.S_IFREG | 0o600, tags.hosts.encode()))
    if files:
        try:
            _write(files, Path(tags.tmpdir))
        except OSError as exc:
            raise Refused(f"cannot write the job's files: {os.strerror(exc.errno or 0)}", exc.errno) from exc


def in_directory(words: Sequence[str], tmpdir: str | None) -> Sequence[str]:
    """Return the words of a command, with the job's directory where they name it."""
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
