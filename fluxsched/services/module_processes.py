"""Processes of scheduler modules: how one is started, what is known of it, and what follows when it fails.

    served its groups, then ended -> started again, `restart` times within RESTARTS_WITHIN_S

Law: only what has served its groups before is started again; one that never came up is its loader's to know. Jobs are
never touched: running jobs continue, and the next scheduler of the group learns of them by hello. Every LOOK_S each
module is asked whether it is there (`NAME.ping`). A group waits for a policy that hangs once, `hung-after` in all: one
that hung would hang again, each time for as long.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fluxsched.config.values import Recovery
from fluxsched.core.jobfields import SiteLimit
from fluxsched.core.quantities import doubled_s
from fluxsched.errors import FluxschedError, Refused
from fluxsched.messaging.peers import Peer
from fluxsched.messaging.router import Router
from fluxsched.system.files import private_file
from fluxsched.system.log import logger
from fluxsched.system.loop import ExitWatch, Timer, Turns
from fluxsched.system.processes import why_ended

STATUS_INIT, STATUS_RUNNING, STATUS_FINALIZING, STATUS_EXITED = 0, 1, 2, 3
"""Module status numbers as Flux's `module.list` has them."""


class Module:
    """One scheduler module: its process, its connection, and how it fared.

    `spec` is what was asked for; `specs` is what runs: complete with the policies of queues, or the fallback.
    """

    def __init__(
        self, name: str, spec: str, specs: str, groups: tuple[str, ...], recovery: Recovery, since_s: float
    ) -> None:
        self.name = name
        self.spec = spec
        self.specs = specs
        self.groups = groups
        self.recovery = recovery
        self.since_s = since_s
        self.process: ModuleProcess | None = None
        self.peer: Peer | None = None
        self.status = STATUS_INIT
        self.error: str | None = None
        """Cause of the module's end; of one that was started again, of its last end."""
        self.has_served = False
        """True once the module was ready."""
        self.verdict: str | None = None
        """Reason why this instance killed the module."""
        self.on_ready: list[Callable[[str | None], None]] = []
        self.on_exit: list[Callable[[], None]] = []
        self.killer: Timer | None = None
        self.silent_s = 0.0
        """Time since the first ping that the module has not answered (seconds)."""
        self.is_asked = False
        self.failures: list[float] = []
        """Times of the module's failures (monotonic seconds), as far back as they count."""
        self.again: Timer | None = None
        """Set while it is down and will be started again."""

    @property
    def is_live(self) -> bool:
        """Return whether the module runs, or will be started again: its name and its groups are in use."""
        return self.status != STATUS_EXITED or self.again is not None

    @property
    def is_running(self) -> bool:
        """Return whether there is a process that has not been asked to exit."""
        return self.status in (STATUS_INIT, STATUS_RUNNING)

    def spawn(self, start: StartModule, wanted: ModuleStart, ended: Callable[[], None]) -> None:
        """Start the process; `ended` is called when it is over. Raises Refused when it cannot be started."""
        self.status, self.peer, self.verdict = STATUS_INIT, None, None
        self.silent_s, self.is_asked = 0.0, False
        self.process = None
        try:
            self.process = start(wanted, ended)
        except OSError as exc:
            self.status = STATUS_EXITED
            raise Refused(f"cannot start module {self.name!r}: {exc}; fix this and load it again") from exc

    def ended(self) -> str:
        """Reap the process, which has ended; return the reason."""
        assert self.process is not None
        when = "" if self.peer is not None else " while it was importing"
        why = self.process.why_ended(when)
        self.status = STATUS_EXITED
        if self.killer is not None:
            self.killer.cancel()
        cut_off = self.peer.dropped if self.peer is not None else None
        return self.verdict or cut_off or why

    def tell_ready(self, error: str | None) -> None:
        """Call those that wait until it serves its groups: None, or why it does not."""
        calls, self.on_ready = self.on_ready, []
        for call in calls:
            call(error)

    def tell_exit(self) -> None:
        """Call those that wait for its end."""
        calls, self.on_exit = self.on_exit, []
        for call in calls:
            call()


