"""The simulated world as its clients see it: a connection may be refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fluxsched.errors import Disconnected
from tests.chaos.workload.user import Connection
from tests.chaos.world.world import World


class Stage:
    """A running world."""

    def __init__(self, world: World) -> None:
        self._world = world

    @property
    def now_s(self) -> float:
        """True virtual time (seconds)."""
        return self._world.now_s

    def at(self, at_s: float, call: Callable[[], None]) -> None:
        """Have `call` run at a time."""
        self._world.at(at_s, call)

    def when(self, step: str, call: Callable[[], None]) -> None:
        """Have `call` run at the next step of that kind."""
        self._world.when(step, call)

    def configure(self, outages: tuple[dict[str, Any], ...]) -> None:
        """Write these outages into the configuration file."""
        self._world.configure(outages)

    def connect(self, actor: str) -> Connection | None:
        """A connection to the instance; None while there is none."""
        try:
            return self._world.connect(actor)
        except Disconnected:
            return None
