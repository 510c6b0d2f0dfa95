"""Jobs for unmodified Flux clients."""

from __future__ import annotations

import base64
import errno
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from fluxsched.core.jobspec import wrap
from fluxsched.flux import endpoint
from fluxsched.flux import endpoint as endpoint_logs
from fluxsched.flux.endpoint import SLICE_JOBS, UNSERVED
from fluxsched.services import history
from fluxsched.system.clock import SystemClock
from tests.flux import conftest

# The jobs side of the local socket, asked as stock Flux clients ask: by hand, with struct and json alone.
#
# recordings/flux_jobs.jsonl has what the commands of a flux-core 0.88 asked its own broker, with the error number and
# the keys of its first answer.


Flux = Any
REQUEST, STREAMING = 0x0B, 0x4B
ANY = 0xFFFFFFFF
USER = os.getuid()
RECORDINGS = Path(__file__).parent / "recordings" / "flux_jobs.jsonl"
RUN_LONG = {"exec": {"test": {"run_duration": "60s"}}}
CANCEL_ALL = {"dry_run": False, "userid": USER, "states": 62, "severity": 0, "type": "cancel"}
EXCEPTION = {"exception_type", "exception_severity", "exception_note"}
READS = ("job-info.", "job-list.list-id", "job-list.job-stats", "job-manager.alloc-query", "job-manager.idle")


async def test_recorded_requests_are_answered_with_the_same_keys(flux):
    jobid = await flux.submit("true")
    await flux.events(jobid)
    asked = 0
    for line in RECORDINGS.read_text().splitlines():
        one = json.loads(line)
        if not one["topic"].startswith(READS):
            continue
        text = json.dumps(one["payload"]).replace('"JOBID"', str(jobid)).replace('"UNKNOWN"', "1")
        errnum, answer = await flux.ask(one["topic"], json.loads(text), flags=one["flags"], nodeid=one["nodeid"])
        assert errnum == one["errnum"], (one, answer)
        if not errnum:
            found = answer["job"] if one["topic"] == "job-list.list-id" else answer
            assert set(found) - {"cwd"} == set(one["keys"]) - EXCEPTION - {"cwd"}, one
        asked += 1
    assert asked > 20


async def test_recorded_lists_are_answered(flux):
    await flux.events(await flux.submit("true"))
    sizes = []
    for line in RECORDINGS.read_text().splitlines():
        one = json.loads(line)
        if one["topic"] == "job-list.list":
            wanted = json.loads(json.dumps(one["payload"]).replace('"userid": [0]', f'"userid": [{USER}]'))
            jobs = [job for answer in await flux.all("job-list.list", wanted) for job in answer["jobs"]]
            sizes.append(len(jobs))
            if one["command"] == "flux jobs -a":
                assert set(jobs[0]) == set(one["keys"])
    assert sizes.count(1) > sizes.count(0) > 3


async def test_other_recorded_requests_have_the_right_shape(flux):
    """What changes something: our answer may be that it does not fit now, never that the request is wrong."""
    for line in RECORDINGS.read_text().splitlines():
        one = json.loads(line)
        if one["topic"].startswith(READS) or one["topic"] in ("job-list.list", "job-ingest.submit", *UNSERVED):
            continue
        jobid = await flux.submit("true", urgency=0)
        payload = None if one["payload"] is None else json.loads(
            json.dumps(one["payload"]).replace('"JOBID"', str(jobid)).replace('"UNKNOWN"', "1")
        )  # fmt: skip
        if one["topic"] == "job-manager.drain":
            await flux.cancel_all()
        errnum, answer = await flux.ask(one["topic"], payload, nodeid=one["nodeid"])
        assert errnum in (0, errno.EINVAL, errno.ENOENT, errno.ECHILD), (one, answer)
        if not errnum and one["keys"] is not None:
            assert set(one["keys"]) - {"journal"} <= set(answer), one
        await flux.ok("job-manager.queue-enable", {"enable": True, "all": True})
        await flux.cancel_all()


