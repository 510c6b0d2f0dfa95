"""A scheduler module: its process, what is known of it, and why it ended."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence

from fluxsched.errors import Refused
from fluxsched.runtime.config.values import Recovery
from fluxsched.runtime.loop.turns import Timer
from fluxsched.runtime.messaging.peers import Peer
from fluxsched.runtime.services.modules.starter import ModuleProcess, ModuleStart, StartModule

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
        """How it ended; of one that was started again, how it ended last."""
        self.has_served = False
        """Whether it was ready once."""
        self.verdict: str | None = None
        """Why we killed it."""
        self.on_ready: list[Callable[[str | None], None]] = []
        self.on_exit: list[Callable[[], None]] = []
        self.killer: Timer | None = None
        self.silent_s = 0.0
        """For how long it has owed an answer to "are you there?"."""
        self.is_asked = False
        self.failures: list[float] = []
        """When it failed (monotonic seconds), as far back as that counts."""
        self.again: Timer | None = None
        """Set while it is down and will be started again."""

    @property
    def is_live(self) -> bool:
        """Whether it runs, or will again by itself: its name and its groups are taken."""
        return self.status != STATUS_EXITED or self.again is not None

    @property
    def is_running(self) -> bool:
        """Whether there is a process that has not been asked to leave."""
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
        """Reap the process, which is over; why it is."""
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
        """Raises Refused (EBUSY) if one of the groups has a scheduler that is not `module`."""
        self._check(groups, lambda other: other is module)

    def check_acquirer(self, groups: Sequence[str], peer: Peer) -> None:
        """Raises Refused (EBUSY) for a group of a module that is not this peer, also while the module comes up: it
        would find its group taken, and a start whose schedulers serve nothing ends.
        """
        self._check(groups, lambda other: other.peer is peer)

    def _check(self, groups: Sequence[str], is_it: Callable[[Module], bool]) -> None:
        for group in groups:
            for other in self.by_name.values():
                if group in other.groups and other.is_live and not is_it(other):
                    raise Refused(f"group {group!r} is served by module {other.name!r}; remove it first", errno.EBUSY)
