"""What each topic asks of an instance, and what viewers get of the answers."""

from __future__ import annotations

import asyncio
import errno
import re
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxsched.client import find
from fluxsched.core.idset import ID_MAX
from fluxsched.core.text import UNPRINTABLE
from fluxsched.errors import FluxschedError, InvalidValue, LimitExceeded, RPCError
from fluxsched.protocol.messages.jobs import LIST_START_MAX
from fluxsched.views import feeds, timeline
from fluxsched.views.feeds import (
    EVENTS_MAX,
    FILTERS,
    HELD_JOBS_MAX,
    HOLDERS_MAX,
    OUTPUT_CHARS_MAX,
    POINTS_MAX,
    QUEUE_JOBS_MAX,
    ROWS_MAX,
    ROWS_USUAL,
    OutputReader,
    Params,
    Period,
    job_request,
    named,
)
from fluxsched.views.follower import TOPICS, Follower
from fluxsched.views.timeline import ENDED_MAX, PAST_JOBS_MAX, PLANNED_MAX, RUNNING_MAX, SPANS_MAX, STARTS_MAX
from tests.views.conftest import WHOLE, job_info, until, whole_of


async def test_a_page_of_jobs_and_its_differences(following: Follower, spoken: Any) -> None:
    async with following, following.subscribe("jobs", {"user": "all", "max_entries": "2"}) as viewer:
        whole = await whole_of(viewer)
        assert whole["order"] == ["ƒ2"]
        (row,) = whole["jobs"]
        assert (row["jobid"], row["user"], row["reason"]) == ("ƒ2", "root", "queue stopped: power")
        assert "id" not in row
        spoken.jobs = [job_info(3), job_info(2, state="RUN", nodelist="n7"), job_info(1)]
        kind, change = await anext(viewer)
        assert kind == "change"
        assert [row["jobid"] for row in change["jobs"]] == ["ƒ4", "ƒ3"]
        assert (change["order"], change["gone"], change["left_out"]) == (["ƒ4", "ƒ3"], ["ƒ2"], 1)
        assert change["jobs"][1]["reason"] == "n7"


async def test_all_jobs_are_looked_through_now_and_then_and_rows_are_asked_for_in_between(
    following: Follower, spoken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "LIST_SHARE", 1e-9)
    spoken.jobs = [job_info(jobid) for jobid in (1, 2, 3)]
    spoken.answers["job-manager.list"] = lambda asked: {
        "jobs": [job for job in spoken.jobs if job["id"] in asked.get("ids", (1, 2, 3, 4))][: asked["max_entries"]],
        "count": len(spoken.jobs),
    }
    async with following, following.subscribe("jobs", {"max_entries": "2", "start": "1"}) as viewer:
        whole = await whole_of(viewer)
        assert (whole["order"], whole["left_out"]) == (["ƒ2", "ƒ3"], 1)
        spoken.jobs = [job_info(4), job_info(1, urgency=0), job_info(2), job_info(3)]
        whole = await until(viewer, whole, lambda whole: whole["jobs"][0]["reason"] == "held")
        assert (whole["order"], whole["left_out"]) == (["ƒ2", "ƒ3"], 1), "the new one is not looked for yet"
        page, *lists = [asked for topic, asked in spoken.asked if topic == "job-manager.list"]
        assert page["start"] == 1
        assert lists == [{**page, "start": 0, "ids": [1, 2]}] * len(lists)
        spoken.jobs = [job_info(4), job_info(3)]
        whole = await until(viewer, whole, lambda whole: whole["order"] == ["ƒ5", "ƒ4"])
        assert whole["left_out"] == 0, "half of the rows are gone, so all were looked through"


async def test_jobs_far_behind_in_a_queue_have_a_reason_and_an_estimate_too(following: Follower, spoken: Any) -> None:
    spoken.answers["job-manager.queue-status"] = {"enable": True, "start": True, "group": "default"}
    why = [[1, "7 ahead of it", 2e9, True], [2, "8 ahead of it", None, False]]
    spoken.answers["job-manager.reasons"] = {"jobs": why}
    told = {"sched": {"reason_pending": "no node is free", "t_estimate": 1.9e9}}
    spoken.jobs = [job_info(3, annotations=told), job_info(1), job_info(2), job_info(4, urgency=0)]
    async with following, following.subscribe("jobs") as viewer:
        rows = (await whole_of(viewer))["jobs"]
    assert [(row["reason"], row["estimate"], row.get("promised")) for row in rows] == [
        ("no node is free", 1.9e9, None),
        ("7 ahead of it", 2e9, True),
        ("8 ahead of it", None, None),
        ("held", None, None),
    ]
    assert ("job-manager.reasons", {"ids": [1, 2]}) in spoken.asked
    assert spoken.count("job-manager.reasons") == 1


