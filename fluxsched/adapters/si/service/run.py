"""`si serve`: a service from its start to its end by a signal."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

from fluxsched.adapters.si.assembly import make_machine, wall_clock
from fluxsched.adapters.si.machine.machine import SIMachine
from fluxsched.adapters.si.service.server import Service
from fluxsched.adapters.si.service.socket import local_socket
from fluxsched.adapters.si.service.turns import log
from fluxsched.adapters.si.wire.address import Address
from fluxsched.adapters.si.wire.certificates import ServerCertificates
from fluxsched.system.log import setup
from fluxsched.system.processes import settle


def machine_of(groups: Path | None, plugins: Sequence[str]) -> SIMachine:
    """Return a machine for this host, with these plugins. Raises InvalidValue for one that cannot be used."""
    return make_machine(groups, plugins=plugins)


async def serve(
    machine: SIMachine,
    address: Address,
    certificates: ServerCertificates | None,
    verbose: int,
    ready: Callable[[Address], None],
) -> None:
    """Serves until a signal; `ready` is given the address as soon as it is served. Raises Refused."""
    setup(None, verbose)
    stopped = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(signum, stopped.set)
    service = Service(machine, wall_clock())
    with contextlib.nullcontext() if address.path is None else local_socket(address.path):
        bound = await service.start(address, certificates)
        settle()
        ready(bound)
        if bound.path is None and certificates is None:
            log.warning("any process of this machine can reach %s and schedule there", bound)
        running = asyncio.create_task(service.run())
        stopping = asyncio.create_task(stopped.wait())
        await asyncio.wait([running, stopping], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running  # raises what ended it, if that was no signal
