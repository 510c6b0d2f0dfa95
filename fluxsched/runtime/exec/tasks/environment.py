"""What a task finds in its environment, in the bytes that the kernel takes.

Law: first the variables of the jobspec, then what the instance adds, then what makes a task know itself (FLUX_...); the
later wins, so that no jobspec can impersonate another job. Nothing of the instance's own environment gets in: a
variable that the submitter removed stays removed, and a jobspec without an environment has none, as in Flux.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fluxsched.core.jobid import format_f58
from fluxsched.errors import InvalidValue
from fluxsched.runtime.exec.base import JobLaunch
from fluxsched.runtime.exec.tasks.layout import TaskBlock, count_tasks
from fluxsched.runtime.exec.tasks.tags import Tags
from fluxsched.runtime.exec.tasks.temporary_directory import variables
from fluxsched.runtime.system.paths import KEY_VARIABLE
from fluxsched.runtime.system.processes import PATH_VARIABLE

STALE = frozenset((
    "PMI_FD", "PMI_RANK", "PMI_SIZE", "PMI_SPAWNED", "PMI_PORT", "PMI_ID", "PMI_CONTROL_PORT", "PMI_CONTROL_FD",
    "PMI_VERSION", "PMI_SUBVERSION", "PMIX_NAMESPACE", "PMIX_RANK", "PMIX_SERVER_URI", "PMIX_SERVER_URI2",
    "PMIX_SERVER_URI21", "PMIX_SERVER_URI3", "PMIX_SERVER_URI4", "PMIX_SERVER_URI41",
))  # fmt: skip
"""Set by a process manager around the submitter for its own task, which no task of ours is."""
LEFT_OUT = STALE | {KEY_VARIABLE}
"""A job finds its instance at a socket that needs no key, so it is not told where its user keeps one."""
FLUX_LIBRARY = "FLUX_PMI_LIBRARY_PATH"
NO_FLUX_LIBRARY = {"OMPI_MCA_schizo": "^flux", "OMPI_MCA_pmix_flux_priority": "0"}
"""FLUX_JOB_ID has Open MPI 4 look for Flux's PMI library, and fail where there is none; so it must not."""
PART = b"FLUXSCHED_PART"
"""The label of its part, for a task of a job that has several."""
NO_GPUS = b"-1"
"""CUDA_VISIBLE_DEVICES of a task without GPUs, as in Flux: some programs take an empty value for all GPUs."""


def system_bytes(text: str) -> bytes:
    """UTF-8, with what Python smuggled in as lone surrogates as the bytes it was.

    Raises InvalidValue for other lone surrogates: they are not text.
    """
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise InvalidValue(f"{text[:80]!r} of the jobspec has a lone surrogate: no program can be given it") from None


def job_environment(job: JobLaunch, path: str, tasks: Sequence[TaskBlock], tmpdir: str | None) -> dict[bytes, bytes]:
    """What all tasks of a job that start together have in common; `path` is the job's path, `tasks` are all that it has
    by then, `tmpdir` is its own directory.

    Tags in values are not filled in yet: `own_templates` says in which.
    """
    given = {**job.jobspec.environment, **job.jobspec.templates}
    ours = {
        **({} if FLUX_LIBRARY in given else NO_FLUX_LIBRARY),
        **{name: value for name, value in given.items() if value is not None and name not in LEFT_OUT},
        **job.environment,
        **({} if tmpdir is None else variables(tmpdir, given)),
        PATH_VARIABLE: path,
        "FLUX_JOB_ID": format_f58(job.jobid),
        "FLUX_JOB_SIZE": str(count_tasks(tasks)),
        "FLUX_JOB_NNODES": str(len(tasks)),
    }
    return {system_bytes(name): system_bytes(value) for name, value in ours.items()}


Templates = Mapping[bytes, str]


def own_templates(job: JobLaunch, common: Mapping[bytes, bytes]) -> Templates:
    """The values with tags that are in the job's environment: those that the instance has not replaced."""
    found = {system_bytes(name): value for name, value in job.jobspec.templates.items()}
    return {name: value for name, value in found.items() if common.get(name) == system_bytes(value)}


def task_environment(
    common: Mapping[bytes, bytes], templates: Templates, tags: Tags, block: TaskBlock, local: int
) -> dict[bytes, bytes]:
    """The environment of the task with local id `local` on the target of `block`."""
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
