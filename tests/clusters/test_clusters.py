"""Two instances, one the cluster of the other."""

from __future__ import annotations

import asyncio
import errno
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fluxsched.clusters import loop
from fluxsched.clusters.links import ClusterPace
from fluxsched.core.idset import Idset
from fluxsched.core.jobspec import PartAsked
from fluxsched.core.resources import ResourceSet
from fluxsched.core.role import Role
from fluxsched.leases import LeaseState
from fluxsched.messaging.keys import generate, generate_server
from fluxsched.protocol.framing import make_error, make_response
from fluxsched.transport.zeromq import NOT_ADMITTED
from fluxsched.views.jobs import JobRow
from tests.clusters.conftest import BOTH, job
from tests.clusters.other import Bench, Other, entry

# Jobs of one instance that run in another, both real: what users see of them, and what is passed on.


FLUXSCHED = Path(sys.executable).with_name("fluxsched")


async def events(peer, jobid):
    answer = await peer.ok("job-manager.lookup", {"id": jobid, "keys": ["eventlog"]})
    return [event["name"] for event in answer["eventlog"]]


async def output(peer, jobid):
    stream, found = peer.open("job-manager.output", {"id": jobid, "follow": True}), b""
    while (answer := await peer.next(stream)).errnum == 0:
        found += answer.payload["data"]
    return found


async def test_a_job_runs_in_the_other_instance_once_and_ends_as_it_does(pair):
    await pair.begin()
    jobid = await pair.submit(job("sh", "-c", "echo hello; exit 3"))
    assert await pair.wait(jobid) == {"id": jobid, "success": False, "status": 3 << 8, "errstr": "exit code 3"}
    (there,) = await pair.jobs(pair.far)
    assert (there["name"], there["result"], there["status"]) == ("sh", "FAILED", 3 << 8)
    assert "queue" not in there, "the queue is one of here"
    (here,) = await pair.jobs(pair.near)
    assert here["nodelist"] == "east:fake0"
    assert here["annotations"]["lease"] == {"cluster": "east", "id": there["id"], "nodelist": "fake0"}
    assert await output(pair.near, jobid) == b"hello\n"
    names = [name for name in await events(pair.near, jobid) if name in ("alloc", "start", "finish", "release")]
    assert names == ["alloc", "start", "finish", "release"]
    await pair.until(lambda: settled(pair))
    assert pair.here.store.read("SELECT * FROM lease") == []


async def command(pair, *words):
    """What `fluxsched cluster` prints."""
    program = [FLUXSCHED, "cluster", *words, "--uri", pair.here.uri]
    return await asyncio.to_thread(subprocess.check_output, program, text=True)


async def settled(pair):
    """Whether nothing is remembered of leases any more there."""
    await pair.far.settle()
    return pair.there.store.read("SELECT * FROM leased") == []


async def test_the_group_follows_the_targets_of_the_other_instance(pair):
    pair.pace = ClusterPace(occupied_s=0.02)
    await pair.begin()
    status = await pair.near.ok("resource.status")
    assert status["R"]["execution"]["nodelist"] == ["fake[0-1],east:fake[0-3]"]
    assert (status["groups"]["east"], status["online"]) == ("2-5", "0-5")

    async def online(text):
        try:
            await pair.until(lambda: is_online(text))
        except TimeoutError:
            here, there = await pair.near.ok("resource.status"), await pair.far.ok("resource.status")
            pytest.fail(f"waiting for {text}; here {here}; there {there}")

    async def is_online(text):
        return (await pair.near.ok("resource.status"))["online"] == text

    await pair.far.ok("resource.drain", {"targets": "1"})
    await online("0-2,4-5")
    await pair.far.ok("resource.undrain", {"targets": "1"})
    await online("0-5")
    await pair.far.ok("resource.assign", {"targets": "3", "group": "exclude"})
    await online("0-4")
    assert (await pair.near.ok("resource.status"))["groups"]["east"] == "2-4"
    await pair.far.ok("resource.include", {"targets": "3"})
    await online("0-5")
    assert (await pair.near.ok("resource.status"))["groups"]["east"] == "2-5"
    # what jobs of others use there is not granted here
    held = (await pair.far.ok("job-manager.submit", {"jobspec": job("sleep", "60", nodes=3, exclusive=True)}))["id"]

    async def is_seen():
        return (await pair.cluster())["online"] == 1

    await pair.until(is_seen)
    await pair.submit(job("sleep", "60", nodes=1, exclusive=True))
    waiting = await pair.submit(job("true", nodes=2, exclusive=True))
    await pair.running(pair.far, 2)
    assert (await pair.near.ok("job-manager.why", {"id": waiting}))["state"] == "SCHED"
    await pair.far.ok("job-manager.cancel", {"id": held})
    assert (await pair.wait(waiting))["success"]


