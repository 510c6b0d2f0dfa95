"""Effects that an instance as a resource manager has its shell carry out: values, so that a test compares lists."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias


class SendRequest(NamedTuple):
    """A message for the stream of its kind."""

    kind: str
    request: Any


class EndJob(NamedTuple):
    """End a running job by an exception of this type."""

    jobid: int
    type: str
    note: str


RMEffect: TypeAlias = SendRequest | EndJob
