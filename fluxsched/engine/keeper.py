"""Keeper of a host that an engine holds, and its guard: the parent process, which ends what a killed keeper has left.

The keeper is introduced to the instance that has got its report, and connects to it.

Laws: there are no tasks without a keeper. The guard is the reaper of all that descends from its keeper: when the keeper
is killed it kills them, waits until none is left, and only then starts another one. When the guard is killed the kernel
asks the keeper to end, which ends the tasks. A keeper that ends in good order ends the guard. SIGTERM ends all; the end
of standard input, and the other signals by which terminals end programs, do not. A secret is read from standard input,
and is in no argument, environment or file. Once it is read the keeper needs none of its standard streams: their ends
are no reason to end. A connection that is lost is made again, for as long as the keeper has its lease
(`executor.keeper.Lease`). The keeper never waits for the network in a turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import signal
import socket
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fluxsched.core.jobid import signal_name
from fluxsched.core.quantities import doubled_s
from fluxsched.engine.report import INTRODUCTION_BYTES_MAX, HostReport, Introduction, read_introduction
from fluxsched.errors import Disconnected, FluxschedError, LimitExceeded, RemoteProtocolError
from fluxsched.executor.base import Reports
from fluxsched.executor.cleanup import adopt_orphans, check_socket_room, clear_in_turns, remove_dead, scratch_directory
from fluxsched.executor.keeper import CLEAR_S, KeeperOutside, KeeperService, LeaseTerms
from fluxsched.executor.kept_directories import KeptDirectories
from fluxsched.executor.local import LocalExecutor
from fluxsched.executor.relay import PieceInbox, pieces
from fluxsched.executor.wire import UNSENT_BYTES_MAX, VERSION
from fluxsched.protocol import framing
from fluxsched.protocol.framing import NORESPONSE, STREAMING, decode, encode, make_request
from fluxsched.protocol.messages.instance import KeeperConnectRequest, KeeperMessages
from fluxsched.system.clock import SystemClock
from fluxsched.system.files import temporary_directory
from fluxsched.system.log import exception_text, logger, set_up_logging
from fluxsched.system.loop import Faults, Turns
from fluxsched.system.processes import children_of, die_with, living, settle
from fluxsched.transport.base import Client, tcp_address
from fluxsched.transport.zeromq import ZmqClient

log = logger("keeper")

IGNORED: Final = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP)
"""Signals by which a terminal, or an engine's program on it, would end or stop the keeper."""
AWAITED: Final = frozenset((signal.SIGTERM, signal.SIGCHLD))
SPOOL_NAME, TEMPORARY_NAME = "spool", "tmp"
"""Directories in the scratch directory: of what tasks print, and of the jobs' temporary directories."""


@dataclass(frozen=True, slots=True)
class GuardLimits:
    """Limits of starting keepers again."""

    steady_s: float = 10.0
    """A keeper that has lived so long has not failed to start (seconds)."""
    starts_max: int = 8
    """Keepers in a row that fail to start before the guard gives up, after some two minutes."""
    pause_max_s: float = 60.0
    """Maximum time before the next start (seconds), which doubles with each that fails, from 1 s."""
    look_s: float = 0.005
    """Interval of checking whether killed processes are gone (seconds)."""
    again_s: float = 1.0
    """Time within which further SIGTERMs ask for the same (seconds): an engine's program may pass on what the engine
    itself sends to all processes.
    """
    complain_s: float = 10.0
    """Interval of naming processes that do not end although they were killed (seconds)."""


