"""Processes that an instance forks as it begins, while it has one thread, and which become what it starts later: a
scheduler, and the keeper of its jobs. A start of either is mostly imports.

Law: a spare holds no descriptor of its instance but the one on which it hears what to become, and ends with it.
"""

from __future__ import annotations

import atexit
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from tests.prepared.becoming import Request
from tests.prepared.children import Refused, forking
from tests.prepared.request import SESSION, packed


class Spare:
    """One of them, on the side of its instance: it becomes one child."""

    def __init__(self) -> None:
        self._connection, theirs = socket.socketpair()
        self._pid = os.fork()
        if self._pid == 0:
            os.closerange(3, theirs.fileno())
            os.closerange(theirs.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
            self._connection.detach()
            wait(theirs)
        theirs.close()

    def become(
        self, kind: str, words: Sequence[str], fds: dict[int, int], environ: dict[str, str], *, has_session: bool
    ) -> int:
        """Its process id."""
        targets = " ".join(map(str, fds))
        how = SESSION if has_session else ""
        length, data = packed(kind, how, os.getcwd(), targets, [*words], environ)
        with self._connection:
            socket.send_fds(self._connection, [length], [*fds.values()])
            self._connection.sendall(data)
        return self._pid


def wait(connection: socket.socket) -> None:
    """In the spare: never returns."""
    request = Request.receive(connection)
    if request is None:
        os._exit(0)
    if SESSION in request.how:
        os.setsid()
    request.take_descriptors([connection.detach()])
    atexit._clear()
    request.become()


@contextmanager
def spares_of_instances() -> Iterator[None]:
    """Instances of this process have a spare for each scheduler, and one for a keeper."""
    from fluxsched.executor import proxy
    from fluxsched.instance import launch
    from fluxsched.services import module_processes

    spares: list[Spare] = []
    run = launch._run

    def child(*args: Any, **more: Any) -> int:
        if not spares:
            raise Refused
        return spares.pop().become(*args, **more)

    def begin(settings: Any, *args: Any) -> Any:
        spares.extend(Spare() for _ in range(len(settings.schedulers) + 1))
        return run(settings, *args)

    with patch.object(launch, "_run", begin), forking(child, module_processes, proxy):
        yield
