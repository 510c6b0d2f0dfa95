"""The bridge where recordings are silent: faults of Flux, of jobspecs and of policies, and what is in flight."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from fluxsched.flux import bridge as running_jobs
from fluxsched.flux import handle
from fluxsched.flux.bridge import SLICE_S
from fluxsched.flux.handle import LOG_ERR, BrokerReply

R = {
    "version": 1,
    "execution": {
        "R_lite": [{"rank": "0-1", "children": {"core": "0-1"}}],
        "starttime": 1.0,
        "expiration": 0.0,
        "nodelist": ["n[0-1]"],
    },
}
JOB = {"id": 7, "priority": 16, "userid": 1, "t_submit": 1.0}


def freed(jobid: int, rank: str, core: str) -> dict:
    lite = [{"rank": rank, "children": {"core": core}}]
    return {"id": jobid, "R": {"version": 1, "execution": {"R_lite": lite}}, "final": True}


def test_r_is_stored_before_its_job_hears_of_it(hand):
    hand.begin()
    hand.alloc(1)
    hand.turn()
    ((values, done),) = hand.commits
    assert list(values) == ["job.0000.0000.0000.0001.R"]
    assert hand.take("respond") == []
    done(BrokerReply())
    ((token, answer),) = hand.take("respond")
    assert token == answer["id"] == 1
    assert answer["R"] == values["job.0000.0000.0000.0001.R"]
    assert answer["R"]["execution"]["nslots"] == 1
    assert answer["annotations"] == {"sched": {"resource_summary": "rank0/core0"}}


def test_grants_share_transactions_while_the_kvs_is_busy(hand):
    hand.begin(ranks="0-99")
    for jobid in range(1, handle.IN_FLIGHT_MAX + 10):
        hand.alloc(jobid)
        hand.turn()
    assert [len(values) for values, _ in hand.commits] == [1] * handle.IN_FLIGHT_MAX
    hand.commits[0][1](BrokerReply())
    assert len(hand.commits[-1][0]) == 9


def test_a_transaction_has_a_limit(hand):
    hand.begin(ranks="0-999")
    for jobid in range(1, handle.GRANTS_MAX + 3):
        hand.alloc(jobid)
    hand.turn()
    assert [len(values) for values, _ in hand.commits] == [handle.GRANTS_MAX, 2]


def test_a_job_that_is_canceled_while_its_r_is_stored_gets_it_and_frees_it(hand):
    bridge = hand.begin()
    hand.alloc(1)
    hand.turn()
    hand.ask("sched.cancel", {"id": 1})
    assert hand.take("respond") == []
    hand.commits[0][1](BrokerReply())
    assert [answer["type"] for _, answer in hand.take("respond")] == [0]
    hand.ask("sched.free", freed(1, "0", "0"))
    assert bridge.scheduler.report.stats()["running"] == 0


def test_a_job_that_names_a_reservation_is_denied_and_keeps_nobody_waiting(hand):
    hand.begin()
    hand.alloc(1, fluxsched={"reservation": "course"})
    hand.alloc(2)
    hand.turn()
    ((_, answer),) = hand.take("respond")
    assert (answer["id"], answer["type"]) == (1, 2)
    assert "there is no reservation 'course': in Flux there are none" in answer["note"]
    assert list(hand.commits[0][0]) == ["job.0000.0000.0000.0002.R"]


def test_without_the_kvs_the_module_leaves_quietly(hand):
    hand.begin()
    hand.alloc(1)
    hand.turn()
    hand.commits[0][1](BrokerReply(None, errno.ENOSPC, "No space left on device"))
    assert hand.stopped
    assert "No space left" in hand.take("log")[-1][1]


@pytest.mark.parametrize("topic", ["resource.acquire", "job-manager.sched-hello", "job-manager.sched-ready"])
def test_a_refused_beginning_ends_the_module_quietly(hand, topic):
    hand.acquire()
    if topic == "job-manager.sched-ready":
        hand.answer("job-manager.sched-hello", errnum=errno.ENODATA)
    hand.answer(topic, errnum=errno.EBUSY, text="somebody else has it")
    assert hand.stopped
    assert f"{topic}: somebody else has it" in hand.take("log")[-1][1]


def test_requests_wait_until_the_running_jobs_are_known(hand):
    hand.acquire()
    hand.ask("sched.resource-status", token="early")
    hand.answer("job-manager.sched-hello", JOB | {"free": "1"})
    hand.answer("job-manager.sched-hello", errnum=errno.ENODATA)
    hand.answer("job.0000.0000.0000.0007.R", R)
    assert hand.take("respond") == []
    hand.answer("job-manager.sched-ready", {"count": 0})
    ((token, status),) = hand.take("respond")
    assert token == "early"
    assert [entry["rank"] for entry in status["allocated"]["execution"]["R_lite"]] == ["0"]


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (BrokerReply(None, errno.ENOENT, "No such file or directory"), "cannot be read"),
        (BrokerReply(b'{"version": 1}'), "execution"),
        (
            BrokerReply(b'{"version": 1, "execution": {"R_lite": [{"rank": "9", "children": {"core": "0"}}]}}'),
            "ranks 9",
        ),
    ],
)
def test_a_running_job_that_cannot_be_taken_over_gets_an_exception(hand, reply, why):
    hand.acquire()
    hand.answer("job-manager.sched-hello", JOB)
    hand.answer("job-manager.sched-hello", errnum=errno.ENODATA)
    hand.calls["job.0000.0000.0000.0007.R"](reply)
    raised = dict(hand.take("rpc"))["job-manager.raise"]
    assert (raised["id"], raised["type"], raised["severity"]) == (7, "scheduler-restart", 0)
    assert why in raised["note"]
    hand.answer("job-manager.sched-ready", {"count": 0})
    assert not hand.stopped


def test_two_running_jobs_on_one_core_are_not_both_taken_over(hand):
    hand.acquire()
    hand.answer("job-manager.sched-hello", JOB)
    hand.answer("job-manager.sched-hello", JOB | {"id": 8})
    hand.answer("job-manager.sched-hello", errnum=errno.ENODATA)
    hand.answer("job.0000.0000.0000.0008.R", R)  # the second answer comes first: the order of hello counts
    hand.answer("job.0000.0000.0000.0007.R", R)
    assert dict(hand.take("rpc"))["job-manager.raise"]["id"] == 8


def test_no_more_lookups_are_in_flight_than_the_limit_allows(hand, monkeypatch):
    monkeypatch.setattr(running_jobs, "LOOKUPS_MAX", 2)
    bridge = hand.acquire(cores="0-9")
    for jobid in range(1, 6):
        hand.answer("job-manager.sched-hello", JOB | {"id": jobid})
    hand.answer("job-manager.sched-hello", errnum=errno.ENODATA)
    for jobid in range(1, 6):
        asked = [key for key in hand.calls if key.startswith("job.0")]
        assert len(asked) == 2 - (jobid == 5)
        lite = [{"rank": "0", "children": {"core": str(jobid)}}]
        execution = {"R_lite": lite, "starttime": 1.0, "expiration": 0.0, "nodelist": ["n0"]}
        hand.calls.pop(asked[0])(BrokerReply(json.dumps({"version": 1, "execution": execution}).encode()))
    assert bridge.scheduler.report.stats()["running"] == 5


@pytest.mark.parametrize("jobspec", [{}, {"version": 1}, {"version": 2, "attributes": {"system": {}}}])
def test_a_bad_jobspec_is_denied_and_named(hand, jobspec):
    hand.begin()
    hand.alloc(1, jobspec=jobspec)
    ((_, answer),) = hand.take("respond")
    assert answer["type"] == 2
    assert answer["note"].startswith("cannot parse jobspec")
    hand.alloc(2)
    hand.turn()
    assert len(hand.commits) == 1


def test_what_can_never_run_is_denied_in_fluxs_words_and_ours(hand):
    hand.begin()
    hand.alloc(1, slots=9)
    ((_, answer),) = hand.take("respond")
    assert answer["note"].startswith("unsatisfiable request: needs 9 slots")


def test_feasibility_tells_never_from_nonsense(hand):
    hand.begin(up="0")
    hand.alloc(1, slots=9)
    spec = {
        "version": 1,
        "resources": [{"type": "slot", "count": 8, "label": "t", "with": [{"type": "core", "count": 1}]}],
        "tasks": [{"command": ["true"], "slot": "t", "count": {"per_slot": 1}}],
        "attributes": {"system": {"duration": 0}},
    }
    hand.ask("feasibility.check", {"jobspec": spec}, token="fits, drained or not")
    assert ("fits, drained or not", None) in hand.take("respond")
    spec["resources"][0]["count"] = 9
    hand.ask("feasibility.check", {"jobspec": spec}, token="never")
    hand.ask("feasibility.check", {"jobspec": {}}, token="nonsense")
    assert [rest[:2] for rest in hand.take("fail")] == [("never", errno.EOVERFLOW), ("nonsense", errno.EINVAL)]


def test_a_second_alloc_of_a_job_that_runs_is_not_counted_as_waiting(hand):
    bridge = hand.begin()
    hand.alloc(1)
    hand.turn()
    hand.commits[0][1](BrokerReply())
    hand.alloc(1)
    assert "is already waiting or running" in hand.take("log")[-1][1]
    assert bridge.waiting == {}


def test_a_second_alloc_of_a_job_changes_nothing(hand):
    bridge = hand.begin()
    hand.alloc(1)
    hand.alloc(1)
    assert len(hand.take("log")) == 2  # the ready line, and the complaint
    hand.turn()
    assert bridge.scheduler.report.stats()["granted"] == 1


def test_a_policy_that_raises_is_logged_once_and_asked_again(hand, tmp_path):
    file = tmp_path / "moody.py"
    file.write_text(
        "from fluxsched.sched.policy import decide\n"
        "class Moody:\n"
        "    name = 'moody'\n"
        "    OPTIONS = {}\n"
        "    def schedule(self, view, now_s):\n"
        "        for job in view.queue:\n"
        "            if job.jobid == 13:\n"
        "                raise ZeroDivisionError('bad luck')\n"
        "            yield decide(job, view.place(job))\n"
    )
    bridge = hand.begin(f"policy={file}")
    hand.take("log")
    hand.alloc(1)
    hand.alloc(13)
    hand.turn()
    hand.turn()
    assert ["bad luck" in text for _, text in hand.take("log")] == [True]
    assert bridge.policy_errors == 2
    assert list(hand.commits[0][0]) == ["job.0000.0000.0000.0001.R"]
    hand.ask("sched.cancel", {"id": 13})
    hand.alloc(14)
    hand.turn()
    assert bridge.scheduler.report.stats()["granted"] == 2
    assert not hand.stopped


def test_a_long_pass_is_cut_and_goes_on(hand):
    bridge = hand.begin(ranks="0-9")
    for jobid in range(1, 6):
        hand.alloc(jobid)
    hand.step_s = SLICE_S
    delays = len(hand.delays)
    hand.turn()
    assert bridge.scheduler.report.stats()["granted"] == 1
    assert len(hand.delays) == delays + 1
    assert hand.delays[-1] > 0, "messages get their half"
    for _ in range(4):
        hand.turn()
    assert bridge.scheduler.report.stats()["granted"] == 5


PACED = """
from fluxsched.sched.policies.backfill import Fifo
from fluxsched.sched.policy import PAUSE
class Paced(Fifo):
    name = "paced"
    passes = 0
    def schedule(self, view, now_s):
        Paced.passes += 1
        yield PAUSE
        yield PAUSE
        yield from super().schedule(view, now_s)