async def test_a_rare_event_asks_for_the_list_where_figures_are_refused(following: Follower, spoken: Any) -> None:
    spoken.answers["instance.metrics"] = RPCError("not for guests", errno.EPERM)
    async with following, following.subscribe("jobs") as viewer:
        await whole_of(viewer)
        spoken.jobs = [job_info(1, urgency=0)]
        spoken.streams["job-manager.watch"][0].say({"events": [[1, 2.0, "urgency", {}]]})
        assert (await anext(viewer)).body["jobs"][0]["reason"] == "held"


def test_the_filters_of_a_page_mean_what_those_of_the_command_mean() -> None:
    words = {"states": "failed,RUN", "user": "root", "queue": "a,b", "name": "x*", "targets": "0-3,n7", "since": 5}
    assert job_request(Params("jobs", words, *FILTERS)) == {
        "max_entries": ROWS_USUAL,
        "order": "active",
        "since": 5.0,
        "constraint": {"and": [
            {"userid": [0]},
            {"or": [{"name": ["x*"]}, {"name-pattern": ["x*"]}]},
            {"queue": ["a", "b"]},
            {"or": [{"states": ["RUN"]}, {"results": ["FAILED"]}]},
            {"or": [{"ranks": ["0-3"]}, {"hostlist": ["n7"]}]},
        ]},
    }  # fmt: skip
    placed = {"ids": "ƒ2,ƒ3", "order": "-waited", "start": "200"}
    assert job_request(Params("jobs", placed, *FILTERS)) == {
        "max_entries": ROWS_USUAL, "ids": [1, 2], "order": "waited", "descending": True, "start": 200,
    }  # fmt: skip
    ranges = job_request(Params("jobs", {"ids": "ƒ2..ƒ3", "array": "ƒ4"}, *FILTERS))
    assert ranges["constraint"]["and"][:2] == [{"id": ["1..2"]}, {"array": [3]}]
    given = job_request(Params("jobs", {"constraint": {"states": ["RUN"]}, "text": "mesh"}, *FILTERS))
    assert {"states": ["RUN"]} in given["constraint"]["and"]


@pytest.mark.parametrize(
    ("topic", "params", "said"),
    [
        ("jobs", {"states": "asleep"}, "'asleep' is not one of"),
        ("jobs", {"user": "no-such-user"}, "there is no user"),
        ("jobs", {"ids": "???"}, "job"),
        ("jobs", {"max_entries": ROWS_MAX + 1}, f"above the limit of {ROWS_MAX}"),
        ("jobs", {"max_entries": 0}, "at least 1"),
        ("jobs", {"start": LIST_START_MAX + 1}, f"above the limit of {LIST_START_MAX}"),
        ("jobs", {"order": "colour"}, "order 'colour' is not one of active, id, "),
        ("jobs", {"order": "newest"}, "is not one of active"),
        ("jobs", {"order": "-active"}, "is not one of active"),
        ("jobs", {"constraint": "x"}, "not an object"),
        ("jobs", {"name": 7}, "not a text"),
        ("jobs", {"since": "yesterday"}, "not a number"),
        ("job", {"id": ""}, "job"),
        ("history", {"points": POINTS_MAX + 1}, f"above the limit of {POINTS_MAX}"),
        ("history", {"by": "junk"}, "by 'junk' is not one of user, bank, queue, group, property"),
        ("timeline", {"until": "1e99"}, "sensible"),
        ("machine", {"colour": "red"}, "colour: no such parameter"),
    ],
)
async def test_wrong_parameters_are_refused_at_once(following: Follower, topic: str, params: Any, said: str) -> None:
    with pytest.raises((InvalidValue, LimitExceeded), match=said):
        following.subscribe(topic, params)