class KeeperGuard:
    """Starts keepers, one after the other."""

    def __init__(self, serve: Callable[[Path], int], host: str, limits: GuardLimits | None = None) -> None:
        """`serve` is the keeper of `host`, to be called in a process of its own with the scratch directory; returns the
        exit status, 0 if there is to be no further keeper. It unblocks AWAITED when it is ready to be ended by SIGTERM.
        """
        self._serve = serve
        self._host = host
        self._limits = GuardLimits() if limits is None else limits
        self._clock = SystemClock()
        self._scratch, self._owner = scratch_directory()
        self._keeper = 0
        self._asked_s: float | None = None
        """When the guard was asked to end."""

    def run(self) -> int:
        """Guard one keeper after the other; return the exit status: 1 if they fail to start again and again."""
        for signum in IGNORED:
            signal.signal(signum, signal.SIG_IGN)
        adopt_orphans()
        remove_dead(self._clock)
        signal.pthread_sigmask(signal.SIG_BLOCK, AWAITED)
        try:
            return self._guard()
        finally:
            shutil.rmtree(self._scratch, ignore_errors=True)
            os.close(self._owner)

    def _guard(self) -> int:
        limits, failures = self._limits, 0
        while True:
            began_s = self._clock.monotonic_s()
            status = self._run_one()
            self._end_descendants()
            if self._asked_s is not None or status == 0:
                return 0
            how = f"by {signal_name(-status)}" if status < 0 else f"with status {status}"
            log.error("host %s: the keeper ended %s; its tasks were killed", self._host, how)
            failures = 1 if self._clock.monotonic_s() - began_s >= limits.steady_s else failures + 1
            if failures >= limits.starts_max:
                log.critical("host %s: %d keepers in a row have failed: there will be no other", self._host, failures)
                return 1
            if failures > 1 and self._pause(doubled_s(1.0, failures - 2, limits.pause_max_s)):
                return 0

    def _run_one(self) -> int:
        """Run a keeper; return its exit status, negative for a signal."""
        guard = os.getpid()
        try:
            self._keeper = os.fork()
        except OSError as fault:
            log.error("host %s: no keeper can be started: %s", self._host, fault.strerror)
            return 1
        if self._keeper:
            return self._wait()
        status = 1
        try:
            os.setpgid(0, 0)  # an engine that kills the group of what it started leaves someone who ends the tasks
            die_with(guard, signal.SIGTERM)
            for name in (SPOOL_NAME, TEMPORARY_NAME):
                shutil.rmtree(self._scratch / name, ignore_errors=True)
                (self._scratch / name).mkdir(mode=0o700, parents=True, exist_ok=True)
            status = self._serve(self._scratch)
        except Exception as exc:  # last resort of a process without a caller: the log has the reason
            log.critical("host %s: the keeper ends: %s", self._host, exception_text(exc), exc_info=exc)
        finally:
            os._exit(status)

    def _wait(self) -> int:
        """Wait for the end of the keeper; return its exit status, negative for a signal."""
        while True:
            status = self._reap()
            if status is not None:
                return status
            if signal.sigwaitinfo(AWAITED).si_signo == signal.SIGTERM:
                now_s = self._clock.monotonic_s()
                if self._asked_s is None:
                    self._asked_s = now_s
                    os.kill(self._keeper, signal.SIGTERM)
                elif now_s >= self._asked_s + self._limits.again_s:
                    os.kill(self._keeper, signal.SIGKILL)

    def _reap(self) -> int | None:
        """Reap what has ended; return the exit status of the keeper if that has."""
        found: int | None = None
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self._keeper:
                    found = os.waitstatus_to_exitcode(ended[1])
        return found

    def _pause(self, pause_s: float) -> bool:
        """Wait before the next start; return whether the guard was asked to end."""
        ends_s = self._clock.monotonic_s() + pause_s
        while (left_s := ends_s - self._clock.monotonic_s()) > 0.0:
            found = signal.sigtimedwait(AWAITED, left_s)
            if found is not None and found.si_signo == signal.SIGTERM:
                return True
        return False

    def _end_descendants(self) -> None:
        """Kill what the keeper has left until none of it is there.

        Children alone are killed, whose orphans become children in turn: to look for these takes so little time that no
        process escapes by forking.
        """
        complain_s = self._clock.monotonic_s() + self._limits.complain_s
        while _has_children():
            pids = _children()
            for pid in pids:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            self._reap()
            if self._clock.monotonic_s() >= complain_s:
                complain_s += self._limits.complain_s
                log.error("host %s: processes %s do not end although they were killed", self._host, pids)
            found = signal.sigtimedwait(AWAITED, self._limits.look_s)
            if found is not None and found.si_signo == signal.SIGTERM:
                self._asked_s = self._clock.monotonic_s()


def _has_children() -> bool:
    """Return whether this process has children, dead ones that are not reaped included."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _children() -> list[int]:
    """Return the living children of this process, also where the kernel does not list them."""
    own = os.getpid()
    return children_of(own) or [pid for pid, stat in living() if stat.ppid == own]


# ---- the keeper of a host

RECEIVE_MAX: Final = 64
"""Transport messages taken at a time."""
END_MARGIN_S: Final = 2.0
"""Time after the kill timeout in which tasks are gone that were to end (seconds)."""
LOOK_S: Final = 0.01
"""Interval of checking whether they are (seconds)."""


@dataclass(frozen=True, slots=True)
class ConnectLimits:
    """Limits of connecting to an instance."""

    again_s: float = 1.0
    """Time before the next attempt to connect (seconds)."""
    connect_s: float = 3.0
    """Maximum time until the instance's host accepts a connection (seconds)."""
    hello_s: float = 10.0
    """Maximum time until the instance says something on a connection (seconds)."""
    lost_after_ms: int = 11_000
    """Time without a sign of life after which a connection counts as lost."""


