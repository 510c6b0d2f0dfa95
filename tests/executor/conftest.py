"""An executor for tests of it, and keepers that a test plays."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fluxsched.core.idset import Idset
from fluxsched.core.jobspec import Jobspec
from fluxsched.executor.base import JobLaunch, Reports, TaskSettings, spool_directory
from fluxsched.executor.kept_directories import KeptDirectories
from fluxsched.executor.local import LocalExecutor
from fluxsched.executor.proxy import KeeperLimits
from fluxsched.executor.tasks import reserved_descriptors
from fluxsched.executor.wire import PmiFence
from fluxsched.system.clock import SystemClock
from fluxsched.system.loop import Turns
from tests.executor.played import Bench
from tests.site import children_are_forked, eventually, timed, world
from tests.users import ann, bob, homes
from tests.waiting import until

GRACE_S = 0.1
"""How long a job of `shop` may take to end when it is asked to."""


class Shop:
    """An executor, what it reports, and a store that commits when it is told to (at once, unless `held`)."""

    def __init__(self, directory: Path, **kept: KeptDirectories) -> None:
        self.spool, self.scratch = directory / "spool", None
        self.turns = Turns(SystemClock())
        self.said: list[tuple[Any, ...]] = []
        self.records: dict[int, Any] = {}
        self.held: list[Callable[[], None]] | None = None
        reports = Reports(
            lambda jobid: self.said.append(("started", jobid)),
            lambda jobid, status, usage: self.said.append(("finished", jobid, status, usage)),
            lambda jobid, note: self.said.append(("failed", jobid, note)),
            self._record,
            lambda jobid, kind, note: self.said.append(("raised", jobid, kind, note)),
            released=lambda jobid, ranks: self.said.append(("released", jobid, str(ranks))),
            fence=lambda one: self.fence(one),
        )
        self.executor = LocalExecutor(self.turns, reports, GRACE_S, **kept)
        self.turns.start(asyncio.get_running_loop())

    def fence(self, one: PmiFence) -> None:
        """There is no other host."""

    def _record(self, jobid: int, record: object | None, then: Callable[[], None] | None) -> None:
        self.records[jobid] = record
        if record is None:
            del self.records[jobid]
        if then is not None:
            self.turns.post(then) if self.held is None else self.held.append(then)

    def commit(self) -> None:
        held, self.held = self.held, None
        for then in held or ():
            self.turns.post(then)

    def start(self, command: list[str] | str, jobid: int = 1, **options: Any) -> None:
        words = ["sh", "-c", command] if isinstance(command, str) else command
        ntasks, ranks = options.pop("ntasks", 1), options.pop("ranks", 1)
        children = {"core": str(Idset.span(0, ntasks // ranks - 1)), **options.pop("children", {})}
        nodelist = [",".join(f"a{rank}" for rank in range(ranks))]
        some = {"nodelist": nodelist, "starttime": 0, "expiration": 0, "nslots": ntasks}
        execution = {"R_lite": [{"rank": str(Idset.span(0, ranks - 1)), "children": children}], **some}
        cores, extra = options.pop("cores", None), options.pop("extra", {})
        pmi, own, userid = options.pop("pmi", None), options.pop("own", None), options.pop("userid", None)
        templates = options.pop("templates", {})
        jobspec = replace(Jobspec.from_command(words, ntasks=ntasks, **options), pmi=pmi, templates=templates)
        resources = {"version": 1, "execution": execution}
        settings = TaskSettings(extra, self.spool, cores, self.scratch)
        self.executor.start(JobLaunch(jobid, jobspec, resources, settings, ranks=own, userid=userid))

    until = staticmethod(until)

    async def finished(self, jobid: int = 1) -> int:
        """The wait status, after a look at the order of the reports."""
        await self.until(lambda: any(word == ("finished", jobid) for word in [said[:2] for said in self.said]))
        mine = [said for said in self.said if said[1] == jobid and said[0] != "released"]
        assert [said[0] for said in mine] == ["started", "finished"]
        assert jobid not in self.records, "a job that has finished is off the record"
        return int(mine[1][2])

    async def run(self, command: list[str] | str, **options: Any) -> int:
        self.start(command, **options)
        return await self.finished()

    def usage(self, jobid: int = 1) -> Any:
        return next(said[3] for said in self.said if said[:2] == ("finished", jobid))

    def text(self, stream: str = "stdout", jobid: int = 1) -> str:
        return (spool_directory(self.spool, jobid) / stream).read_text(encoding="utf-8")

    def lines(self, stream: str = "stdout", jobid: int = 1) -> list[str]:
        """Those of all tasks of a job of several."""
        files = spool_directory(self.spool, jobid).glob(f"{stream}.*")
        return sorted(line for file in files for line in file.read_text(encoding="utf-8").splitlines())


@pytest.fixture
def make_shop() -> type[Shop]:
    return Shop


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Shop]:
    shop = Shop(tmp_path)
    reserved_descriptors()  # which stay
    descriptors = os.listdir("/proc/self/fd")
    yield shop
    shop.executor.close()
    assert os.listdir("/proc/self/fd") == descriptors, "every descriptor is closed"
    shop.turns.stop()


@pytest.fixture
async def make_bench() -> AsyncIterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(limits: KeeperLimits | None = None, **options: Any) -> Bench:
        made.append(Bench(limits or KeeperLimits(), **options))
        return made[-1]

    yield make
    for bench in made:
        bench.turns.stop()


@pytest.fixture
async def bench(request: pytest.FixtureRequest, make_bench: Callable[..., Bench]) -> Bench:
    """With the limits that a test gives as an indirect parameter."""
    return make_bench(getattr(request, "param", None))
