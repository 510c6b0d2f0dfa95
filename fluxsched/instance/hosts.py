"""The hosts of an instance that an engine has given it: their keepers, which connect, and the jobs over them.

Law: a host's targets are online while its keeper is connected and what it may have left of earlier jobs is known to be
gone. A host that has stayed away until nothing of us runs there is the engine's again: it is asked to start a keeper.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from fluxsched.errors import Refused
from fluxsched.executor.base import Reports, StoreOutput
from fluxsched.executor.hosts import HostsExecutor
from fluxsched.executor.relay import HostRelay, RelayServer
from fluxsched.executor.remote import RemoteKeeper
from fluxsched.executor.wire import VERSION
from fluxsched.protocol.messages.instance import KeeperConnectRequest
from fluxsched.services.keepers import KeeperConnection
from fluxsched.system.log import logger
from fluxsched.system.loop import TurnGroup, TurnMember, Turns

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
