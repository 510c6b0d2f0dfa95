"""Connections to other instances in the real world."""

from __future__ import annotations

from fluxsched.runtime.access.own_key import key_for
from fluxsched.transport.base import Client
from fluxsched.transport.stream import connect_local
from fluxsched.transport.zeromq import ZmqClient


def connect_to(uri: str, key: str | None) -> Client:
    """OpenClient to an instance, with the key in a file where its address names the key of a server.

    Raises FluxschedError if nothing listens there, or there is no such key.
    """
    if uri.startswith("local://"):
        return connect_local(uri)
    return ZmqClient(uri, keys=key_for(uri, key))
