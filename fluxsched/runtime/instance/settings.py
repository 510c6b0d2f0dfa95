"""What an instance is made of: all that its starter has decided."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from fluxsched.protocol.framing.header import Message
from fluxsched.runtime.client.enclosing import Enclosing, Parent
from fluxsched.runtime.config.reader import Config
from fluxsched.runtime.config.values import SchedulerSettings
from fluxsched.runtime.instance.parts.reloading import Read, TryImports
from fluxsched.runtime.instance.parts.restarting import HandedOver
from fluxsched.runtime.inventory.sources import Sources
from fluxsched.runtime.system.clock import Clock, SystemClock
from fluxsched.runtime.system.logs.format import TEXT
from fluxsched.transport.base import Server

READY_S = 60.0
"""How long an embedded instance may take to be ready (seconds): importing a policy may take half of it."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What an instance is made of."""

    sources: Sources
    reload: Read
    config: Config = field(default_factory=Config)
    statedir: Path | None = None
    salvage: bool = False
    """Start on what can be read of a damaged state, though something is lost."""
    enclosing: Enclosing | None = None
    """The job that gave the resources, if one did."""
    parent: Parent | None = None
    """The instance that this one is inside of."""
    schedulers: tuple[SchedulerSettings, ...] = (SchedulerSettings("fifo"),)
    """The scheduler modules to load."""
    bind: tuple[str, ...] = ()
    """Further endpoints (loopback tcp, local sockets)."""
    insecure_tcp: bool = False
    """tcp endpoints may be bound, where every account of the machine is taken for the owner."""
    try_imports: TryImports | None = None
    """Tries the policies of the configuration that a reload would read; None: they are taken as they are."""
    verbose: int = 0
    log_format: str = TEXT
    trace: Callable[[str, Message], None] | None = None
    clock: Clock = field(default_factory=SystemClock)
    handed: HandedOver | None = None
    """What this instance has handed over to itself, if it restarts."""
    check_start: Callable[[], object] = lambda: None
    """Reads all again that a start reads. Raises FluxschedError if it would fail."""
    ready_within_s: float | None = READY_S
    """How long it may take to be ready once it is entered; None: no limit."""
    servers: tuple[Server, ...] = ()
    """Ready-made transports instead of the ipc socket (in-memory ones for tests)."""
