"""Waiting for a condition of the instance, checked once a turn; for start and shutdown only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from fluxsched.runtime.loop.store import Store
from fluxsched.runtime.loop.turns import Turns
from fluxsched.runtime.services.jobs.effects import JobEffects
from fluxsched.runtime.services.modules.service import TERMINATE_S, ModuleService

CHECK_S = 0.005
"""How often a condition is looked at (seconds)."""
KILLED_S = 1.0
"""How long a module that has to be killed may take to be gone (seconds)."""
END_JOBS_S = 15.0
"""How long a shutdown waits for running jobs to be killed and their end to be stored (seconds)."""


async def until(turns: Turns, condition: Callable[[], bool], timeout_s: float | None = None) -> bool:
    """Whether `condition` came true within `timeout_s` (None: no limit)."""
    begin_s = turns.clock.monotonic_s()
    while not condition():
        if timeout_s is not None and turns.clock.monotonic_s() - begin_s > timeout_s:
            return False
        await asyncio.sleep(CHECK_S)
    return True


async def end_jobs(effects: JobEffects, store: Store, is_out_of_reach: Callable[[int], bool]) -> None:
    """Raise a fatal exception on every job with resources; wait until all are inactive and stored, but for those that
    are out of reach.
    """
    manager, turns = effects.manager, effects.turns

    def holding() -> list[int]:
        return [jobid for jobid, job in manager.jobs.active.items() if job.held]

    turns.post(lambda: effects.raise_jobs(holding(), "the instance is shutting down"))
    await until(turns, lambda: all(map(is_out_of_reach, holding())), END_JOBS_S)
    stored = asyncio.Event()
    turns.post(lambda: store.after_commit(stored.set))
    await until(turns, lambda: stored.is_set() or store.fault is not None, END_JOBS_S)


async def end_modules(modules: ModuleService, turns: Turns) -> None:
    """Ask all schedulers to leave, answer what they want kept, and end those that do not go."""
    turns.post(modules.terminate)
    await until(turns, lambda: modules.are_terminated and not modules.are_running, TERMINATE_S + KILLED_S)
    modules.close()
