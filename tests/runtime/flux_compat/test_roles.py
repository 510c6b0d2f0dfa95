"""What guests and admins get of each topic; who asks is what a local owner claims to be (RFC 12)."""

from __future__ import annotations

import errno
import os
from typing import Any

import pytest

from fluxsched.core.jobid import format_f58
from fluxsched.core.role import Role
from fluxsched.protocol.local_topics import LOCAL_TOPICS
from fluxsched.protocol.roles import COUNTS_OF_JOBS, LEAST, Scope

GUEST, ADMIN, OWNER_AS_OTHER = 6, 14, 21
ANN, BOB = os.getuid() + 1, os.getuid() + 2
SILENT = {"instance.goodbye", "agent.heartbeat"}
PRIVATE = "[[resource.config]]\nhosts = 'a'\ncores = '0-3'\n[access]\nprivate-jobs = true\n"


def become(flux: Any, userid: int, rolemask: int) -> None:
    flux.userid, flux.rolemask = userid, rolemask


JOBSPEC = {
    "version": 1, "tasks": [{"command": ["true"], "slot": "task", "count": {"per_slot": 1}}],
    "resources": [{"type": "slot", "label": "task", "count": 1, "with": [{"type": "core", "count": 1}]}],
    "attributes": {"system": {"duration": 1}},
}  # fmt: skip


async def submitted(flux: Any, userid: int) -> int:
    """A job of this user that waits, submitted by the owner on its behalf."""
    become(flux, userid, OWNER_AS_OTHER)
    return int((await flux.ok("job-manager.submit", {"jobspec": JOBSPEC}))["id"])


@pytest.fixture
async def site(world: Any, flux: Any) -> Any:
    async with type(flux)(await world.bare(fake="1x4")) as client:
        yield client


def denied(topic: str, role: Role) -> bool:
    least, scope = LEAST[topic]
    return role < least or (role is Role.GUEST and scope is Scope.OWN)


@pytest.mark.parametrize(("role", "rolemask"), [(Role.GUEST, GUEST), (Role.ADMIN, ADMIN)], ids=["guest", "admin"])
async def test_each_topic_is_refused_to_those_below_its_role_and_to_no_others(
    site: Any, role: Role, rolemask: int
) -> None:
    become(site, ANN, rolemask)
    for topic in LEAST:
        if topic in SILENT or (topic.endswith("-cancel") and not denied(topic, role)):
            continue  # these are not answered
        errnum, said = await site.ask(topic, {}) if topic not in WAITS or denied(topic, role) else (0, None)
        assert (errnum == errno.EPERM) == denied(topic, role), (topic, errnum, said)
    assert not site.instance.ended.done()


WAITS = {"job-manager.drain", "job-manager.idle", "resource.monitor-waitup", "state-machine.wait"}
"""Answered later, perhaps."""


async def test_a_guests_submission_says_whom_jobs_run_as(site: Any) -> None:
    become(site, ANN, GUEST)
    for topic in ("job-manager.submit", "job-ingest.submit"):
        errnum, text = await site.ask(topic, {"jobspec": {}, "J": "{}"})
        assert errnum == errno.EPERM
        assert "the user of the instance, whose access a job has: submitting one requires owner credentials" in text
        assert "these are of role guest" in text


OWN = {
    "job-manager.cancel": {"note": ""}, "job-manager.raise": {"type": "x", "severity": 7},
    "job-manager.kill": {"signum": 15}, "job-manager.urgency": {"urgency": 3}, "job-manager.update": {"updates": {}},
    "job-manager.lookup": {"keys": ["jobspec"]}, "job-info.lookup": {"keys": ["jobspec"]}, "job-manager.wait": {},
}  # fmt: skip


async def test_guests_reach_jobs_of_their_own_and_learn_nothing_of_others(site: Any) -> None:
    mine, other = await submitted(site, ANN), await submitted(site, BOB)
    become(site, ANN, GUEST)
    unknown = mine + 1
    for topic, more in OWN.items():
        texts = set()
        for jobid in (other, unknown):
            errnum, text = await site.ask(topic, {"id": jobid, **more})
            assert errnum == errno.EPERM, topic
            texts.add(text.replace(format_f58(jobid), "ID"))
        assert texts == {"job ID is not one of yours"}, "whether it exists is not told"
    for topic, named in (("job-manager.watch", {"ids": [mine, other]}), ("job-manager.wait-all", {"ids": [other]}),
                         ("job-manager.watch", {}), ("job-manager.watch", {"ids": []}),
                         ("job-manager.eventlog", {"id": other}), ("job-manager.output", {"id": other}),
                         ("job-info.eventlog-watch", {"id": other, "path": "eventlog"})):  # fmt: skip
        errnum, _ = await site.next(site.open(topic, named))
        assert errnum == errno.EPERM, topic
    for wrong in ("7", -1, True, [mine], 1.0, None):
        for named in ({"id": wrong}, {"ids": [wrong]}):
            assert (await site.next(site.open("job-manager.watch", named)))[0] in (errno.EINVAL, errno.EPERM), named
    assert (await site.ok("job-manager.lookup", {"id": mine, "keys": ["jobspec"]}))["jobspec"]
    assert await site.ok("job-info.lookup", {"id": mine, "keys": ["jobspec"], "flags": 0})
    await site.ok("job-manager.urgency", {"id": mine, "urgency": 3})
    errnum, text = await site.ask("job-manager.urgency", {"id": mine, "urgency": 17})
    assert (errnum, "a guest may set an urgency of 16 at most" in text) == (errno.EPERM, True)
    await site.ok("job-manager.cancel", {"id": mine, "note": ""})
    become(site, BOB, ADMIN)
    await site.ok("job-manager.cancel", {"id": other, "note": "by an admin"})