async def test_one_job_its_events_its_output_and_why(following: Follower, spoken: Any) -> None:
    events = [{"timestamp": 1.0, "name": "submit"}, {"timestamp": 2.0, "name": "depend"}]
    spoken.answers |= {
        "job-manager.list": lambda _: {"jobs": spoken.jobs},
        "job-manager.lookup": {"id": 1, "eventlog": events},
        "job-manager.why": lambda _: {"id": 1, "state": spoken.jobs[0]["state"], "reason": "n/a"},
    }
    async with following, following.subscribe("job", {"id": "ƒ2"}) as viewer:
        whole = await whole_of(viewer)
        assert [event["name"] for event in whole["events"]] == ["submit", "depend"]
        assert (whole["why"]["id"], whole["job"]["jobid"], whole["output"]) == ("ƒ2", "ƒ2", [])
        while "job-manager.output" not in spoken.streams or "job-manager.eventlog" not in spoken.streams:
            await asyncio.sleep(0)
        output, log = spoken.streams["job-manager.output"][0], spoken.streams["job-manager.eventlog"][0]
        output.say({"stream": "stdout", "data": b"a\x1b[31mb\r\n\xc3"}, {"stream": "stdout", "data": b"\xa9"})
        whole = await until(viewer, whole, lambda whole: "é" in str(whole["output"]))
        assert whole["output"] == [["stdout", "a\\x1b[31mb\né"]]
        output.say({"stream": "stderr", "data": b"x" * (OUTPUT_CHARS_MAX + 7)})
        whole = await until(viewer, whole, lambda whole: whole["output_left_out"])
        assert whole["output"] == [["stderr", "x" * OUTPUT_CHARS_MAX]]
        assert whole["output_left_out"] == 7 + len("a\\x1b[31mb\né")
        spoken.jobs = [job_info(1, state="INACTIVE", result="COMPLETED")]
        log.say({"events": events[:1]}, {"events": [events[1], {"timestamp": 3.0, "name": "clean"}]})
        whole = await until(viewer, whole, lambda whole: whole["job"]["status"] == "COMPLETED")
        assert [event["name"] for event in whole["events"]] == ["submit", "depend", "clean"]


async def test_what_a_job_used_is_measured_while_it_runs_and_is_that_of_its_end_then(
    following: Follower, spoken: Any
) -> None:
    used = {"wall_s": 100.0, "user_s": 90.0, "system_s": 10.0, "max_rss_bytes": 1 << 20}
    r = {"version": 1, "execution": {"R_lite": [{"rank": "0", "children": {"core": "0-3"}}], "nodelist": ["n0"]}}
    known = {"eventlog": [], "R": r}
    running = job_info(1, state="RUN", ncores=4, t_run=1.0)
    spoken.answers |= {
        "job-manager.list": lambda _: {"jobs": spoken.jobs},
        "job-manager.lookup": lambda request: {"id": 1, **{key: known[key] for key in request["keys"]}},
        "job-manager.why": {"id": 1, "reason": "n/a"},
        "job-manager.usage": {"usage": used},
    }
    spoken.jobs = [{**running, "state": "SCHED", "t_run": None}]
    async with following, following.subscribe("job", {"id": "ƒ2"}) as viewer:
        whole = await whole_of(viewer)
        assert whole["usage"] is None, "it has not run"
        while "job-manager.eventlog" not in spoken.streams:
            await asyncio.sleep(0)
        spoken.jobs = [running]
        log = spoken.streams["job-manager.eventlog"][0]
        log.say({"events": [{"timestamp": 1.0, "name": "start"}]})
        whole = await until(viewer, whole, lambda whole: whole["usage"])
        assert list(whole["usage"]["lines"][0]) == ["cores", "4", "1", "25.0"]
        assert whole["usage"]["advice"] == ["asked 4 cores, used 1: ask for fewer, or use all of them"]
        spoken.jobs = [{**running, "state": "INACTIVE", "result": "COMPLETED"}]
        log.say({"events": [{"timestamp": 2.0, "name": "finish", "context": {"usage": {**used, "user_s": 390.0}}}]})
        whole = await until(viewer, whole, lambda whole: whole["usage"]["lines"][0][2] == "4")
        assert whole["usage"]["advice"] == []


async def test_the_first_whole_of_a_job_has_what_it_printed(following: Follower, spoken: Any) -> None:
    spoken.answers |= {
        "job-manager.list": {"jobs": spoken.jobs},
        "job-manager.lookup": {"id": 1, "eventlog": []},
        "job-manager.why": {"id": 1, "reason": "n/a"},
    }
    printed = ({"stream": "stdout", "data": b"a\n"}, {"stream": "stderr", "data": b"b"})
    spoken.first["job-manager.output"] = (*printed, None)
    async with following, following.subscribe("job", {"id": "ƒ2"}) as viewer:
        assert (await whole_of(viewer))["output"] == [["stdout", "a\n"], ["stderr", "b"]]


