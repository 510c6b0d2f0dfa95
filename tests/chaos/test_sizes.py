"""The checker of sizes: a history of a job that grows and shrinks, and each way in which it cannot have been."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.chaos.checkers.base import Judges, Violation
from tests.chaos.checkers.every import all_checkers
from tests.chaos.checkers.sizes import Sizes
from tests.chaos.histories import CLEAN, SITE, History, log, resources, spec, truth

ELASTIC = spec() | {}
ELASTIC["attributes"]["user"]["chaos"] = {"cores": 0, "nodes": 1, "parts": {"task": [1, 3]}}
GROW = {"name": "grow", "context": {"R": resources("1-2")}}
SHRINK = {"name": "shrink", "context": {"ranks": "0", "note": ""}}
RELEASE = {"name": "release", "context": {"ranks": "0", "final": False}}
MORE = {"name": "grow", "context": {"R": resources("3")}}
LATER = {"name": "memo", "timestamp": 1000.0}


def story(*changes: dict[str, Any], last: str = "1-2", jobspec: dict[str, Any] = ELASTIC) -> Any:
    """What is read in the end of job 7, which had target 0 at the start."""
    events = [*log(CLEAN[:6]), *[{"timestamp": 6.0, **change} for change in changes], *log()[6:]]
    return truth({7: events}, specs={7: jobspec}, resources={7: resources(last)})


def run(h: History) -> None:
    """On target 0, then 1 and 2, too, then there alone."""
    h.submit(7)
    h.place("sched-a", 7, "0")
    h.begin(7, "0")
    h.call("sched-a", "job-manager.sched-grow", {"id": 7, "R": resources("1-2")}, {})
    h.spread(7, "1-2")
    watch = h.ask("eve", "job-manager.changes", {"id": 7}, streaming=True)
    h.answer(watch, {"id": 7, "event": "now", "ranks": "0-2"})
    h.call("sched-a", "job-manager.sched-shrink", {"id": 7, "ranks": "0", "note": ""}, {})
    h.answer(watch, {"id": 7, "event": "shrink", "ranks": "0"})
    h.withdraw(7, "0")
    h.tell("sched-a", "sched.free", {"id": 7, "R": resources("0")})
    h.end(7)


def test_nothing_is_said_of_a_story_that_may_be() -> None:
    judges = Judges(all_checkers(SITE))
    run(History(judges))
    judges.checkers = [one for one in judges.checkers if isinstance(one, Sizes)]
    judges.settled(story(GROW, SHRINK, RELEASE))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("grow of job 7 by {1, 2} was answered", story(SHRINK, last="0-2")),
        ("shrink of job 7 by {0} was answered", story(GROW, last="0-2")),
        ("is not elastic, and changed its size", story(GROW, SHRINK, RELEASE, jobspec=spec())),
        ("release [0] in", story(GROW, RELEASE)),
        ("shrink [3] in", story(GROW, SHRINK | {"context": {"ranks": "3"}}, last="0-2")),
        ("grow [1, 2] in", story(GROW, GROW)),
        ("has 0 of 1 to 3 nodes", story(SHRINK, GROW, RELEASE)),
        ("has 4 of 1 to 3 nodes", story(GROW, MORE, last="0-3")),
        ("no task of job 7 came to {3}", story(GROW, SHRINK, RELEASE, MORE, LATER, last="1-3")),
        ("its log gives it {0, 3}", story(MORE, last="0,3")),
    ],
)
def test_a_story_that_cannot_be_is_found(text: str, found: Any) -> None:
    judges = Judges([Sizes(SITE)])
    run(History(judges))
    if "its log gives" in text:
        judges.checkers[0]._stored.clear()  # type: ignore[attr-defined]
        judges.checkers[0]._told.clear()  # type: ignore[attr-defined]
    with pytest.raises(Violation) as caught:
        judges.settled(found)
    assert text in str(caught.value)


def spread(h: History) -> None:
    h.spread(7, "3")


def announce(h: History, ranks: str = "0") -> None:
    watch = h.ask("eve", "job-manager.watch", {}, streaming=True)
    h.answer(watch, {"events": [[7, 4.0, "release", {"ranks": ranks, "final": False}]]})


def follow(h: History) -> None:
    changes = h.ask("eve", "job-manager.changes", {"id": 7}, streaming=True)
    h.answer(changes, {"id": 7, "event": "grow", "ranks": "3"})


@pytest.mark.parametrize(
    ("text", "write"),
    [
        ("run on [3]; it was given {0}", spread),
        ("run on [0] though its release was announced", announce),
        ("was told of job 7: grow after []", follow),
    ],
)
def test_what_is_seen_of_a_running_job_must_be_right(text: str, write: Callable[[History], None]) -> None:
    h = History(Judges([Sizes(SITE)]))
    h.submit(7)
    h.place("sched-a", 7, "0")
    h.begin(7, "0")
    with pytest.raises(Violation) as caught:
        write(h)
    assert text in str(caught.value)


def test_news_that_are_late_may_be_of_what_the_job_had_before() -> None:
    """Its tasks came to target 3 when it was given that a second time; the release is that of the first."""
    h = History(Judges([Sizes(SITE)]))
    h.submit(7)
    h.place("sched-a", 7, "0")
    h.begin(7, "0")
    for _ in range(2):
        h.call("sched-a", "job-manager.sched-grow", {"id": 7, "R": resources("3")}, {})
    h.spread(7, "3")
    announce(h, "3")


def test_what_was_answered_twice_is_logged_twice() -> None:
    judges = Judges([Sizes(SITE)])
    h = History(judges)
    run(h)
    h.call("sched-a", "job-manager.sched-grow", {"id": 7, "R": resources("1-2")}, {})
    with pytest.raises(Violation, match=r"grow of job 7 by \{1, 2\} was answered 2 times"):
        judges.settled(story(GROW, SHRINK, RELEASE))
