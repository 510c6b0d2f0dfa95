"""Converts requests of other dialects and other users to the router's own form: credentials, and JSON in and out.

Law: inside, payloads are msgpack, and userid and rolemask of a request are what the transport verified, not what the
message claims.
"""

from __future__ import annotations

from fluxsched.errors import RemoteProtocolError
from fluxsched.protocol.framing import codec
from fluxsched.protocol.framing.header import RESPONSE, ROLE_NONE, ROLE_OWNER, USERID_UNKNOWN, Message
from fluxsched.runtime.messaging.peers import Peer


def convert_request(peer: Peer, message: Message) -> None:
    """Set the credentials, and convert a local peer's JSON. Raises RemoteProtocolError if it is not JSON.

    A local owner may act as another user (RFC 12), and Flux's tests do.
    """
    may_pretend = peer.json and peer.rolemask & ROLE_OWNER
    if not may_pretend or message.userid == USERID_UNKNOWN:
        message.userid = peer.userid
    if not may_pretend or message.rolemask == ROLE_NONE:
        message.rolemask = peer.rolemask
    if peer.json and message.payload is not None:
        message.payload = codec.from_local(message.payload)


def convert_outgoing(peer: Peer, message: Message) -> None:
    """Convert what is sent to a local peer into JSON. The payload of an error is plain text in every dialect.

    What another peer answered in our place may have no form in JSON: the answer is then an error that says so.
    """
    if not peer.json or message.payload is None:
        return
    if not (message.type == RESPONSE and message.errnum):
        try:
            message.payload = codec.to_local(message.payload)
            return
        except RemoteProtocolError as exc:
            message.aux1, message.payload = exc.errnum, f"{message.topic}: its service answered: {exc}".encode()
    message.payload += b"\0"
