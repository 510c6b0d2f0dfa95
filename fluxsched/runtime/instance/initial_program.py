"""The initial program: the command or shell that `fluxsched start` runs inside an instance, and its end.

Law: when the instance is stopped first, the program's whole session ends with it: the program, what descends from
it, and what it orphaned, which became ours (exec/strays.py). What started a session of its own (`setsid`, a daemon)
is left alone. The program remains in our process group, so that a terminal's signals and job control reach it.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fluxsched.runtime.exec.cleanup.orphans import all_living, with_descendants
from fluxsched.runtime.exec.cleanup.strays import adopt_orphans
from fluxsched.runtime.system import processes as procs
from fluxsched.runtime.system.clock import SystemClock
from fluxsched.runtime.system.exit_watch import ExitWatch

COMMAND_END_S = 3.0
"""How long the program may take to leave when the instance is stopped before it is killed (seconds)."""
LOOK_S = 0.01
"""How often it is looked for (seconds)."""
NOT_EXECUTABLE, NOT_FOUND = 126, 127
"""Exit statuses of shells when the command cannot be run."""
ASKING = (signal.SIGTERM, signal.SIGHUP, signal.SIGCONT)
"""What asks a program to end: interactive shells obey SIGHUP, others SIGTERM, and a stopped process neither of them."""


async def run_program(
    words: Sequence[str],
    environment: Mapping[str, str],
    ended: asyncio.Future[Any],
    began: Callable[[int], None],
    *,
    program: int | None = None,
    goes_on: Callable[[], bool] = lambda: False,
) -> int:
    """Run the program until it or the instance (`ended`) ends; its exit status, as shells give it.

    `began` is called with its process id. `program` is that of one that runs already, a child of this process. If it
    `goes_on` when the instance ends, it is left alone.
    """
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, lambda: None)
    adopt_orphans()
    if program is None:
        try:
            process = subprocess.Popen(words, env=environment)
        except OSError as exc:
            text, status = cannot_run(words, exc)
            sys.stderr.write(f"fluxsched: start: {text}\n")
            return status
        program, process.returncode = process.pid, 0  # it is reaped below
    began(program)
    leaving: asyncio.Future[None] = loop.create_future()
    watch = ExitWatch(loop, program, lambda: leaving.set_result(None))
    both: list[asyncio.Future[Any]] = [leaving, ended]
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    if not leaving.done():
        if goes_on():
            watch.close()
            return 0
        await _end(program)
    await leaving
    return exit_status(os.waitstatus_to_exitcode(os.waitpid(program, 0)[1]))


async def _end(program: int) -> None:
    """Ask all that is the program's to end; kill what does not."""
    asked = _processes(program)
    for pid, start_ticks in asked.items():
        procs.signal_exactly(pid, start_ticks, *ASKING)
    until_s = SystemClock.monotonic_s() + COMMAND_END_S
    while _alive(asked):
        if SystemClock.monotonic_s() > until_s:
            break
        await asyncio.sleep(LOOK_S)
    for pid, start_ticks in {**asked, **_processes(program)}.items():
        procs.signal_exactly(pid, start_ticks, signal.SIGKILL)


def exit_status(returncode: int) -> int:
    """The exit status that a shell gives for what `subprocess` has: 128+n for signal n."""
    return returncode if returncode >= 0 else 128 - returncode


def cannot_run(words: Sequence[str], fault: OSError) -> tuple[str, int]:
    """What to say of a command that cannot be run, and the status with which shells leave then."""
    status = NOT_FOUND if fault.errno in (errno.ENOENT, errno.ENOTDIR) else NOT_EXECUTABLE
    return f"cannot run {shlex.join(words)}: {os.strerror(fault.errno or 0)}", status


def _processes(program: int) -> dict[int, int]:
    """The program's processes with their start times."""
    table = all_living()
    us, session, path = os.getpid(), os.getsid(0), os.environ.get(procs.PATH_VARIABLE)
    orphans = {pid for pid, (stat, of) in table.items() if stat.ppid == us and of in (None, path)}
    found = with_descendants(table, {program, *orphans} & table.keys())
    return {pid: table[pid][0].start_ticks for pid in found if table[pid][0].sid == session}


def _alive(processes: Mapping[int, int]) -> bool:
    stats = ((procs.stat_of(pid), start_ticks) for pid, start_ticks in processes.items())
    return any(stat is not None and stat.alive and stat.start_ticks == ticks for stat, ticks in stats)
