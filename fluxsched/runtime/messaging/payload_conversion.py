"""Where messages of other dialects and other users become the router's own: who asks, and JSON in and out.

Law: inside, payloads are msgpack, and userid and rolemask of a request are what the transport knows, not what it says.
"""

from __future__ import annotations

from fluxsched.protocol.framing import codec
from fluxsched.protocol.framing.header import RESPONSE, ROLE_NONE, ROLE_OWNER, USERID_UNKNOWN, Message
from fluxsched.runtime.messaging.peers import Peer


def hear(peer: Peer, message: Message) -> None:
    """Note who asks, and turn what a local peer says in JSON. Raises RemoteProtocolError if it is none.

    A local owner may ask as somebody else (RFC 12), and Flux's tests do.
    """
    may_pretend = peer.json and peer.rolemask & ROLE_OWNER
    if not may_pretend or message.userid == USERID_UNKNOWN:
        message.userid = peer.userid
    if not may_pretend or message.rolemask == ROLE_NONE:
        message.rolemask = peer.rolemask
    if peer.json and message.payload is not None:
        message.payload = codec.from_local(message.payload)


def speak(peer: Peer, message: Message) -> None:
    """Turn what a local peer is told into JSON. The payload of an error is text, which is no JSON anywhere."""
    if peer.json and message.payload is not None:
        is_text = message.type == RESPONSE and message.errnum
        message.payload = message.payload + b"\0" if is_text else codec.to_local(message.payload)
