"""What jobs ask for and hold of every kind of resource, and what is usable, while a simulation runs.

Law: nothing is decided here, and with `enabled` false nothing is recorded.
"""

from __future__ import annotations

from fluxsched.core.jobspec import Request
from fluxsched.sched.fair.accounts import Vector
from fluxsched.sched.fair.usage import AmountCounter, summed
from fluxsched.sched.pool.placement import Fits
from fluxsched.sim.engine.site import Site
from fluxsched.sim.engine.system import System
from fluxsched.sim.results.amount_columns import AmountColumns


class AmountRecorder:
    """What `rows` jobs ask for and hold; equal ones are one object."""

    def __init__(self, site: Site, system: System, enabled: bool, rows: int) -> None:
        self.enabled = enabled
        self.amounts: AmountColumns | None = None
        self._system = system
        kinds = ("core", "gpu", *[kind for kind, _ in site.resources.counted()])
        self._counter = AmountCounter(kinds)
        self._nothing: Vector = (0,) * len(kinds)
        self._known: dict[Vector, Vector] = {}
        if enabled:
            self.amounts = AmountColumns(kinds, [self._nothing] * rows, [])
            self.changed(0.0)

    def asked(self, row: int, request: Request) -> None:
        """The least that a job asks for."""
        assert self.amounts is not None
        vector = self._counter.of_request(request)
        self.amounts.of_row[row] = self._known.setdefault(vector, vector)

    def held(self, row: int, fit: Fits) -> None:
        """What it got."""
        assert self.amounts is not None
        vector = self._counter.of_blocks(fit.blocks)
        self.amounts.of_row[row] = self._known.setdefault(vector, vector)

    def changed(self, now_s: float) -> None:
        """Other targets may be usable from now on."""
        if self.amounts is not None:
            resources = self._system.module.resources
            usable = self._counter.of_targets(resources, self._system.usable())
            vector = summed((usable, self._counter.of_amounts(resources.shared)), len(self._nothing))
            self.amounts.capacity.append((now_s, vector))