async def test_a_target_that_comes_back_before_it_was_released_here_is_online(pair):
    await pair.begin(groups='"default"')
    near, stream = pair.near, pair.near.open("resource.acquire", {"group": "east"})

    async def told(kind):
        while (message := (await near.next(stream)).payload).get("type") != kind:
            pass
        return message["targets"]

    assert (await near.next(stream)).errnum == 0
    await pair.far.ok("resource.assign", {"targets": "3", "group": "exclude"})
    assert await told("shrink") == "5"
    await pair.far.ok("resource.include", {"targets": "3"})

    async def is_known():
        return 3 in pair._loop.offered.mirror.usable

    await pair.until(is_known)
    await near.ok("resource.release", {"group": "east", "targets": "5"})

    async def is_online():
        return (await near.ok("resource.status"))["online"] == "0-5"

    await pair.until(is_online)


@pytest.mark.parametrize("seed", range(2))
async def test_the_group_is_as_the_other_instance_shows_it_after_any_changes(pair, seed):
    """Drains and exclusions follow one another there sooner than they are seen here."""
    rng = random.Random(seed)
    pair.pace = ClusterPace(occupied_s=0.02)
    await pair.begin()
    excluded, drained = set(), set()
    for turn in range(60):
        target = rng.randrange(4)
        words = {"targets": str(target)}
        if target in excluded:
            await pair.far.ok("resource.include", words)
            excluded.discard(target)
        elif target in drained:
            await pair.far.ok("resource.undrain", words)
            drained.discard(target)
        elif turn % 2 and len(excluded) < 3:
            await pair.far.ok("resource.assign", {**words, "group": "exclude"})
            excluded.add(target)
        else:
            await pair.far.ok("resource.drain", words)
            drained.add(target)
        await asyncio.sleep(rng.choice([0, 0, 0, 0.001, 0.005, 0.02]))
        if turn % 10 == 9:
            expected = {0, 1, *(2 + there for there in {*range(4)} - excluded - drained)}

            async def is_shown(expected=expected):
                return {*Idset.parse((await pair.near.ok("resource.status"))["online"])} == expected

            await pair.until(is_shown)


async def test_an_elastic_job_of_parts_has_there_what_was_granted_here(pair):
    await pair.begin()
    before = await pair.submit(job("sleep", "60", nodes=1, exclusive=True))
    await pair.running(pair.far)
    asked = [PartAsked("lead", 1, ["sleep", "60"]), PartAsked("work", "1-8", ["sleep", "60"])]
    jobid = await pair.submit(job(parts=asked, elastic=True))
    await pair.running(pair.far, 2)
    await pair.near.ok("job-manager.cancel", {"id": before})
    await pair.wait(before)
    await pair.near.settle()
    (there,) = await pair.running(pair.far)
    here = await pair.info(jobid)
    assert (here["nnodes"], there["nnodes"]) == (3, 3)


async def test_signals_limits_and_refusals_are_passed_on(pair):
    await pair.begin()
    script = "trap 'echo got it; exit 0' USR1; echo ready; while :; do sleep 0.01; done"
    jobid = await pair.submit(job("sh", "-c", script, duration_s=100.0), urgency=20)
    (there,) = await pair.running(pair.far)
    assert (there["urgency"], there["duration"]) == (20, 100.0)
    stream = pair.near.open("job-manager.output", {"id": jobid, "follow": True})
    assert (await pair.near.next(stream)).payload["data"] == b"ready\n"  # while it runs
    await pair.near.ok("job-manager.update", {"id": jobid, "updates": {"attributes.system.duration": 200.0}})

    async def has_the_limit():
        (there,) = await pair.jobs(pair.far)
        return abs(there["duration"] - 200.0) < 1.0

    await pair.until(has_the_limit)
    errnum, text = await pair.near.refused("job-manager.input", {"id": jobid, "data": b"x"})
    assert "runs in cluster east" in text, errnum
    await pair.near.ok("job-manager.kill", {"id": jobid, "signum": int(signal.SIGUSR1)})
    assert (await pair.wait(jobid))["success"]
    assert (await pair.near.next(stream)).payload["data"] == b"got it\n"
    cancelled = await pair.submit(job("sleep", "60"))
    await pair.running(pair.far)
    await pair.near.ok("job-manager.cancel", {"id": cancelled})
    assert (await pair.wait(cancelled))["errstr"] == "exception cancel"
    assert all(one["state"] == "INACTIVE" for one in await pair.jobs(pair.far))
    # refusals end the job with the reason
    constraint = job("true")
    constraint["attributes"]["system"]["constraints"] = {"ranks": ["2"]}
    answer = await pair.wait(await pair.submit(constraint))
    assert "the constraint names ranks" in answer["errstr"]
    named = job("true")
    named["attributes"]["system"]["constraints"] = {"hostlist": ["east:fake[2-3]"]}
    assert (await pair.wait(await pair.submit(named)))["success"]
    assert (await pair.jobs(pair.far))[0]["nodelist"] == "fake2"


