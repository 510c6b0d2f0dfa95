"""Processes by which an engine starts keepers: the reports that they gather, what they are told, and their end; and the
port at which these keepers connect.

Law: what these processes and their keepers print goes into a file without a name and not into a pipe, since srun ends
its step once nobody reads from it, and an instance may be killed. Secrets go through the standard input of the
processes and, for the next instance, into a file that is the owner's alone. A process is known by id, start time and
boot. Nothing here waits for a keeper: it may be gone at any time, and connects by itself.

The port admits one public key, and its secret is in no argument, environment or log. A keeper that does not read is not
cut off: a start may have a jobspec of half a gigabyte, and jobs would end with the connection.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import select
import shlex
import signal
import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar, cast

import msgspec

from fluxsched.config.discovery import discover
from fluxsched.config.values import PING_MAX_S, PING_S, EngineSettings
from fluxsched.core.hostlist import Hostlist
from fluxsched.core.resources import ResourceSet
from fluxsched.core.text import printable, some_of
from fluxsched.engine.engines import (
    Engine,
    EngineHosts,
    KeeperCommand,
    Variables,
    chosen_engine,
    listening_address,
    shown_output,
)
from fluxsched.engine.report import (
    REPORT_BEGIN,
    REPORT_BYTES_MAX,
    HostReport,
    Introduction,
    ReportReader,
    check_versions,
    introduction_line,
    resources_of,
)
from fluxsched.errors import FluxschedError, InvalidValue, Refused
from fluxsched.executor.wire import UNSENT_BYTES_MAX, VERSION
from fluxsched.messaging.peers import Access
from fluxsched.system.clock import SystemClock
from fluxsched.system.files import ENGINE_NAME, read_text, replace_private_text
from fluxsched.system.log import logger
from fluxsched.system.loop import ExitWatch, Turns
from fluxsched.system.processes import boot_id, signal_exactly, stat_of
from fluxsched.transport.base import KeyPair, Server, ServerKeys, parse_key, tcp_address
from fluxsched.transport.sockets import make_key_pair
from fluxsched.transport.zeromq import ZmqServer

log = logger("engine")

TCP: Final = "tcp://"

PINGS_PER_S: Final = 16
"""Pings of all keepers that an instance answers in a second before it has them ask less often."""
STARTING_MAX: Final = 16
"""Processes of one engine that start at a time: an ssh server refuses more logins than it has begun (MaxStartups)."""
LOOK_S: Final = 0.02
"""Interval of looking for reports during a start (seconds)."""
OUTPUT_LOOK_S: Final = 1.0
"""Interval of looking for output of the processes afterwards (seconds)."""
OUTPUT_BYTES_MAX: Final = 1 << 20
"""Bytes of a process's output that are read at once, and from which on its file is emptied."""
LINE_CHARS_MAX: Final = 1000
"""Characters of a line that are logged."""
LINES_MAX: Final = 200
"""Lines of all processes that are logged in a minute."""
TAIL_LINES: Final = 20
"""Last lines of a process that an error shows."""
MINUTE_S: Final = 60.0
AGAIN_S, AGAIN_MAX_S = 5.0, 300.0
"""Time before a keeper is started again on a host where that failed, and the maximum (seconds); it doubles each time.
"""
RESTART_LOOK_S: Final = 0.1
"""Interval of looking for the report of a keeper that is started again (seconds)."""
END_S: Final = 3.0
"""Time for processes to end by themselves after their keepers (seconds), before SIGTERM."""
TERM_S: Final = 2.0
"""Time from SIGTERM to SIGKILL (seconds)."""
KEPT_BYTES_MAX: Final = 1 << 26
"""Bytes of `engine.json`: some kilobytes for each of 4,096 hosts."""


class ProcessRecord(msgspec.Struct, frozen=True):
    """A process of an engine, as the next instance recognises it; `hosts` are the engine's names of its hosts."""

    pid: int
    start_ticks: int
    boot_id: str
    hosts: list[str]


