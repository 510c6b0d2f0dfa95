"""A session saves the history of accounts while it changes, restores it when it begins, and leaves once stored."""

from __future__ import annotations

import errno
import json
from math import inf
from typing import Any

import pytest

from fluxsched.core.jobspec import Jobspec
from fluxsched.core.sharing import DEFAULT_BANK
from fluxsched.errors import RPCError
from fluxsched.protocol.messages import alloc as msg
from fluxsched.protocol.sessions.acquire_client import AcquireClient
from fluxsched.runtime.scheduler_process.effects import HELLO, READY, SAVE, Call, Left, Log
from fluxsched.runtime.scheduler_process.saving import SAVE_EVERY_S, SLICE_ACCOUNTS
from fluxsched.runtime.scheduler_process.session import SchedulerSession
from fluxsched.runtime.scheduler_process.states import SessionState
from fluxsched.sched.engine.scheduler import Scheduler
from fluxsched.sched.registry import make
from tests.runtime.scheduler_process.test_session import NO_DATA, Peers, R, at

ANN = ("physics", "ann")
BEGIN_S = 100.0


def remembered() -> str:
    """A history in which ann was at 50."""
    accounts = [[[], 50.0, 50.0], [["physics"], 50.0, 50.0], [["physics", "ann"], 50.0, 50.0]]
    known = {"version": 1, "saved": 0.0, "signal": "decayed-usage", "half-life": 600.0, "accounts": accounts}
    return json.dumps(known, separators=(",", ":"))


def ready(saved: Any) -> tuple[Peers, list[Any]]:
    """A session that finds this when it is ready, and what it says of it."""
    peers = at(SessionState.READYING)
    return peers, peers.answer(READY, msg.ReadyResponse(0, saved))


def saves(effects: Any) -> list[msg.SaveRequest]:
    return [one.message for one in effects if isinstance(one, Call) and one.topic == SAVE]


def test_while_nothing_is_held_and_nothing_happens_nothing_is_saved() -> None:
    peers, said = ready(None)
    assert said == []
    assert peers.session.next_notice_s == inf
    assert not peers.session.due(BEGIN_S + 1e9)


def test_what_has_changed_is_saved_within_the_time_and_not_again_before_it_is_stored() -> None:
    peers, _ = ready(None)
    peers.use()
    session = peers.session
    assert session.next_notice_s == BEGIN_S + SAVE_EVERY_S
    assert not session.due(BEGIN_S + SAVE_EVERY_S - 0.001)
    [first] = saves(peers.heard(session.due(BEGIN_S + SAVE_EVERY_S)))
    assert json.loads(first.state)["saved"] == BEGIN_S + SAVE_EVERY_S
    assert not first.set_aside
    assert session.next_notice_s == inf
    assert not session.due(BEGIN_S + 100 * SAVE_EVERY_S)
    assert peers.answer(SAVE) == []
    assert session.next_notice_s == BEGIN_S + 2 * SAVE_EVERY_S, "signals of what is held change with time alone"


def test_what_ended_is_saved_once() -> None:
    peers, _ = ready(None)
    peers.use()
    peers.accounts.book(peers.accounts.account(ANN), (10,), -1, True, 105.0)
    assert len(saves(peers.heard(peers.session.due(110.0)))) == 1
    peers.answer(SAVE)
    assert peers.session.next_notice_s == inf


def test_many_accounts_are_written_in_slices_between_which_jobs_start() -> None:
    assert SLICE_ACCOUNTS == 1024
    peers, _ = ready(None)
    for number in range(SLICE_ACCOUNTS):
        peers.accounts.book(peers.accounts.account(("physics", f"user{number}")), (10,), 1, True, 105.0)
    assert peers.session.due(110.0) == ()
    assert peers.session.next_notice_s < 110.0, "the next slice is due at once"
    peers.use()
    [request] = saves(peers.heard(peers.session.due(110.1)))
    known = json.loads(request.state)
    assert (known["saved"], len(known["accounts"])) == (110.1, SLICE_ACCOUNTS + 2)
    assert [path for path, *_ in known["accounts"][:2]] == [[], ["physics"]]
    assert peers.session.next_notice_s == inf


def test_leaving_does_not_wait_for_slices() -> None:
    peers, _ = ready(None)
    for number in range(3 * SLICE_ACCOUNTS):
        peers.accounts.book(peers.accounts.account(("physics", f"user{number}")), (10,), 1, True, 105.0)
    peers.session.due(110.0)
    [request] = saves(peers.session.leave(110.0))
    assert len(json.loads(request.state)["accounts"]) == 3 * SLICE_ACCOUNTS + 2


def test_a_clock_that_steps_back_delays_nothing() -> None:
    peers, _ = ready(None)
    peers.use()
    assert len(saves(peers.session.due(BEGIN_S - 3600.0))) == 1


@pytest.mark.parametrize("now_s", [0.0, 600.0])
def test_history_goes_on_from_where_it_was_saved(now_s: float) -> None:
    peers = at(SessionState.READYING)
    [call] = [one for (topic, _), one in peers.calls.items() if topic == READY]
    assert peers.session.answered(call, msg.ReadyResponse(0, remembered()), None, now_s) == ()
    assert peers.accounts.levels(now_s)[ANN][0] == 50.0 * 0.5 ** (now_s / 600.0)
    assert peers.session.next_notice_s == inf, "it is what is stored already"


