"""Two real instances: `here` has the other as cluster `east`, whose queue is `far`."""

from __future__ import annotations

import asyncio
from functools import partial
from math import inf

import pytest

from fluxsched.clusters.links import ClusterPace
from fluxsched.core.jobspec import Jobspec
from tests.site import children_are_forked, eventually, timed, world

CONFIG = """
[queues.near]
group = "default"
[queues.far]
group = "east"
[policy.jobspec.defaults.system]
queue = "far"
[[scheduler]]
policy = "easy"
groups = [{groups}]
[[cluster]]
name = "east"
uri = "{uri}"
{more}
"""

BOTH = """
[queues.both]
groups = ["east", "default"]
"""
"""More configuration: a queue whose jobs run here or there."""


def job(*command, **options):
    """A jobspec for the queue `far`."""
    return Jobspec.from_command(list(command) or ["true"], **options).to_json()


class Pair:
    """The two, with a client of each."""

    def __init__(self, world):
        self.world = world
        self.pace = ClusterPace()

    async def begin(self, fake="4x4", more="", **options):
        self.there = await self.world.instance(fake=fake, schedulers=("easy",))
        self.far = self.world.second(self.there)
        await self.open(self.there.uri, more, **options)
        return self

    async def open(self, uri, more="", groups='"default", "east"', **options):
        config = CONFIG.format(uri=uri, more=more, groups=groups)
        self.here = await self.world.instance(fake="2x4", config=config, cluster_pace=self.pace, **options)
        self.near = self.world.second(self.here)

    async def submit(self, jobspec, urgency=16):
        return (await self.near.ok("job-manager.submit", {"jobspec": jobspec, "urgency": urgency}))["id"]

    async def wait(self, jobid):
        return await self.near.ok("job-manager.wait", {"id": jobid})

    async def jobs(self, peer):
        return (await peer.ok("job-manager.list", {}))["jobs"]

    async def info(self, jobid):
        """A job as it is listed here."""
        (found,) = [one for one in await self.jobs(self.near) if one["id"] == jobid]
        return found

    async def until(self, condition):
        async with asyncio.timeout(60):
            while not (found := await condition()):
                await asyncio.sleep(0.005)
        return found

    async def running(self, peer, count=1):
        async def are_running():
            found = [one for one in await self.jobs(peer) if one["state"] == "RUN" and one.get("t_run")]
            return found if len(found) == count else None

        return await self.until(are_running)

    async def granted(self, jobid):
        """Wait until the job has its targets here, and its lease is on disk, whether it has begun there or not."""

        async def has_lease():
            return self._loop.table.of_job(jobid) is not None

        await self.until(has_lease)

    async def begun(self):
        """Wait until the job of one lease is known to run there."""

        async def has_begun():
            return (await self.cluster())["leases"]["running"] == 1

        await self.until(has_begun)

    async def fall_silent(self):
        """Close the other instance's sockets, and wait until that is known here."""
        for server in self.there.servers:
            server.close()

        async def is_silent():
            return (await self.cluster())["state"] == "silent"

        await self.until(is_silent)

    def make_late(self):
        """Have what was not begun there be returned, as after `return-after`."""
        loop = self._loop
        self.here.turns.post(lambda: loop.perform(loop.table.expire(inf)))

    def forget_returned(self):
        """The same for the pause after that."""
        offered = self._loop.offered
        for one in list(offered._returned):
            self.here.turns.post(partial(offered._forget, one))

    @property
    def _loop(self):
        return self.here._parts.clusters._loops["east"]

    async def cluster(self):
        (found,) = (await self.near.ok("cluster.list"))["clusters"]
        return found


@pytest.fixture
async def pair(world):
    return Pair(world)
