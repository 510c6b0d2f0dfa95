"""Where the tasks of a job print: files of the user's choice, or the job's own in the spool directory.

Law: a file is opened by us, before any task exists, so that one that cannot be opened fails the job with a reason; it
is opened for appending, so that tasks that share it do not overwrite each other; and opening never blocks.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from fluxsched.core.jobid import format_dothex, format_f58, format_hex
from fluxsched.core.jobspec import Jobspec
from fluxsched.errors import Refused
from fluxsched.runtime.exec.base import JobLaunch, spool_directory
from fluxsched.runtime.exec.environment import system_bytes

FILE_MODE = 0o666
SPOOL_MODE = 0o600
SPOOL_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
USER_FLAGS = SPOOL_FLAGS | os.O_TRUNC | os.O_NONBLOCK
"""Truncated as by a shell's `>`; not blocking, since a fifo that nobody reads would stop the instance."""

_TAG = re.compile(r"\{\{ *([a-z0-9]+(?:\.[a-z0-9]+)?) *\}\}")
_FORMS: Mapping[str, Callable[[int], str]] = {
    "": format_f58,
    "f58": format_f58,
    "f58plain": lambda jobid: format_f58(jobid, ascii=True),
    "d": str,
    "dec": str,
    "hex": format_hex,
    "dothex": format_dothex,
}


def expand(template: str, jobid: int, jobspec: Jobspec) -> str:
    """A path with `{{id}}`, `{{jobid}}` (both with `.f58 .f58plain .dec .hex .dothex`) and `{{name}}` filled in.

    Other tags stay as they are, as Flux leaves them.
    """

    def value(found: re.Match[str]) -> str:
        tag, _, form = found[1].partition(".")
        if tag in ("id", "jobid") and form in _FORMS:
            return _FORMS[form](jobid)
        if found[1] == "name":
            return job_name(jobspec)
        return found[0]

    return _TAG.sub(value, template)


def job_name(jobspec: Jobspec) -> str:
    """The job's name, by default that of its program."""
    return jobspec.job_name or os.path.basename(jobspec.command[0])


def open_streams(job: JobLaunch, cwd: str | None) -> tuple[int, int]:
    """File descriptors for stdout and stderr. Raises Refused naming the file that cannot be opened.

    A file for stdout takes stderr too unless that has a file of its own, as in Flux.
    """
    spec = job.jobspec
    directory = spool_directory(job.spool, job.jobid)
    if spec.output is None:
        try:
            os.makedirs(directory, mode=0o700, exist_ok=True)
        except OSError as exc:
            raise _refused("make the directory", str(directory), exc) from exc
    stdout = _open(spec.output, directory / "stdout", job, cwd)
    try:
        if spec.output is not None and spec.error in (None, spec.output):
            return stdout, os.dup(stdout)
        return stdout, _open(spec.error, directory / "stderr", job, cwd)
    except BaseException:
        os.close(stdout)
        raise


def _open(template: str | None, spooled: Path, job: JobLaunch, cwd: str | None) -> int:
    path = str(spooled) if template is None else expand(template, job.jobid, job.jobspec)
    try:
        if template is None:
            return os.open(path, SPOOL_FLAGS, SPOOL_MODE)
        fd = os.open(system_bytes(os.path.join(cwd or "", path)), USER_FLAGS, FILE_MODE)
        os.set_blocking(fd, True)
    except OSError as exc:
        raise _refused("open", path, exc) from exc
    return fd


def _refused(what: str, path: str, exc: OSError) -> Refused:
    return Refused(f"cannot {what} {path!r} for the job's output: {os.strerror(exc.errno or 0)}", exc.errno)