class ModuleTable:
    """The scheduler modules by name, and the groups that are theirs."""

    def __init__(self) -> None:
        self.by_name: dict[str, Module] = {}

    def check_served(self, groups: Sequence[str], module: Module | None) -> None:
        """Raise Refused (EBUSY) if one of the groups has a scheduler that is not `module`."""
        self._check(groups, lambda other: other is module)

    def check_acquirer(self, groups: Sequence[str], peer: Peer) -> None:
        """Raise Refused (EBUSY) for a group of a module that is not this peer, also while the module starts: it would
        find its group taken, and a start whose schedulers serve nothing ends.
        """
        self._check(groups, lambda other: other.peer is peer)

    def _check(self, groups: Sequence[str], is_it: Callable[[Module], bool]) -> None:
        for group in groups:
            for other in self.by_name.values():
                if group in other.groups and other.is_live and not is_it(other):
                    raise Refused(f"group {group!r} is served by module {other.name!r}; remove it first", errno.EBUSY)


# ---- starting of modules


@dataclass(frozen=True, slots=True)
class ModuleStart:
    """Arguments of a scheduler's process."""

    uri: str
    name: str
    specs: str
    groups: tuple[str, ...]
    queues: Sequence[tuple[str, str]]
    """The queues that it serves, each with its group, once for each of several."""
    unsatisfiable: str
    preempt_timeout_s: float
    limits: Sequence[SiteLimit] = ()


class ModuleProcess(Protocol):
    """A process that was started and not reaped yet."""

    pid: int

    def terminate(self) -> None:
        """Ask the process to exit."""

    def kill(self) -> None:
        """Kill the process at once."""

    def why_ended(self, when: str) -> str:
        """Reap the process, which has ended; return the reason.

        `when` is appended to a reason that the process did not give itself.
        """
        ...

    def forget(self) -> None:
        """Do not tell of its end."""

    def finish(self, timeout_s: float) -> None:
        """Wait until it has ended, and kill it if that takes longer."""


StartModule = Callable[[ModuleStart, Callable[[], None]], ModuleProcess]
"""Starts a process, and calls back once when it has ended. Raises OSError."""