async def test_a_wrong_jobspec_is_refused(bare):
    for signed, errnum, part in (
        (wrap(b"{}", USER + 1), errno.EPERM, f"signed by user {USER + 1}"),
        ("nonsense", errno.EINVAL, "1 parts"),
        ("{}", errno.EINVAL, "version"),
        (wrap(b"[]", USER), errno.EPROTO, "object"),
    ):
        found = await bare.ask("job-ingest.submit", {"J": signed, "urgency": 16, "flags": 0})
        assert found[0] == errnum, found
        assert part in found[1]


async def test_a_template_with_an_unknown_tag_is_refused(bare):
    for stream in ("stdout", "stderr"):
        file = {"type": "file", "path": "out-{{jobname}}"}
        with pytest.raises(AssertionError, match=r"unknown tag \{\{jobname\}\}: known are id, jobid, name"):
            await bare.submit("true", shell={"options": {"output": {stream: file}}})


async def test_who_needs_flux_s_shell_is_told(bare):
    with pytest.raises(AssertionError, match="--signal"):
        await bare.submit("true", shell={"options": {"signal": 1}})
    assert await bare.submit("true", files={}, shell={"options": {"rlimit": {"core": 0}}})


async def test_waitable_jobs_are_waited_for_once(flux):
    first = await flux.submit("false", flags=4)
    assert await flux.ok("job-manager.wait", {"id": first}) == {
        "id": first, "success": False, "errstr": "task(s) exited with exit code 1"
    }  # fmt: skip
    assert (await flux.ask("job-manager.wait", {"id": first}))[0] == errno.ECHILD
    second = await flux.submit("sh", "-c", "kill -TERM $$", flags=4)
    await flux.events(second)
    assert (await flux.ok("job-manager.wait", {"id": -1}))["errstr"] == "task(s) Terminated"
    assert (await flux.ask("job-manager.wait", {"id": -1}))[0] == errno.ECHILD
    third = await flux.submit("true", flags=4, urgency=0)
    any_job = flux.open("job-manager.wait", {"id": 0xFFFFFFFFFFFFFFFF}, flags=REQUEST)
    assert (await flux.ask("job-manager.wait", {"id": -1}))[1] == "there are no more waitable jobs"
    await flux.ok("job-manager.raise", {"id": third, "type": "cancel", "severity": 0, "note": "no"})
    answer = {"id": third, "success": False, "errstr": "Fatal exception type=cancel no"}
    assert await flux.next(any_job) == (0, answer)


async def test_so_many_ended_jobs_are_kept_for_their_waiters(flux, monkeypatch):
    monkeypatch.setattr(endpoint, "ENDED_MAX", 1)
    first, second = [await flux.submit("true", flags=4) for _ in range(2)]
    for jobid in (first, second):
        await flux.events(jobid)
    kept = await flux.ok("job-manager.wait", {"id": -1})
    assert (await flux.ask("job-manager.wait", {"id": -1}))[1] == "there are no more waitable jobs"
    forgotten = first + second - kept["id"]
    assert (await flux.ok("job-manager.wait", {"id": forgotten}))["success"], "by its id it can be waited for still"


async def test_who_waits_by_id_counts_against_who_waits_for_any(flux):
    jobid = await flux.submit("true", flags=4, urgency=0)
    any_job = flux.open("job-manager.wait", {"id": -1}, flags=REQUEST)
    by_id = flux.open("job-manager.wait", {"id": jobid}, flags=REQUEST)
    assert (await flux.next(any_job))[0] == errno.ECHILD
    assert (await flux.ask("job-manager.wait", {"id": jobid}))[1].endswith("already has a waiter")
    await flux.ok("job-manager.urgency", {"id": jobid, "urgency": 16})
    assert (await flux.next(by_id))[1]["success"] is True


async def test_a_waiter_that_is_lost_leaves_the_job_to_others(flux, eventually):
    jobid = await flux.submit("true", flags=4, urgency=0)
    async with type(flux)(flux.instance) as other:
        other.open("job-manager.wait", {"id": jobid}, flags=REQUEST)
        other.open("job-manager.drain", flags=REQUEST)
        await other.ok("job-list.job-stats")
    peers = flux.instance.router.peers
    await eventually(lambda: len([peer for peer in peers.values() if peer.server.json]) == 1)
    waiting = flux.open("job-manager.wait", {"id": jobid}, flags=REQUEST)
    await flux.ok("job-manager.urgency", {"id": jobid, "urgency": 16})
    assert (await flux.next(waiting))[1]["id"] == jobid


