"""Sizes of a job over time, where it has grown and shrunk while it ran.

Law: the sizes that are over follow each other without gaps from the job's start on; the last one lasts. A job that
never changed has none, and costs nothing here.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from fluxsched.jobs.job.job import Job

SIZE_CHANGES_MAX = 10_000
"""Changes of one job: after so many it grows no more. They are kept in memory and in its log, 0.2 and 1 KiB each."""

SIZES_LISTED_MAX = 100
"""Former sizes of a job in an answer, the latest ones: else a job of SIZE_CHANGES_MAX would fill a list of jobs."""


class Used(NamedTuple):
    """Usage in core-seconds and GPU-seconds."""

    core_s: float
    gpu_s: float


UNUSED: Final = Used(0.0, 0.0)


def used(job: Job, since_s: float, until_s: float) -> Used:
    """Return the usage of a job from `since_s` to `until_s`, within the time that it ran."""
    if until_s <= since_s:
        return UNUSED
    if job.sizes is None:
        return Used(job.ncores * (until_s - since_s), job.ngpus * (until_s - since_s))
    core_s = gpu_s = 0.0
    begin_s = since_s
    for ended_s, ncores, ngpus, _ in job.sizes:
        end_s = min(ended_s, until_s)
        if end_s > begin_s:
            core_s += ncores * (end_s - begin_s)
            gpu_s += ngpus * (end_s - begin_s)
            begin_s = end_s
    left_s = max(0.0, until_s - begin_s)
    return Used(core_s + job.ncores * left_s, gpu_s + job.ngpus * left_s)


def listed_sizes(job: Job, sizes_max: int = SIZES_LISTED_MAX) -> list[tuple[str, float, int]]:
    """Its former sizes, each as targets, until when (wall time, seconds), and cores.

    Beyond `sizes_max` the earliest ones are one entry, without targets, that ends when the listed ones begin.
    """
    sizes = job.sizes or ()
    left_out = len(sizes) - sizes_max
    listed = [(str(ranks), ended_s, ncores) for ended_s, ncores, _, ranks in sizes[max(left_out, 0) :]]
    return [("", sizes[left_out - 1][0], 0), *listed] if left_out > 0 else listed
