"""The client's side of a service: channels with or without certificates, and single calls."""

from __future__ import annotations

import errno
from typing import Any, Final

import grpc

from fluxsched.adapters.si import messages
from fluxsched.adapters.si.wire.address import Address
from fluxsched.adapters.si.wire.certificates import ClientCertificates
from fluxsched.adapters.si.wire.methods import EXTRA, Method
from fluxsched.errors import Refused

CALL_S: Final = 10.0
"""Time that a single call may take (seconds)."""

OPTIONS: Final = (
    ("grpc.enable_http_proxy", 0),  # a service is called directly, whatever the environment says
    ("grpc.max_receive_message_length", -1),  # the state of a large service is one message
)


def open_channel(address: Address, certificates: ClientCertificates | None = None) -> grpc.Channel:
    """A channel for blocking calls."""
    if certificates is None:
        return grpc.insecure_channel(str(address), OPTIONS)
    return grpc.secure_channel(str(address), certificates.credentials(), OPTIONS)


def call(channel: grpc.Channel, address: Address, method: Method, request: Any) -> Any:
    """One unary call. Raises Refused with what the service said, or that there is none."""
    stub = channel.unary_unary(
        method.path,
        request_serializer=method.request.SerializeToString,
        response_deserializer=method.response.FromString,
    )
    try:
        return stub(request, timeout=CALL_S)
    except grpc.RpcError as fault:
        raise Refused(refusal(address, fault), errno.ECONNREFUSED) from None


def refusal(address: Address, fault: Any) -> str:
    """Return the meaning of an RpcError, as text for people."""
    match fault.code():
        case grpc.StatusCode.UNAVAILABLE:
            if address.path is None:
                return (
                    f"no scheduler service answers at {address}, or not with these certificates (--cert, --key, --ca): "
                    "start one with fluxsched si serve"
                )
            return f"no scheduler service answers at {address}: start one with fluxsched si serve"
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return f"the scheduler service at {address} has not answered within {CALL_S:g} s"
        case grpc.StatusCode.UNIMPLEMENTED:
            return f"the service at {address} is not fluxsched's: it has no such call"
        case _:
            return str(fault.details())


def state_dump(address: Address, certificates: ClientCertificates | None, rm_id: str) -> str:
    """The state of one resource manager, or of all, as JSON. Raises Refused."""
    with open_channel(address, certificates) as channel:
        return str(call(channel, address, EXTRA["StateDump"], messages.StateDumpRequest(rmID=rm_id)).json)
