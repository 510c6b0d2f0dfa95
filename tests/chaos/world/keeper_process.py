"""Keepers as simulated processes: the real service, in front of simulated tasks, which outlive it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random

from fluxsched.executor.base import Reports
from fluxsched.executor.keeper import KeeperOutside, KeeperService
from fluxsched.system.loop import Turns
from fluxsched.transport.base import Client
from tests.chaos.world.pair import PairEnd, pair
from tests.chaos.world.processes import Process
from tests.chaos.world.tasks import SimExecutor, Tasks


class SimKeeper:
    """One keeper."""

    def __init__(self, process: Process, tasks: Tasks, noted: Callable[[str, Exception], None]) -> None:
        self.process = process
        turns = self._turns = Turns(
            process.clock, lambda exc: process.end(f"failed: {type(exc).__name__}: {exc}"), noted
        )

        def executor(reports: Reports) -> SimExecutor:
            return SimExecutor(tasks, process, turns, reports)

        def clear(records: Mapping[int, object], cleared: Callable[[dict[int, str]], None]) -> None:
            process.effect()
            tasks.clear(sorted(records), lambda notes: process.run(lambda: turns.post(lambda: cleared(notes))))

        outside = KeeperOutside(executor, clear, lambda: None, self._ended, process.pid)
        self.service = KeeperService(turns, outside)
        turns.start(process.loop)

    def attend(self, end: PairEnd) -> None:
        """An instance has connected."""
        self._turns.attach(end.start)
        self.service.attend(end)

    def _ended(self, is_gone: bool) -> None:
        self.service.close()
        self.process.end("the instance is gone" if is_gone else "nothing is left to do")


class Keepers:
    """All keepers of a world; `start` starts one more."""

    def __init__(self, start: Callable[[], SimKeeper], chance: Random) -> None:
        self.all: list[SimKeeper] = []
        self.chance = chance
        self._start = start

    def start(self) -> SimKeeper:
        """A new one."""
        keeper = self._start()
        self.all.append(keeper)
        return keeper


class SimKeeperHost:
    """A `KeeperHost` of one instance."""

    def __init__(self, instance: Process, keepers: Keepers) -> None:
        self._instance = instance
        self._keepers = keepers

    def living(self) -> Sequence[PairEnd]:
        """See `KeeperHost.living`."""
        return [self._connect(keeper) for keeper in self._keepers.all if keeper.process.is_alive]

    def start(self) -> PairEnd:
        """See `KeeperHost.start`."""
        self._instance.effect()
        return self._connect(self._keepers.start())

    def end_keeper(self, client: Client, timeout_s: float) -> None:
        """See `KeeperHost.end`: a simulated instance does not wait."""
        assert isinstance(client, PairEnd)
        if client.other is not None:
            client.other.process.end("killed by the instance")

    def _connect(self, keeper: SimKeeper) -> PairEnd:
        ours, theirs = pair(self._instance, keeper.process, self._keepers.chance)
        keeper.process.run(lambda: keeper.attend(theirs))
        return ours