async def test_jobs_that_are_not_waitable_are_not_waited_for(flux):
    jobid = await flux.submit("true")
    for wanted in (jobid, 1):
        errnum, text = await flux.ask("job-manager.wait", {"id": wanted})
        assert errnum == errno.ECHILD
        assert "waitable" in text


async def test_many_jobs_are_canceled_and_signalled(flux):
    running = await flux.submit("true", **RUN_LONG)
    jobids = [await flux.submit("true", urgency=0) for _ in range(150)]
    waiting = {"dry_run": True, "userid": USER, "states": 14, "severity": 0, "type": "cancel"}
    counted = await flux.ok("job-manager.raiseall", waiting)
    assert counted == {"count": 150, "errors": 0}
    killed = await flux.ok("job-manager.killall", {"dry_run": False, "userid": ANY, "signum": 15})
    assert killed == {"count": 1, "errors": 0}
    assert (await flux.events(running))[-1]["name"] == "clean"
    assert await flux.cancel_all() == {"count": 150, "errors": 0}
    stats = await flux.ok("job-list.job-stats")
    assert (stats["canceled"], stats["failed"], stats["job_states"]["total"]) == (150, 1, 151)
    assert (await flux.ok("job-manager.history.get", {"slice": "[:2]"}))["jobs"] == [*reversed(jobids)][:2]


async def test_a_job_that_is_forgotten_before_its_turn_comes_is_none_to_cancel(bare):
    bare.instance.effects.manager.jobs.inactive_kept_max = 5
    jobids = [await bare.submit("true", urgency=0) for _ in range(2 * SLICE_JOBS + 10)]
    canceling = bare.open("job-manager.raiseall", CANCEL_ALL, flags=REQUEST)
    await bare.ok("job-manager.raise", {"id": jobids[0], "type": "cancel", "severity": 0})
    assert await bare.next(canceling) == (0, {"count": len(jobids) - 1, "errors": 0})


async def test_history_is_a_slice(bare):
    jobids = [await bare.submit("true", urgency=0) for _ in range(4)][::-1]
    for text, expected in (("[:]", jobids), ("[1]", jobids[1:2]), ("[-1]", jobids[-1:]), ("[-9]", []), ("[9]", []),
                           ("[::2]", jobids[::2])):  # fmt: skip
        assert (await bare.ok("job-manager.history.get", {"slice": text}))["jobs"] == expected
    for text in ("1", "[a]", "[::0]"):
        assert (await bare.ask("job-manager.history.get", {"slice": text}))[0] == errno.EINVAL


async def test_history_is_limited(bare, monkeypatch):
    assert endpoint.HISTORY_JOBS_MAX >= 1000
    monkeypatch.setattr(endpoint, "HISTORY_JOBS_MAX", 2)
    jobids = [await bare.submit("true", urgency=0) for _ in range(3)][::-1]
    assert (await bare.ok("job-manager.history.get", {"slice": "[:]"}))["jobs"] == jobids[:2]


async def test_a_queue_speaks_flux(bare):
    await bare.ok("job-manager.queue-enable", {"enable": False, "all": False, "reason": "why"})
    await bare.ok("job-manager.queue-start", {"start": False, "all": False, "nocheckpoint": False})
    found = await bare.ok("job-manager.queue-status", {})
    assert (found["enable"], found["disable_reason"], found["start"]) == (False, "why", False)
    assert found["stop_reason"]


async def test_drain_and_idle_wait(flux):
    running = await flux.submit("true", **RUN_LONG)
    held = await flux.submit("true", urgency=0)
    await flux.ok("job-list.list-id", {"id": running, "attrs": [], "state": 16})
    drained, idle = (flux.open(f"job-manager.{name}", flags=REQUEST) for name in ("drain", "idle"))
    await flux.ok("job-manager.raise", {"id": running, "type": "cancel", "severity": 0})
    assert await flux.next(idle) == (0, {"pending": 1})
    await flux.ok("job-manager.raise", {"id": held, "type": "cancel", "severity": 0})
    assert await flux.next(drained) == (0, None)


