"""What an instance or a command starts, forked: it is a child of theirs as ever."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

from tests.prepared.request import KEEPER, MODULE

SCHEDULER = "fluxsched.scheduler.main"
KEEPER_FILE = "keeper_main.py"


class Refused(Exception):
    """This cannot be forked as it should be: run the real program."""


MakeChild = Callable[..., int]
"""(KIND, WORDS, descriptors by what they become, environment, has_session=): a child's process id. Raises Refused."""


@contextmanager
def forking(child: MakeChild, *modules: ModuleType, starts: Sequence[str] = (SCHEDULER,)) -> Iterator[None]:
    """What `modules` start as `python -P -m` one of `starts`, and keepers."""
    popen = partial(forked_or_executed, child, starts)
    with ExitStack() as stack:
        for module in modules:
            forked = SimpleNamespace(**{**vars(subprocess), "Popen": popen})
            stack.enter_context(patch.object(module, "subprocess", forked))
        yield


def forked_or_executed(child: MakeChild, starts: Sequence[str], command: Sequence[str], **more: Any) -> Any:
    """As Popen: `python -P -m` one of `starts`, one of them that is a file, and a keeper are forked, if they can be."""
    words = [*map(str, command)]
    with suppress(Refused):
        if words[1:3] == ["-P", "-m"] and words[3] in starts:
            return ForkedChild(child, MODULE, words[3:], **more)
        for at, word in enumerate(words[:4]):
            if Path(word).name == KEEPER_FILE or (word.endswith(".py") and word in starts):
                return ForkedChild(child, KEEPER, words[at:], **more)
    return subprocess.Popen(command, **more)


@contextmanager
def nested_forked(programs: str) -> Iterator[None]:
    """Jobs that are instances, by the `fluxsched` of this directory."""
    from fluxsched.executor import layout

    with patch.object(layout, "INTERPRETER", (f"{programs}/fluxsched", "start", "--nested")):
        yield


class ForkedChild:
    """What callers need of a Popen."""

    def __init__(
        self, child: MakeChild, kind: str, words: Sequence[str], *, stdin: int, stdout: Any, stderr: Any,
        pass_fds: Sequence[int] = (), start_new_session: bool = False, env: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self.returncode: int | None = None
        nothing = os.open(os.devnull, os.O_RDWR)
        try:
            given = {0: stdin, 1: stdout, 2: stderr, **{fd: fd for fd in pass_fds}}
            fds = {at: fd if isinstance(fd, int) else fd.fileno() for at, fd in given.items()}
            fds = {at: nothing if fd == subprocess.DEVNULL else fd for at, fd in fds.items()}
            environ = dict(os.environ if env is None else env)
            self.pid = child(kind, words, fds, environ, has_session=start_new_session)
        finally:
            os.close(nothing)

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            watch = os.pidfd_open(self.pid)
            try:
                if timeout is not None and not select.select([watch], [], [], timeout)[0]:
                    raise subprocess.TimeoutExpired(str(self.pid), timeout)
            finally:
                os.close(watch)
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def terminate(self) -> None:
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        self._send(signal.SIGKILL)

    def _send(self, signum: int) -> None:
        if self.returncode is None:  # until it is waited for, the number is its own
            os.kill(self.pid, signum)
