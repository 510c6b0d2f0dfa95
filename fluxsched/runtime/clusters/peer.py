"""Connections to other instances in the real world."""

from __future__ import annotations

from fluxsched.runtime.access.own_key import key_for
from fluxsched.transport.base import Client
from fluxsched.transport.stream import connect_local
from fluxsched.transport.zeromq import ZmqClient

LOST_AFTER_MS = 3_000
"""How long nothing may come, heartbeats included, before a connection over tcp counts as lost (milliseconds)."""


def connect_peer(uri: str, key: str | None) -> Client:
    """Connect to an instance, with the key in a file where its address names the key of a server.

    Raises FluxschedError if nothing listens there, or there is no such key.
    """
    if uri.startswith("local://"):
        return connect_local(uri)
    return ZmqClient(uri, keys=key_for(uri, key), lost_after_ms=LOST_AFTER_MS)