class InstanceClient(PieceInbox):
    """A keeper's connection to its instance: a `Client` whose messages are those of `executor.wire`."""

    def __init__(self, client: Client, request: KeeperConnectRequest) -> None:
        """Connect by a client of the instance's port, which has not been used."""
        super().__init__()
        self.has_heard = asyncio.Event()
        """Set when the instance has said something, or the connection has ended."""
        self.has_ended = asyncio.Event()
        self.reason = ""
        """Why the connection has ended."""
        self._client = client
        client.send(encode(make_request("keeper.connect", framing.pack(request), matchtag=1, flags=STREAMING)))

    def start(self, loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
        super().start(loop, wake)
        self._client.start(loop, self._take)

    def send(self, frames: Sequence[bytes]) -> None:
        if not self.has_ended.is_set():
            for one in pieces(frames):
                self._client.send(encode(make_request("keeper.report", framing.pack(one), flags=NORESPONSE)))

    def close(self) -> None:
        self.end("the connection was closed by the keeper")

    def _take(self) -> None:
        try:
            for frames in self._client.receive(RECEIVE_MAX):
                self._read(frames)
        except RemoteProtocolError as fault:
            self.end(str(fault))
        if self._client.lost is not None:
            self.end(self._client.lost)
        self._wake()

    def _read(self, frames: list[bytes]) -> None:
        answer = decode(frames)
        if answer.errnum:
            text = (answer.payload or b"").decode(errors="replace")
            self.end(text or f"the instance has ended the connection ({os.strerror(answer.errnum)})")
        else:
            self.add(framing.unpack(answer.payload, KeeperMessages))
            self.has_heard.set()

    def end(self, reason: str) -> None:
        """End the connection. Idempotent."""
        if not self.has_ended.is_set():
            self.reason = reason
            self._end(reason)
            self._client.close()
            self.has_heard.set()
            self.has_ended.set()


class EngineKeeper:
    """The parts of a keeper that connects to its instance."""

    def __init__(
        self, introduction: Introduction, host: HostReport, scratch: Path, limits: ConnectLimits | None = None
    ) -> None:
        """Create a keeper, within its loop. `scratch` has the directories that the guard makes."""
        address = tcp_address(f"tcp://{introduction.server_key}@{introduction.endpoint.removeprefix('tcp://')}")
        self._address = address.host, int(address.port)
        self._endpoint = address.with_key(bytes.fromhex(introduction.server_key))
        self._keys = introduction.own_keys()
        self._terms = LeaseTerms(introduction.ping_s, introduction.orphan_timeout_s)
        self._host = host
        self._scratch = scratch
        self._turns = Turns(SystemClock(), self._failed, Faults().note)
        self._limits = ConnectLimits() if limits is None else limits
        self._executor: LocalExecutor | None = None
        self._done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        """The result is True if tasks are to be asked to end."""
        self._told: str | None = None
        """Text in the log about the connection that is not there."""

    async def run(self) -> None:
        """Serve the instance until it ends the keeper, the lease is over, or `end` is called."""
        loop = asyncio.get_running_loop()
        outside = KeeperOutside(
            executor=self._make_executor,
            clear=lambda records, cleared: clear_in_turns(self._turns, records, CLEAR_S, cleared),
            scratch=lambda: self._scratch / TEMPORARY_NAME,
            ended=self.end,
            pid=os.getpid(),
            cores=self._host.topology().cores,
            lease=self._terms,
            spool=self._scratch / SPOOL_NAME,
            sockets=self._scratch,
        )
        service = KeeperService(self._turns, outside)
        self._turns.start(loop)
        connecting = loop.create_task(self._connect_again(service))
        try:
            if await self._done:
                await self._end_tasks(service)
        finally:
            connecting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await connecting
            service.close()
            self._turns.stop()

    def _make_executor(self, reports: Reports) -> LocalExecutor:
        self._executor = LocalExecutor(self._turns, reports, 0.0, alone=True, temporary=KeptDirectories())
        return self._executor

    def _failed(self, exc: BaseException) -> None:
        if not self._done.done():
            self._done.set_exception(exc)

    def end(self, asks: bool) -> None:
        """End the keeper; with `asks`, ask its tasks to end first, else kill them."""
        if not self._done.done():
            self._done.set_result(asks)

    async def _end_tasks(self, service: KeeperService) -> None:
        """Ask all tasks to end, and wait until no process of them is left, or they have been killed."""
        assert self._executor is not None
        clock = self._turns.clock
        ends_s = clock.monotonic_s() + self._executor.kill_timeout_s + END_MARGIN_S
        service.end_jobs()
        with contextlib.suppress(ChildProcessError):
            while clock.monotonic_s() < ends_s:
                os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                await asyncio.sleep(LOOK_S)

    # -- the connection -----------------------------------------------------------------------------------------

    async def _connect_again(self, service: KeeperService) -> None:
        """Connect, and again whenever a connection has ended, until the keeper ends: jobs would be sent to it."""
        while not self._done.done():
            try:
                client = await self._connect()
            except (OSError, FluxschedError) as fault:
                self._tell(str(fault) or os.strerror(errno.ETIMEDOUT))
            else:
                self._turns.attach(client.start)
                service.attend(client)
                try:
                    async with asyncio.timeout(self._limits.hello_s):
                        await client.has_heard.wait()
                    self._told = None
                    await client.has_ended.wait()
                except TimeoutError:
                    client.end(f"nothing was heard within {self._limits.hello_s:g} s")
                self._tell(client.reason)
            await asyncio.sleep(self._limits.again_s)

    async def _connect(self) -> InstanceClient:
        """Return a connection on which nothing was said. Raises OSError or FluxschedError.

        ZeroMQ's client waits for the instance's host, so it is asked for beforehand in a way that stops nothing.
        """
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)
            async with asyncio.timeout(self._limits.connect_s):
                await asyncio.get_running_loop().sock_connect(probe, self._address)
        if self._done.done():
            raise Disconnected("the keeper is about to end")
        client = ZmqClient(
            self._endpoint,
            unsent_limit_bytes=UNSENT_BYTES_MAX,
            keys=self._keys,
            lost_after_ms=self._limits.lost_after_ms,
        )
        host = self._host
        return InstanceClient(client, KeeperConnectRequest(host.host, host.boot_id, VERSION, os.getpid()))

    def _tell(self, reason: str) -> None:
        """Log why there is no connection, once."""
        if self._told != reason:
            self._told = reason
            log.warning("host %s has no connection to its instance: %s", self._host.host, reason)


