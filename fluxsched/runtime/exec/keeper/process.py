"""A keeper's process, once its instance has said something: its loop, its socket, and what goes with it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

from fluxsched.runtime.exec.cleanup.leftovers import end_leftovers
from fluxsched.runtime.exec.cleanup.orphans import clear_in_turns
from fluxsched.runtime.exec.cleanup.owned_directory import scratch_directory
from fluxsched.runtime.exec.keeper.connection import connected
from fluxsched.runtime.exec.keeper.service import KeeperOutside, KeeperService
from fluxsched.runtime.exec.local import LocalExecutor
from fluxsched.runtime.loop.faults import Faults
from fluxsched.runtime.loop.turns import Turns
from fluxsched.runtime.system import log as logs
from fluxsched.runtime.system.clock import SystemClock
from fluxsched.runtime.system.own_process import settle
from fluxsched.runtime.system.paths import LOG_NAME
from fluxsched.transport.stream import StreamClient, peer_of

log = logs.logger("keeper")

CLEAR_S = 5.0
"""How long killed processes of another keeper may take to be gone (seconds)."""
BACKLOG = 8
"""Connections that wait: there is one instance at a time."""
LOOK_S = 60.0
"""How often a keeper without an instance looks whether the next one could find it (seconds)."""


def serve(said: bytes, path: str, listener_fd: int, run_directory: str, grace_s: float) -> None:
    """Serve the instance at descriptor 0, which has said this, and those that come after it, until all is done."""
    first = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.close(null)
    listener = socket.socket(fileno=listener_fd)
    if run_directory:
        name = Path(run_directory) / LOG_NAME
        logs.setup(name if name.exists() else None, 0)
    keeper = Keeper(path, listener)
    is_gone = False
    try:
        is_gone = asyncio.run(keeper.run(connected(first, said)))
    except Exception as exc:  # last resort of a process without a terminal: its log has the reason
        log.critical("the keeper ends: %s", logs.exception_text(exc), exc_info=exc)
    finally:
        if keeper.is_reachable:
            with contextlib.suppress(OSError):
                os.unlink(path)
        if is_gone and os.path.isdir(run_directory):
            end_leftovers(run_directory, grace_s)
        keeper.close()


class Keeper:
    """The parts of a keeper."""

    def __init__(self, path: str, listener: socket.socket) -> None:
        self._path = path
        self._name = _file_of(path)
        self._listener = listener
        self._faults = Faults()
        self._scratch: tuple[Path, int] | None = None
        self._turns = Turns(SystemClock())
        self._service: KeeperService | None = None

    @property
    def is_reachable(self) -> bool:
        """Whether its own socket is at its path still, and not that of a later keeper."""
        return self._name is not None and self._name == _file_of(self._path)

    async def run(self, client: StreamClient) -> bool:
        """Serve until all is done; whether the instance is gone and its jobs are to end with it."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[bool] = loop.create_future()

        def failed(exc: BaseException) -> None:
            if not done.done():
                done.set_exception(exc)

        def ended(is_gone: bool) -> None:
            if not done.done():
                done.set_result(is_gone)

        self._turns.failed, self._turns.noted = failed, self._faults.note
        outside = KeeperOutside(
            executor=lambda reports: LocalExecutor(self._turns, reports, 0.0, alone=True),
            clear=lambda records, cleared: clear_in_turns(self._turns, records, CLEAR_S, cleared),
            scratch=self._directory,
            ended=ended,
            pid=os.getpid(),
        )
        self._service = KeeperService(self._turns, outside)
        self._turns.start(loop)
        self._attend(client)
        self._listener.setblocking(False)
        self._listener.listen(BACKLOG)  # who connects sees this process as its peer from now on
        loop.add_reader(self._listener, self._accept)
        self._turns.after(LOOK_S, lambda: self._look(ended))
        settle()
        try:
            return await done
        finally:
            loop.remove_reader(self._listener)
            self._listener.close()

    def close(self) -> None:
        """Kill what still runs, and remove the temporary directories."""
        if self._service is not None:
            self._service.close()
        self._turns.stop()
        if self._scratch is not None:
            path, owner = self._scratch
            shutil.rmtree(path, ignore_errors=True)
            os.close(owner)

    def _attend(self, client: StreamClient) -> None:
        assert self._service is not None
        self._turns.attach(client.start)
        self._service.attend(client)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            connection, _ = self._listener.accept()
            if peer_of(connection)[1] == os.geteuid():
                self._attend(connected(connection))
            else:
                connection.close()

    def _look(self, ended: Callable[[bool], None]) -> None:
        """Where no instance could find it any more, its jobs end."""
        assert self._service is not None
        if not (self._service.has_instance or self.is_reachable):
            log.warning("%s is gone, so no instance can find its jobs: they are ended", self._path)
            ended(True)
            return
        self._turns.after(LOOK_S, lambda: self._look(ended))

    def _directory(self) -> Path:
        if self._scratch is None:
            self._scratch = scratch_directory()
        return self._scratch[0]


def _file_of(path: str) -> tuple[int, int] | None:
    """What tells the file at `path` from one that takes its place: a bound socket keeps its inode."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
