"""Where the tasks of a job print: files of the user's choice, or the job's own in the spool directory.

Law: a file is opened by us, before any task runs, so that one that cannot be opened fails the job with a reason; it is
opened for appending, so that tasks that share it do not overwrite each other; and opening never blocks. All tasks share
a file of the user's choice, unless its name has tags of a task or a node (`core.template`). In the spool each has files
of its own, so that its lines can be distinguished from the others'. Files of a task are open only while it is spawned,
so that a job of many tasks costs no more descriptors than one.
"""

from __future__ import annotations

import contextlib
import os

from fluxsched.core.template import is_shared
from fluxsched.errors import FluxschedError, Refused
from fluxsched.runtime.exec.base import JobLaunch, spool_directory, spool_name
from fluxsched.runtime.exec.tasks.environment import system_bytes
from fluxsched.runtime.exec.tasks.tags import Tags

FILE_MODE = 0o666
SPOOL_MODE = 0o600
SPOOL_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
USER_FLAGS = SPOOL_FLAGS | os.O_NONBLOCK
"""Not blocking, since a fifo without a reader would stop the keeper."""


class Streams:
    """The files that one job's tasks print into. Owns their descriptors; `close` is idempotent."""

    __slots__ = ("_cwd", "_directory", "_flags", "_named", "_own", "_shared", "_single", "_tags")

    def __init__(self, job: JobLaunch, cwd: str | None, tags: Tags, *, is_single: bool, is_first: bool) -> None:
        """Open the files of the user's choice. Raises Refused naming the file that cannot be opened.

        A file for stdout takes stderr too unless that has a file of its own, as in Flux. It is emptied, as by a shell's
        `>`, by the first tasks of a job. `is_single`: the job has one task and never another.
        """
        spec = job.jobspec
        self._directory = str(spool_directory(job.spool, job.jobid))
        self._single = is_single
        self._flags = USER_FLAGS | (os.O_TRUNC if is_first else 0)
        self._own: list[int] = []
        self._shared: dict[str, int] = {}
        self._named = {"stdout": spec.output, "stderr": spec.output if spec.error is None else spec.error}
        self._cwd = cwd or ""
        self._tags = tags
        if spec.output is None:
            self._make_directory()
        try:
            for stream, template in self._named.items():
                if template is not None and is_shared(template):
                    self._shared[stream] = self._open(stream, template, 0, self._shared.get("stdout"))
        except BaseException:
            self.close()
            raise

    def of(self, task: int) -> tuple[int, int]:
        """Descriptors for stdout and stderr of the task of this number, good until the next call."""
        self._close_own()
        stdout = self._descriptor("stdout", task, None)
        return stdout, self._descriptor("stderr", task, stdout)

    def say(self, text: str) -> None:
        """Write a message of the instance to the stderr of the first task."""
        with contextlib.suppress(OSError, FluxschedError):
            os.write(self.of(0)[1], f"fluxsched: {text}\n".encode())

    def close(self) -> None:
        """Give up all descriptors."""
        self._close_own()
        for fd in self._shared.values():
            os.close(fd)
        self._shared.clear()

    def _descriptor(self, stream: str, task: int, stdout: int | None) -> int:
        if stream in self._shared:
            return self._shared[stream]
        template = self._named[stream]
        if template is not None:
            self._own.append(self._open(stream, template, task, stdout))
            return self._own[-1]
        path = f"{self._directory}/{spool_name(stream, None if self._single else task)}"
        try:
            fd = os.open(path, SPOOL_FLAGS, SPOOL_MODE)
        except OSError as exc:
            raise _refused("open", path, exc) from exc
        self._own.append(fd)
        return fd

    def _open(self, stream: str, template: str, task: int, stdout: int | None) -> int:
        """A file of the user's choice; `stdout` is taken for stderr, too, where both have one name."""
        if stream == "stderr" and stdout is not None and template == self._named["stdout"]:
            return os.dup(stdout)
        path = self._tags.fill(template, task)
        try:
            fd = os.open(system_bytes(os.path.join(self._cwd, path)), self._flags, FILE_MODE)
            os.set_blocking(fd, True)
        except OSError as exc:
            raise _refused("open", path, exc) from exc
        return fd

    def _close_own(self) -> None:
        while self._own:
            os.close(self._own.pop())

    def _make_directory(self) -> None:
        try:
            os.makedirs(self._directory, mode=0o700, exist_ok=True)
        except OSError as exc:
            raise _refused("make the directory", self._directory, exc) from exc


def _refused(what: str, path: str, exc: OSError) -> Refused:
    return Refused(f"cannot {what} {path!r} for the job's output: {os.strerror(exc.errno or 0)}", exc.errno)