async def test_a_silent_cluster_keeps_its_leases_until_it_is_forgotten(pair):
    await pair.begin(more='return-after = "1h"')
    running = await pair.submit(job("sleep", "60"))
    await pair.begun()
    found = await pair.cluster()
    assert (found["name"], found["kind"], found["state"]) == ("east", "fluxsched", "connected")
    assert (found["targets"], found["online"]) == (4, 4)
    assert await pair.near.refused("cluster.forget", {"name": "west"}) == (
        errno.ENOENT,
        "there is no cluster 'west'; there is only east",
    )
    errnum, text = await pair.near.refused("cluster.forget", {"name": "east"})
    assert (errnum, "answers" in text) == (errno.EBUSY, True)
    await pair.far.ok("job-manager.queue-start", {"start": False, "all": True})
    waiting = await pair.submit(job("true"))

    async def is_there():
        return len(await pair.jobs(pair.far)) == 2

    await pair.until(is_there)
    await pair.fall_silent()
    pair.make_late()
    await pair.near.settle()
    states = {one["id"]: one["state"] for one in await pair.jobs(pair.near)}
    assert states[running] == "RUN"
    assert (await pair.cluster())["online"] == 0
    listed = await command(pair, "list")
    (row,) = listed.splitlines()[1:]
    assert row.split()[:8] == ["east", "fluxsched", "silent", "4", "0", "0", "1", "1"]
    assert "nothing listens at" in listed or "connection closed" in listed
    assert await command(pair, "forget", "east") == "submitted again: 1 job; ended with an exception: 1 job\n"
    assert "its end is unknown" in (await pair.wait(running))["errstr"]
    first = await pair.info(waiting)
    answer = await pair.near.ok("job-manager.why", {"id": first["requeued_as"]})
    assert "exception return: not started in cluster east, which was forgotten" in answer["attempt"]


# Jobs that another instance does not begin: they are returned, at no cost, and run elsewhere, or there later.


@pytest.fixture
def blind(pair):
    """What becomes of the queue there is not noticed."""
    pair.pace = ClusterPace(queue_s=3600.0, listen_s=3600.0)


async def returned(pair, jobid):
    """The job that continues this one."""

    async def following():
        return (await pair.info(jobid)).get("requeued_as")

    return await pair.until(following)


async def stop(pair, *, start=False, reason="maintenance"):
    await pair.far.ok("job-manager.queue-start", {"start": start, "all": True, "reason": reason})


async def begun(pair):
    return [one["id"] for one in await pair.jobs(pair.far) if one.get("t_run")]


async def test_a_job_that_is_not_begun_in_time_is_returned_at_no_cost(pair, blind):
    await pair.begin(more='return-after = "50ms"')
    await stop(pair)
    jobid = await pair.submit(job("true"))
    found = await pair.info(await returned(pair, jobid))
    assert (found["requeue_of"], found.get("attempt", 0)) == (jobid, 0)
    await stop(pair, start=True)
    assert (await pair.wait(jobid))["success"]
    assert len(await begun(pair)) == 1


async def test_what_one_cluster_does_not_begin_runs_elsewhere_and_waits_for_it_meanwhile(pair, blind):
    await pair.begin(more=f'return-after = "1h"{BOTH}')
    await stop(pair)
    await pair.near.ok("resource.drain", {"targets": "0-1"})
    jobid = await pair.submit(job(queue="both"))
    await pair.granted(jobid)
    await pair.near.ok("resource.undrain", {"targets": "0-1"})
    why = await pair.near.ok("job-manager.why", {"id": jobid})
    assert (why["state"], why["reason"]) == ("RUN", "it was given targets of cluster east and waits to start there")
    assert "submitted again here, without counting as an attempt" in why["rule"]
    assert JobRow(await pair.info(jobid), 0.0).contextual_info() == "waits to start in cluster east"
    pair.make_late()
    following = await returned(pair, jobid)
    assert (await pair.wait(jobid))["success"]
    assert (await pair.info(following))["nodelist"] == "fake0", "not in the cluster that has just returned it"
    assert await begun(pair) == []
    assert not (await pair.info(following)).get("requeued_as")


