"""Processes by identity, this process's own settings, foreign code in a process of its own, processes that
are always to run, the service manager.

Law: a process id alone identifies nothing. A process is (boot id, process id, start time); it belongs to a job if it is
in the process group that the job's first task leads, or if its environment at exec carries the job's path: the ids of
the enclosing jobs, outermost first, so that what a nested instance ran is found too. Foreign code may exit, crash or
loop without affecting its caller: the wait for each of its lines is bounded. A scheduler process that ends writes why
in a line that no ordinary line of a log is mistaken for; without one it is described by its exit status or its signal.
Jobs must not find the socket of the service manager in their environment, or any of them could report that the instance
is ready (sd_notify(3)).
"""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager, suppress
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fluxsched.core.jobid import format_f58, signal_name

if TYPE_CHECKING:  # commands start sooner without asyncio
    from fluxsched.system.loop import Timer, Turns

PATH_VARIABLE = "FLUXSCHED_JOB_PATH"
"""`f58/f58/...`: the job a process belongs to, after all jobs that this one runs in."""
_PROC = Path("/proc")
_DEAD = b"ZX"


class Stat(NamedTuple):
    """Fields of /proc/PID/stat: state letter, parent, group, session and start time (clock ticks since boot)."""

    state: bytes
    ppid: int
    pgid: int
    sid: int
    start_ticks: int

    @property
    def alive(self) -> bool:
        """Return whether the process runs or could; a zombie does not."""
        return self.state not in _DEAD


