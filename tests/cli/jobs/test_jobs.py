"""`fluxsched jobs`, and what is done to jobs that are named; `golden/jobs.txt` has what is shown."""

from __future__ import annotations

import json
import os

import pytest

from fluxsched.cli.jobs import REASONS_ASKED_MAX
from fluxsched.cli.watch import PressedKeys, part_text
from fluxsched.errors import Refused, RPCError
from fluxsched.system.clock import SystemClock

from ..sites import NOW_S, listed, listing


@pytest.fixture(autouse=True)
def _stopped_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SystemClock, "wall_s", staticmethod(lambda: NOW_S))


def test_jobs_without_a_reason_of_their_own_show_that_of_their_queue(cli, job) -> None:
    queues = {
        None: {"enable": True, "start": False, "start_reason": "no scheduler serves group a", "blocked": "scheduler"},
        "off": {"enable": True, "start": False, "start_reason": "being mended"},
        "on": {"enable": True, "start": True, "start_reason": "mended"},
    }
    waiting = [
        job(id=6 + at, state=state, nodelist=None, queue=queue)
        for at, (state, queue) in enumerate([("SCHED", None), ("PRIORITY", "off"), ("SCHED", "on"), ("SCHED", "on")])
    ]
    answers = {
        "job-manager.list": {"jobs": listing()[:5] + waiting},
        "job-manager.queue-status": lambda request: queues[request.get("name")],
        "job-manager.reasons": {"jobs": [[8, "waits its turn; 2 ahead of it in the queue", 1700000099.0, False]]},
    }
    done = cli("jobs", "-n", "-o", "{id} {contextual_info}", answers=answers)
    assert done.out.splitlines()[1:5] == ["2 needs 4 nodes; 2 are busy", "3 eta:1.5m", "4 held", "5 depends:afterok:ƒ2"]
    assert done.out.splitlines()[5:] == [
        "6 no scheduler serves group a", "7 queue stopped: being mended",
        "8 waits its turn; 2 ahead of it in the queue", "9",
    ]  # fmt: skip
    assert done.calls[4:] == [("job-manager.reasons", {"ids": [8, 9]})]
    assert len(done.calls) == 5, "each queue is asked once"
    assert len(cli("jobs", "-o", "{id} {state}", answers=answers).calls) == 1
    answers |= dict.fromkeys(("job-manager.queue-status", "job-manager.reasons"), RPCError("no such queue"))
    done = cli("jobs", "-n", "-o", "{id} {contextual_info}", answers=answers)
    assert (done.code, done.out.splitlines()[5:]) == (0, ["6", "7", "8", "9"])


ACTIVE = {"states": ["CLEANUP", "DEPEND", "NEW", "PRIORITY", "RUN", "SCHED"]}


@pytest.mark.parametrize(
    ("args", "request_"),
    [
        ("", {"max_entries": 1000, "constraint": ACTIVE}),
        ("-A -c 5", {"max_entries": 5, "constraint": ACTIVE}),
        ("-c 0", {"max_entries": 100_000, "constraint": ACTIVE}),
        ("-a", {"max_entries": 1000}),
        ("-f running", {"max_entries": 1000, "constraint": {"states": ["CLEANUP", "RUN"]}}),
        ("-f failed,timeout", {"max_entries": 1000, "constraint": {"results": ["FAILED", "TIMEOUT"]}}),
        (
            "-f inactive,sched -q a,b -q c",
            {
                "max_entries": 1000,
                "constraint": {"and": [{"queue": ["a", "b", "c"]}, {"states": ["INACTIVE", "SCHED"]}]},
            },
        ),
        (
            "-f run,canceled",
            {"max_entries": 1000, "constraint": {"or": [{"states": ["RUN"]}, {"results": ["CANCELED"]}]}},
        ),
        (
            "-u root --name x --since 1m",
            {"max_entries": 1000, "since": NOW_S - 60, "constraint": {"and": [{"userid": [0]}, {"name": ["x"]}]}},
        ),
        ("--since=-1h", {"max_entries": 1000, "since": NOW_S - 3600}),
        ("--since 2023-11-14T22:14:40", {"max_entries": 1000, "since": NOW_S - 20}),
        ("--name t-* -a", {"max_entries": 1000, "constraint": {"or": [{"name": ["t-*"]}, {"name-pattern": ["t-*"]}]}}),
        ("--array ƒ3 -i 0-3 -a", {"max_entries": 1000, "constraint": {"and": [{"array": [2]}, {"ranks": ["0-3"]}]}}),
        ("-i node[0-3] -a", {"max_entries": 1000, "constraint": {"hostlist": ["node[0-3]"]}}),
        (
            "-i 0-3,node7,9 -a",
            {"max_entries": 1000, "constraint": {"or": [{"ranks": ["0-3,9"]}, {"hostlist": ["node7"]}]}},
        ),
        ("--set s7 -u all -a", {"max_entries": 1000, "constraint": {"set": ["s7"]}}),
        ("1 ƒ3", {"max_entries": 1000, "ids": [1, 2]}),
        ("1..ƒ5 9 -a", {"max_entries": 1000, "constraint": {"id": ["1..4", 9]}}),
    ],
)
def test_filters(cli, args: str, request_: dict) -> None:
    assert cli("jobs", *args.split(), answers={"job-manager.list": listed(*listing())}).calls[:1] == [
        ("job-manager.list", request_)
    ]


