"""Notifies a service manager (systemd) of the state of the instance: sd_notify(3), a datagram to the socket it names.

Law: jobs must not find the socket in their environment, or any of them could report that the instance is ready.
"""

from __future__ import annotations

import os
import socket

VARIABLE = "NOTIFY_SOCKET"


class ServiceManager:
    """The service manager that started this process, if there is one."""

    def __init__(self, address: str | None) -> None:
        self._address = address

    @classmethod
    def take(cls) -> ServiceManager:
        """The one that the environment names; it is taken out of the environment."""
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