def boot_id() -> str:
    """Return the id that distinguishes this boot of this machine from every other."""
    return (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def read_proc(path: str) -> bytes:
    """Return the contents of a file of the kernel's with half the calls of `open`. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        pieces = [os.read(fd, READ_BYTES)]
        while len(pieces[-1]) == READ_BYTES:
            pieces.append(os.read(fd, READ_BYTES))
        return b"".join(pieces)
    finally:
        os.close(fd)


def stat_of(pid: int | str) -> Stat | None:
    """Return the state of a process, None if there is none."""
    try:
        text = read_proc(f"/proc/{pid}/stat")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text[text.rindex(b")") + 2 :].split()
    return Stat(fields[0], int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]))


def children_of(pid: int) -> list[int]:
    """Return the children of all threads of a process; none if it has ended, or the kernel does not list them."""
    found: list[int] = []
    with suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            found += _children_of_thread(pid, task)
    return found


def own_children() -> list[int]:
    """Return the children of this process's first thread, those that it has adopted among them."""
    pid = os.getpid()
    with suppress(OSError):
        return _children_of_thread(pid, pid)
    return []


def _children_of_thread(pid: int, task: int | str) -> list[int]:
    with suppress(FileNotFoundError, ProcessLookupError):
        return list(map(int, read_proc(f"/proc/{pid}/task/{task}/children").split()))
    return []


def living() -> Iterator[tuple[int, Stat]]:
    """Yield every process that is alive."""
    for name in os.listdir(_PROC):
        if name.isdecimal():
            stat = stat_of(name)
            if stat is not None and stat.alive:
                yield int(name), stat


def group_exists(pgid: int) -> bool:
    """Return whether a group has any process, be it a zombie."""
    try:
        os.killpg(pgid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def group_living(pgid: int) -> list[int]:
    """Return the living processes of a group: all processes are looked at, so see first whether it exists."""
    return [pid for pid, stat in living() if stat.pgid == pgid]


def job_path(jobid: int, enclosing: str = "") -> str:
    """Return the path of a job inside the job of path `enclosing`."""
    name = format_f58(jobid, ascii=True)
    return f"{enclosing}/{name}" if enclosing else name


def path_of(pid: int) -> str | None:
    """Return the job path with which a process was started, None if it has none or we may not read it."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            variables = file.read().split(b"\0")
    except OSError:
        return None
    mark = PATH_VARIABLE.encode() + b"="
    return next((one[len(mark) :].decode(errors="replace") for one in variables if one.startswith(mark)), None)


def is_within(path: str | None, outer: str) -> bool:
    """Return whether a process of this path belongs to the job of path `outer` or to a job inside it."""
    return path is not None and (path == outer or path.startswith(f"{outer}/"))


def identity(pid: int, boot: str, path: str) -> dict[str, Any] | None:
    """Return the record of a job whose first task is `pid`, fit for JSON; None if that process is gone."""
    stat = stat_of(pid)
    if stat is None:
        return None
    return {"pid": pid, "start_ticks": stat.start_ticks, "sid": stat.sid, "boot_id": boot, "path": path}


def signal_exactly(pid: int, start_ticks: int, *signums: int) -> None:
    """Signal this very process: a pidfd pins it before its start time is looked at."""
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return
    try:
        stat = stat_of(pid)
        if stat is not None and stat.start_ticks == start_ticks:
            for signum in signums:
                signal.pidfd_send_signal(fd, signum)
    except (ProcessLookupError, PermissionError):
        pass
    finally:
        os.close(fd)


def close_output(process: subprocess.Popen[bytes], bytes_max: int) -> bytes:
    """Close the pipe to which a child prints; return its first bytes. Descendants that hold its other end may go on."""
    if process.stdout is None:
        return b""
    with process.stdout as pipe:
        os.set_blocking(pipe.fileno(), False)
        return pipe.read(bytes_max) or b""


def timed_words(limit_s: float, kill_after_s: float) -> tuple[str, ...]:
    """Return the words that end the program whose words follow, after a time, and kill it later (seconds).

    `timeout` holds the limit without this process, too.
    """
    return "timeout", f"--kill-after={kill_after_s:g}", f"{limit_s:g}"


def ancestor_among(pid: int, roots: Container[int]) -> int | None:
    """Return the process itself or its closest ancestor among `roots`; None if there is none, or we may not know."""
    while pid not in roots:
        try:
            stat = stat_of(pid)
        except PermissionError:
            return None
        if stat is None:
            return None
        pid = stat.ppid
    return pid


# ---- this process

GC_THRESHOLDS = (5_000, 1_000_000)
"""New objects before a collection, and how many of these before the older ones are looked through, too.

New ones take 1 ms, and 5 at most, where objects that die count against those that come: with 20,000 it was 39 ms, so
that each hundredth job waited for one. With 512 jobs under way some 4,000 objects come and go: this is above them, and
with 2,000 collections took 3 us a job. What survives are jobs, perhaps millions, whose collection would take seconds;
and our objects make no cycles.
"""
SWITCH_S = 0.001
"""Maximum time for which the loop may keep the writer thread waiting for the interpreter (seconds): a transaction asks
for it a dozen times, and every answer waits for a transaction. With Python's 5 ms they take several times as long under
load.
"""
PR_SET_PDEATHSIG = 1
"""prctl(2)."""


@contextmanager
def uncollected() -> Iterator[None]:
    """Disable the garbage collector for the block; objects made in it are never searched for cycles, which for restored
    jobs takes as long as all else.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def settle() -> None:
    """Tune the garbage collector and the interpreter; to be called once all objects are made that last as long as the
    process.
    """
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    sys.setswitchinterval(SWITCH_S)


def resident_bytes() -> int:
    """Memory of this process that is in RAM."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def die_with(parent: int, signum: int = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when the thread of process `parent` that started it ends; at once if
    it has.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signum), 0, 0, 0)
    if os.getppid() != parent:  # it was gone before we asked
        os.kill(os.getpid(), signum)


# ---- processes of their own session

LINE_BYTES_MAX = 1 << 20
"""Expected lines have some hundred bytes; anything longer comes from foreign code."""

LEAVING_S = 2.0
"""Maximum time until a process must be gone once it has closed its end of the pipe (seconds)."""


class IsolatedProcess:
    """One such process: `python -m MODULE WORDS FD`, which writes its lines to descriptor FD."""

    def __init__(self, module: str, words: Sequence[str], *, quiet: bool = False) -> None:
        self._fd, theirs = os.pipe()
        self._read = b""
        out = subprocess.DEVNULL if quiet else 2
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, *words, str(theirs)], stdin=subprocess.DEVNULL, stdout=out,
                stderr=out, pass_fds=(theirs,),
            )  # fmt: skip
        except OSError:
            os.close(self._fd)
            raise
        finally:
            os.close(theirs)

    def line(self, limit_s: float) -> str | None:
        """Return the next line; None if there are no more, or none within `limit_s` seconds: `ending` distinguishes
        these.
        """
        timeout_s = None if limit_s == inf else limit_s
        while b"\n" not in self._read:
            if len(self._read) > LINE_BYTES_MAX or not select.select([self._fd], [], [], timeout_s)[0]:
                return None
            data = os.read(self._fd, 1 << 16)
            if not data:
                return None
            self._read += data
        line, _, self._read = self._read.partition(b"\n")
        return line.decode(errors="replace")

    def ending(self, limit_s: float) -> str:
        """Return `ended the process with status 3`, `died by SIGSEGV`, or `did not come back within 10 s`."""
        if not select.select([self._fd], [], [], 0.0)[0] and self._process.poll() is None:
            return f"did not come back within {limit_s:g} s"
        try:
            status = self._process.wait(LEAVING_S)
        except subprocess.TimeoutExpired:
            return "closed its connection to us"
        return f"died by {signal_name(-status)}" if status < 0 else f"ended the process with status {status}"

    def close(self) -> None:
        """End it, if it is not over."""
        self._process.kill()
        self._process.wait()
        os.close(self._fd)


# ---- processes that are always to run


class Restarts:
    """Starts a process again whenever it ends, after a pause that doubles up to a maximum (seconds); the pause is the
    first one again after a run that was longer than the maximum.
    """

    def __init__(self, turns: Turns, start: Callable[[], None], first_s: float, most_s: float) -> None:
        self._turns = turns
        self._start = start
        self._first_s, self._most_s = first_s, most_s
        self._pause_s = first_s
        self._begun_s = 0.0
        self._again: Timer | None = None

    def begin(self) -> None:
        self._again = None
        self._begun_s = self._turns.clock.monotonic_s()
        self._start()

    def ended(self) -> float:
        """Start the process, which has ended or could not be started, after the pause that is returned (seconds)."""
        if self._turns.clock.monotonic_s() - self._begun_s > self._most_s:
            self._pause_s = self._first_s
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, self._most_s)
        self._again = self._turns.after(pause_s, self.begin)
        return pause_s

    def cancel(self) -> None:
        """Do not start the process again."""
        if self._again is not None:
            self._again.cancel()
            self._again = None


# ---- the service manager

VARIABLE = "NOTIFY_SOCKET"


class ServiceManager:
    """The service manager that started this process, if there is one."""

    def __init__(self, address: str | None) -> None:
        self._address = address

    @classmethod
    def take(cls) -> ServiceManager:
        """Return the service manager that the environment names, and remove it from the environment."""
        return cls(os.environ.pop(VARIABLE, None))

    def give_back(self) -> None:
        """Put it into the environment again, for a program that this process becomes."""
        if self._address:
            os.environ[VARIABLE] = self._address

    def tell(self, *words: str) -> None:
        """Send assignments such as READY=1. A manager that does not listen must not end an instance."""
        if not self._address:
            return
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sending:
                sending.connect(address)
                sending.send("\n".join(words).encode())
        except OSError:
            return


# ---- reasons of exits

REASON = "ended: "
"""Prefix of the last line that a scheduler process writes if it can give a reason."""

READ_BYTES = 4096
"""Number of bytes read of the end of its output."""


def reason_line(reason: str) -> str:
    """Return a reason as the line that `why_ended` finds."""
    return f"{REASON}{' '.join(reason.split())}\n"


def why_ended(status: int, log: Path, begin: int, when: str = "") -> str:
    """Return the reason a process wrote to `log` after byte `begin`, else its signal, its traceback's last line or
    status. `status` is negative for a signal, as in `subprocess`; `when` is appended to a reason that the process did
    not give itself.
    """
    if status < 0:
        return f"ended by signal {-status} ({signal.strsignal(-status)}){when}"
    try:
        text = log.read_bytes()[begin:][-READ_BYTES:]
    except OSError:
        text = b""
    lines = text.decode(errors="replace").strip().splitlines()
    if lines and lines[-1].startswith(REASON):
        return lines[-1].removeprefix(REASON)
    if status and any(line.startswith("Traceback ") for line in lines):
        return lines[-1]
    return f"exit status {status}{when}"