async def test_a_terminal_gets_colours_and_tasks_and_nothing_else_that_controls_it(
    following: Follower, spoken: Any
) -> None:
    spoken.answers |= {
        "job-manager.list": {"jobs": [job_info(1, ntasks=2)]},
        "job-manager.lookup": {"id": 1, "eventlog": []},
        "job-manager.why": {"id": 1, "reason": "n/a"},
    }
    written = [b"10%\r20%\r\n\x1b[1;3", b"2mok\x1b[0m\x1b[2K\x1b]0;title\x07\x07\x9b\xe2\x80\xae\x1b(B.\x1b]8;;x"]
    said = [{"stream": "stdout", "data": data, "task": 1} for data in written]
    spoken.first["job-manager.output"] = (said[0], {"stream": "stderr", "data": b"\xc3", "task": 0}, said[1], None)
    async with following, following.subscribe("job", {"id": "ƒ2", "terminal": "1"}) as viewer:
        output = (await whole_of(viewer))["output"]
    plain = "10%\r20%\n\x1b[1;32mok\x1b[0m\\x07\ufffd\\u202e."
    assert "".join(text for stream, text in output if stream == "stdout 1") == plain + "\\x1b]8;;x"


@given(st.binary(max_size=60), st.integers(1, 7))
@settings(max_examples=60)
def test_pieces_of_output_read_as_one_and_control_nothing(data: bytes, size: int) -> None:
    data = data.translate(bytes(b"\x1b[m0;1\r\n]"[byte % 9] if byte < 128 else byte for byte in range(256)))
    for is_terminal in (False, True):
        reader, whole = OutputReader(is_terminal=is_terminal), OutputReader(is_terminal=is_terminal)
        pieces = [reader.read(data[at : at + size]) for at in range(0, len(data), size)]
        text = "".join([*pieces, reader.end()])
        assert not is_terminal or text == whole.read(data) + whole.end()
        left = re.sub(r"\x1b\[[0-9;:]*m|\r", "", text) if is_terminal else text
        assert not UNPRINTABLE.search(left.replace("\n", "").replace("\t", ""))


async def test_targets_that_there_are_not_are_refused_and_no_empty_list(following: Follower, spoken: Any) -> None:
    spoken.answers["job-manager.running"] = RPCError("unknown hosts zz: give hosts of this instance, or ranks")
    async with following:
        async with following.subscribe("jobs", {"targets": "zz"}) as viewer:
            assert (await whole_of(viewer))["order"] == ["ƒ2"], "a job that ended was on a host that has left"
        spoken.jobs = []
        async with following.subscribe("jobs", {"targets": "zz", "states": "running"}) as viewer:
            assert "unknown hosts zz" in (await whole_of(viewer))["refused"]


async def test_a_job_that_is_not_there_is_refused(following: Follower, spoken: Any) -> None:
    spoken.answers |= {"job-manager.list": {"jobs": []}, "job-manager.lookup": RPCError("no such job", errno.ENOENT)}
    async with following, following.subscribe("job", {"id": "ƒ2"}) as viewer:
        assert "no such job" in (await whole_of(viewer))["refused"]


async def test_the_timeline_has_what_ended_runs_and_is_planned(following: Follower, spoken: Any) -> None:
    now_s = 2e9
    asked: dict[str, Any] = {}

    def listed(request: dict[str, Any]) -> dict[str, Any]:
        found = [job_info(8, ranks="2", ncores=2, t_run=now_s - 90, t_inactive=now_s - 9, state="INACTIVE")]
        return {"jobs": [job_info(7, queue="batch")] if "ids" in request else found}

    def running(request: dict[str, Any]) -> dict[str, Any]:
        asked.update(request)
        return {"jobs": [[5, "0-1", now_s - 60, 0.0, 4, 0, "", "run", []]], "left_out": 3}

    lasting = ["3", "drained", 5.0, None, "fan"]
    spoken.answers |= {
        "history.intervals": lambda asked: {
            "intervals": [lasting] * asked["max_entries"],
            "observed": [],
            "left_out": 0,
        },
        "job-manager.list": listed,
        "job-manager.running": running,
        "resource.targets": lambda request: {"targets": "0-2"} if request == {"targets": "n[0-2]"} else {},
        "sched.plan": {"jobs": [[7, now_s + 60, now_s + 120, "0-3", 4, 8, True]], "left_out": 0},
    }
    params = {"since": now_s - 3600, "until": now_s + 3600, "targets": "n[0-2]"}
    async with following, following.subscribe("timeline", params) as viewer:
        whole = await whole_of(viewer)
    assert [(bar[0], bar[4], bar[3]) for bar in whole["bars"] if bar[4] != "ended"] == [
        ("ƒ6", "running", None), ("ƒ8", "reserved", now_s + 120)
    ]  # fmt: skip
    assert (whole["ranks"], whole["left_out"], whole["rows"]) == ("0-2", 3, None)
    assert whole["cores_per_target"] == 2
    assert whole["spans"] == [lasting] * SPANS_MAX
    assert whole["starts"][0]["queue"] == "batch"
    assert asked == {"max_entries": RUNNING_MAX, "targets": "n[0-2]"}
    assert PLANNED_MAX >= STARTS_MAX
    assert (
        max(request.get("max_entries", 0) for topic, request in spoken.asked if topic == "job-manager.list")
        <= ENDED_MAX
    )


