"""Modules (schedulers as processes of their own) and the services that they register."""

from __future__ import annotations

from typing import Annotated

import msgspec

from fluxsched.protocol.messages.common import Integer, Payload, Size

HungAfter = Annotated[float, msgspec.Meta(ge=0.2)]


class ModuleLoadRequest(Payload, frozen=True):
    """Start a module: `fifo:placement=best-fit` or `./file.py:option=value`, for these groups (none: `default`).

    `restart`, `fallback` and `hung-after` (seconds, at least 0.2) say what is done about it should it fail.
    """

    spec: str
    name: str | None = None
    groups: list[str] = msgspec.field(default_factory=list)
    restart: Size | None = None
    fallback: str | None = None
    hung_after: HungAfter | None = msgspec.field(default=None, name="hung-after")


class ModuleLoadResponse(Payload, frozen=True):
    """The module runs under this name and process id."""

    name: str
    pid: Size


class ModuleRequest(Payload, frozen=True):
    """Remove, reload or ask about one module."""

    name: str


class ModuleInfo(Payload, frozen=True):
    """One module. The keys up to `recvqueue` are those of Flux (status 1: running); the others are ours."""

    name: str
    path: str
    idle: Integer
    status: Integer
    services: list[str]
    sendqueue: Size
    recvqueue: Size
    pid: Size | None = None
    groups: list[str] | None = None
    error: str | None = None


class ModuleListResponse(Payload, frozen=True):
    """All modules, built-in services among them."""

    mods: list[ModuleInfo]


class ServiceRequest(Payload, frozen=True):
    """Register or give up a service: requests for `SERVICE.*` then go to the sender (RFC 6)."""

    service: str