async def test_for_a_while_no_job_is_sent_that_wants_as_many_targets_as_one_that_was_returned(pair, blind):
    await pair.begin(more='return-after = "1h"')
    await stop(pair)
    wide = await pair.submit(job(nodes=3, exclusive=True))
    await pair.granted(wide)
    pair.make_late()
    following = await returned(pair, wide)
    found = await pair.cluster()
    assert (found["online"], found["leases"]["sent"]) == (2, 0)
    assert "no job of 3 nodes or more is sent until" in found["note"]
    why = await pair.near.ok("job-manager.why", {"id": following})
    assert "; cluster east: " in why["reason"]
    assert "did not start there in time" in why["reason"]
    await stop(pair, start=True)
    assert (await pair.wait(await pair.submit(job(nodes=2, exclusive=True))))["success"]
    assert (await pair.info(following))["state"] == "SCHED"
    pair.forget_returned()
    assert (await pair.wait(wide))["success"]


async def test_nothing_is_sent_to_a_queue_that_is_stopped_and_its_reason_is_told(pair):
    pair.pace = ClusterPace(queue_s=0.02)
    await pair.begin(more=BOTH)
    await stop(pair)

    async def note():
        return (await pair.cluster())["note"]

    assert await pair.until(note) == "its queue is stopped: maintenance"
    jobid = await pair.submit(job())
    why = await pair.near.ok("job-manager.why", {"id": jobid})
    assert why["reason"].endswith("; cluster east: its queue is stopped: maintenance")
    behind = await pair.info(await pair.submit(job()))
    assert JobRow(behind, 0.0).contextual_info() == "cluster east: its queue is stopped: maintenance"
    assert (await pair.wait(await pair.submit(job(queue="both"))))["success"]
    assert await pair.jobs(pair.far) == []
    await stop(pair, start=True)
    assert (await pair.wait(jobid))["success"]
    assert (await pair.cluster())["note"] == ""


async def test_a_job_that_a_disabled_queue_refuses_waits_for_it(pair, blind):
    await pair.begin()
    await pair.far.ok("job-manager.queue-enable", {"enable": False, "reason": "closed today", "all": True})
    jobid = await pair.submit(job())
    following = await returned(pair, jobid)
    assert "closed today" in (await pair.info(jobid))["exception"]["note"]
    assert (await pair.info(following))["state"] == "SCHED"
    assert (await pair.cluster())["online"] == 0


# Clusters that answer nonsense or nothing, die between a submit and its answer, come back without their state, or
# with a second copy of a job.


ENDED = {"state": "ended", "began": True, "status": 0}


@pytest.fixture
def bench(tmp_path):
    """bench(others..., state=...): a loop whose pauses are short."""
    made = []

    def make(*others, **options):
        made.append(Bench(tmp_path, asyncio.get_running_loop(), *others, **options))
        return made[-1]

    yield make
    for one in made:
        one.loop.close()
        one.turns.stop()


@pytest.mark.parametrize("nonsense", [b"\xff\xff", b"\x81\xa6leases\x01", b"\x81\xa6leases\x91\x80"])
async def test_one_that_answers_nonsense_is_given_up_and_keeps_its_leases(bench, eventually, nonsense):
    bad, good = Other(is_silent=True), Other()
    table = bench(bad, good).loop.table
    await eventually(lambda: bool(bad.said("lease.watch")))
    (watch,) = [message for message in bad.messages if message.topic == "lease.watch"]
    bad.put(make_response(watch, nonsense))
    await eventually(lambda: bool(good.said("lease.submit")))
    assert bad.lost == "closed"
    assert table.leases["me/1"].state is LeaseState.SENT
    assert len(good.said("lease.submit")) == 1


async def test_one_that_answers_nothing_is_given_up_and_keeps_its_leases(bench, eventually):
    silent, good = Other(is_silent=True), Other()
    made = bench(silent, good, listen_s=0.2)
    await eventually(lambda: bool(good.said("lease.submit")))
    assert silent.lost == "closed"
    assert not silent.said("lease.submit")
    assert made.reported == []


