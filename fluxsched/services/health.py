"""Health checks: a program of the site that runs on hosts before they go online, now and then, and after jobs.

Law: exit status 0 says that a host is good, 75 (EX_TEMPFAIL) that nothing is known, any other that it is bad: it is
drained, with the first line that the program has printed. A time-out says nothing before the third in a row. Only
drains that a check has made are undone by one; other reasons of a host stay. A host has one check at
a time. One whose program could not be run, since its keeper was lost, is as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final
from zlib import crc32

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.programs import AT_END, AT_START, WHILE_IDLE, HealthCheck, SiteProgram
from fluxsched.executor.perilog import HostPrograms, ProgramEnd
from fluxsched.resource.drain import PROGRAM_USERS
from fluxsched.services.resource import ResourceService
from fluxsched.system.log import logger
from fluxsched.system.loop import Timer, Turns

log = logger("health")

HEALTH_USER: Final = f"{PROGRAM_USERS}health"
"""The user of drains that checks have made."""
UNKNOWN_CODE: Final = 75
"""Exit status of a check that could not find out: EX_TEMPFAIL of sysexits.h."""
TIMEOUTS_MAX = 3
"""Time-outs in a row that say that a host is bad: one alone is often a busy disk."""
JITTER = 0.1
"""Share of the interval by which a check may be earlier or later, so that the hosts take turns."""


@dataclass(slots=True)
class HostHealth:
    """State of the checks of a host that is present."""

    number: int = 0
    """Number of the program that runs, 0 if none does."""
    is_arriving: bool = False
    """True if the host goes online once its check has ended."""
    timeouts: int = 0
    checks: int = 0
    timer: Timer | None = None


class HealthChecks:
    """Checks the hosts that are present, and says when these are online."""

    def __init__(
        self, resource: ResourceService, programs: HostPrograms, turns: Turns, check: HealthCheck | None,
        online: Callable[[str, bool], None],
    ) -> None:  # fmt: skip
        """`online` is called with a host and whether its targets are online. None: no host is checked."""
        self._resource = resource
        self._module = resource.module
        self._programs = programs
        self._turns = turns
        self._check = check
        self._online = online
        self._hosts: dict[str, HostHealth] = {}
        self._gone = set[str]()
        """Hosts that are present and have no targets since a reload."""

    def configure(self, check: HealthCheck | None) -> None:
        """Check by other rules from now on; a check that runs goes on, and counts."""
        if check == self._check:
            return
        self._check = check
        for host, state in self._hosts.items():
            if not state.number:
                self._again(host, state)

    def _is_checked(self, when: str) -> bool:
        return self._check is not None and when in self._check.when

    def set_present(self, host: str, is_present: bool) -> None:
        """Note whether programs can run on a host: one that arrives is checked before it goes online."""
        self._forget(host)
        if not is_present:
            self._online(host, False)
            return
        state = self._hosts[host] = HostHealth()
        if self._is_checked(AT_START):
            state.is_arriving = True
            self._run(host, state)
        else:
            self._online(host, True)
            self._again(host, state)

    def reloaded(self, ours: Idset) -> list[str]:
        """Take hosts that have no targets any more offline; return those that are to arrive: on which such targets are
        new (`ours`, which the instance itself reports), or that have some again.
        """
        resources, lost, before = self._module.resources, self._module.lost, self._gone
        self._gone = {host for host in self._hosts if resources.ranks_of(host) <= lost}
        for host in self._gone - before:
            self._forget(host)
            self._hosts[host] = HostHealth()
            self._online(host, False)
        new = [host for host in resources.hosts(ours).unique().hosts if host not in self._hosts]
        return new + [host for host in sorted(before - self._gone) if host in self._hosts]

    @property
    def arriving(self) -> Idset:
        """Return the targets of hosts that go online once their check has ended."""
        resources, found = self._module.resources, EMPTY
        for host, state in self._hosts.items():
            if state.is_arriving:
                found |= resources.ranks_of(host)
        return found

    def unheld(self, released: Sequence[tuple[int, Idset]]) -> None:
        """Check the hosts that jobs have left, if that is wanted."""
        if self._is_checked(AT_END):
            resources = self._module.resources
            for _, ranks in released:
                for host in dict.fromkeys([resources.host(rank) for rank in ranks & resources.ranks]):
                    self._turns.post(partial(self._check_now, host))

    def _check_now(self, host: str) -> None:
        state = self._hosts.get(host)
        if state is not None and not state.number:
            self._run(host, state)

    def _forget(self, host: str) -> None:
        state = self._hosts.pop(host, None)
        if state is not None and state.timer is not None:
            state.timer.cancel()
        if state is not None and state.number:
            self._programs.end(state.number)

    # -- checks -------------------------------------------------------------------------------------------------

    def _run(self, host: str, state: HostHealth) -> None:
        if state.timer is not None:
            state.timer.cancel()
        resources = self._module.resources
        own = resources.restrict(resources.ranks_of(host) - self._module.lost)
        if not own or self._check is None:
            return
        state.checks += 1
        program = self._check.program
        state.number = self._programs.run(program, host, own, {}, partial(self._ended, host, state, program))

    def _ended(self, host: str, state: HostHealth, program: SiteProgram, end: ProgramEnd) -> None:
        state.number = 0
        if self._hosts.get(host) is not state:  # it is gone, or has come anew
            return
        state.timeouts = state.timeouts + 1 if end.is_timeout else 0
        is_known = end.is_run and not 0 < state.timeouts < TIMEOUTS_MAX and end.exit_code != UNKNOWN_CODE
        if is_known and end.is_good:
            self._undrain(host)
        elif is_known:
            self._drain(host, end.reason(program))
        elif end.is_timeout and state.is_arriving and self._check is not None:
            self._run(host, state)
            return
        if state.is_arriving:
            state.is_arriving = False
            self._online(host, True)
        self._again(host, state)

    def _again(self, host: str, state: HostHealth) -> None:
        """Set the timer of the next check, at a time that depends on the host and the number of the check."""
        if state.timer is not None:
            state.timer.cancel()
            state.timer = None
        if self._check is None or WHILE_IDLE not in self._check.when:
            return
        chance = crc32(f"{host} {state.checks}".encode()) / 2**32
        share = 1.0 - JITTER + 2.0 * JITTER * chance if state.checks else chance
        state.timer = self._turns.after(share * self._check.interval_s, partial(self._due, host, state))

    def _due(self, host: str, state: HostHealth) -> None:
        """Check a host that no job uses; of one that is used, see again later."""
        if self._hosts.get(host) is not state or state.number:
            return
        state.timer = None
        if self._module.resources.ranks_of(host).isdisjoint(self._module.held):
            self._run(host, state)
        else:
            state.checks += 1
            self._again(host, state)

    # -- drains -------------------------------------------------------------------------------------------------

    def _drain(self, host: str, reason: str) -> None:
        """Drain a host, or say that the reason is another one now."""
        if effects := self._resource.program_drains(host, reason, HEALTH_USER):
            log.warning("%s is drained: %s", host, reason)
            self._resource.perform(effects)

    def _undrain(self, host: str) -> None:
        targets, now_s = self._module.resources.ranks_of(host), self._turns.wall_s
        if effects := self._module.undrain_good(targets, "health check passed", HEALTH_USER, now_s):
            log.info("%s is good again", host)
            self._resource.perform(effects)
