"""A preempted job that is submitted again, as its clients see it: waits, cancels and listings mean its last attempt."""

from __future__ import annotations

import copy
import errno
import math
from typing import Any

import pytest

from fluxsched.core.jobid import format_f58
from fluxsched.core.sharing import REQUEUE_MAX
from fluxsched.runtime.loop.database import Database
from fluxsched.runtime.storage.events import unpack_events

SPEC: dict[str, Any] = {
    "version": 1,
    "resources": [{"type": "slot", "count": 1, "label": "task", "with": [{"type": "core", "count": 1}]}],
    "tasks": [{"command": ["true"], "slot": "task", "count": {"per_slot": 1}}],
    "attributes": {"system": {"duration": 0, "exec": {"test": {"run_duration": "1h"}}}},
}
NOTE = "for job ƒX of default/ann: U 0 of S 8"


def spec(requeue: object = 1, **system: object) -> dict[str, Any]:
    made = copy.deepcopy(SPEC)
    made["attributes"]["system"] |= {"fluxsched": {"requeue": requeue}, **system}
    return made


WRONG: list[tuple[dict[str, object], str]] = [
    ({"preemptible-after": -1}, "attributes.system.preemptible-after must be a number of seconds within 0 and "),
    ({"preemptible-after": math.nan}, "attributes.system.preemptible-after must be a number of seconds within 0 and "),
    ({"preemptible-after": "1h"}, "attributes.system.preemptible-after must be a number of seconds within 0 and "),
    ({"job": {"set": "a\nb"}}, "attributes.system.job.set: 'a\\nb' is not a name: it needs printable characters"),
    ({"job": {"set": "x" * 256}}, "attributes.system.job.set: 256 characters, the limit is 255: choose a shorter"),
    ({"job": "s"}, "attributes.system.job must be an object"),
    ({"bank": "\x1b[2J"}, "attributes.system.bank: '\\x1b[2J' is not a name: it needs printable characters"),
]


async def submitted(peer: Any, **system: object) -> int:
    return int((await peer.ok("job-manager.submit", {"jobspec": spec(**system)}))["id"])


async def preempt(peer: Any, jobid: int) -> None:
    await until(peer, jobid, "start")
    await peer.ok("job-manager.raise", {"id": jobid, "type": "preempt", "severity": 0, "note": NOTE})


async def until(peer: Any, jobid: int, event: str) -> list[dict[str, Any]]:
    """The events of a job up to this one."""
    tag = peer.open("job-manager.eventlog", {"id": jobid, "follow": True})
    found: list[dict[str, Any]] = []
    while event not in [one["name"] for one in found]:
        found += (await peer.next(tag)).payload["events"]
    peer.cancel("job-manager.eventlog", tag)
    return found


async def after(peer: Any, jobid: int) -> int:
    """The attempt after a job that ends now."""
    (*_, clean) = await until(peer, jobid, "clean")
    return int(clean["context"]["requeue"]["as"])


async def test_every_waiter_is_told_of_the_last_attempt(world: Any) -> None:
    site = await world.instance()
    peer, other = world.second(site), world.second(site)
    first, plain = await submitted(peer, requeue=2), await submitted(peer, requeue=0)
    waits = [one.send("job-manager.wait", {"id": first}) for one in (peer, other)]
    all_waits = [one.open("job-manager.wait-all", {"ids": [first, plain]}) for one in (peer, other)]
    clean = peer.open("job-manager.watch", {"names": ["clean"]})
    await preempt(peer, first)
    second = await after(peer, first)
    (news,) = (await peer.next(clean)).payload["events"]
    assert (news[0], news[3]["requeued_as"], news[3]["success"]) == (first, second, False)
    waits.append(peer.send("job-manager.wait", {"id": first}))
    all_waits.append(peer.open("job-manager.wait-all", {"ids": [first, second]}))
    await preempt(peer, second)
    third = await after(peer, second)
    await preempt(peer, plain)
    assert [one.peer is not None for one in site.waits._left] == [True] * 3
    assert not any(peer.waiting(tag) for tag in (waits[0], waits[2]))
    await peer.ok("job-manager.cancel", {"id": third, "note": "enough"})
    expected = {"id": first, "last": third, "success": False, "exception_type": "cancel", "exception_note": "enough"}
    for at, one in ((0, peer), (1, other), (2, peer)):
        found = (await one.next(waits[at])).payload
        assert {key: found[key] for key in expected} == expected
    for at, one in ((0, peer), (1, other)):
        found = [(await one.next(all_waits[at])).payload for _ in range(2)]
        assert sorted((each["id"], each.get("last")) for each in found) == [(first, third), (plain, None)]
        assert (await one.next(all_waits[at])).errnum == errno.ENODATA
    found = [(await peer.next(all_waits[2])).payload for _ in range(2)]
    assert [(each["id"], each["last"]) for each in found] == [(first, third), (second, third)]
    assert (await peer.ok("job-manager.wait", {"id": second}))["last"] == third
    assert site.waits._left == site.streams._waits == {}


