"""A load from beginning to end, and what it says."""

from __future__ import annotations

import asyncio
from typing import Any

from fluxsched.adapters.si.load.messages_made import Load
from fluxsched.adapters.si.load.run import Measured, put
from fluxsched.adapters.si.wire.address import Address
from fluxsched.adapters.si.wire.certificates import ClientCertificates
from fluxsched.adapters.si.wire.rm_client import RMClient
from fluxsched.system.clock import SystemClock


def measure(
    address: Address, certificates: ClientCertificates | None, load: Load, rate: float, limit_s: float
) -> Measured:
    """Put a load on the service at an address (see `run.put`)."""

    async def run() -> Measured:
        return await put(RMClient(address, certificates), load, SystemClock.monotonic_s, rate, limit_s)

    return asyncio.run(run())


def table(measured: Measured) -> dict[str, Any]:
    """The figures by name, for programs."""
    return {
        "nodes": measured.load.nodes,
        "nodes_s": measured.nodes_s,
        "nodes_per_s": measured.nodes_per_s,
        "asks": measured.load.asks,
        "allocated": measured.allocated,
        "allocations_s": measured.allocations_s,
        "allocations_per_s": measured.allocations_per_s,
        "p50_s": measured.latency_s(0.5),
        "p99_s": measured.latency_s(0.99),
        "longest_s": measured.latency_s(1.0),
    }


def report(measured: Measured) -> str:
    """Return the figures as text for people."""
    load = measured.load
    p50, p99, longest = (1000 * measured.latency_s(share) for share in (0.5, 0.99, 1.0))
    return (
        f"{load.nodes:,} nodes accepted in {measured.nodes_s:.3f} s: {measured.nodes_per_s:,.0f} a second\n"
        f"{measured.allocated:,} of {load.asks:,} asks allocated in {measured.allocations_s:.3f} s: "
        f"{measured.allocations_per_s:,.0f} a second\n"
        f"ask to allocation: p50 {p50:.1f} ms, p99 {p99:.1f} ms, longest {longest:.1f} ms"
    )