# ---- the process


def run_keeper(report: HostReport) -> int:
    """Read the introduction to the instance that has got this host's report, and serve; return the exit status.

    Raises FluxschedError where tasks would not find their instance.
    """
    check_socket_room(Path(temporary_directory()), "TMPDIR")
    introduction = read_introduction(_read_line(0, INTRODUCTION_BYTES_MAX))
    _leave_streams()
    set_up_logging(None, 0)

    def serve(scratch: Path) -> int:
        asyncio.run(_serve(introduction, report, scratch))
        shutil.rmtree(scratch, ignore_errors=True)
        return 0

    return KeeperGuard(serve, report.host).run()


async def _serve(introduction: Introduction, host: HostReport, scratch: Path) -> None:
    keeper = EngineKeeper(introduction, host, scratch)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, keeper.end, True)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, AWAITED)
    settle()
    await keeper.run()


def _read_line(fd: int, bytes_max: int) -> bytes:
    """Return the first line that can be read. Raises Disconnected if there is none, LimitExceeded if it is too long."""
    data = b""
    while b"\n" not in data:
        if len(data) > bytes_max:
            raise LimitExceeded(f"the instance's introduction is longer than the limit of {bytes_max} bytes")
        more = os.read(fd, bytes_max)
        if not more:
            raise Disconnected("standard input has ended without the introduction of an instance")
        data += more
    return data[: data.index(b"\n") + 1]


def _leave_streams() -> None:
    """Give up standard input and output; of standard error, a pipe that nobody reads stops nothing."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1):
        os.dup2(null, fd)
    os.close(null)
    with contextlib.suppress(OSError):
        kind = os.fstat(2).st_mode
        if stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind):
            os.set_blocking(2, False)