async def test_one_job_is_told_when_it_is_in_a_state(flux):
    jobid = await flux.submit("true", urgency=0)
    ended = flux.open("job-list.list-id", {"id": jobid, "attrs": ["state", "result"], "state": 64}, flags=REQUEST)
    assert (await flux.ok("job-list.list-id", {"id": jobid, "attrs": ["state"]}))["job"]["state"] == 8
    await flux.ok("job-manager.urgency", {"id": jobid, "urgency": 16})
    assert await flux.next(ended) == (0, {"job": {"id": jobid, "state": 64, "result": 1}})
    assert await flux.ask("job-list.list-id", {"id": 1, "attrs": ["state"]}) == (errno.ENOENT, "")


async def test_who_was_told_or_is_gone_is_not_remembered(flux, eventually):
    logs = flux.instance.streams._logs
    jobid = await flux.submit("true", urgency=0)
    async with type(flux)(flux.instance) as other:
        other.open("job-list.list-id", {"id": jobid, "attrs": [], "state": 64}, flags=REQUEST)
        running = flux.open("job-list.list-id", {"id": jobid, "attrs": [], "state": 16}, flags=REQUEST)
        await eventually(lambda: len(logs[jobid]) == 2)
    await eventually(lambda: len(logs[jobid]) == 1)
    flux.open("job-manager.urgency", {"id": jobid, "urgency": 16}, flags=REQUEST)
    await flux.next(running)
    assert jobid not in logs


@pytest.mark.slow
async def test_a_long_list_comes_in_pieces(bare):
    for _ in range(450):
        await bare.submit("true", urgency=0)
    answers = await bare.all("job-list.list", {"max_entries": 0, "attrs": ["state"]})
    assert [len(answer["jobs"]) for answer in answers] == [200, 200, 50]
    assert [answer.get("version") for answer in answers] == [1, None, None]
    whole = await bare.ok("job-list.list", {"max_entries": 10, "attrs": ["state"]})
    assert len(whole["jobs"]) == 10


async def test_wrong_lists_are_named(bare):
    for payload, part in (
        ({"max_entries": 1, "attrs": ["nope"]}, "nope"),
        ({"max_entries": 1, "attrs": [], "constraint": {"nope": []}}, "'nope' is unknown"),
    ):
        errnum, text = await bare.ask("job-list.list", payload)
        assert errnum == errno.EINVAL
        assert part in text
    assert (await bare.ask("job-list.list", {"max_entries": -1, "attrs": []}))[0] == errno.EPROTO


async def test_parts_of_a_record(flux):
    jobid = await flux.submit("true", **RUN_LONG)
    await flux.ok("job-list.list-id", {"id": jobid, "attrs": [], "state": 16})
    await flux.ok("job-manager.update", {"id": jobid, "updates": {"attributes.system.duration": 100.0}})
    keys = ["jobspec", "R", "eventlog", "J"]
    texts = await flux.ok("job-info.lookup", {"id": jobid, "keys": keys, "flags": 0})
    assert "SECRET" not in texts["jobspec"]
    assert b"SECRET" in base64.b64decode(texts["J"].split(".")[1])
    assert json.loads(texts["R"])["execution"]["expiration"] == 0.0
    assert all(json.loads(line) for line in texts["eventlog"].splitlines())
    now = await flux.ok("job-info.lookup", {"id": jobid, "keys": ["jobspec", "R"], "flags": 3})
    assert now["R"]["execution"]["expiration"] > 0.0
    await flux.ok("job-manager.raise", {"id": jobid, "type": "cancel", "severity": 0})


