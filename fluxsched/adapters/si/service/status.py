"""Mapping of our errors to gRPC statuses."""

from __future__ import annotations

import errno
from typing import Final, NamedTuple
from urllib.parse import quote

import grpc

from fluxsched.errors import FluxschedError, InvalidValue, Refused


class CallEnd(NamedTuple):
    """End of a call: a status and a text."""

    code: grpc.StatusCode
    detail: str = ""


DONE: Final = CallEnd(grpc.StatusCode.OK)

_BY_ERRNO: Final = {
    errno.EPERM: grpc.StatusCode.PERMISSION_DENIED,
    errno.ENOENT: grpc.StatusCode.FAILED_PRECONDITION,
    errno.EAGAIN: grpc.StatusCode.RESOURCE_EXHAUSTED,
}


DETAIL_BYTES_MAX: Final = 4000
"""A status travels in the trailers of HTTP/2, of which clients take 8 KiB, and what is not ASCII there triples."""


def end_of(fault: FluxschedError) -> CallEnd:
    """Return the end of a call for an error: its value is invalid, or a state stands against the request."""
    detail = _shortened(str(fault))
    if isinstance(fault, InvalidValue):
        return CallEnd(grpc.StatusCode.INVALID_ARGUMENT, detail)
    code = _BY_ERRNO.get(fault.errnum) if isinstance(fault, Refused) else None
    return CallEnd(code or grpc.StatusCode.FAILED_PRECONDITION, detail)


def _shortened(text: str) -> str:
    size = len(quote(text))
    if size <= DETAIL_BYTES_MAX:
        return text
    kept = text
    while len(quote(kept)) > DETAIL_BYTES_MAX:
        kept = kept[: len(kept) * 3 // 4]
    return f"{kept} ... ({len(text) - len(kept)} more characters)"
