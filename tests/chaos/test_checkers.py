"""Each checker finds the violation in a history written by hand, and none in one that keeps the law."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.chaos.checkers.base import DRAIN_REASON, HEALTH_USER, Judges, Violation
from tests.chaos.checkers.every import all_checkers
from tests.chaos.histories import ALL_SITE, CLEAN, HOSTS_SITE, SITE, History, log, online, resources, spec, truth
from tests.chaos.observations import EPOCH_S

Write = Callable[[History, Judges], object]


def run_and_end(h: History, j: Judges) -> None:
    h.submit(7)
    h.place("sched-fifo", 7, "0")
    h.begin(7, "0")
    h.end(7)
    j.settled(truth({7: log()}, jobs=COMPLETED, accounts={"results": {"completed": 1, "failed": 0}}))


def move_between_acquirers(h: History, j: Judges) -> None:
    first, second = h.acquire("sched-a", "default", "0-1"), h.acquire("acquirer", "lab", "2-3", link=2)
    h.shrink(first, "1")
    h.answer(h.release("sched-a", "default", "1"), {})
    h.answer(second, grow("1"))
    moved = [
        {"name": "default", "targets": "0", "leaving": "", "incoming": ""},
        {"name": "lab", "targets": "1-3", "leaving": "", "incoming": ""},
    ]
    j.settled(truth(groups=moved))


def acquired_again_after_a_cut(h: History, j: Judges) -> None:
    h.acquire("sched-a", "default", "0-1")
    h.cut()
    h.acquire("sched-a", "default", "0-1", link=2)
    j.settled(truth())


def undrained_by_a_lost_request(h: History, j: Judges) -> None:
    h.call("ops", "resource.drain", {"targets": "1"})
    h.ask("ops", "resource.undrain", {"targets": "1"})
    h.cut()
    h.call("ops", "resource.status", None, status(""), link=2)
    h.call("ops", "resource.status", None, status("1"), link=2)


def canceled(h: History, j: Judges) -> None:
    h.submit(7)
    h.begin(7)
    h.call("ann", "job-manager.cancel", {"id": 7}, {})
    h.end(7, 15)
    j.settled(truth({7: log((*CLEAN[:6], "exception", *CLEAN[6:]), 15)}))


def streams_that_agree(h: History, j: Judges) -> None:
    h.submit(7)
    watch = h.ask("eve", "job-manager.watch", {}, streaming=True)
    h.answer(watch, {"events": [[7, 4.0, "alloc", {}], [7, 5.0, "start", {}]]})
    events = h.ask("eve", "job-manager.eventlog", {"id": 7, "follow": True}, streaming=True)
    h.answer(events, {"events": log()[:6]})
    journal = h.ask("eve", "resource.journal", None, streaming=True)
    h.answer(journal, {"events": JOURNAL[:1]})
    h.answer(journal, {"events": []})
    h.answer(journal, {"events": JOURNAL[1:]})
    j.settled(truth({7: log()}, journal=JOURNAL))


def begun_late(h: History, j: Judges) -> None:
    """A full disk delayed its start: its age counts from the grant."""
    h.submit(7, **{"preemptible-after": 20.0})
    h.place("sched-a", 7, "0")
    h.wait(25.0)
    h.begin(7, "0")
    h.ask("sched-a", "job-manager.raise", {"id": 7, "type": "preempt", "severity": 0})


def grown_until_an_outage(h: History, j: Judges) -> None:
    """Its end has been moved to the begin of an outage, so it may have the targets until then."""
    h.submit(7)
    stream = h.acquire("sched-a", "default", "0-1", link=9)
    h.place("sched-a", 7, "0")
    h.answer(stream, {"type": "update", "outages": [planned(90.0, 99.0)]})
    h.tell("sched-a", "sched.expiration", {"id": 7, "expiration": EPOCH_S + 90.0})
    h.ask("sched-a", "job-manager.sched-grow", {"id": 7, "R": resources("1")}, link=9)


def started_by_a_clock_that_was_set_back(h: History, j: Judges) -> None:
    """The outage was over, and is forgotten."""
    h.acquire("sched-a", "default", "0-1", link=9)
    h.call("ops", "resource.outage-add", planned(20.0, 90.0), {})
    h.wait(90.0)
    h.place("sched-a", 7, "1", behind_s=20.0)


def started_by_a_clock_that_was_set_ahead(h: History, j: Judges) -> None:
    """After the outage, as the clock says, so that this does not end the job."""
    h.submit(7)
    h.acquire("sched-a", "default", "0-1", link=9)
    h.call("ops", "resource.outage-add", planned(20.0, 90.0) | {"end_jobs": True}, {})
    h.wait(55.0)
    h.place("sched-a", 7, "1", until_s=300.0, behind_s=-40.0)
    h.begin(7, "1")
    h.wait(50.0)
    h.end(7)
    j.settled(truth({7: log()}))


def unanswered_submit(h: History, j: Judges) -> None:
    h.ask("ann", "job-manager.submit", {"jobspec": {}})
    h.cut()
    j.settled(truth({7: log()}))


@pytest.mark.parametrize(
    "write",
    [
        run_and_end, move_between_acquirers, acquired_again_after_a_cut, undrained_by_a_lost_request, canceled,
        streams_that_agree, unanswered_submit, begun_late, grown_until_an_outage,
        started_by_a_clock_that_was_set_back, started_by_a_clock_that_was_set_ahead,
    ],
)  # fmt: skip
def test_nothing_is_said_of_a_history_that_keeps_the_laws(write: Write) -> None:
    judges = Judges(all_checkers(SITE))
    write(History(judges), judges)


def test_a_host_may_be_online_once_nothing_is_left_there() -> None:
    judges = Judges([checker for checker in all_checkers(HOSTS_SITE) if checker.name == "hosts"])
    h = History(judges)
    h.begin_on(1, 7)
    h.kill("keeper-node1")
    h.connect("node1")
    h.end_on(1, 7, 9)
    with pytest.raises(Violation, match="0 jobs tried 4 hosts"):  # what is looked at after that
        judges.settled(truth(journal=[online(h.now_s, "0-1")], specs={7: spec()}))


COMPLETED = {7: {"id": 7, "state": "INACTIVE", "result": "COMPLETED"}}
JOURNAL = [{"timestamp": float(at), "name": name} for at, name in enumerate(("restart", "drain", "undrain"))]


def status(drained: str) -> dict[str, object]:
    return {"online": "0-3", "torpid": "", "drain": {drained: {"reason": DRAIN_REASON}} if drained else {}}


def grow(ranks: str) -> dict[str, object]:
    return {"type": "grow", "resources": resources(ranks), "online": ranks, "offline": ""}


def planned(from_s: float, until_s: float) -> dict[str, Any]:
    """An outage of target 1, as it is asked for and told."""
    return {"name": "upd", "targets": "1", "from": EPOCH_S + from_s, "until": EPOCH_S + until_s, "reason": "outage"}


def reserved(from_s: float, until_s: float) -> dict[str, Any]:
    """A reservation of it."""
    return planned(from_s, until_s) | {"reservation": True}


def timed(*names: str, **system: Any) -> tuple[Any, ...]:
    """The log of a job with these events, and its jobspec: 60 s, submitted at the epoch."""
    events = [one | {"timestamp": one["timestamp"] + EPOCH_S} for one in log(names)]
    for one in events:
        one["context"] = one["context"] | ({"type": "deadline"} if one["name"] == "exception" else {})
    return "settled", {7: events}, With(specs={7: spec(**system)})


BY_HEALTH = {"drain": {"1": {"user": HEALTH_USER}}}


class With(dict[str, Any]):
    """Arguments by name."""


def steps(*calls: tuple[Any, ...]) -> Write:
    """A history as method names with their arguments: `#n` is the nth matchtag, `settled` is told to the judges."""

    def write(h: History, j: Judges) -> None:
        tags: list[int] = []
        for name, *arguments in calls:
            options = arguments.pop() if arguments and isinstance(arguments[-1], With) else {}
            if name == "settled":
                j.settled(truth(*arguments, **options))
                continue
            if name == "quiet":
                j.quiet(h.now_s, *arguments)
                continue
            where = [tags[int(one[1:])] if isinstance(one, str) and one[:1] == "#" else one for one in arguments]
            found = getattr(h, name)(*where, **options)
            if isinstance(found, int):
                tags.append(found)

    return write


LINK_2 = With(link=2)
DRAIN_1 = ("call", "ops", "resource.drain", {"targets": "1", "reason": "tests"})
GROUP = {"name": "default", "incoming": "", "leaving": ""}
GROUPS = [
    GROUP | {"targets": "0-1"},
    GROUP | {"name": "lab", "targets": "2-3"},
    GROUP | {"name": "spares", "targets": "4-6"},
]
GROUP_OF_SPARES = {"name": "spares", "targets": "4-6", "incoming": "", "leaving": ""}


def replaced(*pairs: tuple[int, int], drained: str = "") -> dict[str, object]:
    """A status: which spare replaces what."""
    drain = {drained: {"reason": "tests"}} if drained else {}
    rows = [{"target": spare, "replaces": rank} for spare, rank in pairs]
    return {"online": "0-6", "offline": "", "torpid": "", "drain": drain, "replaced": rows}


def event(name: str, **context: Any) -> dict[str, Any]:
    return {"timestamp": 9.0, "name": name, "context": context}


UNPREPARED = [*log(CLEAN[:5]), event("exception", type="prolog", severity=0)]
FAILED_EPILOG = [
    *log((*CLEAN[:5], "prolog-start", "prolog-finish", *CLEAN[5:7])), event("epilog-finish", status=256), event("free"),
]  # fmt: skip
ACCEPTS_PARTS = (
    "ask", "sched-a", "resource.acquire", {"group": "default", "accept": ["parts"]}, With(link=9, streaming=True),
)  # fmt: skip
BREAKS: list[tuple[str, str, Write]] = [
    ("cores", "used by jobs 7 and 8", steps(("begin", 7, "0"), ("begin", 8, "0", "2"))),
    ("cores", "where job 7 runs", steps(("begin", 7, "0"), ("place", "sched-a", 8, "0"))),
    ("cores", "does not exist", steps(("begin", 7, "0", "9"))),
    ("groups", "acquired by a and by b", steps(("acquire", "a", "lab", "2"), ("acquire", "b", "lab", "3", LINK_2))),
    ("groups", "belong to a and to b", steps(("acquire", "a", "lab", "2"), ("acquire", "b", "default", "2", LINK_2))),
    ("groups", "while job 7 of default runs there", steps(
        ("submit", 7), ("begin", 7, "2"), ("acquire", "a", "lab", "2"))),
    ("groups", "which a holds", steps(("submit", 7), ("acquire", "a", "lab", "2"), ("begin", 7, "2"))),
    ("promises", "read False for drain of 1", steps(
        ("call", "ops", "resource.drain", {"targets": "1"}), ("call", "ops", "resource.status", None, status("")))),
    ("promises", "read True for drain of 1", steps(
        ("call", "ops", "resource.drain", {"targets": "1"}), ("call", "ops", "resource.undrain", {"targets": "1"}),
        ("call", "ops", "resource.status", None, status("1")))),
    ("promises", "for group of 1", steps(
        ("call", "ops", "resource.assign", {"targets": "1", "group": "lab"}, {}),
        ("call", "ops", "resource.groups", None, {"groups": [{"name": "default", "targets": "0-1", "incoming": ""},
         {"name": "lab", "targets": "2-3", "incoming": ""}]}))),
    ("promises", "for start of 'batch'", steps(
        ("call", "ops", "job-manager.queue-start", {"all": True, "start": False}),
        ("call", "ops", "job-manager.queue-status", {"name": "batch"},
         {"name": "batch", "start": True, "enable": True}))),
    ("promises", "read 16 for urgency of 7", steps(
        ("submit", 7), ("call", "ann", "job-manager.urgency", {"id": 7, "urgency": 5}, {"old": 16}),
        ("call", "ann", "job-manager.list", {}, {"jobs": [{"id": 7, "urgency": 16}]}))),
    ("promises", "long after its drain", steps(
        ("call", "ops", "resource.drain", {"targets": "1"}), ("wait", 200.0), ("place", "sched-a", 7, "1"))),
    ("promises", "long after that was stopped", steps(
        ("submit", 7), ("call", "ops", "job-manager.queue-start", {"name": "batch", "start": False}), ("wait", 200.0),
        ("begin", 7))),
    ("jobs", "began a second time", steps(("begin", 7), ("end", 7), ("begin", 7))),
    ("jobs", "ended, which did not run", steps(("end", 7))),
    ("jobs", "given twice", steps(("submit", 7), ("submit", 7))),
    ("jobs", "does not know job 7", steps(
        ("submit", 7), ("kill",), ("call", "ann", "job-manager.lookup", {"id": 7}, "unknown", With(link=2, errnum=2)))),
    ("jobs", "though its cancel was acknowledged", steps(
        ("submit", 7), ("call", "ann", "job-manager.cancel", {"id": 7}, {}), ("wait", 60.0), ("begin", 7))),
    ("jobs", "announced while its tasks run", steps(
        ("submit", 7), ("begin", 7), ("ask", "eve", "job-manager.watch", {}, With(streaming=True)),
        ("answer", "#0", {"events": [[7, 1.0, "clean", {}]]}))),
    ("jobs", "not known any more: [7]", steps(("submit", 7), ("settled",))),
    ("jobs", "jobs [7] exist", steps(("settled", {7: log()}))),
    ("jobs", "jobs [7] ran, and are not known", steps(("begin", 7), ("end", 7), ("settled",))),
    ("jobs", "still run", steps(("submit", 7), ("begin", 7), ("settled", {7: log()}))),
    ("jobs", "has alloc 2 times", steps(("submit", 7), ("settled", {7: log((*CLEAN[:5], "alloc", *CLEAN[5:]))}))),
    ("jobs", "ran without an alloc", steps(
        ("submit", 7), ("begin", 7), ("end", 7), ("settled", {7: log(("submit", "validate", "clean"))}))),
    ("jobs", "has no finish", steps(
        ("submit", 7), ("begin", 7), ("end", 7), ("settled", {7: log((*CLEAN[:6], "release", "free", "clean"))}))),
    ("jobs", "was lost at a restart", steps(("submit", 7), ("settled", {7: [
        *log(CLEAN[:5]), {"timestamp": 9.0, "name": "exception", "context": {
            "type": "exec", "severity": 0, "note": "the instance was restarted; no process was left"}},
        *log()[7:]]}))),
    ("jobs", "its log says 0", steps(("submit", 7), ("begin", 7), ("end", 7, 256), ("settled", {7: log()}))),
    ("jobs", "its log has none", steps(
        ("submit", 7), ("call", "ann", "job-manager.cancel", {"id": 7}, {}), ("settled", {7: log()}))),
    ("releases", "which was not shrunk", steps(
        ("acquire", "sched-a", "default", "0-1"), ("release", "sched-a", "default", "1"))),
    ("releases", "released already", steps(
        ("acquire", "sched-a", "default", "0-1"), ("shrink", "#0", "1"), ("release", "sched-a", "default", "1"),
        ("release", "sched-a", "default", "1"))),
    ("releases", "while job 7 runs there", steps(
        ("acquire", "sched-a", "default", "0-1"), ("begin", 7, "1"), ("shrink", "#0", "1"),
        ("release", "sched-a", "default", "1"))),
    ("releases", "was refused", steps(
        ("acquire", "acquirer", "lab", "2-3"), ("shrink", "#0", "2"), ("release", "acquirer", "lab", "2"),
        ("answer", "#1", "not leaving", 71))),
    ("releases", "given [1] again before", steps(
        ("acquire", "sched-a", "default", "0-1"), ("shrink", "#0", "1"), ("answer", "#0", grow("1")))),
    ("releases", "which it does not have", steps(("acquire", "sched-a", "default", "0"), ("shrink", "#0", "1"))),
    ("releases", "has not released [1]", steps(
        ("acquire", "sched-a", "default", "0-1"), ("shrink", "#0", "1"), ("settled",))),
    ("acquire streams", "the first response", steps(
        ("ask", "a", "resource.acquire", {"group": "lab"}, With(streaming=True)),
        ("answer", "#0", {"type": "online", "targets": "1"}))),
    ("acquire streams", "do not share out", steps(
        ("acquire", "a", "default", "0"), ("answer", "#0", grow("1") | {"online": ""}))),
    ("acquire streams", "has some of these", steps(("acquire", "a", "default", "0-1"), ("answer", "#0", grow("1")))),
    ("acquire streams", "does not follow", steps(
        ("acquire", "a", "default", "0-1"), ("answer", "#0", {"type": "online", "targets": "1"}))),
    ("acquire streams", "was told that [0, 1] are online", steps(
        ("acquire", "a", "default", "0-1"), ("settled", With(drained="1")))),
    ("stories", "after its clean", steps(
        ("submit", 7), ("ask", "eve", "job-manager.watch", {}, With(streaming=True)),
        ("answer", "#0", {"events": [[7, 1.0, "clean", {}], [7, 2.0, "start", {}]]}))),
    ("stories", "a second marker", steps(
        ("ask", "eve", "resource.journal", None, With(streaming=True)), ("answer", "#0", {"events": []}),
        ("answer", "#0", {"events": []}))),
    ("stories", "comes too early", steps(("submit", 7), ("settled", {7: log(("submit", "start", "clean"))}))),
    ("stories", "goes on after clean", steps(("submit", 7), ("settled", {7: log((*CLEAN, "memo"))}))),
    ("stories", "was told of job 7", steps(
        ("submit", 7), ("ask", "eve", "job-manager.watch", {}, With(streaming=True)),
        ("answer", "#0", {"events": [[7, 4.0, "alloc", {}], [7, 6.0, "finish", {}]]}), ("settled", {7: log()}))),
    ("stories", "its log is", steps(
        ("submit", 7), ("ask", "eve", "job-manager.eventlog", {"id": 7}, With(streaming=True)),
        ("answer", "#0", {"events": log()[:2] + log()[3:4]}), ("settled", {7: log()}))),
    ("stories", "was told of the journal", steps(
        ("ask", "eve", "resource.journal", None, With(streaming=True)), ("answer", "#0", {"events": [JOURNAL[2]]}),
        ("settled", With(journal=JOURNAL[:2])))),
    ("limits", "cores on 1 nodes", steps(("submit", 7), ("begin", 7, "0", "2"))),
    ("limits", "was accepted in queue lab", steps(("submit", 7, With(queue="lab", duration_s=61.0)))),
    ("limits", "of 2 nodes was accepted", steps(("submit", 7, With(queue="lab", nodes=2)))),
    ("limits", "its limit is 60.0 s", steps(("submit", 7), ("begin", 7), ("wait", 1000.0), ("end", 7))),
    ("limits", "not preemptible", steps(
        ("submit", 7), ("ask", "sched-a", "job-manager.raise", {"id": 7, "type": "preempt", "severity": 0}))),
    ("limits", "preempts job 7 after", steps(
        ("submit", 7, With({"preemptible-after": 100.0})), ("place", "sched-a", 7, "0"), ("begin", 7),
        ("ask", "sched-a", "job-manager.raise", {"id": 7, "type": "preempt", "severity": 0}))),
    ("site-limits", "of queue lab run at once; its limit is 1", steps(
        ("submit", 7, With(queue="lab")), ("submit", 8, With(queue="lab")), ("begin", 7, "2"), ("begin", 8, "3"))),
    ("limits", "requeue 1, but its record", steps(("submit", 7), ("settled", {7: [
            *log(CLEAN[:6]),
            {"timestamp": 9.0, "name": "exception", "context": {"type": "preempt", "severity": 0}},
            *log()[6:]]}, With(specs={7: {"attributes": {"system": {"fluxsched": {"requeue": 1}}}}})))),
    ("limits", "before ['1700000009.0']", steps(timed(
        *CLEAN, dependencies=[{"scheme": "begin-time", "value": str(EPOCH_S + 9.0)}]))),
    ("limits", "has begun at 1700000004.0, and its deadline", steps(timed(
        *CLEAN, fluxsched={"deadline": EPOCH_S + 61.0}))),
    ("limits", "was given up at 1700000001.0", steps(timed(
        "submit", "exception", "clean", fluxsched={"deadline": EPOCH_S + 90.0}))),
    ("answers", "job-manager.submit", steps(
        ("call", "ann", "job-manager.submit", {}, "a fault of fluxsched", With(errnum=5)))),
    ("answers", "no open call", steps(("ask", "ann", "x", None), ("answer", "#0", {}), ("answer", "#0", {}))),
    ("answers", "has no answer", steps(("ask", "ann", "resource.status", None), ("settled",))),
    ("accounts", "{'completed': 2} are counted", steps(
        ("submit", 7), ("settled", {7: log()}, With(jobs=COMPLETED, accounts={"results": {"completed": 2}})))),
    ("rest", "have not ended", steps(
        ("submit", 7), ("settled", {7: log()}, With(jobs={7: {"id": 7, "state": "SCHED"}})))),
    ("rest", "still allocated", steps(("settled", With(allocated=frozenset({1}))))),
    ("rest", "targets still leave", steps(("settled", With(groups=[
        {"name": "default", "targets": "0-1", "leaving": "1", "incoming": ""}])))),
    ("sizes", "though sched-a was told that they are free", steps(
        ("submit", 7), ("place", "sched-a", 7, "0-1"), ("begin", 7, "0,1"),
        ("tell", "sched-a", "sched.free", {"id": 7, "R": resources("1")}))),
    ("hosts", "run a second time", steps(("begin_on", 0, 7), ("end_on", 0, 7), ("begin_on", 1, 7))),
    ("hosts", "{'node1'} are not on record", steps(("place", "sched-a", 7, "0-1"), ("begin_on", 0, 7, 0, "0"))),
    ("hosts", "was told that it is free", steps(
        ("begin_on", 1, 7), ("tell", "sched-a", "sched.free", {"id": 7, "R": resources("1")}))),
    ("hosts", "are left", steps(("begin_on", 0, 7), ("settled",))),
    ("hosts", "target 1 was online from 4.5 s on", steps(
        ("begin_on", 1, 7), ("kill", "keeper-node1"), ("connect", "node1"), ("wait", 2.0), ("end_on", 1, 7),
        ("settled", With(journal=[online(4.5, "0-1")], specs={7: spec()})))),
    ("outages", "is granted [1] from", steps(
        ("acquire", "sched-a", "default", "0-1", With(link=9)),
        ("answer", "#0", {"type": "update", "outages": [planned(20.0, 30.0)]}), ("place", "sched-a", 7, "1", 19.0),
        ("place", "sched-a", 8, "0", 90.0), ("place", "sched-a", 9, "1", 21.0))),
    ("outages", "is granted [1] from", steps(
        ("acquire", "sched-a", "default", "0-1", With(link=9)),
        ("call", "ops", "resource.outage-add", planned(120.0, 130.0), {}), ("place", "sched-a", 7, "1", 121.0),
        ("wait", 60.0), ("place", "sched-a", 8, "1"))),
    ("outages", "was read as None", steps(
        ("call", "ops", "resource.outage-add", planned(20.0, 90.0), {}),
        ("call", "ops", "resource.outage-list", None, {"outages": []}))),
    ("outages", "is_others=False); possible is ['None']", steps(
        ("call", "ops", "resource.outage-add", planned(20.0, 90.0), {}),
        ("call", "ops", "resource.outage-remove", {"name": "upd"}, {}),
        ("call", "ops", "resource.outage-list", None, {"outages": [planned(20.0, 90.0)]}))),
    ("outages", "[1] are not drained while", steps(
        ("call", "ops", "resource.outage-add", planned(20.0, 90.0), {}), ("wait", 60.0),
        ("call", "ops", "resource.status", None, status("")))),
    ("outages", "1 is drained by an outage, and none is on", steps(
        ("call", "ops", "resource.outage-add", planned(20.0, 30.0), {}), ("wait", 90.0),
        ("call", "ops", "resource.status", None, {"drain": {"1": {"reason": "outage"}}}))),
    ("outages", "1 is in group default, and should be in {'lab'}", steps(
        ("call", "ops", "resource.outage-add", planned(20.0, 900.0) | {"queue": "lab"}, {}), ("wait", 60.0),
        ("quiet", status(""), GROUPS))),
    ("outages", "is granted [1] from", steps(
        ("submit", 7), ("call", "ops", "resource.outage-add", planned(120.0, 130.0) | {"queue": "lab"}, {}),
        ("ask", "sched-a", "resource.acquire", {"group": "default"}, With(link=9, streaming=True)),
        ("answer", "#0", grow("1")), ("wait", 60.0), ("place", "sched-a", 7, "1", 200.0))),
    ("outages", "is granted [1] from", steps(
        ("submit", 7), ("acquire", "sched-a", "default", "0-1", With(link=9)),
        ("answer", "#0", {"type": "update", "outages": [reserved(20.0, 30.0)]}), ("place", "sched-a", 7, "1", 29.0))),
    ("outages", "is granted [0] from", steps(
        ("call", "ops", "resource.outage-add", reserved(2.0, 90.0), {}),
        ("submit", 7, With(fluxsched={"reservation": "upd"})), ("acquire", "sched-a", "default", "0-1", With(link=9)),
        ("answer", "#0", {"type": "update", "outages": [reserved(2.0, 90.0)]}), ("place", "sched-a", 7, "0", 29.0))),
    ("outages", "outside of its reservation", steps(
        ("call", "ops", "resource.outage-add", reserved(2.0, 20.0), {}),
        ("submit", 7, With(fluxsched={"reservation": "upd"})), ("acquire", "sched-a", "default", "0-1", With(link=9)),
        ("answer", "#0", {"type": "update", "outages": [reserved(2.0, 20.0)]}), ("place", "sched-a", 7, "1", 29.0))),
    ("outages", "may run in reservation upd", steps(
        ("call", "ops", "resource.outage-add", reserved(2.0, 90.0) | {"users": ["1"]}, {}),
        ("submit", 7, With(fluxsched={"reservation": "upd"})))),
    ("outages", "is accepted beside", steps(
        ("call", "ops", "resource.outage-add", reserved(20.0, 90.0), {}),
        ("call", "ops", "resource.outage-add", reserved(30.0, 40.0) | {"name": "other"}, {}))),
    ("outages", "outage upd was read as None", steps(
        ("configure", planned(20.0, 90.0)), ("call", "ops", "config.reload", {}, {}),
        ("call", "ops", "resource.outage-list", None, {"outages": []}))),
    ("outages", "queue=''", steps(
        ("configure", planned(20.0, 90.0)), ("kill",), ("configure",), ("kill",),
        ("call", "ops", "resource.outage-list", None, {"outages": [planned(20.0, 90.0)]}))),
    ("outages", "its log has no other end", steps(
        ("place", "sched-a", 7, "1", 100.0), ("begin", 7, "1"),
        ("call", "ops", "resource.outage-add", planned(5.0, 200.0) | {"end_jobs": True}, {}),
        ("wait", 90.0), ("end", 7), ("settled", {7: log()}))),
    ("parts", "read False for the drain of core 2 of 1", steps(
        ("call", "ops", "resource.drain", {"targets": "1", "cores": "2"}),
        ("call", "ops", "resource.status", None, status("")))),
    ("parts", "read True for the drain of gpu 0 of 1", steps(
        ("call", "ops", "resource.drain", {"targets": "1", "gpus": "0"}),
        ("call", "ops", "resource.undrain", {"targets": "1", "gpus": "0"}),
        ("call", "ops", "resource.status", None, status("") | {"parts": [{"targets": "1", "gpus": "0"}]}))),
    ("parts", "[('core', 2)] of 1, drained parts", steps(
        ACCEPTS_PARTS, ("answer", "#0", grow("1") | {"parts": [{"rank": "1", "children": {"core": "2"}}]}),
        ("place", "sched-a", 7, "1"))),
    ("parts", "core 2 of 1, long after its drain", steps(
        ACCEPTS_PARTS, ("answer", "#0", grow("1")), ("call", "ops", "resource.drain", {"targets": "1", "cores": "2"}),
        ("wait", 60.0), ("place", "sched-a", 7, "1"))),
    ("parts", "was told that {} are drained: {1: {('core', 2)}} are", steps(
        ACCEPTS_PARTS, ("answer", "#0", grow("1")),
        ("quiet", status("") | {"parts": [{"targets": "1", "cores": "2"}]}, []))),
    ("parts", "its time was over at", steps(
        ("call", "ops", "resource.drain", {"targets": "1", "cores": "2", "for": 3.0}), ("wait", 60.0),
        ("quiet", status("") | {"parts": [{"targets": "1", "cores": "2"}]}, []))),
    ("spares", "4 replaces 1, which is in use", steps(("call", "ops", "resource.status", None, replaced((4, 1))))),
    ("spares", "5 replaces 1, which is of another shape", steps(
        ("call", "ops", "resource.status", None, replaced((5, 1), drained="1")))),
    ("spares", "0 replaces 1, and is no spare", steps(("call", "ops", "resource.status", None, replaced((0, 1))))),
    ("spares", "two spares replace one target", steps(
        DRAIN_1, ("call", "ops", "resource.status", None, replaced((4, 1), (6, 1), drained="1")))),
    ("spares", "1 is out, and spare 4 stands by", steps(
        DRAIN_1, ("quiet", replaced(drained="1"), [GROUP | {"targets": "0-1"}, GROUP_OF_SPARES]))),
    ("spares", "4 belongs to default; in service are {}", steps(
        ("quiet", replaced(), [GROUP | {"targets": "0-1,4"}, GROUP_OF_SPARES | {"targets": "5-6"}]))),
    ("spares", "{4} are out, and in service", steps(
        DRAIN_1, ("quiet", replaced((4, 1), drained="1,4"), [
            GROUP | {"targets": "0-1,4"}, GROUP_OF_SPARES | {"targets": "5-6"}]))),
    ("spares", "4 is taken away while job 7 runs on it", steps(
        ("acquire", "sched-a", "default", "0-1,4"), ("begin", 7, "4"), ("wait", 60.0), ("shrink", "#0", "4"))),
    ("programs", "runs twice on node1", steps(("program", 7, "prolog", 1), ("program", 7, "prolog", 1))),
    ("programs", "its prolog has ended well on set()", steps(
        ("place", "sched-a", 7, "1"), ("program", 7, "prolog", 1, 256), ("begin", 7, "1"))),
    ("programs", "began beside its prolog on node1", steps(("program", 7, "prolog", 1), ("begin", 7, "1"))),
    ("programs", "the epilog of job 7 began on node1 beside its tasks", steps(
        ("begin", 7, "1"), ("program", 7, "epilog", 1))),
    ("programs", "the prolog of job 7 began on node1 after its tasks", steps(
        ("begin", 7, "1"), ("end", 7), ("program", 7, "prolog", 1))),
    ("programs", "tasks of job 8 began on [0, 1, 2, 3] of 1 beside epilog of job 7", steps(
        ("program", 7, "epilog", 1), ("begin", 8, "1"))),
    ("programs", "tasks of job 8 began on 1, which job 7 left without an epilog", steps(
        ("begin", 7, "0,1"), ("withdraw", 7, "1"), ("begin", 8, "1"))),
    ("programs", "programs still run", steps(("program", 7, "epilog", 1), ("settled",))),
    ("programs", "has no prolog before its start", steps(("settled", {7: log()}, With(specs={7: spec()})))),
    ("programs", "was free without an epilog", steps(
        ("settled", {7: log((*CLEAN[:5], "prolog-start", "prolog-finish", *CLEAN[5:]))}, With(specs={7: spec()})))),
    ("programs", "no host of frozenset({1}) was drained", steps(
        ("place", "sched-a", 7, "1"), ("program", 7, "epilog", 1, 256), ("settled", {7: FAILED_EPILOG}, With(
            specs={7: spec()}, journal=[{"timestamp": 0.0, "name": "restart"}])))),
    ("programs", "the prolog of job 7 has failed 1 times", steps(
        ("settled", {7: UNPREPARED}, With(specs={7: spec()})))),
    ("health", "two checks run on node1", steps(("program", 0, "health", 1), ("program", 0, "health", 1))),
    ("health", "node1 is drained by a check", steps(
        ("program", 0, "health", 1, 75 << 8), ("call", "ops", "resource.status", None, BY_HEALTH))),
    ("health", "all of these are good", steps(
        ("program", 0, "health", 1, 256), ("settled", With(status=BY_HEALTH)))),
    ("health", "node1 was not drained, though a check has failed", steps(
        ("program", 0, "health", 1, 256), ("settled", With(journal=[online(0.0, "0-3")])))),
    ("rest", "still counts", steps(("settled", With(schedulers={"sched-a": {"groups": {}, "running": 1}})))),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "write"), BREAKS, ids=[f"{name}: {text}" for name, text, _ in BREAKS])
def test_a_checker_finds_the_violation(name: str, text: str, write: Write) -> None:
    judges = Judges([checker for checker in all_checkers(ALL_SITE) if checker.name == name])
    with pytest.raises(Violation) as caught:
        write(History(judges), judges)
    assert caught.value.checker == name
    assert text in str(caught.value)


def test_every_checker_is_shown_a_violation() -> None:
    assert {name for name, _, _ in BREAKS} == {checker.name for checker in all_checkers(ALL_SITE)}