class ModuleProcesses:
    """Starts real processes; their output goes to `directory`. An instance is a `StartModule` by `start`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def start(self, wanted: ModuleStart, ended: Callable[[], None]) -> ModuleProcess:
        command = [sys.executable, "-P", "-m", "fluxsched.scheduler.main", "--uri", wanted.uri]
        command += ["--name", wanted.name, "--instance", str(os.getpid())]
        command += ["--unsatisfiable", wanted.unsatisfiable, "--preempt-timeout", str(wanted.preempt_timeout_s)]
        if wanted.limits:
            command += ["--limits", json.dumps([limit._asdict() for limit in wanted.limits])]
        command += [part for group in wanted.groups for part in ("--group", group)]
        command += [part for name, group in wanted.queues for part in ("--queue", f"{name}={group}")]
        return ChildProcess([*command, wanted.specs], self._directory / f"{wanted.name}.log", ended)


class ChildProcess:
    """A `ModuleProcess` that is a child of this one."""

    def __init__(self, command: list[str], log: Path, ended: Callable[[], None]) -> None:
        private_file(log)
        with log.open("ab") as output:
            self._log, self._log_begin = log, output.tell()
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
        self.pid = self._process.pid
        try:
            self._watch = ExitWatch(asyncio.get_running_loop(), self.pid, ended)
        except OSError:
            self._process.kill()
            self._process.wait()
            raise

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()

    def why_ended(self, when: str) -> str:
        return why_ended(self._process.wait(), self._log, self._log_begin, when)

    def forget(self) -> None:
        self._watch.close()

    def finish(self, timeout_s: float) -> None:
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


# ---- supervision of modules

log = logger("module")

LOOK_S = 1.0
"""Interval of pinging modules (seconds); shorter if `hung-after` is short."""

LOOKS_MIN = 4
"""Minimum number of pings within the shortest `hung-after`."""

ANSWER_S = 3.0
"""Timeout of a request to a module, after which the requester gets an error (seconds)."""

SHOWN = 1 / 3
"""The part of `hung-after` from which on a silent module is listed as hung: 10 s of 30."""

RESTARTS_WITHIN_S = 600.0
"""Failures that are further back count no more (seconds)."""

BACKOFF_S, BACKOFF_MAX_S = 0.5, 30.0
"""Delay between a failure and the next start of a module, and the maximum (seconds): the delay doubles each time, up to
the maximum.
"""


class Supervision:
    """Watches modules, and starts those again that fail; `start` starts a module's process and may raise Refused."""

    def __init__(
        self, router: Router, turns: Turns, modules: Callable[[], Iterable[Module]], start: Callable[[Module], None]
    ) -> None:
        self._router = router
        self._turns = turns
        self._modules = modules
        self._start = start
        self._interval_s = LOOK_S
        self._looked_s: float | None = None
        """Monotonic time at which modules were last checked; None while there is nothing to watch."""

    # -- those that hang ----------------------------------------------------------------------------------------

    def watch(self, module: Module) -> None:
        """Keep an eye on a module from now on."""
        self._interval_s = min(self._interval_s, module.recovery.hung_after_s / LOOKS_MIN)
        if self._looked_s is None:
            self._looked_s = self._turns.clock.monotonic_s()
            self._turns.after(self._interval_s, self._look)

    def _look(self) -> None:
        now_s = self._turns.clock.monotonic_s()
        assert self._looked_s is not None
        # If we were held up ourselves, answers may wait unread: that is not the modules' silence.
        passed_s = min(now_s - self._looked_s, 2 * self._interval_s)
        running = [module for module in self._modules() if module.is_running]
        for module in running:
            self._ask(module, passed_s)
        self._looked_s = now_s if running else None
        if running:
            self._turns.after(self._interval_s, self._look)

    def _ask(self, module: Module, passed_s: float) -> None:
        if module.is_asked or module.peer is None:
            module.silent_s += passed_s
        if module.silent_s >= module.recovery.hung_after_s:
            self._end(module)
        elif module.silent_s >= ANSWER_S and module.peer is not None:
            text = f"module {module.name!r} has not answered for {module.silent_s:.0f} s: its policy is slow, or hangs"
            self._router.calls.give_up(module.peer, errno.ETIMEDOUT, text)
        if module.peer is not None and not module.is_asked:
            module.is_asked = True
            self._router.call(module.peer, f"{module.name}.ping", None, lambda answer: self._heard(module))

    def _heard(self, module: Module) -> None:
        module.is_asked, module.silent_s = False, 0.0

    def _end(self, module: Module) -> None:
        assert module.process is not None
        limit = f"{module.recovery.hung_after_s:g} s"
        module.verdict = f"hung for {limit}" if module.peer is not None else f"was still importing after {limit}"
        module.process.kill()

    # -- those that end -----------------------------------------------------------------------------------------

    def failed(self, module: Module) -> None:
        """Decide on the next start of a module that has served its groups and failed, and note that in its `error`."""
        now_s, recovery = self._turns.clock.monotonic_s(), module.recovery
        module.failures = [at_s for at_s in module.failures if now_s - at_s < RESTARTS_WITHIN_S] + [now_s]
        count, why = len(module.failures), module.error
        can_fall_back = recovery.fallback is not None and module.specs != recovery.fallback
        has_hung = module.verdict is not None
        if count <= recovery.restart and not (has_hung and can_fall_back):
            delay_s = doubled_s(BACKOFF_S, count - 1, BACKOFF_MAX_S)
            module.error = f"{why}; started again ({count} of {recovery.restart})"
            text = "module %s ended: %s; it is started again in %g s, running jobs continue"
            log.error(text, module.name, why, delay_s)
        elif can_fall_back:
            assert recovery.fallback is not None
            delay_s = BACKOFF_S
            failures = f"failed {count} times" if count > 1 else "failed"
            module.error = f"{recovery.fallback} in place of {module.specs}, which {failures}: {why}"
            module.specs, module.failures = recovery.fallback, []
            log.error("module %s: %s", module.name, module.error)
        else:
            advice = f"running jobs continue, `fluxsched module reload {module.name}` starts it again"
            log.error("module %s ended: %s; %s", module.name, why, advice)
            return
        module.again = self._turns.after(delay_s, lambda: self.start(module))

    def start(self, module: Module) -> None:
        """Start a module that has served before; that it cannot be started is one more failure."""
        module.again = None
        try:
            self._start(module)
        except FluxschedError as exc:
            module.error = str(exc)
            self.failed(module)

    def forget(self, module: Module) -> None:
        """Remove the module: it is not started again."""
        if module.again is not None:
            module.again.cancel()
            module.again = None


def troubles(module: Module) -> str | None:
    """Return the note on a module in lists of modules beside its status."""
    if module.is_running and module.silent_s >= SHOWN * module.recovery.hung_after_s:
        return f"hung {module.silent_s:.0f} s"
    return module.error