def test_sorted_jobs(cli, job) -> None:
    found = [job(id=1, name="b", t_run=3.0), job(id=3, name="a", t_run=None), job(id=2, name="b", t_run=5.0)]
    answers = {"job-manager.list": {"jobs": found}}
    for keys, ids in (("id", [1, 2, 3]), ("-id.f58", [3, 2, 1]), ("name,-id", [3, 2, 1]), ("t_run", [1, 2, 3]),
                      ("-t_run,id", [3, 2, 1])):  # fmt: skip
        out = cli("jobs", "-n", "-o", "{id}", "--sort", keys, answers=answers).out
        assert [int(line) for line in out.split()] == ids, keys
    ordered = json.loads(cli("jobs", "--json", "--sort", "name", answers=answers).out)
    assert [one["id"] for one in ordered["jobs"]] == [3, 1, 2]


@pytest.mark.parametrize(
    ("args", "calls"),
    [
        ("cancel 1 ƒ3", [("job-manager.cancel", {"id": 1}), ("job-manager.cancel", {"id": 2})]),
        ("cancel 1 1 ƒ2", [("job-manager.cancel", {"id": 1})]),
        ("cancel -m enough 1", [("job-manager.cancel", {"id": 1, "note": "enough"})]),
        ("kill 1", [("job-manager.kill", {"id": 1, "signum": 15})]),
        ("kill -s SIGusr1 1", [("job-manager.kill", {"id": 1, "signum": 10})]),
        ("kill -s 9 1", [("job-manager.kill", {"id": 1, "signum": 9})]),
        ("urgency 1 hold", [("job-manager.urgency", {"id": 1, "urgency": 0})]),
        ("urgency 1 20", [("job-manager.urgency", {"id": 1, "urgency": 20})]),
        ("urgency 1 expedite", [("job-manager.urgency", {"id": 1, "urgency": 31})]),
        ("update 1 duration=10m", [("job-manager.update", {"id": 1, "updates": {
            "attributes.system.duration": 600.0}})]),
        ("update 1 name=x queue=debug a.b=[1]", [("job-manager.update", {"id": 1, "updates": {
            "attributes.system.job.name": "x", "attributes.system.queue": "debug", "attributes.system.a.b": [1]}})]),
    ],
)  # fmt: skip
def test_what_is_sent(cli, args: str, calls: list) -> None:
    answers = {f"job-manager.{topic}": {"old": 16} for topic in ("cancel", "kill", "urgency", "update")}
    done = cli(*args.split(), answers=answers)
    assert (done.out, done.err, done.code, done.calls) == ("", "", 0, calls)


def test_every_job_that_refused_is_named_and_the_others_are_done(cli) -> None:
    def cancel(request: dict) -> dict | Exception:
        return {2: RPCError("no such job", 2), 3: Refused("ƒ4 is inactive")}.get(request["id"], {})

    done = cli("cancel", "1", "2", "3", "4", answers={"job-manager.cancel": cancel})
    assert (done.code, done.err) == (1, "fluxsched: cancel: ƒ3: no such job; ƒ4 is inactive\n")
    assert [payload["id"] for topic, payload in done.calls] == [1, 2, 3, 4]


def test_urgency_tells_the_old_one(cli) -> None:
    assert cli("urgency", "-v", "1", "default", answers={"job-manager.urgency": {"old": 3}}).out == "old urgency: 3\n"