async def test_guests_shorten_their_running_jobs_and_do_not_prolong_them(world: Any, flux: Any) -> None:
    async with type(flux)(await world.instance(fake="1x4")) as site:
        system = {"duration": 600, "exec": {"test": {"run_duration": "600s"}}}
        become(site, ANN, OWNER_AS_OTHER)
        mine = (await site.ok("job-manager.submit", {"jobspec": {**JOBSPEC, "attributes": {"system": system}}}))["id"]
        while not (await site.ok("job-manager.running"))["jobs"]:
            pass
        become(site, ANN, GUEST)
        for longer in (601, 999_999, 0):
            errnum, text = await site.ask("job-manager.update", change(mine, longer))
            assert (errnum, "at most 10m, which it has" in text) == (errno.EPERM, True), (longer, text)
        await site.ok("job-manager.update", change(mine, 300))
        assert (await site.ask("job-manager.update", change(mine, 600)))[0] == errno.EPERM, "back to what it had"
        become(site, BOB, ADMIN)
        await site.ok("job-manager.update", change(mine, 900))
        become(site, os.getuid(), 5)
        await site.ok("job-manager.update", change(mine, 0))


def change(jobid: int, duration_s: float) -> dict[str, Any]:
    return {"id": jobid, "updates": {"attributes.system.duration": duration_s}}


async def listed(flux: Any) -> list[set[int]]:
    found = [{job["id"] for job in (await flux.ok("job-manager.list"))["jobs"]}]
    picked = [answer async for answer in flux.rest(flux.open("job-manager.select", {}))]
    found.append({jobid for answer in picked for jobid in answer["ids"]})
    answers = await flux.all("job-list.list", {"max_entries": 0, "attrs": ["userid"]})
    return [*found, {job["id"] for answer in answers for job in answer["jobs"]}]


@pytest.mark.parametrize("is_private", [False, True], ids=["public", "private"])
async def test_in_private_mode_guests_see_their_own_jobs_only(world: Any, flux: Any, is_private: bool) -> None:
    options = {"config": PRIVATE} if is_private else {"fake": "1x4"}
    async with type(flux)(await world.bare(**options)) as site:
        mine, other = await submitted(site, ANN), await submitted(site, BOB)
        become(site, ANN, GUEST)
        seen = {mine} if is_private else {mine, other}
        assert await listed(site) == [seen] * 3
        assert (await site.ok("job-manager.list", {"user": BOB}))["jobs"] == [] or not is_private
        for topic, more in (("job-manager.why", {}), ("job-list.list-id", {"attrs": ["state"]})):
            await site.ok(topic, {"id": mine, **more})
            errnum, _ = await site.ask(topic, {"id": other, **more})
            assert errnum == (errno.EPERM if is_private else 0), topic
        for topic in COUNTS_OF_JOBS - {"sched.accounts", "sched.plan"}:
            errnum, _ = await site.ask(topic)
            assert errnum == (errno.EPERM if is_private else 0), topic
        become(site, BOB, ADMIN)
        assert await listed(site) == [{mine, other}] * 3
        become(site, os.getuid(), 5)
        assert await listed(site) == [{mine, other}] * 3


@pytest.mark.parametrize("is_private", [False, True], ids=["public", "private"])
async def test_in_private_mode_guests_see_what_runs_of_their_own(world: Any, flux: Any, is_private: bool) -> None:
    config = "[access]\nprivate-jobs = true\n" if is_private else "[access]\n"
    async with type(flux)(await world.instance(fake="1x4", config=config)) as site:
        spec = {**JOBSPEC, "attributes": {"system": {"duration": 60, "exec": {"test": {"run_duration": "60s"}}}}}
        ids = []
        for user in (ANN, BOB):
            become(site, user, OWNER_AS_OTHER)
            ids.append((await site.ok("job-manager.submit", {"jobspec": spec}))["id"])
        while len((await site.ok("job-manager.running"))["jobs"]) < 2:
            pass
        become(site, ANN, GUEST)
        found = await site.ok("job-manager.running")
        assert {entry[0] for entry in found["jobs"]} == ({ids[0]} if is_private else set(ids))
        assert found["left_out"] == 0, "how many others there are is not told either"
        errnum, _ = await site.ask("sched.plan")
        assert errnum == (errno.EPERM if is_private else 0)


def test_the_topics_of_both_dialects_are_tried() -> None:
    assert LOCAL_TOPICS.keys() <= LEAST.keys()