"""


def test_an_interrupted_pass_is_continued_and_meanwhile_only_questions_are_answered(hand, tmp_path):
    file = tmp_path / "paced.py"
    file.write_text(PACED)
    bridge = hand.begin(f"policy={file}")
    hand.alloc(1)
    hand.step_s = SLICE_S
    hand.turn()
    hand.ask("sched.cancel", {"id": 1})
    hand.ask("sched.resource-status", token="question")
    assert [token for token, _ in hand.take("respond")] == ["question"]
    hand.turn()
    hand.step_s = 0.0
    hand.turn()
    assert bridge.scheduler.report.stats()["granted"] == 1
    assert (bridge.policy.passes, bridge.session.kept) == (1, 0)
    ((_, done),) = hand.commits
    done(BrokerReply())
    assert [answer["type"] for _, answer in hand.take("respond")] == [0], "the cancel came too late"


def test_shrink_raises_nothing_and_the_free_of_what_is_gone_is_accepted(hand):
    bridge = hand.begin()
    hand.alloc(1, slots=8)
    hand.turn()
    hand.commits[0][1](BrokerReply())
    hand.take("rpc")
    hand.answer("resource.acquire", {"shrink": "3", "down": "3"})
    hand.ask("sched.free", freed(1, "0-3", "0-1"))
    assert hand.take("rpc") == []
    assert bridge.scheduler.report.stats()["running"] == 0
    hand.alloc(2, slots=7)
    assert hand.take("respond")[-1][1]["type"] == 2, "what has left no longer counts"


def test_properties_and_expiration_change_while_we_run(hand):
    hand.begin()
    hand.alloc(1, constraints={"properties": ["ssd"]})
    assert hand.take("respond")[-1][1]["type"] == 2
    hand.answer("resource.acquire", {"property-add": {"ssd": "2"}, "expiration": 5000.0})
    hand.alloc(2, constraints={"properties": ["ssd"]}, duration=9000)
    hand.turn()
    ((values, _),) = hand.commits
    execution = values["job.0000.0000.0000.0002.R"]["execution"]
    assert execution["R_lite"][0]["rank"] == "2"
    assert execution["expiration"] == 5000.0
    hand.answer("resource.acquire", {"property-remove": {"ssd": "2"}})
    hand.alloc(3, constraints={"properties": ["ssd"]})
    assert hand.take("respond")[-1][1]["type"] == 2


def test_an_expiration_is_granted_or_refused(hand):
    hand.begin()
    hand.alloc(1)
    hand.turn()
    hand.commits[0][1](BrokerReply())
    hand.take("respond")
    hand.ask("sched.expiration", {"id": 1, "expiration": 9000.5}, token="later")
    hand.ask("sched.expiration", {"id": 2, "expiration": 9000}, token="whose")
    hand.bits.add(4)
    hand.ask("sched.expiration", {"id": 1, "expiration": 9000}, token="denied")
    assert hand.take("respond") == [("later", None)]
    assert [token for token, *_ in hand.take("fail")] == ["whose", "denied"]


def test_an_end_of_the_stream_ends_the_module(hand):
    hand.begin()
    hand.answer("resource.acquire", errnum=errno.ECONNRESET, text="the resource module was unloaded")
    assert hand.stopped
    hand.turn()


def test_stats_count_passes_and_transactions(hand):
    hand.begin()
    hand.alloc(1)
    hand.turn()
    hand.ask("sched-fluxsched.stats-get", token="stats")
    ((_, stats),) = hand.take("respond")
    assert stats["policy"] == "fifo"
    assert stats["commits"] == {"in_flight": 1, "waiting": 0, "done": 0}
    assert stats["pending_jobs"] == 1
    assert stats["sched_passes"] == 2


UNUSED = {
    "singleton": {"dependencies": [{"scheme": "singleton", "value": ""}]},
    "thousands of dependencies": {"dependencies": [{"scheme": "afterany", "value": "f1"}] * 2000},
    "dependencies that are none": {"dependencies": 7},
    "empty bank": {"bank": ""},
    "bank that is a number": {"bank": 7},
    "job name that is a number": {"job": {"name": 7, "set": 8}},
    "job that is none": {"job": "x"},
    "files that are a text": {"files": "x"},
    "time to be preempted after": {"preemptible-after": "soon"},
    "directory and environment": {"cwd": 7, "environment": ["A"]},
    "shell options": {"shell": {"options": {"pmi": 7, "output": {"stdout": 3}}}},
    "pretended run": {"exec": {"test": {"run_duration": "x"}}},
    "array": {"array": "x"},
    "queue": {"queue": 7},
}


@pytest.mark.parametrize("system", UNUSED.values(), ids=UNUSED)
def test_what_flux_accepted_and_no_scheduler_needs_is_not_judged(hand, system):
    hand.begin("policy=easy")
    hand.alloc(1, **system)
    hand.turn()
    assert len(hand.commits) == 1
    resources = [{"type": "slot", "count": 1, "label": "task", "with": [{"type": "core", "count": 1}]}]
    spec = {"version": 1, "resources": resources, "tasks": "x", "attributes": {"system": system, "more": 1}}
    hand.ask("feasibility.check", {"userid": 1, "jobspec": spec}, token="check")
    assert hand.take("respond") == [("check", None)]


@pytest.mark.parametrize(
    ("system", "why"),
    [
        ({"duration": "x"}, "attributes.system.duration must be a number of seconds"),
        ({"constraints": {"or": 7}}, "attributes.system.constraints"),
        ({"fluxsched": {"max-hops": 3}}, "attributes.system.fluxsched.max-hops: 3 is not an even number"),
        ({"fluxsched": []}, "attributes.system.fluxsched must be an object"),
    ],
)
def test_what_a_scheduler_decides_by_is_judged(hand, system, why):
    hand.begin("policy=easy")
    hand.alloc(1, **system)
    ((_, answer),) = hand.take("respond")
    assert answer["type"] == 2
    assert answer["note"].startswith(f"cannot parse jobspec: {why}")


QUOTA = """
partitions:
  - name: default
    queues: [{name: root, queues: [{name: default}, {name: a, resources: {max: {core: 2}}}]}]