@pytest.mark.parametrize("was_accepted", [True, False])
async def test_one_that_dies_between_submit_and_answer_has_no_second_copy(bench, eventually, was_accepted):
    first, second = Other(), Other([entry()] if was_accepted else [])
    made = bench(first, second)
    await eventually(lambda: bool(first.said("lease.submit")))
    first.lose()
    await eventually(lambda: made.loop.table.is_known and made.loop._connection is not None and bool(second.asked))
    if not was_accepted:
        await eventually(lambda: bool(second.said("lease.submit")))
        second.accept(7)
    second.tell(entry(state="running", began=True))
    second.tell(entry(**ENDED))
    await eventually(lambda: ("finished", 1, 0) in made.reported)
    assert len(second.said("lease.submit")) == (0 if was_accepted else 1)
    assert made.reported == [("started", 1), ("started", 1), ("finished", 1, 0)]
    await eventually(lambda: second.said("lease.settle") == [{"names": ["me/1"]}])


async def test_one_without_its_state_does_not_run_again_what_had_begun(bench, eventually):
    empty = Other()
    made = bench(empty, state=LeaseState.RUNNING)
    await eventually(lambda: bool(made.reported))
    assert "its end is unknown" in made.reported[0][2]
    assert not empty.said("lease.submit")
    assert ("lease", (1,)) in made.rows


async def test_a_second_copy_and_jobs_without_a_lease_are_cancelled(bench, eventually):
    running = entry(jobid=8, state="running", began=True)
    other = Other([entry(jobid=9), running, entry("me/5", 4), entry("me/6", 5, **ENDED)])
    made = bench(other, state=LeaseState.SENT)
    await eventually(lambda: ("started", 1) in made.reported)
    await eventually(lambda: len(other.said("lease.settle")) == 2)
    assert {one["id"] for one in other.said("job-manager.cancel")} == {9, 4}
    assert other.said("lease.settle") == [{"names": ["me/5"]}, {"names": ["me/6"]}]
    other.tell(entry(jobid=10))
    await eventually(lambda: 10 in {one["id"] for one in other.said("job-manager.cancel")})
    assert made.reported == [("started", 1)]


async def test_a_refusal_that_passes_is_tried_again_and_another_ends_the_job(bench, eventually):
    other = Other()
    made = bench(other)
    await eventually(lambda: bool(other.said("lease.submit")))
    other.refuse(errno.EAGAIN, "too many jobs")
    await eventually(lambda: len(other.said("lease.submit")) == 2)
    other.refuse(errno.EINVAL, "no such queue")
    await eventually(lambda: bool(made.reported))
    assert made.reported == [("failed", 1, "cluster east: no such queue")]


async def test_of_two_instances_with_the_same_leases_the_earlier_keeps_away(bench, eventually):
    other = Other()
    made = bench(other, Other(), Other())
    await eventually(lambda: bool(other.said("lease.submit")))
    other.put(make_error(other._watch, errno.ESTALE, "a later session of me watches now"))
    await eventually(lambda: made.loop.info().state == "silent")
    assert made.loop.info().note == loop.DISPLACED
    await asyncio.sleep(0.05)
    assert len(made.others) == 2, "it does not connect again"
    assert made.reported == []


async def test_a_start_with_an_earlier_number_than_another_says_what_to_do_and_tries_again(bench, eventually):
    first, second = Other(is_silent=True), Other(is_silent=True)
    made = bench(first, second)
    await eventually(lambda: bool(first.said("lease.watch")))
    (watch,) = [message for message in first.messages if message.topic == "lease.watch"]
    first.put(make_error(watch, errno.ESTALE, "session 1 of me is over: session 2 has begun"))
    await eventually(lambda: bool(second.said("lease.watch")))
    assert made.loop.info().state == "silent"
    assert "the clock here was behind at this start" in made.loop.info().note
    assert made.reported == []


# The switches of a cluster: jobs with a bound on hops run under them, and changes there are followed.


LEAVES = """
[topology]
[[topology.switch]]
name = "leaf0"
hosts = "fake[0-1]"
[[topology.switch]]
name = "leaf1"
hosts = "fake[2-3]"
[[topology.switch]]
name = "root"
switches = "leaf[0-1]"
"""
FLAT = """
[topology]
[[topology.switch]]
name = "leaf2"
hosts = "fake[0-3]"
"""


def bound(nodes, max_hops=2):
    return job("sleep", "60", nodes=nodes, exclusive=True, max_hops=max_hops)


