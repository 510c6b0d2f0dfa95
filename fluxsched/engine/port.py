"""Port at which the keepers of an instance connect: its keys, and the address at which other hosts reach it.

Law: the port admits one public key. Its secret goes to the keepers by the standard input of the engine's process, and
is in no argument, environment or log. A keeper that does not read is not cut off: a start may have a jobspec of half a
gigabyte, and jobs would end with the connection.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterable
from typing import Final, NamedTuple

from fluxsched.engine.report import Introduction
from fluxsched.errors import Refused
from fluxsched.executor.wire import UNSENT_BYTES_MAX
from fluxsched.messaging.peers import Access
from fluxsched.system.log import logger
from fluxsched.transport.base import KeyPair, ServerKeys, tcp_address
from fluxsched.transport.sockets import make_key_pair
from fluxsched.transport.zeromq import ZmqServer

log = logger("engine")

LOOPBACK: Final = "127.0.0.1"
DISCARD_PORT: Final = 9
"""Any port will do: nothing is sent."""


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


def address_for(hosts: Iterable[str]) -> str:
    """Return the address of this machine from which it reaches the first of the hosts that is another machine.

    Where all are this machine it is an address of its own. Raises Refused for a host whose name is unknown.
    """
    own = LOOPBACK
    for host in hosts:
        try:
            source, target = _route(host)
        except OSError as fault:
            if host == os.uname().nodename:
                continue
            text = f"host {host} has no address here ({fault.strerror})"
            remedy = "name the address of this machine that hosts reach, by `address` of [engine]"
            raise Refused(f"{text}: {remedy}", errno.EHOSTUNREACH) from fault
        if source not in (target, LOOPBACK):
            return source
        if source == target and not source.startswith("127."):
            own = source
    return own


def _route(host: str) -> tuple[str, str]:
    """Return the addresses from and to which a datagram to the host would go. Raises OSError."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, DISCARD_PORT))
        return probe.getsockname()[0], probe.getpeername()[0]
