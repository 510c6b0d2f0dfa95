"""A command that is outside of an instance and talks to it as if it were inside: `alloc` and `proxy`.

Law: the command is this process's child, at this terminal, bound to the processors of the instance. It ends with the
instance: it is asked to, and killed if it does not.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from fluxsched.errors import FluxschedError
from fluxsched.runtime.client.blocking import Handle, ReadableFile
from fluxsched.runtime.client.enclosing import Parent, environment_of, inside
from fluxsched.runtime.instance.initial_program import ASKING, COMMAND_END_S, cannot_run, exit_status


class _Left(Exception):
    """The command has ended."""


class _Watch:
    """The end of a process, to be waited for beside answers."""

    def __init__(self, pid: int) -> None:
        self.fd: int | None = os.pidfd_open(pid)

    def look(self) -> None:
        """Called when the descriptor can be read, or an answer has come."""
        assert self.fd is not None, "close ends the watch"
        import select

        if select.select([self.fd], [], [], 0)[0]:
            raise _Left

    def close(self) -> None:
        if self.fd is not None:
            os.close(self.fd)
        self.fd = None


def visit(
    uri: str,
    command: Sequence[str],
    base: Mapping[str, str],
    cwd: str,
    ends: Callable[[ReadableFile], None] | None = None,
) -> int:
    """Run a command, else a shell, as inside the instance at `uri`; its exit status, as shells give it.

    `ends` waits until the instance ends, looking at what it is given meanwhile. Raises FluxschedError.
    """
    environment = _environment(uri, base)
    words = list(command) or [environment.get("SHELL", "/bin/sh")]
    before = signal.signal(signal.SIGINT, lambda signum, frame: None)  # Ctrl-C is for the command
    process = None
    try:
        with _deferred(signal.SIGTERM, signal.SIGHUP):  # or the command would run with its process id unknown
            try:
                process = subprocess.Popen(words, env=environment, cwd=cwd)
            except OSError as exc:
                raise CannotRun(*cannot_run(words, exc)) from exc
        if ends is not None:
            _wait_for_either(process, ends)
        status = process.wait()
    except BaseException:
        if process is not None:
            end(process)
        raise
    finally:
        signal.signal(signal.SIGINT, before)
    return exit_status(status)


@contextmanager
def _deferred(*signums: int) -> Iterator[None]:
    """Signals that come within are handled at its end, as they would have been; ignored ones stay ignored."""
    came: list[int] = []
    handlers = {each: signal.getsignal(each) for each in signums}
    taken = {each: handler for each, handler in handlers.items() if handler not in (signal.SIG_IGN, None)}
    for signum in taken:
        signal.signal(signum, lambda signum, frame: came.append(signum))
    try:
        yield
    finally:
        for signum, handler in taken.items():
            signal.signal(signum, handler)
        for signum in came:
            signal.raise_signal(signum)


class CannotRun(FluxschedError):
    """The command cannot be run; `status` is how shells leave then."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


def stop_instance(uri: str) -> None:
    """End an instance, and do not wait for it."""
    with Handle(uri) as handle:
        handle.rpc("instance.stop")


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask a command to go, and kill it if it does not."""
    for signum in ASKING:
        process.send_signal(signum)
    try:
        process.wait(COMMAND_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _wait_for_either(process: subprocess.Popen[bytes], ends: Callable[[ReadableFile], None]) -> None:
    watch = _Watch(process.pid)
    try:
        ends(watch)
    except _Left:
        return
    finally:
        watch.close()
    end(process)


def _environment(uri: str, base: Mapping[str, str]) -> dict[str, str]:
    """What a program inside would find; and this process goes to the instance's processors, where they are bound."""
    with Handle(uri) as handle:
        info = handle.rpc("instance.info")
        local_uri = str(handle.rpc("attr.get", {"name": "local-uri"})["value"])
    with suppress(OSError):
        os.sched_setaffinity(0, os.sched_getaffinity(int(info["pid"])))
    outer = info.get("parent")
    parent = None if outer is None else Parent(outer, None, int(info["level"]) - 1)
    return inside(base, {**environment_of(uri, parent), "FLUX_URI": local_uri})