async def switches(pair):
    answer = await pair.near.ok("resource.status")
    found = ResourceSet.parse(answer["R"]).topology.switches
    return {name: str(switch.hosts) or ",".join(switch.switches) for name, switch in found.items()}


async def begin(pair, tmp_path):
    path = tmp_path / "east.toml"
    path.write_text(LEAVES)
    pair.there = await pair.world.instance(fake="4x4", config=path, schedulers=("easy",))
    pair.far = pair.world.second(pair.there)
    await pair.open(pair.there.uri, more=FLAT.replace("fake[0-3]", "fake[0-1]").replace("leaf2", "leaf0"))
    return path


async def test_a_bound_on_hops_holds_in_a_cluster_and_its_changes_are_followed(pair, tmp_path):
    path = await begin(pair, tmp_path)
    assert await switches(pair) == {
        "leaf0": "fake[0-1]",
        "east:leaf0": "east:fake[0-1]",
        "east:leaf1": "east:fake[2-3]",
        "east:root": "east:leaf0,east:leaf1",
    }
    never = await pair.wait(await pair.submit(bound(3)))
    assert "hops" in never["errstr"], "it has not four of them under one switch"
    one = await pair.submit(job("sleep", "60", nodes=1, exclusive=True))
    (there,) = await pair.running(pair.far)
    waiting = await pair.submit(bound(2))
    (second, _) = await pair.running(pair.far, 2)
    sent = await pair.far.ok("job-manager.lookup", {"id": second["id"], "keys": ["jobspec"]})
    assert sent["jobspec"]["attributes"]["system"]["fluxsched"] == {"max-hops": 2}
    assert there["nodelist"] == "fake0"
    assert second["nodelist"] == "fake[2-3]", "under one switch there, too"
    path.write_text(FLAT)
    await pair.far.ok("config.reload", {})
    for jobid in (one, waiting):
        await pair.near.ok("job-manager.cancel", {"id": jobid})

    async def is_flat():
        return "east:leaf2" in await switches(pair)

    await pair.until(is_flat)
    assert await pair.submit(bound(3))
    await pair.running(pair.far)


async def test_a_reload_takes_switches_away_beside_those_of_a_cluster(pair, tmp_path):
    await begin(pair, tmp_path)
    path = Path(pair.here.settings.config.name)
    path.write_text(path.read_text().replace('"leaf0"', '"rack0"').replace("fake[0-1]", "fake1"))
    await pair.near.ok("config.reload", {})
    assert await switches(pair) == {
        "rack0": "fake1",
        "east:leaf0": "east:fake[0-1]",
        "east:leaf1": "east:fake[2-3]",
        "east:root": "east:leaf0,east:leaf1",
    }


# Clusters at a tcp port that keys open: real ports, keys in files.


@pytest.fixture
async def at_port(pair, tmp_path, monkeypatch):
    """at_port(role): the pair, connected by tcp with a key of this role, or with one that is not admitted."""
    home = tmp_path / "fluxsched"
    home.mkdir()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("FLUXSCHED_KEY", raising=False)
    generate_server(home)
    (home / "authorized-keys").mkdir()

    async def connect(role):
        secret, public = generate("here", role or Role.OWNER, None, pair.world.directory)  # beside the configuration
        if role is not None:
            public.rename(home / "authorized-keys" / public.name)
        pair.there = await pair.world.instance(fake="4x4", schedulers=("easy",), bind=("tcp://127.0.0.1:*",))
        (uri,) = [server.endpoint for server in pair.there.servers if server.endpoint.startswith("tcp://")]
        assert "@127.0.0.1:" in uri
        await pair.open(uri, more=f'key = "{secret.name}"')

    return connect


async def test_an_owner_has_jobs_run_at_a_tcp_port(pair, at_port):
    await at_port(Role.OWNER)
    jobid = await pair.submit(job("sh", "-c", "exit 3"))
    assert (await pair.wait(jobid))["status"] == 3 << 8
    found = await pair.cluster()
    assert (found["state"], found["targets"], found["online"]) == ("connected", 4, 4)


@pytest.mark.parametrize(("role", "note"), [(Role.ADMIN, "only its owner has leases there"), (None, NOT_ADMITTED)])
async def test_all_others_are_told_what_they_lack(pair, at_port, role, note):
    await at_port(role)
    found = await pair.cluster()
    assert (found["state"], found["targets"]) == ("silent", 0)
    assert note in found["note"]