@pytest.mark.parametrize(("change", "want"), [("+1m", 120.0), ("-10s", 50.0)])
def test_a_relative_duration(cli, change: str, want: float) -> None:
    answers = {"job-manager.list": listed(*listing()), "job-manager.update": {}}
    done = cli("update", "1", f"duration={change}", answers=answers)
    assert done.calls[-1][1]["updates"] == {"attributes.system.duration": want}


def test_a_relative_duration_of_none(cli, job) -> None:
    done = cli("update", "1", "duration=+1h", answers={"job-manager.list": {"jobs": [job(duration=0.0)]}})
    assert (done.code, done.err) == (1, "fluxsched: update: ƒ2 has no duration to change by +1h\n")


def test_watch_asks_for_what_has_changed_so_many_at_a_time(cli, job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fluxsched.cli.watch.ASKED_IDS_MAX", 2)
    events = [[jobid, 1.0, name, {}] for jobid in (1, 2, 3) for name in ("alloc", "clean")]

    def listed(request: dict) -> dict:
        ids = request.get("ids")
        found = [job(id=1), job(id=4)] if ids is None else [job(id=jobid, state="INACTIVE", result="FAILED")
                                                            for jobid in ids if jobid != 2]  # fmt: skip
        return {"jobs": found}

    answers = {"job-manager.watch": [{"events": events}], "job-manager.list": listed}
    done = cli("jobs", "--watch", "--name", "a*", "-o", "{id} {status}", answers=answers)
    assert (done.code, done.out) == (0, "JOBID STATUS\n1     RUN\n4     RUN\n1 FAILED\n3 FAILED\n")
    named = {"or": [{"name": ["a*"]}, {"name-pattern": ["a*"]}]}
    asked = [request for topic, request in done.calls if topic == "job-manager.list"][-2:]
    assert asked == [{"constraint": named, "ids": ids, "max_entries": 2} for ids in ([1, 2], [3])]
    failing = answers | {"job-manager.watch": [Refused("it is shutting down")]}
    assert cli("jobs", "--watch", answers=failing).err == "fluxsched: jobs: it is shutting down\n"


def test_the_scheduler_is_asked_about_so_many_jobs(cli, job) -> None:
    waiting = [job(id=1 + at, state="SCHED", nodelist=None) for at in range(REASONS_ASKED_MAX + 1)]
    answers = {
        "job-manager.list": {"jobs": waiting},
        "job-manager.queue-status": {"enable": True, "start": True},
        "job-manager.reasons": {"jobs": []},
    }
    done = cli("jobs", "-n", answers=answers)
    assert done.calls[-1] == ("job-manager.reasons", {"ids": [*range(1, REASONS_ASKED_MAX + 1)]})


@pytest.mark.parametrize(
    ("typed", "first"),
    [
        (b"", 5), (b"x\x1b[5;5~", 5), (b"\x1b[A", 4), (b"\x1bOBjj", 8), (b"\x1b[6~", 15), (b" \x1b[5~k", 4),
        (b"\x1b[F", 90), (b"G\x1b[A", 89), (b"\x1b[4~\x1b[1~\x1b[B", 1), (b"b", 0), (b"g", 0),
    ],
)  # fmt: skip
def test_keys_scroll_a_table_of_100_lines_by_lines_or_by_screens_of_10(typed: bytes, first: int) -> None:
    reads, writes = os.pipe()
    keys = PressedKeys(reads)
    os.write(writes, typed)
    keys.look()
    assert (keys.scrolled(5, 10, 100), keys.quit) == (first, False)
    assert (keys.scrolled(first, 10, 100), keys.scrolled(first, 10, 3)) == (first, 0)
    os.write(writes, b"\x1b[Aq")
    keys.look()
    assert keys.quit
    os.close(reads)
    os.close(writes)


@pytest.mark.parametrize(
    ("first", "count", "reach", "text"),
    [
        (0, 1, 1, "1 job"), (0, 10, 10, "10 jobs"), (0, 10, 5, "1-5 of 10 jobs"),
        (0, 4600, 1000, "1-10 of 4,600 jobs, arrow and page keys show others"),
        (990, 4600, 1000, "991-1,000 of 4,600 jobs, arrow and page keys show others"),
    ],
)  # fmt: skip
def test_a_screen_of_10_lines_says_what_part_of_a_table_it_shows(first: int, count: int, reach: int, text: str) -> None:
    assert part_text(first, 10, count, reach, "job") == text