class KeptEngine(msgspec.Struct, frozen=True):
    """All that the next instance needs to have the keepers come back to it."""

    identity: str
    server_secret: str
    introduction: Introduction
    reports: list[HostReport]
    names: dict[str, str]
    """The engine's name of each host that has another one in its report."""
    processes: list[ProcessRecord]

    def server_keys(self) -> KeyPair:
        """Return the keys of the port at which the keepers connect."""
        return KeyPair(parse_key(self.introduction.server_key), parse_key(self.server_secret))


class EngineProcess:
    """A process of an engine, and the lines that it and its keepers print."""

    def __init__(self, pid: int, start_ticks: int, hosts: Sequence[str], output: int, entry: int | None) -> None:
        """`output` is the descriptor of the file with its output, `entry` the one of its standard input, if it is
        ours.
        """
        self.pid = pid
        self.hosts = tuple(hosts)
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self.words: tuple[str, ...] = ()
        self._start_ticks = start_ticks
        self._output = output
        self._entry = entry
        self._at = 0
        self._rest = b""
        self._status: int | None = None

    @classmethod
    def begin(cls, command: KeeperCommand) -> EngineProcess:
        """Start a process. Raises FluxschedError if it cannot be."""
        with tempfile.TemporaryFile(buffering=0) as file:
            output = os.dup(file.fileno())
        fcntl.fcntl(output, fcntl.F_SETFL, fcntl.fcntl(output, fcntl.F_GETFL) | os.O_APPEND)
        theirs, entry = os.pipe()
        os.set_blocking(entry, False)
        try:
            process = subprocess.Popen(
                command.words, env=command.environment, stdin=theirs, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip
        except OSError as fault:
            os.close(output)
            os.close(entry)
            text = f"{shlex.join(command.words)}: {command.words[0]} cannot be run: {fault.strerror}"
            raise FluxschedError(text, fault.errno) from None
        finally:
            os.close(theirs)
        process.returncode = 0  # it is reaped here
        stat = stat_of(process.pid)
        assert stat is not None, "it is not reaped yet"
        found = cls(process.pid, stat.start_ticks, command.hosts, output, entry)
        found.words = command.words
        return found

    @classmethod
    def resumed(cls, record: ProcessRecord) -> EngineProcess | None:
        """Return the process of an instance before; None if it is gone, or is on another machine."""
        stat = stat_of(record.pid)
        if stat is None or not stat.alive or stat.start_ticks != record.start_ticks or record.boot_id != boot_id():
            return None
        try:
            output = os.open(f"/proc/{record.pid}/fd/1", os.O_RDWR | os.O_CLOEXEC)
        except OSError:  # it has ended meanwhile, or has closed it
            output = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        found = cls(record.pid, record.start_ticks, record.hosts, output, None)
        found._at = os.fstat(output).st_size
        return found

    def record(self) -> ProcessRecord:
        """Return what identifies the process."""
        return ProcessRecord(self.pid, self._start_ticks, boot_id(), list(self.hosts))

    def is_alive(self) -> bool:
        """Return whether the process runs."""
        stat = stat_of(self.pid)
        return stat is not None and stat.alive and stat.start_ticks == self._start_ticks

    def lines(self) -> list[bytes]:
        """Return the lines that have been printed since the last call, also one without an end if it is longer than any
        report. Of a flood of lines only the first are read.
        """
        data = os.pread(self._output, OUTPUT_BYTES_MAX, self._at)
        self._at += len(data)
        if self._at >= OUTPUT_BYTES_MAX:
            os.ftruncate(self._output, 0)
            self._at = 0
        *found, self._rest = (self._rest + data).split(b"\n")
        return found if len(self._rest) <= REPORT_BYTES_MAX else [*found, self._take_rest()]

    def last_lines(self) -> list[bytes]:
        """Return the last lines of a process that has ended, also one without an end."""
        found = self.lines()
        return [*found, self._take_rest()] if self._rest else found

    def _take_rest(self) -> bytes:
        rest, self._rest = self._rest, b""
        return rest

    def introduce(self, line: bytes) -> None:
        """Write a line to the process's standard input, which stays open; one that has ended does not read it."""
        if self._entry is not None:
            with suppress(BrokenPipeError, BlockingIOError):
                os.write(self._entry, line)

    def signal(self, signum: int) -> None:
        """Signal the process, if it still runs."""
        signal_exactly(self.pid, self._start_ticks, signum)

    def reap(self) -> None:
        """Reap the process, which has ended, if it is a child of ours."""
        with suppress(ChildProcessError):
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._status = os.waitstatus_to_exitcode(status)

    def why_ended(self) -> str:
        """Return how the process, which is reaped, has ended, with the end of its output."""
        status = self._status
        how = "has ended" if status is None else f"exit status {status}" if status >= 0 else f"signal {-status}"
        return f"{how}: {shown_output(chr(10).join(self.tail))}"

    def close_entry(self) -> None:
        """End the process's standard input: a keeper that has not been introduced ends."""
        if self._entry is not None:
            os.close(self._entry)
        self._entry = None

    def close(self) -> None:
        """Close the descriptors, and let the process run."""
        self.close_entry()
        if self._output >= 0:
            os.close(self._output)
        self._output = -1


def end_processes(processes: Sequence[EngineProcess], grace_s: float) -> None:
    """End the processes: their input, after `grace_s` by SIGTERM, then by SIGKILL; wait for it, and reap them."""
    for process in processes:
        process.close_entry()
    for signum, wait_s in ((None, grace_s), (signal.SIGTERM, TERM_S), (signal.SIGKILL, TERM_S)):
        left = [process for process in processes if process.is_alive()]
        if signum is not None:
            for process in left:
                process.signal(signum)
        _wait(left, wait_s)
    for process in processes:
        process.reap()
        process.close()


def _wait(processes: Iterable[EngineProcess], timeout_s: float) -> None:
    """Wait until all of these have ended, at most so long."""
    until_s = SystemClock.monotonic_s() + timeout_s
    for process in processes:
        with suppress(ProcessLookupError):
            fd = os.pidfd_open(process.pid)
            try:
                select.select([fd], [], [], max(0.0, until_s - SystemClock.monotonic_s()))
            finally:
                os.close(fd)


# ---- the reports of all hosts


class _Gathering:
    """Start of the keepers of all hosts, until they have reported."""

    def __init__(self, engine: Engine, hosts: Hostlist) -> None:
        self.reports: list[HostReport] = []
        self.processes: list[EngineProcess] = []
        self.ended: list[EngineProcess] = []
        self.faults: list[str] = []
        self._engine = engine
        self._expected = len(hosts)
        self._waiting = deque(engine.commands(hosts))
        self._reported: dict[EngineProcess, int] = {}
        self._reader = ReportReader()

    def run(self, timeout_s: float) -> None:
        """Wait until all hosts have reported, or the others cannot any more, or the time is over."""
        until_s = SystemClock.monotonic_s() + timeout_s
        while len(self.reports) < self._expected:
            starting = self._look()
            while self._waiting and starting < STARTING_MAX:
                self._begin(self._waiting.popleft())
                starting += 1
            if not starting or SystemClock.monotonic_s() > until_s:
                return
            SystemClock.sleep(LOOK_S)

    def _begin(self, command: KeeperCommand) -> None:
        try:
            process = EngineProcess.begin(command)
        except FluxschedError as fault:
            self.faults.append(str(fault))
            return
        self.processes.append(process)
        self._reported[process] = 0

    def _look(self) -> int:
        """Read what has been printed; return the number of processes that may still send reports."""
        starting = 0
        for process in list(self.processes):
            is_alive = process.is_alive()
            for line in process.lines() if is_alive else process.last_lines():
                self._read(process, line)
            if not is_alive:
                process.reap()
                self.processes.remove(process)
                self.ended.append(process)
                process.close()
            elif self._reported[process] < len(process.hosts):
                starting += 1
        return starting

    def _read(self, process: EngineProcess, line: bytes) -> None:
        try:
            report = self._reader.read(line)
        except InvalidValue as fault:
            self.faults.append(str(fault))
            return
        if report is not None:
            self.reports.append(report)
            self._reported[process] += 1
        elif not line.startswith(REPORT_BEGIN):
            process.tail.append(line.decode(errors="replace"))

    def why(self) -> str:
        """Return why hosts are missing, as far as processes said."""
        said = [f"{shlex.join(each.words)[:LINE_CHARS_MAX]}: {each.why_ended()}" for each in self.ended]
        said += [shown_output("\n".join(each.tail)) for each in self.processes if each.tail]
        return "; ".join([*self.faults, *said][:TAIL_LINES])

    def without_idle(self) -> list[EngineProcess]:
        """End the processes that no host has reported from; return the others."""
        idle = [process for process in self.processes if not self._reported[process]]
        end_processes(idle, 0.0)
        return [process for process in self.processes if process not in idle]


def _engine_names(hosts: Hostlist, reports: Iterable[HostReport]) -> dict[str, str]:
    """Return the engine's name of each host that reported: the same, or one with the same first label."""
    known, labels = set(hosts), {host.partition(".")[0]: host for host in hosts}
    return {
        report.host: report.host if report.host in known else labels.get(report.host.partition(".")[0], report.host)
        for report in reports
    }


T = TypeVar("T")


async def _answer_of(call: Callable[[], T]) -> T:
    """Return what a call answers that may take seconds. Its thread is its own, and no end of an instance waits for
    it.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def settle(found: T | None, fault: BaseException | None) -> None:
        if answer.done():  # cancelled meanwhile
            return
        if fault is None:
            answer.set_result(cast("T", found))
        else:
            answer.set_exception(fault)

    def tell(found: T | None, fault: BaseException | None) -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, found, fault)

    def serve() -> None:
        try:
            tell(call(), None)
        except FluxschedError as fault:
            tell(None, fault)
        except BaseException as bug:
            tell(None, bug)
            raise

    threading.Thread(target=serve, name="fluxsched-engine", daemon=True).start()
    return await answer


# ---- the engine of an instance


def start_engine(
    settings: EngineSettings,
    environment: Variables,
    kept: Path | None,
    *,
    is_kept: bool,
    keeper: tuple[str, ...] | None = None,
) -> StartedEngine | None:
    """Start the keepers of the engine that these settings name, or take up those of an instance before; None for none.

    `kept` is the directory in which that instance may have left its `engine.json`. `is_kept`: there is a state
    directory. `keeper` replaces the command of a keeper (for tests). Blocks this thread until all hosts have reported,
    at most `start_timeout_s`. Raises FluxschedError if there are no hosts.
    """
    engine = chosen_engine(settings, environment, keeper)
    if engine is None:
        return None
    found = engine.allocation()
    before = None if kept is None else _kept_engine(kept)
    orphan_timeout_s = settings.orphan_timeout(is_kept=is_kept)
    if before is not None:
        processes = [one for one in map(EngineProcess.resumed, before.processes) if one is not None]
        if processes and before.identity == engine.identity:
            log.info("%s: the keepers of %d hosts are taken up", engine.identity, len(before.reports))
            return StartedEngine(engine, settings, found, before.reports, before.names, processes, before)
        end_processes(processes, 0.0)
    if found.down:
        log.warning("engine %s: left out, since the engine counts them as down: %s", engine.identity, found.down)
    gathering = _Gathering(engine, found.hosts)
    try:
        gathering.run(settings.start_timeout_s)
        reports, names = _judged(engine, settings, found, gathering)
    except BaseException:
        end_processes(gathering.processes, 0.0)
        raise
    introduction = Introduction("", "", "", "", ping_interval_s(len(reports), orphan_timeout_s), orphan_timeout_s)
    started = StartedEngine(engine, settings, found, reports, names, gathering.without_idle(), None, introduction)
    log.info("%s: keepers of %d hosts have reported", engine.identity, len(reports))
    return started


def ping_interval_s(hosts: int, orphan_timeout_s: float) -> float:
    """Return the interval of each keeper's pings (seconds): longer where many would keep the instance awake, and short
    enough for two of them within the lease.
    """
    return min(max(PING_S, hosts / PINGS_PER_S), PING_MAX_S, orphan_timeout_s / 2)


def supposed_resources(settings: EngineSettings, environment: Variables) -> ResourceSet | None:
    """Return R of the engine's hosts as if each were like this machine, without starting anything; None for no engine.

    For checks of a configuration. Raises FluxschedError as `start_engine`, as far as the engine itself is concerned.
    """
    engine = chosen_engine(settings, environment)
    if engine is None:
        return None
    here, boot = discover(), boot_id()
    return resources_of([HostReport.of(here, boot, host) for host in engine.allocation().hosts])


def _judged(
    engine: Engine, settings: EngineSettings, found: EngineHosts, gathering: _Gathering
) -> tuple[list[HostReport], dict[str, str]]:
    """Return the reports in the engine's order, with the engine's names; log which hosts are missing."""
    why = gathering.why() or f"nothing was printed within {settings.start_timeout_s:g} s"
    if not gathering.reports:
        raise FluxschedError(f"engine {engine.identity}: no host of {len(found.hosts)} has reported: {why}")
    usable = [report for report in gathering.reports if report.version == VERSION]
    try:
        check_versions(gathering.reports)
    except InvalidValue as fault:
        if not usable:
            raise
        log.error("%s: hosts are left out: %s", engine.identity, fault)
    names = _engine_names(found.hosts, gathering.reports)
    order = {host: at for at, host in enumerate(found.hosts)}
    reports = sorted(usable, key=lambda report: order.get(names[report.host], len(order)))
    resources_of(reports)  # raises for hosts that reported twice
    if missing := [host for host in found.hosts if host not in names.values()]:
        text = "engine %s: hosts are left out until they report: %s: %s"
        log.warning(text, engine.identity, some_of(missing), why)
    return reports, {ours: theirs for ours, theirs in names.items() if ours != theirs}


def _kept_engine(directory: Path) -> KeptEngine | None:
    path = directory / ENGINE_NAME
    if not path.exists():
        return None
    try:
        return msgspec.json.decode(read_text(path, "record of the engine", KEPT_BYTES_MAX), type=KeptEngine)
    except (InvalidValue, msgspec.MsgspecError) as fault:
        log.warning("%s is ignored, and keepers are started anew: %s", path, printable(str(fault)))
        return None


class StartedEngine:
    """The engine of an instance: its hosts, the keepers' way to the instance, and the processes that hold them."""

    def __init__(
        self,
        engine: Engine,
        settings: EngineSettings,
        found: EngineHosts,
        reports: Sequence[HostReport],
        names: dict[str, str],
        processes: list[EngineProcess],
        before: KeptEngine | None,
        introduction: Introduction | None = None,
    ) -> None:
        """`before` is what is taken up of an instance before; else `introduction` has the times of a new one."""
        self.reports = tuple(reports)
        self.hosts = tuple([report.host for report in reports])
        """Hosts by rank, under the names by which their keepers connect."""
        self.is_resumed = before is not None
        """True if these are keepers of an instance before, which may have jobs."""
        given = introduction if before is None else before.introduction
        assert given is not None, "one of both is given"
        self.introduction = given
        """Address and keys are empty until `listen`."""
        self.orphan_timeout_s = given.orphan_timeout_s
        self._engine, self._settings = engine, settings
        self._expiration_s = found.expiration_s
        self._switches = engine.switches()
        self._names = names
        self._processes = processes
        self._keys = None if before is None else PortKeys(before.server_keys(), before.introduction.own_keys())
        self._directory: Path | None = None
        self._turns: Turns | None = None
        self._watches: dict[EngineProcess, ExitWatch] = {}
        self._on_end: list[Callable[[Sequence[str], str], None]] = []
        self._on_report: list[Callable[[str], None]] = []
        self._held = found.hosts
        """Hosts that the engine holds, by its names, whether they have reported or not."""
        self._reader = ReportReader()
        self._tasks: set[asyncio.Future[None]] = set()
        self._lost: set[str] = set()
        self._reported: set[EngineProcess] = set()
        """Processes of hosts that were lost, or late, and have reported since."""
        self._window_s, self._logged = 0.0, 0

    @property
    def identity(self) -> str:
        """Name of the engine with that of its allocation, such as `slurm:1234`."""
        return self._engine.identity

    @property
    def address(self) -> str:
        """Address at which the hosts reach the instance (after `listen`)."""
        return self.introduction.endpoint.removeprefix(TCP).rpartition(":")[0]

    def resources(self) -> ResourceSet:
        """Return R of the hosts, with their switches and the time at which the engine ends them."""
        found = resources_of(self.reports)
        if switches := self._switches.restrict(self.hosts):
            found = found.with_topology(switches)
        return found.with_expiration(0.0, self._expiration_s) if self._expiration_s else found

    # -- the way to the instance --------------------------------------------------------------------------------

    def listen(self, access: Access) -> Server:
        """Listen for the keepers, and for nobody else, by these rules of access: at a new port with new keys, or where
        those of an instance before come back. Raises FluxschedError if that cannot be.
        """
        if self._keys is None:
            port = KeeperPort(listening_address(self._settings.address, self._engine, self.hosts))
        else:
            before = tcp_address(f"tcp://{self.introduction.server_key}@{self.introduction.endpoint[len(TCP) :]}")
            try:
                port = KeeperPort(before.host, int(before.port), self._keys)
            except Refused as fault:
                text = f"{fault}, where the keepers of the last instance come back"
                remedy = f"end what listens there, or remove {ENGINE_NAME} to start without them and their jobs"
                raise Refused(f"{text}: {remedy}", fault.errnum) from None
        self._keys = port.keys
        self.introduction = port.introduction(self.introduction.ping_s, self.orphan_timeout_s)
        port.reserve(access)
        return port.server

    def introduce(self, directory: Path, turns: Turns) -> None:
        """Have the keepers connect (after `listen`), and watch the processes from now on, on the loop that runs.

        `directory` gets the record for the next instance; it is the owner's alone.
        """
        self._directory, self._turns = directory, turns
        self._save()  # first: whoever reads the line may be found again
        line = introduction_line(self.introduction)
        for process in self._processes:
            process.introduce(line)
            self._watch(process)
        self._bring_missing()
        turns.after(OUTPUT_LOOK_S, self._look)

    def _save(self) -> None:
        assert self._keys is not None, "listen comes first"
        assert self._directory is not None, "introduce comes first"
        records = [process.record() for process in self._processes]
        kept = KeptEngine(
            self.identity, self._keys.server.secret.hex(), self.introduction, list(self.reports), self._names, records,
        )  # fmt: skip
        try:
            replace_private_text(self._directory / ENGINE_NAME, msgspec.json.encode(kept).decode())
        except OSError as fault:
            text = "%s cannot be written: the next instance will not find the keepers: %s"
            log.error(text, self._directory / ENGINE_NAME, fault.strerror)

    # -- while the instance runs --------------------------------------------------------------------------------

    def on_end(self, call: Callable[[Sequence[str], str], None]) -> None:
        """Have `call` run, in a turn, whenever a process of the engine has ended: with its hosts, and why it ended.

        The keepers of these hosts may live on.
        """
        self._on_end.append(call)

    def on_report(self, call: Callable[[str], None]) -> None:
        """Have `call` run, in a turn, with each further host that has reported: it has targets in `resources` then."""
        self._on_report.append(call)

    def _bring_missing(self) -> None:
        """Have keepers started on hosts that have not reported, unless a process that runs may still bring one."""
        known = {self._names.get(host, host) for host in self.hosts}
        coming = {host for process in self._processes for host in process.hosts}
        for host in self._held:
            if host not in known and host not in coming:
                self.host_lost(host)

    def _take_late(self, process: EngineProcess, report: HostReport) -> None:
        """Add a host that has reported after the start, if it has."""
        if report.host in self.hosts:
            return
        try:
            check_versions([report])
        except InvalidValue as fault:
            log.error("%s: %s is not taken in: %s", self.identity, report.host, fault)
            return
        name = _engine_names(Hostlist.of(process.hosts), [report])[report.host]
        if name != report.host:
            self._names[report.host] = name
        self.reports, self.hosts = (*self.reports, report), (*self.hosts, report.host)
        self._save()
        log.info("%s: %s has reported late and is taken in", self.identity, report.host)
        for call in self._on_report:
            call(report.host)

    def host_lost(self, host: str) -> None:
        """Start a keeper on a host again as soon as the engine does not count the host as down, until one has reported
        there.
        """
        if host not in self._lost:
            self._lost.add(host)
            self._run(self._bring_back(host))

    async def follow_allocation(self, expires: Callable[[float], None]) -> None:
        """Ask the engine each minute, until this is cancelled: have keepers started on hosts that it has got since, and
        call `expires` when it ends the hosts at another time than before (seconds since the epoch; 0: never).
        """
        with suppress(asyncio.CancelledError):
            while True:
                await asyncio.sleep(MINUTE_S)
                try:
                    found = await _answer_of(self._engine.allocation)
                except FluxschedError as fault:
                    log.warning("%s does not tell when it ends: %s", self.identity, fault)
                    continue
                self._held = found.hosts
                self._bring_missing()
                if found.expiration_s != self._expiration_s:
                    self._expiration_s = found.expiration_s
                    expires(found.expiration_s)

    async def _bring_back(self, host: str) -> None:
        name, delay_s = self._names.get(host, host), AGAIN_S
        while True:
            try:
                if await _answer_of(lambda: self._engine.is_down(name)) is not True and await self._restart(name):
                    break
            except FluxschedError as fault:
                log.warning("%s: no keeper can be started on %s: %s", self.identity, host, fault)
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, AGAIN_MAX_S)
        self._lost.discard(host)

    async def _restart(self, name: str) -> bool:
        """Start a keeper on a host, by its name for the engine; return whether it has reported."""
        for process in [each for each in self._processes if each.hosts == (name,)]:
            process.signal(signal.SIGKILL)  # its keeper is lost: the new one is to be the only one
        (command,) = await _answer_of(lambda: self._engine.commands(Hostlist.of([name])))
        process = EngineProcess.begin(command)
        self._processes.append(process)
        self._watch(process)
        self._save()
        process.introduce(introduction_line(self.introduction))
        until_s = SystemClock.monotonic_s() + self._settings.start_timeout_s
        while process in self._processes and SystemClock.monotonic_s() < until_s:
            self._read(process, process.lines())
            if process in self._reported:
                log.info("%s: a keeper is started on %s again", self.identity, name)
                return True
            await asyncio.sleep(RESTART_LOOK_S)
        process.signal(signal.SIGTERM)
        return False

    def _run(self, what: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(what)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Future[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and isinstance(fault := task.exception(), Exception) and self._turns is not None:
            self._turns.report_bug(f"engine {self.identity}", fault)

    def _watch(self, process: EngineProcess) -> None:
        turns = self._turns
        assert turns is not None, "introduce comes first"
        try:
            self._watches[process] = ExitWatch(
                asyncio.get_running_loop(), process.pid, lambda: turns.post(lambda: self._ended(process))
            )
        except ProcessLookupError:  # it was not ours, and is gone
            turns.post(lambda: self._ended(process))

    def _ended(self, process: EngineProcess) -> None:
        if process not in self._processes:  # closed meanwhile
            return
        self._read(process, process.last_lines())
        process.reap()
        self._processes.remove(process)
        self._watches.pop(process, None)
        self._reported.discard(process)
        why = process.why_ended()
        log.warning("%s: the process of %s has ended: %s", self.identity, Hostlist.of(process.hosts), why)
        process.close()
        self._save()
        self._bring_missing()
        ours = {theirs: name for name, theirs in self._names.items()}
        for call in self._on_end:
            call([ours.get(host, host) for host in process.hosts], why)

    def _look(self) -> None:
        """Log what the processes have printed, now and later."""
        if self._turns is None:
            return
        for process in self._processes:
            self._read(process, process.lines())
        self._turns.after(OUTPUT_LOOK_S, self._look)

    def _read(self, process: EngineProcess, lines: Iterable[bytes]) -> None:
        for line in lines:
            if line.startswith(REPORT_BEGIN):
                self._read_report(process, line)
            elif line.strip():
                text = line[:LINE_CHARS_MAX].decode(errors="replace")
                process.tail.append(text)
                self._log(text)

    def _read_report(self, process: EngineProcess, line: bytes) -> None:
        try:
            report = self._reader.read(line)
        except InvalidValue as fault:
            log.error("%s: %s", self.identity, fault)
            return
        if report is not None:
            self._reported.add(process)
            self._take_late(process, report)

    def _log(self, text: str) -> None:
        now_s = SystemClock.monotonic_s()
        if now_s - self._window_s > MINUTE_S:
            self._window_s, self._logged = now_s, 0
        self._logged += 1
        if self._logged <= LINES_MAX:
            log.info("%s: %s", self.identity, printable(text))
        elif self._logged == LINES_MAX + 1:
            log.warning("%s prints more than %d lines a minute: the others are not logged", self.identity, LINES_MAX)

    # -- the end ------------------------------------------------------------------------------------------------

    def close(self, grace_s: float = END_S) -> None:
        """End the processes, which have so long to follow their keepers by themselves. Idempotent."""
        processes = self._forget()
        if self._directory is not None:  # else no instance knows of them
            with suppress(OSError):
                (self._directory / ENGINE_NAME).unlink(missing_ok=True)
        end_processes(processes, grace_s)

    def detach(self) -> None:
        """Leave the processes to the next instance."""
        for process in self._forget():
            process.close()

    def abandon(self) -> None:
        """Undo a start that has failed: end what was started for it, and leave alone what was there before."""
        if self.is_resumed:
            self.detach()
        else:
            self.close(0.0)

    def _forget(self) -> list[EngineProcess]:
        for task in list(self._tasks):
            task.cancel()
        for watch in self._watches.values():
            watch.close()
        self._watches.clear()
        self._turns = None
        processes, self._processes = self._processes, []
        return processes


# ---- the port at which keepers connect


class PortKeys(NamedTuple):
    """Keys of a port for keepers, made for one instance."""

    server: KeyPair
    keepers: KeyPair


class KeeperPort:
    """A port that is bound for keepers, and for nobody else."""

    def __init__(self, address: str, port: int = 0, keys: PortKeys | None = None) -> None:
        """Bind it; `port` 0 is any that is free, and new keys are made without `keys`. Raises Refused (EADDRINUSE)."""
        self.keys = PortKeys(make_key_pair(), make_key_pair()) if keys is None else keys
        self.server = ZmqServer(
            f"tcp://{address}:{port or '*'}",
            unsent_limit_bytes=UNSENT_BYTES_MAX,
            keys=ServerKeys(self.keys.server, self._admits),
        )
        bound = tcp_address(self.server.endpoint)
        self.endpoint = bound.bare()
        """`tcp://ADDRESS:PORT`, without the server's key."""
        self.port = int(bound.port)

    def _admits(self, key: bytes, address: str) -> bool:
        if key == self.keys.keepers.public:
            return True
        log.warning("refused a connection to the port of keepers from %s: its key is not that of keepers", address)
        return False

    def reserve(self, access: Access) -> None:
        """Have the rules of access take whoever connects here for a keeper."""
        access.reserve(self.server, self.keys.keepers.public)

    def introduction(self, ping_s: float, orphan_timeout_s: float) -> Introduction:
        """Return the introduction for keepers, with these terms of their lease."""
        keepers = self.keys.keepers
        return Introduction(
            endpoint=self.endpoint,
            server_key=self.keys.server.public.hex(),
            public_key=keepers.public.hex(),
            secret_key=keepers.secret.hex(),
            ping_s=ping_s,
            orphan_timeout_s=orphan_timeout_s,
        )