async def test_a_timeline_asks_for_what_ended_only_once(following: Follower, spoken: Any, monkeypatch: Any) -> None:
    """Where there is no history it shades what is drained now."""
    monkeypatch.setattr(timeline, "TIMELINE_EVERY_S", 0.001)
    now_s = time.time()
    found = [job_info(8, ranks="2", ncores=2, t_run=now_s - 90, t_inactive=now_s - 9, state="INACTIVE")]
    spoken.answers |= {
        "history.intervals": RPCError("there is none", errno.ENOSYS),
        "job-manager.list": lambda asked: {"jobs": found if asked["since"] < now_s - 9 else []},
        "job-manager.running": {"jobs": [], "left_out": 0},
        "sched.plan": RPCError("not for guests", errno.EPERM),
    }
    async with following, following.subscribe("timeline", {"since": -60}) as viewer:
        whole = await whole_of(viewer)
        assert (whole["bars"][0][:2], whole["spans"]) == (["ƒ9", "2"], [["3", "drained", 5.0, None, "fan"]])
        assert "gone" not in (await anext(viewer)).body
    since = [request["since"] for topic, request in spoken.asked if topic == "job-manager.list"]
    assert since[0] == pytest.approx(now_s - 60, abs=5)
    assert since[1] == pytest.approx(now_s - 2, abs=5)


async def test_groups_say_for_whom_a_leaving_target_waits(following: Follower, spoken: Any) -> None:
    groups = [{"name": "default", "targets": "0-2", "leaving": "3", "incoming": "", "acquired": True}]
    spoken.first["resource.watch"] = ({**WHOLE, "states": {"free": "1", "drained": "3", "allocated": "0,2"}},)
    spoken.answers |= {
        "resource.groups": {"groups": groups},
        "job-manager.running": {"jobs": [[5, "2-3", 1.0, 9.0, 4, 0, "", "run", []]], "left_out": 0},
    }
    async with following, following.subscribe("groups") as viewer:
        whole = await whole_of(viewer)
    assert whole["groups"] == [{**groups[0], "states": {"free": 1, "allocated": 2}}]
    assert whole["holders"] == {"default": [["ƒ6", "3", 9.0, "root", "run"]]}
    (queue,) = whole["queues"]
    assert (queue["name"], queue["started"], queue["waiting"], queue["running"]) == ("", False, 2, 1)
    assert ("job-manager.running", {"targets": "3", "max_entries": HOLDERS_MAX}) in spoken.asked


def queue_answers(limit: dict[str, Any]) -> dict[str, Any]:
    """Two queues on one group, one stopped; two jobs of batch wait, one is held, and one runs."""
    statuses = {
        "batch": {"enable": True, "start": True, "group": "default", "policy": "fair:rate=9", "waiting": [3, 1, 2]},
        "debug": {"enable": False, "enable_reason": "moved", "start": False, "start_reason": "power", "waiting": [4]},
    }
    return {
        "job-manager.queue-list": {"queues": [*statuses]},
        "job-manager.queue-status": lambda asked: {**statuses[asked["name"]], "name": asked["name"]},
        "job-manager.list": lambda asked: {
            "jobs": [
                job_info(jobid, urgency=0 if jobid == 2 else 16, queue="debug" if jobid == 4 else "batch")
                for jobid in asked["ids"]
            ],
            "count": 1,
        },
        "job-manager.running": {"jobs": [[9, "2-3", 1.0, 9.0, 4, 0, "batch", "run", []]], "left_out": 0},
        "config.get": {"limits": [limit]},
        "instance.metrics": {
            "jobs": {"submitted": 0, "started": 0, "ended": {}},
            "queues": [{"name": "batch", "pending": 3, "running": 1}, {"name": "debug", "pending": 1, "running": 0}],
        },
        "resource.targets": {"targets": "1-3"},
    }


