"""Connection of the keeper of another host (rfc/keeper.md): what `executor.wire` has for it, in both directions."""

from __future__ import annotations

from fluxsched.protocol.messages.common import Payload, Unsigned32


class KeeperConnectRequest(Payload, frozen=True):
    """A keeper presents itself. A connection of the same host that exists is closed."""

    host: str
    """The host's name in R."""
    boot_id: str
    version: Unsigned32
    """Version of the messages that the keeper understands."""
    pid: Unsigned32


class KeeperMessages(Payload, frozen=True):
    """Some messages between a keeper and its instance, in order; opaque here."""

    messages: list[bytes]
    is_cut: bool = False
    """True if the last message goes on with the first one of the next response or request."""
