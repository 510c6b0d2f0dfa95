"""A policy preempts in a real instance: by an exception of its scheduler, which ends the job and frees its place."""

from __future__ import annotations

from typing import Any

import pytest

POLICY = '''
from fluxsched.sched.policies.fifo import Fifo
from fluxsched.sched.policy import Preempt

class Eager(Fifo):
    """Preempts whatever it may for the first that waits."""
    name = "eager"
    def schedule(self, view, now_s):
        yield from super().schedule(view, now_s)
        if view.first is not None:
            for job in list(view.running):
                yield Preempt(job.jobid, view.first.jobid, "account b uses 0 of its share 4")
'''


@pytest.mark.parametrize("reload", [False, True])
async def test_a_victim_ends_with_an_exception_and_its_place_goes_to_the_beneficiary(
    world: Any, timed: Any, reload: bool
) -> None:
    """After a reload the scheduler knows by its jobspec that the job may be preempted."""
    site = await world.instance(fake="1x1", schedulers=(str(world.write("eager.py", POLICY)),))
    peer = world.second(site)
    victim = timed("60s").to_json()
    victim["attributes"]["system"]["preemptible-after"] = 0
    first = (await peer.ok("job-manager.submit", {"jobspec": victim}))["id"]
    log = peer.open("job-manager.eventlog", {"id": first, "follow": True})
    names = list[str]()
    while "start" not in names:
        names += [event["name"] for event in (await peer.next(log)).payload["events"]]
    if reload:
        await peer.ok("module.reload", {"name": "sched-eager"})
    second = (await peer.ok("job-manager.submit", {"jobspec": timed("1ms").to_json()}))["id"]
    ended = await peer.ok("job-manager.wait", {"id": first})
    assert (ended["success"], ended["exception_type"]) == (False, "preempt")
    assert ended["exception_note"].startswith("preempted so that job ")
    assert ended["exception_note"].endswith(": account b uses 0 of its share 4")
    assert (await peer.ok("job-manager.wait", {"id": second}))["success"] is True


async def test_a_job_that_has_not_allowed_it_is_left_alone(world: Any, timed: Any) -> None:
    site = await world.instance(fake="1x1", schedulers=(str(world.write("eager.py", POLICY)),))
    peer = world.second(site)
    first = (await peer.ok("job-manager.submit", {"jobspec": timed("200ms").to_json()}))["id"]
    second = (await peer.ok("job-manager.submit", {"jobspec": timed("1ms").to_json()}))["id"]
    for jobid in (first, second):
        assert (await peer.ok("job-manager.wait", {"id": jobid}))["success"] is True