async def test_queues_have_targets_limits_states_and_why_their_jobs_wait(following: Follower, spoken: Any) -> None:
    spoken.answers |= queue_answers({"queue": "*", "running": 5, "cores": 64})
    known = {
        1: (["needs 9 nodes; 1 is free", None, False], "no free nodes"),
        2: (["it is held: its urgency is 0", None, False], "held"),
        3: (["needs 4 nodes; none is free", 2e9, True], "no free nodes"),
        4: (["queue debug is stopped: power", None, False], "queue stopped"),
    }
    spoken.answers["job-manager.reasons"] = lambda asked: {
        "jobs": [[jobid, *known[jobid][0]] for jobid in asked["ids"]],
        "kinds": [known[jobid][1] for jobid in asked["ids"]],
    }
    spoken.first["resource.watch"] = ({**WHOLE, "states": {"free": "0", "offline": "1", "allocated": "2-3"}},)
    async with following, following.subscribe("queues") as viewer:
        batch, debug = (await whole_of(viewer))["queues"]
    assert (batch["groups"], batch["has_accounts"], batch["state"]) == (["default"], True, "open")
    assert batch["targets"] == {"total": 3, "online": 2, "free": 0}
    assert (batch["running"], batch["waiting"]) == (1, 3)
    assert batch["limits"] == ["1 of 5 running, 4 of 64 cores"]
    assert (batch["reasons"], batch["looked_at"]) == ([["no free nodes", 2], ["held", 1]], 3)
    promised = {"jobid": "ƒ4", "start": 2e9, "promised": True, "reason": "needs 4 nodes; none is free"}
    assert batch["head"] == promised
    assert (debug["state"], debug["reason"]) == ("disabled, stopped", "moved; power")
    assert (debug["reasons"], debug["head"]) == ([["queue stopped", 1]], None)
    assert ("job-manager.queue-status", {"name": "batch", "waiting": QUEUE_JOBS_MAX}) in spoken.asked
    assert ("job-manager.running", {"max_entries": HELD_JOBS_MAX}) in spoken.asked


async def test_the_use_of_a_queue_is_left_out_where_it_is_not_known(following: Follower, spoken: Any) -> None:
    spoken.answers |= queue_answers({"queue": "batch", "running": 5, "nodes": 8, "cores": 64, "minutes": 90})
    spoken.answers["job-manager.running"]["left_out"] = 1
    async with following, following.subscribe("queues") as viewer:
        batch, debug = (await whole_of(viewer))["queues"]
    told = "1 of 5 running, at most 8 nodes, at most 64 cores, at most 1h 30m a job"
    assert (batch["limits"], debug["limits"]) == ([told], [])
    spoken.answers |= queue_answers({"queue": "*", "user": "*", "running": 5, "waiting": 2})
    spoken.answers["instance.metrics"] = RPCError("not for guests", errno.EPERM)
    spoken.answers["job-manager.queue-list"] = {"queues": []}
    anonymous = {"enable": True, "start": True, "duration_max": 60.0, "nnodes_max": 4, "ngpus_max": 0}
    spoken.answers["job-manager.queue-status"] = anonymous
    async with Follower(connect=spoken.connect) as other, other.subscribe("queues") as viewer:
        (queue,) = (await whole_of(viewer))["queues"]
    assert (queue["running"], queue["waiting"], queue["head"]) == (None, None, None)
    assert queue["limits"] == ["a job: 1m, 1-4 nodes, 0 gpus"]
    assert queue["targets"] == {"total": 4, "online": 4, "free": 4}


async def test_accounts_are_one_answer_and_none_is_no_fault(following: Follower, spoken: Any) -> None:
    groups = [{"name": name, "acquired": True, "leaving": ""} for name in ("default", "fair")]

    def accounts(request: dict[str, Any]) -> Any:
        if request["group"] == "default":
            return RPCError("keeps no accounts", errno.ENOSYS)
        return {"capacity": 4.0, "accounts": [request["start"]], "next": 1 if not request["start"] else None}

    spoken.answers |= {"resource.groups": {"groups": groups}, "sched.accounts": accounts}
    async with following:
        async with following.subscribe("shares") as viewer:
            assert await whole_of(viewer) == {"capacity": 4.0, "accounts": [0, 1], "group": "fair", "groups": ["fair"]}
        async with following.subscribe("shares", {"group": "default"}) as viewer:
            assert (await whole_of(viewer))["why"] == "keeps no accounts"


