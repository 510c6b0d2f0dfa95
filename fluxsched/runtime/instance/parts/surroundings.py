"""All that the services of an instance get from the outside world: a value, so that a simulation can make another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fluxsched.errors import FluxschedError
from fluxsched.runtime.access.access import Access
from fluxsched.runtime.access.keyring import ReadKeys
from fluxsched.runtime.clusters.loop import OpenClient
from fluxsched.runtime.clusters.peer import connect_peer
from fluxsched.runtime.exec.base import Executor, Reports
from fluxsched.runtime.instance.stored_state import StateNotice
from fluxsched.runtime.loop.store import Store
from fluxsched.runtime.loop.turns import Turns
from fluxsched.runtime.loop.writer import ImmediateWriter, Writer
from fluxsched.runtime.services.modules.starter import StartModule
from fluxsched.transport.base import Server


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Where an instance runs, and what it acts through."""

    turns: Turns
    """With the clock; not started yet."""
    store: Store
    servers: Sequence[Server]
    """Where clients come in; the first one's endpoint is the instance's URI."""
    start_module: StartModule
    executors: Callable[[Reports], dict[str, Executor]]
    """Makes the executors by name, given what they report to."""
    run_directory: Path
    spool: Path
    """What tasks print is kept there."""
    disk_shortage: Callable[[], str | None]
    """Why nothing new can be stored for lack of room; None if it can."""
    memory_enforced: Callable[[], str | None]
    """How jobs are held to the memory they asked for."""
    environment: Mapping[str, str]
    """What tasks are given to find the instance."""
    generator_id: int
    """That of job ids (RFC 19)."""
    pid: int
    started_s: float
    """Wall time."""
    ended: asyncio.Future[FluxschedError | None]
    """Completes when the instance is to end: with None, or with the error that ends it."""
    background: Writer = field(default_factory=ImmediateWriter)
    """Where what jobs have printed is removed."""
    state_notice: StateNotice = field(default_factory=StateNotice)
    """What the user is to be told of the stored state: that it was damaged, and what was lost."""
    access: Access = field(default_factory=Access)
    """Who may connect, as whom."""
    read_keys: ReadKeys | None = None
    """Reads the authorized keys again, where a port asks for keys. Raises InvalidValue with all faults."""
    connect: OpenClient = connect_peer
    """Connects to another instance."""
    connecting: Writer = field(default_factory=ImmediateWriter)
    """Runs what may take seconds, such as `connect` or the import of a policy, outside of turns."""
    restart: Callable[[], None] | None = None
    """Has the instance end and start again in place; None where that cannot be."""