async def test_parts_that_are_not_there_are_named(bare):
    jobid = await bare.submit("true", urgency=0)
    for wanted, key, part in ((1, "R", "unknown"), (jobid, "R", "no resources"), (jobid, "nope", "nope: key not found"),
                              (jobid, "guest.output", "not started")):  # fmt: skip
        errnum, text = await bare.ask("job-info.lookup", {"id": wanted, "keys": [key], "flags": 0})
        assert errnum == errno.ENOENT
        assert part in text
    errnum, text = await bare.ask("job-info.eventlog-watch", {"id": jobid, "path": "nope", "flags": 0}, flags=STREAMING)
    assert (errnum, "guest.output" in text) == (errno.ENOENT, True)
    for path in ("eventlog", "guest.exec.eventlog", "guest.output"):
        tag = bare.open("job-info.eventlog-watch", {"id": 1, "path": path, "flags": 0})
        assert (await bare.next(tag))[0] == errno.ENOENT


async def test_much_output_is_followed_not_looked_up(flux, monkeypatch):
    monkeypatch.setattr(endpoint_logs, "LOOKUP_OUTPUT_BYTES_MAX", 10)
    jobid = await flux.submit("echo", "more than ten bytes")
    await flux.events(jobid)
    errnum, text = await flux.ask("job-info.lookup", {"id": jobid, "keys": ["guest.output"], "flags": 0})
    assert errnum == errno.EINVAL
    assert "flux job attach" in text


async def test_what_is_not_there_says_so(bare):
    others = ("shell.stdin", "shell.proctable", "job-manager.getattr", "job-exec.hello", "kvs.lookup")
    for topic in (*UNSERVED, *others):
        errnum, text = await bare.ask(topic, {})
        assert errnum == errno.ENOSYS
        assert len(text.split()) > 3


# Stock Flux clients and jobs that are submitted again: a waitable job is waited for to its last attempt, once.


TEST = {"test": {"run_duration": "1h"}}


async def preempted(flux, jobid):
    """Preempt a job as it runs; the job that continues it."""
    await flux.ok("job-list.list-id", {"id": jobid, "attrs": [], "state": 16})
    await flux.ok("job-manager.raise", {"id": jobid, "type": "preempt", "severity": 0, "note": "for another"})
    clean = (await flux.events(jobid))[-1]
    return int(clean["context"]["requeue"]["as"])


async def test_a_waitable_job_is_waited_for_to_its_last_attempt(flux):
    first = await flux.submit("true", flags=4, exec=TEST, fluxsched={"requeue": 2})
    any_job = flux.open("job-manager.wait", {"id": -1}, flags=0x0B)
    second = await preempted(flux, first)
    third = await preempted(flux, second)
    await flux.ok("job-manager.raise", {"id": first, "type": "cancel", "severity": 0, "note": "enough"})
    errnum, found = await flux.next(any_job)
    assert (errnum, found["id"], found["success"]) == (0, first, False)
    assert found["errstr"] == "Fatal exception type=cancel enough"
    assert (await flux.ask("job-manager.wait", {"id": first}))[0] == errno.ECHILD, "a job is waited for once"
    assert (await flux.ok("job-manager.wait", {"id": third}))["id"] == third


async def test_one_waits_by_id_for_an_attempt_that_was_preempted_before(flux):
    first = await flux.submit("true", flags=4, exec=TEST, fluxsched={"requeue": 1})
    await preempted(flux, first)
    wait = flux.open("job-manager.wait", {"id": first}, flags=0x0B)
    await flux.ok("job-manager.raise", {"id": first, "type": "cancel", "severity": 0, "note": ""})
    assert (await flux.next(wait))[1]["id"] == first


# `history.*` of a real instance: who is told what, times that are wrong, and a history that outlives a kill.


GUEST, ADMIN, OWNER_AS_OTHER = 6, 14, 21
ANN, BOB = os.getuid() + 1, os.getuid() + 2
PRIVATE = "[access]\nprivate-jobs = true\n"
CONFIG = "[queues.batch]\n[queues.debug]\n"


def jobspec(queue, bank, duration_s):
    system = {"duration": 0, "bank": bank, "exec": {"test": {"run_duration": f"{duration_s}s"}}}
    system |= {} if queue is None else {"queue": queue}
    return {
        "version": 1, "tasks": [{"command": ["true"], "slot": "task", "count": {"per_slot": 1}}],
        "resources": [{"type": "slot", "label": "task", "count": 1, "with": [{"type": "core", "count": 2}]}],
        "attributes": {"system": system},
    }  # fmt: skip