async def test_history_is_asked_for_one_period(following: Follower, spoken: Any) -> None:
    spoken.answers["history.samples"] = {"t": []}
    spoken.answers["history.intervals"] = {"intervals": [], "observed": []}
    spoken.answers["history.report"] = {"rows": []}
    async with following, following.subscribe("history", {"since": -3600, "by": "queue"}) as viewer:
        whole = await whole_of(viewer)
    assert whole["until"] - whole["since"] == pytest.approx(3600, abs=5)
    assert (whole["samples"], whole["report"]) == ({"t": []}, {"rows": []})
    spoken.answers["history.samples"] = RPCError("not for guests", errno.EPERM)
    async with Follower(connect=spoken.connect) as other, other.subscribe("history") as viewer:
        whole = await whole_of(viewer)
    assert (whole["samples"], whole["report"], whole["intervals"]) == (None, {"rows": []}, [])


@pytest.mark.parametrize(("age_s", "shown_s"), [(None, 900), (30, 900), (1000, 3600), (7200, 21600), (80_000, 86400)])
async def test_a_first_look_at_the_history_has_all_of_a_young_instance(
    following: Follower, spoken: Any, age_s: float | None, shown_s: float
) -> None:
    times_s = [] if age_s is None else [time.time() - age_s, time.time()]
    spoken.answers["history.samples"] = {"t": times_s}
    spoken.answers["history.intervals"] = {"intervals": [], "observed": []}
    spoken.answers["history.report"] = {"rows": []}
    async with following, following.subscribe("history") as viewer:
        whole = await whole_of(viewer)
    assert whole["until"] - whole["since"] == pytest.approx(shown_s, abs=1)


def test_a_report_by_user_has_names() -> None:
    rows = [{"name": "0", "jobs": 3}, {"name": "4294967290", "jobs": 1}]
    assert [row["name"] for row in named({"by": "user", "rows": rows})["rows"]] == ["root", "4294967290"]
    assert named({"by": "queue", "rows": rows})["rows"] == rows


async def test_events_of_one_target_are_the_last_that_name_it(following: Follower, spoken: Any) -> None:
    def event(name: str, **context: Any) -> dict[str, Any]:
        return {"timestamp": 1.0, "name": name, "context": context}

    many = [event("drain", idset="2-4", reason=str(number)) for number in range(EVENTS_MAX + 1)]
    spoken.first["resource.journal"] = (
        {"events": [event("restart"), *many, event("drain", idset="5")]},
        {"events": [event("property-add", properties={"ssd": "0-3"})]},
        {"events": []},
    )
    async with following, following.subscribe("target", {"rank": "3"}) as viewer:
        whole = await whole_of(viewer)
        assert [each["name"] for each in whole["events"]] == ["drain"] * (EVENTS_MAX - 1) + ["property-add"]
        stream = spoken.streams["resource.journal"][0]
        stream.say({"events": [event("undrain", idset="4")]}, {"events": [event("lost", idset="3")]})
        whole = await until(viewer, whole, lambda whole: len(whole["events"]) > EVENTS_MAX)
        assert whole["events"][-1]["name"] == "lost"
        with pytest.raises(LimitExceeded):
            following.subscribe("target", {"rank": str(ID_MAX + 1)})


async def test_messages_are_appended_and_counted(following: Follower, spoken: Any) -> None:
    async with following, following.subscribe("messages", {"topics": "resource.,sched."}) as viewer:
        assert await whole_of(viewer) == {"messages": [], "dropped": 0}
        stream = spoken.streams["instance.trace"][0]
        assert stream.payload == {"topics": ["resource.", "sched."]}
        stream.say({"messages": [{"t": 1.0}], "dropped": 2}, {"messages": [{"t": 2.0}], "dropped": 1})
        whole = await until(viewer, {"messages": [], "dropped": 0}, lambda whole: whole["dropped"] == 3)
        assert whole["messages"] == [{"t": 1.0}, {"t": 2.0}]


async def test_every_topic_says_it_when_it_is_refused(following: Follower, spoken: Any) -> None:
    spoken.answers = {"instance.info": {}}
    refused = RPCError("not for you", errno.EPERM)
    for topic in ("resource.watch", "resource.journal", "instance.trace", "job-manager.watch"):
        spoken.first[topic] = (refused,)

    class Refusing(dict[str, Any]):
        def __missing__(self, topic: str) -> Any:
            return refused

    spoken.answers = Refusing(spoken.answers)
    async with following:
        for topic in TOPICS:
            async with following.subscribe(topic, {"id": "ƒ2"} if topic == "job" else {}) as viewer:
                body = await whole_of(viewer)
                while topic == "messages" and "refused" not in body:
                    body = await whole_of(viewer)
                assert body["refused"] == "not for you", topic