"""


def test_plugins_see_the_labels_of_jobs_that_ran_before(hand, tmp_path):
    pytest.importorskip("yaml")
    config = tmp_path / "quota.yaml"
    config.write_text(QUOTA)
    hand.acquire("policy=easy", f"plugins=quota:config={config}")
    held = {"version": 1, "execution": {**R["execution"], "R_lite": [{"rank": "0", "children": {"core": "0-1"}}]}}
    hand.answer("job-manager.sched-hello", JOB)
    hand.answer("job-manager.sched-hello", errnum=errno.ENODATA)
    hand.answer("job.0000.0000.0000.0007.R", held | {"execution": held["execution"] | {"nodelist": ["n0"]}})
    resources = [{"type": "slot", "count": 2, "label": "task", "with": [{"type": "core", "count": 1}]}]
    task = {"command": ["true"], "slot": "task", "count": {"per_slot": 1}}
    attributes = {"system": {"duration": 0, "bank": "a"}}
    spec = {"version": 1, "resources": resources, "tasks": [task], "attributes": attributes}
    hand.answer("job.0000.0000.0000.0007.jobspec", spec)
    hand.answer("job.0000.0000.0000.0007.eventlog", {"timestamp": 1.0, "name": "submit"})
    hand.answer("job-manager.sched-ready", {"count": 0})
    hand.alloc(8, bank="a")
    hand.alloc(9)
    hand.turn()
    assert [[*values] for values, _ in hand.commits] == [["job.0000.0000.0000.0009.R"]]
    assert [line for line in hand.take("log") if line[0] <= LOG_ERR] == []


def test_plugins_are_told_the_time(hand):
    hand.now_s = 12 * 3600.0
    hand.begin("policy=easy", f"plugins={Path(__file__).parents[3] / 'examples' / 'plugin_night.py'}")
    hand.alloc(1, bank="night")
    hand.alloc(2)
    hand.turn()
    assert [[*values] for values, _ in hand.commits] == [["job.0000.0000.0000.0002.R"]]
