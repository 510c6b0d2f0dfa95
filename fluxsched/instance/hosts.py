"""Hosts of an instance over many: their keepers, which connect, when one counts as lost, and the jobs over them.

A keeper of another host (`RemoteKeeper`) may be silent, cut off, or dead.

Laws: a connection that ends says nothing about the keeper: it may run its jobs on. It comes back, and then says which
jobs it has, or its lease ends (`executor.keeper.KeeperLease`), and it has ended them. Until one or the other is
certain, nothing is known about the host: its targets are offline, and its jobs wait. The lease ends `orphan_timeout_s`
after the keeper sent its last question that was answered, and then its tasks have the kill timeout to end; we have
heard that question later, so to wait as long from then on, by a clock of our own, is never too short. A keeper that was
started anew ends the processes of the one before it first. As long as a host is away it is asked for, again and again.
A host that has stayed away until nothing of us runs there is the engine's again: it is asked to start a keeper.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from fluxsched.errors import Refused
from fluxsched.executor import wire as msg
from fluxsched.executor.base import Reports, ResumedJob, StoreOutput
from fluxsched.executor.cleanup import LEFT
from fluxsched.executor.hosts import HostsExecutor
from fluxsched.executor.proxy import GivenJob, KeeperExecutor, KeeperLink
from fluxsched.executor.proxy import log as keeper_log
from fluxsched.executor.relay import HostRelay, RelayServer
from fluxsched.executor.wire import VERSION
from fluxsched.protocol.messages.instance import KeeperConnectRequest
from fluxsched.services.keepers import KeeperConnection
from fluxsched.system.log import logger
from fluxsched.system.loop import Timer, TurnGroup, TurnHooks, TurnMember, Turns
from fluxsched.transport.base import Client

SILENT_S = 11.0
"""Time without a question of the keeper after which its link counts as lost (seconds)."""
LOOK_S = 0.5
"""Silence that has lasted too long is looked for at multiples of this time (seconds), of many hosts in one turn."""
MARGIN_S = 4.0
"""Time beyond the kill timeout in which a keeper whose lease has ended has killed its tasks (seconds): it takes 2 s."""


class NoKeepers:
    """A `KeeperHost` where no keeper can be started by the instance: the engine does that."""

    def __init__(self, name: str) -> None:
        self._name = name

    def living(self) -> Sequence[Client]:
        """Return none, since keepers connect by themselves."""
        return ()

    def start(self) -> Client:
        """Raise OSError."""
        raise OSError(errno.EHOSTUNREACH, f"the keeper of host {self._name} is not connected")

    def end_keeper(self, client: Client, timeout_s: float) -> None:
        """Do nothing, since the process is the engine's."""