async def test_what_is_done_to_an_earlier_attempt_is_done_to_the_last(world: Any) -> None:
    site = await world.instance(fake="1x1")
    peer = world.second(site)
    first = await submitted(peer)
    await until(peer, first, "start")
    urgent = (await peer.ok("job-manager.submit", {"jobspec": spec(0), "urgency": 20}))["id"]
    await preempt(peer, first)
    second = await after(peer, first)
    await until(peer, urgent, "start")
    assert await peer.ok("job-manager.urgency", {"id": first, "urgency": 17}) == {"old": 16}
    await peer.ok("job-manager.update", {"id": first, "updates": {"attributes.system.duration": 60}})
    text = await peer.refused("job-manager.kill", {"id": first, "signum": 10})
    assert text[0] == errno.EINVAL
    assert f"job {format_f58(second)} is in state SCHED" in text[1]
    for kind in ("exec", "preempt"):  # these mean the very job, whatever its user has
        text = await peer.refused("job-manager.raise", {"id": first, "type": kind, "severity": 0})
        assert f"job {format_f58(first)} has ended" in text[1]
    (job,) = (await peer.ok("job-manager.list", {"ids": [second]}))["jobs"]
    assert (job["state"], job["urgency"], job["duration"]) == ("SCHED", 17, 60)
    assert (job["attempt"], job["requeue_of"], job["requeue"]) == (1, first, 1)
    await peer.ok("job-manager.raise", {"id": first, "type": "cancel", "severity": 0})
    found = await peer.ok("job-manager.wait", {"id": first})
    assert (found["last"], found["exception_type"]) == (second, "cancel")
    (job,) = (await peer.ok("job-manager.list", {"ids": [first]}))["jobs"]
    assert (job["result"], job["requeued_as"], job["exception"]["note"]) == ("FAILED", second, NOTE)
    why = await peer.ok("job-manager.why", {"id": second})
    assert why["attempt"] == f"attempt 1 of 1; {format_f58(first)} ended with exception preempt: {NOTE}"
    why = await peer.ok("job-manager.why", {"id": first})
    assert why["reason"] == (
        f"it has ended: exception preempt: {NOTE}; it was submitted again as job {format_f58(second)}"
    )


async def test_the_end_of_an_attempt_and_the_next_one_are_one_transaction(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what moves with it: all that a crash could tear apart."""
    transactions: list[dict[int, list[str]]] = []
    transact = Database._transact

    def recorded(store: Database, connection: Any, groups: Any) -> None:
        rows = [row for table, some in groups if table == "job_log" for row in some]
        transactions.append({row[0]: [event["name"] for event in unpack_events(row[2])] for row in rows})
        transact(store, connection, groups)

    monkeypatch.setattr(Database, "_transact", recorded)
    peer = world.second(await world.instance())
    first = await submitted(peer)
    dependency = {"scheme": "afterok", "value": format_f58(first)}
    dependent = await submitted(peer, requeue=0, dependencies=[dependency])
    await preempt(peer, first)
    second = await after(peer, first)
    (ending,) = [rows for rows in transactions if "clean" in rows.get(first, ())]
    assert "submit" in ending[second]
    assert [name.partition("-")[0] for name in ending[dependent]].count("dependency") == 2
    await peer.ok("job-manager.cancel", {"id": first})


async def test_how_often_is_refused_above_the_limit_and_where_it_is_no_number(world: Any) -> None:
    peer = world.second(await world.instance())
    path = "attributes.system.fluxsched.requeue"
    for wrong, shown in ((REQUEUE_MAX + 1, "101"), (-1, "-1"), (1.5, "1.5"), ("3", "'3'"), (True, "true")):
        errnum, text = await peer.refused("job-manager.submit", {"jobspec": spec(wrong)})
        assert errnum == errno.EINVAL
        assert text == f"{path}: {shown} is not a number within 0-{REQUEUE_MAX}"
    assert await submitted(peer, requeue=REQUEUE_MAX)
    errnum, text = await peer.refused("job-manager.submit", {"jobspec": spec(0, fluxsched=3)})
    assert (errnum, text) == (errno.EINVAL, "attributes.system.fluxsched must be an object")
    for system, told in WRONG:
        errnum, text = await peer.refused("job-manager.submit", {"jobspec": spec(0, **system)})
        assert (errnum, text[: len(told)]) == (errno.EINVAL, told)
    assert [job["requeue"] for job in (await peer.ok("job-manager.list", {}))["jobs"]] == [REQUEUE_MAX]