@pytest.mark.parametrize(
    ("saved", "what"),
    [
        ("nonsense", "damaged: JSON is malformed"),
        ({}, "damaged: an object is not a text"),
        (remembered().replace('"version":1', '"version":9'), "of version 9"),
        (remembered().replace('"saved":0.0', '"saved":1e9'), "from the future: saved 999999900 s after now"),
        (remembered().replace("decayed-usage", "flow"), "of signal 'flow'"),
        (remembered().replace('"half-life":600.0', '"half-life":60.0'), "of half-life 60 s"),
    ],
)
def test_what_is_of_no_use_is_said_in_a_line_and_set_aside_at_once(saved: object, what: str) -> None:
    peers, said = ready(saved)
    [log] = said
    assert log.is_error
    assert log.text.startswith(f"the saved history of accounts is {what}")
    assert log.text.endswith("; it is set aside, and history begins anew")
    assert peers.session.state is SessionState.READY
    assert peers.session.next_notice_s == BEGIN_S
    [request] = saves(peers.heard(peers.session.due(BEGIN_S)))
    assert request.set_aside
    peers.answer(SAVE)
    peers.use()
    [request] = saves(peers.session.due(BEGIN_S + SAVE_EVERY_S))
    assert not request.set_aside


def test_a_store_that_refuses_is_named_once_and_asked_again() -> None:
    peers, _ = ready("nonsense")
    for time in range(1, 4):
        [request] = saves(peers.heard(peers.session.due(BEGIN_S + time * SAVE_EVERY_S)))
        assert request.set_aside, "until it is stored"
        said = peers.answer(SAVE, error=RPCError("no room", errno.ENOSPC))
        assert [type(one) for one in said] == ([Log] if time == 1 else [])
    assert peers.session.state is SessionState.READY


def test_leaving_waits_for_the_last_state_to_be_stored() -> None:
    peers, _ = ready(None)
    peers.use()
    peers.heard(peers.session.due(110.0))
    first = peers.calls[SAVE, ""]
    peers.alloc(1)
    [call] = peers.session.leave(111.0)
    assert json.loads(call.message.state)["saved"] == 111.0
    assert peers.session.state is SessionState.LEAVING
    assert not peers.session.has_work
    assert peers.session.leave(112.0) == (), "asked twice"
    assert peers.session.answered(first, None, None, 112.0) == [], "that was the one before"
    assert peers.session.answered(call, None, None, 112.0) == [Left()]
    assert peers.session.state is SessionState.ENDED


def test_with_nothing_to_save_it_leaves_at_once() -> None:
    peers, _ = ready(None)
    assert peers.session.leave(101.0) == [Left()]
    for early in (SessionState.IDLE, SessionState.ACQUIRING, SessionState.HELLO, SessionState.READYING):
        assert at(early).session.leave(101.0) == [Left()]


def test_a_last_state_that_is_refused_delays_nothing() -> None:
    peers = at(SessionState.LEAVING)
    log, left = peers.answer(SAVE, error=RPCError("no room", errno.ENOSPC))
    assert "no room" in log.text
    assert left == Left()


def test_a_pass_under_way_is_no_hindrance() -> None:
    peers = at(SessionState.DECIDING)
    peers.use()
    assert len(saves(peers.session.due(110.0))) == 1
    assert len(saves(peers.session.leave(111.0))) == 1


def test_a_scheduler_without_accounts_leaves_what_is_kept_alone() -> None:
    peers = Peers()
    peers.start()
    peers.session._saving = None  # as it is where no policy asks
    peers.grow()
    peers.answer(HELLO, error=NO_DATA)
    assert peers.answer(READY, msg.ReadyResponse(0, "nonsense")) == []
    assert peers.session.due(1e9) == ()
    assert peers.session.leave(1e9) == [Left()]


def fair_peers() -> Peers:
    """A session whose policy keeps accounts, at hello."""
    peers = Peers()
    scheduler = Scheduler(make("fair", {}))
    peers.session = SchedulerSession(scheduler, {"default": AcquireClient("default")}, peers.read)
    peers.start()
    peers.grow()
    return peers


def hello(peers: Peers, jobspec: Any) -> list[Any]:
    return peers.answer(HELLO, msg.HelloResponse(7, 16, 1, 1.0, None, R("0"), jobspec))


def test_a_running_job_of_which_hello_says_nothing_counts_as_firm_in_the_default_bank() -> None:
    peers = fair_peers()
    assert hello(peers, None) == []
    tree = peers.session.scheduler.account_tree
    assert tree is not None
    user = tree.account((DEFAULT_BANK, "1"))
    assert (user.all_jobs.usage, user.firm.usage) == (2.0, 2.0)


def test_one_whose_jobspec_cannot_be_read_is_taken_over_all_the_same_and_said() -> None:
    peers = fair_peers()
    [log] = hello(peers, 0)
    assert log.is_error
    assert log.text == "hello: ƒ8 counts as if it had no jobspec: no jobspec"
    assert peers.session.scheduler.stats()["running"] == 1


def test_one_counts_where_its_jobspec_says_with_what_may_be_preempted_apart() -> None:
    peers = fair_peers()
    jobspec = Jobspec.from_command(["true"]).to_json()
    jobspec["attributes"]["system"] |= {"bank": "physics", "preemptible-after": 0}
    peers.session._read = Jobspec.parse
    assert hello(peers, jobspec) == []
    tree = peers.session.scheduler.account_tree
    assert tree is not None
    user = tree.account(("physics", "1"))
    assert (user.all_jobs.usage, user.firm.usage) == (2.0, 0.0)
