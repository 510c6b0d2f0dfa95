"""A scheduler service on one address: its methods, its limits, its start and its end.

Law: nothing is stored. A service that ends, in order or not, leaves resource managers to register with the next one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import grpc

from fluxsched.adapters.si.machine.machine import SIMachine
from fluxsched.adapters.si.messages import MESSAGE_BYTES_MAX
from fluxsched.adapters.si.service.calls import ServiceCalls
from fluxsched.adapters.si.service.status import CallEnd
from fluxsched.adapters.si.service.streams import UpdateStreams
from fluxsched.adapters.si.service.turns import TurnLoop
from fluxsched.adapters.si.wire.address import Address
from fluxsched.adapters.si.wire.certificates import ServerCertificates
from fluxsched.errors import Refused

CALLS_MAX = 2048
"""Calls at a time: the streams of all resource managers, and twice as many others."""

STOP_S: Final = 2.0
"""Time within which calls have to end when the service does (seconds)."""

OPTIONS: Final = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", -1),  # the state of a large service is one message
    ("grpc.so_reuseport", 0),  # two services on one port would share it in silence
    ("grpc.keepalive_time_ms", 20_000),  # the loss of a machine is noticed, not only that of a process
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
)

STOPPING: Final = CallEnd(grpc.StatusCode.UNAVAILABLE, "the scheduler service is stopping: register with the next one")


class Service:
    """A scheduler service, started and stopped; `clock_s` gives the wall time (seconds)."""

    def __init__(self, machine: SIMachine, clock_s: Callable[[], float]) -> None:
        self._turns = TurnLoop(machine, clock_s)
        self._calls = ServiceCalls(self._turns)
        self._streams = UpdateStreams(self._turns)
        self._server: Any = None

    async def start(self, address: Address, certificates: ServerCertificates | None) -> Address:
        """Returns the address with the port that the system chose. Raises Refused."""
        server = grpc.aio.server(options=OPTIONS, maximum_concurrent_rpcs=CALLS_MAX)
        server.add_generic_rpc_handlers((_Handlers(self._calls.handlers() | self._streams.handlers()),))
        try:
            if certificates is None:
                port = server.add_insecure_port(str(address))
            else:
                port = server.add_secure_port(str(address), certificates.credentials())
        except RuntimeError:
            raise Refused(f"cannot listen at {address}: it is in use, or not an address of this machine") from None
        await server.start()
        self._server = server
        return address if address.path is not None else address._replace(port=port)

    async def run(self) -> None:
        """Turns until canceled, then the end of all calls."""
        try:
            await self._turns.run()
        finally:
            self._streams.end_all(STOPPING)
            await self._server.stop(STOP_S)


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]
    """The methods of both services, by their paths."""

    def __init__(self, by_path: dict[str, Any]) -> None:
        self._by_path = by_path

    def service(self, handler_call_details: Any) -> Any:
        return self._by_path.get(handler_call_details.method)