class RemoteKeeper(KeeperExecutor):
    """The executor of one other host."""

    def __init__(
        self, turns: Turns, reports: Reports, output: StoreOutput, name: str, present: Callable[[bool], None],
        lost: Callable[[], None], kill_timeout_s: float, orphan_timeout_s: float, *, outlives: bool,
        silent_s: float = SILENT_S, margin_s: float = MARGIN_S, relay: HostRelay | None = None,
        hooks: TurnHooks | None = None,
    ) -> None:  # fmt: skip
        """`relay` has the clients on the host; None if these are not served. `present` is called with True when jobs
        may be started on the host, with False when it is unknown what runs there; `lost` when its keeper has stayed
        away until its lease had ended, and each time that it has again.
        """
        super().__init__(turns, reports, NoKeepers(name), kill_timeout_s, outlives=outlives, output=output, hooks=hooks)
        self._name = name
        self._present = present
        self._on_lost = lost
        self._fence_s = orphan_timeout_s + kill_timeout_s + margin_s
        self._silent_s = silent_s
        self._fence: Timer | None = None
        """Time at which a keeper that has not come back has ended its jobs for certain."""
        self._is_present = False
        self._is_anew = False
        """True if it had a connection before."""
        self._on_settled: Callable[[], None] | None = None
        self._relay = relay
        self._handlers = {**self._handlers, msg.Ping: self._asked}
        if relay is not None:
            self._handlers |= {kind: partial(_relayed, handler) for kind, handler in relay.handlers.items()}

    @property
    def is_present(self) -> bool:
        """Return whether jobs may be started on the host."""
        return self._is_present

    def resume(self, jobs: Sequence[ResumedJob], records: Mapping[int, object], settled: Callable[[], None]) -> None:
        """See `Executor.resume`: the fate of the jobs is known once the keeper is back, or its lease has ended."""
        self._on_settled = settled
        if jobs or records:
            self._await()
        super().resume(jobs, records, self._has_settled)
        self._await()

    def _await(self) -> None:
        """Have the host count as lost unless its keeper is back in time."""
        if self._fence is None:
            self._fence = self._turns.after(self._fence_s, self._fenced)

    def attach(self, client: Client) -> None:
        """Take a connection of the host's keeper, in place of the one before, if there is one."""
        for link in list(self._links):
            self._lost(link, "it has connected again")
        self._is_settled = False
        link = self._connect(client)
        link.heard_s = self._turns.clock.monotonic_s()
        link.patience = self._turns.after(self._limits.hello_s, partial(self._lost, link, "it does not answer"))
        link.send()
        self._look_later(link, 0.0)

    def _look_later(self, link: KeeperLink, silence_s: float) -> None:
        """Look once the link may count as lost."""
        may_be_s = self._silent_s - silence_s
        due_s = self._turns.clock.monotonic_s() + may_be_s
        self._turns.after(may_be_s + LOOK_S - due_s % LOOK_S, partial(self._look, link))

    def _look(self, link: KeeperLink) -> None:
        if link not in self._links:
            return
        silence_s = self._turns.clock.monotonic_s() - link.heard_s
        if silence_s > self._silent_s:
            self._lost(link, f"nothing was heard of it for {silence_s:.0f} s")
        else:
            self._look_later(link, silence_s)

    def _flush(self) -> None:
        """Send what is there for the keeper, and then what is for clients on its host."""
        if self._relay is not None and self._links and (messages := self._relay.take()):
            self._links[-1].send(*messages)
        super()._flush()

    def _asked(self, link: KeeperLink, one: msg.Ping) -> None:
        link.heard_s = self._turns.clock.monotonic_s()
        link.send(msg.Pong(one.number))

    def _lost(self, link: KeeperLink, reason: str) -> None:
        """Wait for the keeper, whose connection has ended, to come back."""
        if link not in self._links or self._closed:
            return
        for jobid in link.jobs:
            self._runs[jobid].repeat()
        records, _ = self._unlink(link)
        if self._relay is not None:
            self._relay.disconnected()
        self._left |= records
        self._is_settled = False
        self._is_anew = True
        keeper_log.warning("host %s: the connection to its keeper has ended: %s", self._name, reason)
        self._tell(False)
        self._await()

    def _fenced(self) -> None:
        """Give up the jobs of a keeper that has not come back: it has ended them, unless it was killed and could not.

        So the next keeper looks for what is left of them before the host is used.
        """
        if self._links and all(link.is_known for link in self._links):
            self._fence = None  # it is back, and is ending what a keeper before it has left
            return
        self._fence = None
        self._is_settled = not self._links  # else one is about to say what it has
        runs = [run for run in self._runs.values() if run.link is None]
        if runs:
            keeper_log.error("host %s was lost with %d jobs", self._name, len(runs))
        for run in runs:
            self._give_up(run)
        self._report_settled()
        self._on_lost()
        self._await()

    def _give_up(self, run: GivenJob) -> None:
        jobid = run.launch.jobid
        del self._runs[jobid]
        self._nested.remove_job(jobid)
        self._reports.record(jobid, None if run.record is None else {LEFT: run.record}, None)
        self._reports.node_failed(jobid, f"host {self._name} was lost")

    def _settle(self) -> None:
        if self._is_settled or (self._fence is not None and not any(link.is_known for link in self._links)):
            return
        if not any(link.unwanted for link in self._links):
            super()._settle()

    def _ended(self, link: KeeperLink, jobid: int) -> bool:
        was_unwanted = jobid in link.unwanted
        was_known = super()._ended(link, jobid)
        if was_unwanted:
            self._settle()
        return was_known

    def _why_cleared(self) -> str:
        return f"the keeper of its tasks on {self._name} was killed" if self._is_anew else super()._why_cleared()

    def _has_settled(self) -> None:
        if self._fence is not None:
            self._fence.cancel()
            self._fence = None
        self._tell(any(link.is_known for link in self._links))
        self._report_settled()

    def _report_settled(self) -> None:
        settled, self._on_settled = self._on_settled, None
        if settled is not None:
            settled()

    def _tell(self, is_present: bool) -> None:
        if self._is_present != is_present:
            self._is_present = is_present
            self._present(is_present)


