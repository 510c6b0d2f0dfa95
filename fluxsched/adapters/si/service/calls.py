"""The calls of both services: each decodes, hands over, and reports how it ended. UpdateStreams are in streams.py.

Law: requests arrive as bytes and are decoded here, so that what cannot be decoded is its sender's fault and in no log.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from fluxsched.adapters.si import messages
from fluxsched.adapters.si.service.connections import Watcher
from fluxsched.adapters.si.service.status import end_of
from fluxsched.adapters.si.service.turns import TurnLoop, log
from fluxsched.adapters.si.shown import shown
from fluxsched.adapters.si.wire.methods import EXTRA, SCHEDULER, Method
from fluxsched.errors import FluxschedError, InvalidValue, Refused


def decode(shape: Any, data: bytes) -> Any:
    """A message of a class. Raises InvalidValue; what the bytes were is not repeated, it may be a secret."""
    try:
        request = shape.FromString(data)
        if log.isEnabledFor(logging.DEBUG):
            log.debug("%s", shown(request))
        return request
    except DecodeError:
        raise InvalidValue(f"{len(data)} bytes are no {shape.DESCRIPTOR.full_name}: send a whole message") from None


def identity_of(context: Any) -> str | None:
    """A digest of the certificate that the other side has shown, or None."""
    certificates = context.auth_context().get("x509_pem_cert")
    return hashlib.sha256(certificates[0]).hexdigest() if certificates else None


def check_identity(turns: TurnLoop, rm_id: str, context: Any) -> None:
    """Raises Refused: not registered (ENOENT), or with another certificate (EPERM)."""
    if turns.machine.identity_of(rm_id) != identity_of(context):
        raise Refused(f"resource manager {rm_id!r} was registered with another certificate", errno.EPERM)


class ServiceCalls:
    """Handlers of unary calls, and of Watch."""

    def __init__(self, turns: TurnLoop) -> None:
        self._turns = turns

    def handlers(self) -> dict[str, Any]:
        """By the path of the RPC."""
        unary = {
            SCHEDULER["RegisterResourceManager"]: self._register,
            EXTRA["UpdateConfiguration"]: self._update_configuration,
            EXTRA["StateDump"]: self._state_dump,
        }
        made = {method.path: grpc.unary_unary_rpc_method_handler(_unary(method, do)) for method, do in unary.items()}
        return made | {EXTRA["Watch"].path: grpc.unary_stream_rpc_method_handler(self._watch)}

    async def _register(self, request: Any, context: Any) -> Any:
        await asyncio.to_thread(self._turns.machine.read_ahead, request)
        self._turns.machine.register(request, self._turns.clock_s(), identity_of(context))
        self._turns.begin_anew(request.rmID)
        log.info("resource manager %r registered, policy group %r", request.rmID, request.policyGroup)
        await self._turns.turned()  # only then may new streams come: the end of the old ones is behind us
        return messages.RegisterResourceManagerResponse()

    async def _update_configuration(self, request: Any, context: Any) -> Any:
        check_identity(self._turns, request.rmID, context)
        await asyncio.to_thread(self._turns.machine.read_ahead, request)
        self._turns.machine.update_configuration(request, self._turns.clock_s())
        log.info("resource manager %r gave policy group %r another configuration", request.rmID, request.policyGroup)
        await self._turns.turned()
        return messages.UpdateConfigurationResponse()

    async def _state_dump(self, request: Any, context: Any) -> Any:
        await self._turns.turned()
        return messages.StateDumpResponse(json=json.dumps(self._turns.machine.state_dump(request.rmID or None)))

    async def _watch(self, data: bytes, context: Any) -> None:
        try:
            request = decode(EXTRA["Watch"].request, data)
            check_identity(self._turns, request.rmID, context)
        except FluxschedError as fault:
            await context.abort(*end_of(fault))
        watcher = Watcher(asyncio.get_running_loop().create_future())
        watchers = self._turns.connection(request.rmID).watchers
        watchers.add(watcher)
        self._turns.machine.observe(request.rmID, True)
        await context.send_initial_metadata(())  # from here on it sees all
        writing = asyncio.create_task(_write_observed(watcher, context))
        try:
            end = await watcher.ending
        finally:
            writing.cancel()
            watchers.discard(watcher)
            if not watchers and self._turns.machine.is_registered(request.rmID):
                self._turns.machine.observe(request.rmID, False)
        await context.abort(*end)


def _unary(method: Method, do: Callable[[Any, Any], Awaitable[Any]]) -> Callable[[bytes, Any], Awaitable[bytes]]:
    async def handle(data: bytes, context: Any) -> bytes:
        try:
            response = await do(decode(method.request, data), context)
        except FluxschedError as fault:
            await context.abort(*end_of(fault))
        return bytes(response.SerializeToString())

    return handle


async def _write_observed(watcher: Watcher, context: Any) -> None:
    while True:
        while watcher.observed:
            observed = watcher.take()
            response = messages.WatchResponse(events=observed.events, states=observed.states)
            await context.write(response.SerializeToString())
        watcher.changed.clear()
        await watcher.changed.wait()