async def run(world, flux, userid, queue, bank, *, waits=True):
    """Run a job of this user."""
    flux.userid, flux.rolemask = userid, OWNER_AS_OTHER
    jobid = (await flux.ok("job-manager.submit", {"jobspec": jobspec(queue, bank, 0.01 if waits else 100.0)}))["id"]
    if waits:
        await world.second(flux.instance).ok("job-manager.wait", {"id": jobid})
    return int(jobid)


async def report(flux, by="user", **more):
    return {row["name"]: row for row in (await flux.ok("history.report", {"by": by, **more}))["rows"]}


def become(flux, userid, rolemask):
    flux.userid, flux.rolemask = userid, rolemask


async def test_a_report_has_all_that_ended_until_now_and_what_runs(world, flux):
    async with type(flux)(await world.instance(config=CONFIG, fake="4x4")) as site:
        for userid, queue, bank in ((ANN, "batch", "x"), (ANN, "debug", "x"), (BOB, "batch", "y")):
            await run(world, site, userid, queue, bank)
        long = await run(world, site, BOB, "batch", "y", waits=False)
        become(site, ANN, GUEST)
        users = await report(site)
        assert {name: row["jobs"] for name, row in users.items()} == {str(ANN): 2, str(BOB): 1}
        assert {name: row["jobs"] for name, row in (await report(site, "queue")).items()} == {"batch": 2, "debug": 1}
        assert {name: row["jobs"] for name, row in (await report(site, "bank")).items()} == {"x": 2, "y": 1}
        assert {name: row["jobs"] for name, row in (await report(site, "group")).items()} == {"default": 3}
        assert (await report(site, max_entries=1)).keys() <= users.keys()
        by_day = await report(site, "queue", since=time.time() - 2 * 86_400, days=True)
        assert {name: row["cores"] for name, row in by_day.items()} == {"batch": 16, "debug": 16}
        for row in by_day.values():
            assert row["core_seconds"] > 0.0
            assert sum(row["days"]) == pytest.approx(row["core_seconds"])
        assert users[str(ANN)]["days"] is None
        assert users[str(ANN)]["results"]["completed"] == users[str(ANN)]["waits"] == 2
        become(site, os.getuid(), 5)
        await site.ok("job-manager.cancel", {"id": long, "note": ""})
        await world.second(site.instance).ok("job-manager.wait", {"id": long})
        assert (await report(site))[str(BOB)]["results"]["canceled"] == 1


async def test_use_and_machine_are_over_the_same_time(world, flux):
    """From the very start on, with a job that runs across the last sample."""
    async with type(flux)(await world.instance(fake="1x2")) as site:
        become(site, os.getuid(), 5)
        await run(world, site, os.getuid(), None, "x", waits=False)
        peer = world.second(site.instance)
        while not (answer := await peer.ok("history.report"))["total"]["core_seconds"]:
            pass
        for _ in range(2):
            capacity = answer["capacity"]
            assert answer["total"]["core_seconds"] == capacity["allocated"] <= sum(capacity.values())
            assert sum(capacity.values()) == pytest.approx(2 * answer["observed"], rel=1e-6)
            assert answer["until"] <= time.time()
            site.instance.turns.post(site.instance._parts.sampling._minute)
            await peer.ok("instance.info")
            answer = await peer.ok("history.report")


async def test_where_jobs_are_private_guests_see_their_own_use_and_nothing_of_the_machine(world, flux):
    async with type(flux)(await world.instance(config=CONFIG + PRIVATE, fake="4x4")) as site:
        await run(world, site, ANN, "batch", "x")
        await run(world, site, BOB, "batch", "y")
        become(site, ANN, GUEST)
        answer = await site.ok("history.report", {"by": "bank"})
        assert [row["name"] for row in answer["rows"]] == ["x"]
        assert (answer["total"]["jobs"], answer["capacity"]) == (1, None)
        for topic in ("history.samples", "history.intervals"):
            assert (await site.ask(topic, {}))[0] == errno.EPERM
        become(site, ANN, ADMIN)
        answer = await site.ok("history.report", {"by": "bank"})
        assert (answer["total"]["jobs"], len(answer["rows"])) == (2, 2)
        assert answer["capacity"]["allocated"] >= 0.0


