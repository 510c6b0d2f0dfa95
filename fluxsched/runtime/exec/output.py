"""Where the tasks of a job print: files of the user's choice, or the job's own in the spool directory.

Law: a file is opened by us, before any task runs, so that one that cannot be opened fails the job with a reason; it
is opened for appending, so that tasks that share it do not overwrite each other; and opening never blocks. All tasks
share a file of the user's choice. In the spool each has files of its own, so that its lines can be told from the
others'; they are open only while that task is spawned, so that a job of many tasks costs no more descriptors than one.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Mapping

from fluxsched.core.jobid import format_dothex, format_f58, format_hex
from fluxsched.core.jobspec import Jobspec
from fluxsched.errors import FluxschedError, Refused
from fluxsched.runtime.exec.base import JobLaunch, spool_directory, spool_name
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


class Streams:
    """The files that one job's tasks print into. Owns their descriptors; `close` is idempotent."""

    __slots__ = ("_directory", "_own", "_shared", "_single")

    def __init__(self, job: JobLaunch, cwd: str | None, ntasks: int) -> None:
        """Open the files of the user's choice. Raises Refused naming the file that cannot be opened.

        A file for stdout takes stderr too unless that has a file of its own, as in Flux.
        """
        spec = job.jobspec
        self._directory = str(spool_directory(job.spool, job.jobid))
        self._single = ntasks == 1
        self._own: list[int] = []
        self._shared: dict[str, int] = {}
        if spec.output is None:
            self._make_directory()
        else:
            self._shared["stdout"] = _open(spec.output, job, cwd)
        try:
            if spec.output is not None and spec.error in (None, spec.output):
                self._shared["stderr"] = os.dup(self._shared["stdout"])
            elif spec.error is not None:
                self._shared["stderr"] = _open(spec.error, job, cwd)
        except BaseException:
            self.close()
            raise

    def of(self, task: int) -> tuple[int, int]:
        """Descriptors for stdout and stderr of the task of this number, good until the next call."""
        self._close_own()
        return self._descriptor("stdout", task), self._descriptor("stderr", task)

    def say(self, text: str) -> None:
        """A line of ours in the stderr of the first task."""
        with contextlib.suppress(OSError, FluxschedError):
            os.write(self.of(0)[1], f"fluxsched: {text}\n".encode())

    def close(self) -> None:
        """Give up all descriptors."""
        self._close_own()
        for fd in self._shared.values():
            os.close(fd)
        self._shared.clear()

    def _descriptor(self, stream: str, task: int) -> int:
        if stream in self._shared:
            return self._shared[stream]
        path = f"{self._directory}/{spool_name(stream, None if self._single else task)}"
        try:
            fd = os.open(path, SPOOL_FLAGS, SPOOL_MODE)
        except OSError as exc:
            raise _refused("open", path, exc) from exc
        self._own.append(fd)
        return fd

    def _close_own(self) -> None:
        while self._own:
            os.close(self._own.pop())

    def _make_directory(self) -> None:
        try:
            os.makedirs(self._directory, mode=0o700, exist_ok=True)
        except OSError as exc:
            raise _refused("make the directory", self._directory, exc) from exc


def _open(template: str, job: JobLaunch, cwd: str | None) -> int:
    path = expand(template, job.jobid, job.jobspec)
    try:
        fd = os.open(system_bytes(os.path.join(cwd or "", path)), USER_FLAGS, FILE_MODE)
        os.set_blocking(fd, True)
    except OSError as exc:
        raise _refused("open", path, exc) from exc
    return fd


def _refused(what: str, path: str, exc: OSError) -> Refused:
    return Refused(f"cannot {what} {path!r} for the job's output: {os.strerror(exc.errno or 0)}", exc.errno)