def _relayed(handler: Callable[[Any], None], link: KeeperLink, one: msg.KeeperMessage) -> None:
    handler(one)


# ---- hosts

log = logger("engine")

SetPresent = Callable[[str, bool], None]


class HeldHosts(Protocol):
    """The hosts that an engine holds for an instance."""

    @property
    def hosts(self) -> Sequence[str]:
        """Return the hosts, in the order of their targets."""
        ...

    @property
    def orphan_timeout_s(self) -> float:
        """Return how long keepers go on without the instance (seconds)."""
        ...

    def host_lost(self, host: str) -> None:
        """Start a keeper on this host again if the engine says that it is not down, now or later."""
        ...


class InstanceHosts:
    """Keepers of an instance's hosts, and the executor of its jobs."""

    def __init__(
        self, turns: Turns, reports: Reports, held: HeldHosts, set_present: SetPresent, kill_timeout_s: float, *,
        outlives: bool,
    ) -> None:  # fmt: skip
        """`set_present` is called with a host and whether jobs may run there."""
        self._turns = turns
        self._group = TurnGroup(turns)
        self._set_present = set_present
        self._held = held
        self._kill_timeout_s = kill_timeout_s
        self._outlives = outlives
        self._keepers: dict[str, RemoteKeeper] = {}
        self.servers = RelayServer(json=False), RelayServer(json=True)
        """The clients on the hosts."""
        self.executor = HostsExecutor(turns, reports, held.hosts, self._made)

    def _made(self, host: str, reports: Reports, output: StoreOutput) -> RemoteKeeper:
        hooks = TurnMember(self._group)
        present, lost = partial(self._set_present, host), partial(self._held.host_lost, host)
        self._keepers[host] = RemoteKeeper(
            self._turns, reports, output, host, present, lost, self._kill_timeout_s, self._held.orphan_timeout_s,
            outlives=self._outlives, relay=HostRelay(hooks.wake, host, self.servers), hooks=hooks,
        )  # fmt: skip
        return self._keepers[host]

    def add(self, host: str) -> None:
        """Take in a further host."""
        self.executor.add_host(host)

    def arrived(self, request: KeeperConnectRequest, connection: KeeperConnection) -> None:
        """Take the connection of a keeper. Raises Refused for a host that is not ours, or another version."""
        keeper = self._keepers.get(request.host)
        if keeper is None:
            raise Refused(f"{request.host!r} is no host of this instance: it has {len(self._keepers)}", errno.ENOENT)
        if request.version != VERSION:
            raise Refused(f"this keeper speaks version {request.version}, this instance {VERSION}: start it again")
        log.info("the keeper of %s is connected (pid %d there)", request.host, request.pid)
        keeper.attach(connection)

    @property
    def absent(self) -> list[str]:
        """Return the hosts where no job can run now."""
        return [host for host, keeper in self._keepers.items() if not keeper.is_present]
