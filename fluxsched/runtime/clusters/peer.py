"""Connections to other instances in the real world.

Law: an instance on this machine that is started again on its state directory is found where it is then, since its own
socket has another name each time; any other is looked for at its address.
"""

from __future__ import annotations

from typing import Any

from fluxsched.runtime.access.own_key import key_for
from fluxsched.runtime.client.coming_back import written_at
from fluxsched.runtime.system.live_instances import live_instances
from fluxsched.transport.base import Client
from fluxsched.transport.stream import connect_local
from fluxsched.transport.zeromq import ZmqClient

LOST_AFTER_MS = 3_000
"""How long nothing may come, heartbeats included, before a connection over tcp counts as lost (milliseconds)."""


class PeerConnector:
    """Connects, and remembers what the instances wrote of themselves."""

    def __init__(self) -> None:
        self._written: dict[str, dict[str, Any]] = {}
        """By the address that is configured."""

    def connect(self, uri: str, key: str | None) -> Client:
        """Connect to an instance, with the key in a file where its address names the key of a server.

        Raises FluxschedError if nothing listens there, or there is no such key.
        """
        if uri.startswith("local://"):
            return connect_local(uri)
        place = self._place(uri)
        client = ZmqClient(place, keys=key_for(place, key), lost_after_ms=LOST_AFTER_MS)
        if (written := written_at(place)) is not None:
            self._written[uri] = written
        return client

    def _place(self, uri: str) -> str:
        """Where the instance is now."""
        statedir = self._written.get(uri, {}).get("statedir")
        if statedir is None:
            return uri
        return next((str(one["uri"]) for one in live_instances() if one.get("statedir") == statedir), uri)