async def test_times_that_cannot_be_and_an_empty_history(world, flux):
    async with type(flux)(await world.bare(fake="2x4")) as site:
        now_s = time.time()
        for topic in ("history.samples", "history.intervals", "history.report"):
            for times in ({"since": now_s + 60.0}, {"since": now_s, "until": now_s - 1.0}):
                errnum, text = await site.ask(topic, times)
                assert (errnum, "is after until" in text) == (errno.EINVAL, True), topic
            assert (await site.ask(topic, {"since": -1.0}))[0] != 0
        future = {"since": now_s + DAY_S, "until": now_s + 2 * DAY_S}
        assert (await site.ok("history.samples", future))["t"] == []
        assert (await site.ok("history.intervals", future))["observed"] == []
        for times in ({}, future, {"since": 0.0}):
            answer = await site.ok("history.report", times)
            assert (answer["rows"], answer["total"]["jobs"], answer["left_out"]) == ([], 0, 0)
        assert (await site.ask("history.report", {"by": "colour"}))[0] == errno.EPROTO
        assert (await site.ask("history.intervals", {"targets": "7"}))[0] == errno.EINVAL


DAY_S = 86_400.0


async def test_drains_and_accounts_outlive_the_instance(world, flux, tmp_path):
    state = tmp_path / "state"
    first = await world.instance(fake="2x4", statedir=state)
    async with type(flux)(first) as site:
        await run(world, site, ANN, None, "x")
        become(site, os.getuid(), 5)
        await site.ok("resource.drain", {"targets": "1", "reason": "fan"})
        while not (await site.ok("history.intervals"))["intervals"]:
            pass
    await world.stop(first)
    second = await world.instance(fake="2x4", statedir=state)
    async with type(flux)(second) as site:
        become(site, os.getuid(), 5)
        assert (await report(site))[str(ANN)]["jobs"] == 1
        answer = await site.ok("history.intervals")
        (row,) = answer["intervals"]
        assert (row[0], row[1], row[3], row[4]) == ("1", "drained", None, "fan")
        assert len(answer["observed"]) == 2
        assert (await site.ok("history.samples"))["observed"], "the first one wrote what it had seen"


async def test_rows_are_no_more_than_asked_for_and_the_total_is_of_all(world, flux, monkeypatch):
    monkeypatch.setattr(history, "REPORT_ROWS_MAX", 3)
    async with type(flux)(await world.bare(fake="2x4")) as site:
        now_s = SystemClock.wall_s()
        for userid in range(8):
            sums = [1.0] * 4 + [float(userid)] + [0.0] * (len(history.SUMS) - 5)
            site.instance.store.add("usage", (3600, int(now_s) - 7200, userid, "x", "", "default", "", *sums))
        become(site, os.getuid(), 5)
        answer = await site.ok("history.report", {})
        assert [row["name"] for row in answer["rows"]] == ["7", "6", "5"]
        assert (answer["left_out"], answer["total"]["jobs"], answer["total"]["core_seconds"]) == (5, 32, 28.0)
        answer = await site.ok("history.report", {"max_entries": 1})
        assert (len(answer["rows"]), answer["left_out"]) == (1, 7)


async def test_jobs_of_flux_pass_the_submit_filters(world):
    text = "class Filter:\n    name = 'all'\n    def filter(self, job):\n        return {**job.jobspec, 'version': 9}\n"
    world.write("rules.py", text)
    config = '[ingest]\nfilters = ["rules.py"]\ntimeout = "60s"\n'
    async with conftest.Flux(await world.bare(config=config, fake="2x4")) as flux:
        with pytest.raises(AssertionError, match=r"a submit filter has made this jobspec invalid: .*version"):
            await flux.submit("true")