def test_a_period_is_in_order_and_may_be_relative() -> None:
    def bounds(**given: Any) -> tuple[float, float]:
        return Period(Params("history", given, "since", "until"), -10.0, 0.0).bounds_s(2e9)

    assert bounds() == (2e9 - 10, 2e9)
    assert bounds(since=-60, until="60") == (2e9 - 60, 2e9 + 60)
    assert bounds(since=1.9e9, until=1.8e9) == (1.9e9, 1.9e9)
    assert issubclass(InvalidValue, FluxschedError)


@pytest.mark.parametrize("is_observed", [True, False])
async def test_the_machine_of_a_time_in_the_past(following: Follower, spoken: Any, is_observed: bool) -> None:
    """Of jobs that run, that ended and that changed their size, and of what was out of use, just then."""
    at_s = 1_500_000_000.0
    spoken.answers |= {
        "job-manager.running": {
            "jobs": [
                [5, "0-1", at_s - 9, 0.0, 4, 0, "", "run", []],
                [6, "2", at_s + 9, 0.0, 2, 0, "", "later", []],
                [7, "5", at_s - 9, 0.0, 1, 0, "", "grown", [["3-4", at_s + 1, 2]]],
            ],
            "left_out": 2,
        },
        "job-manager.list": {
            "jobs": [job_info(8, state="INACTIVE", ranks="0,6", ncores=3, t_run=at_s - 5, t_cleanup=at_s + 5)],
            "count": 4,
        },
        "history.intervals": {
            "intervals": [["6", "draining", at_s - 2, None, "fan"], ["7", "offline", at_s - 2, at_s + 5, ""]],
            "observed": [[0.0, at_s + 1]] if is_observed else [],
        },
    }
    async with following, following.subscribe("past", {"at": at_s}) as viewer:
        found = await whole_of(viewer)
    assert found == {
        "at": at_s, "observed": is_observed, "left_out": 5, "busy": {"4": "0", "2": "1,6", "1": "3-4"},
        "states": {"draining": "6", "offline": "7", "allocated": "0-1,3-4"},
    }  # fmt: skip
    (asked,) = [payload for topic, payload in spoken.asked if topic == "job-manager.list"]
    ran_then = [{"states": ["INACTIVE"]}, {"t_run": [f"<={at_s}"]}, {"t_cleanup": [f">{at_s}"]}]
    assert asked == {"constraint": {"and": ran_then}, "since": at_s, "order": "active", "max_entries": PAST_JOBS_MAX}


async def test_guests_have_figures_of_the_machine_and_of_the_jobs_that_they_may_see(
    following: Follower, spoken: Any
) -> None:
    refused = RPCError("Request requires admin credentials", errno.EPERM)
    spoken.first["resource.watch"] = (WHOLE | {"busy": {"2": "0-1"}},)
    spoken.answers |= {
        "instance.metrics": refused, "config.get": {},
        "job-manager.list": lambda asked: {"jobs": [], "count": 7 if "SCHED" in asked["constraint"]["states"] else 2},
    }  # fmt: skip
    async with following, following.subscribe("figures") as viewer:
        found = await whole_of(viewer)
    assert found["targets"] == {"free": 4}
    assert found["cores"] == {"allocated": 4, "free": 4}
    assert found["queues"] == [{"running": 2, "pending": 7}]


async def test_figures_of_guests_are_those_of_the_instance_that_is_there_now(
    following: Follower, spoken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restart, too, the machine is followed."""
    monkeypatch.setattr(find, "RETRY_S", 0.001)
    spoken.answers |= {"instance.metrics": RPCError("for admins", errno.EPERM), "config.get": {}}
    async with following, following.subscribe("figures") as viewer:
        assert (await whole_of(viewer))["targets"] == {"free": 4}
        spoken.first["resource.watch"] = (WHOLE | {"states": {"free": "0-2", "drained": "3"}},)
        spoken.die()
        spoken.is_away = False
        assert (await whole_of(viewer))["targets"] == {"free": 3, "drained": 1}


async def test_where_jobs_are_private_guests_have_no_figures(following: Follower, spoken: Any) -> None:
    spoken.answers |= {
        "instance.metrics": RPCError("Request requires admin credentials", errno.EPERM),
        "config.get": {"access": {"private-jobs": True}},
    }
    async with following, following.subscribe("figures") as viewer:
        assert (await whole_of(viewer))["errnum"] == errno.EPERM
