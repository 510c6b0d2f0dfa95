"""Supervision in virtual time: what is asked, when silence counts, and what becomes of a module that fails."""

from __future__ import annotations

from math import inf
from types import SimpleNamespace

import pytest

from fluxsched.config.values import Recovery
from fluxsched.errors import Refused
from fluxsched.services.module_processes import (
    ANSWER_S,
    BACKOFF_MAX_S,
    BACKOFF_S,
    LOOK_S,
    RESTARTS_WITHIN_S,
    STATUS_EXITED,
    STATUS_RUNNING,
    Module,
    Supervision,
    troubles,
)

pytestmark = pytest.mark.plain_only("has stand-ins for peers and processes")


class Here:
    """Router, turns and clock in one; modules answer while `answers` is true."""

    def __init__(self, *recoveries):
        self.now_s = 0.0
        self.timers = []
        self.clock = self.calls = self
        self.answers = True
        self.pending = []
        self.gave_up = []
        self.started = []
        self.refusing = False
        self.modules = [self.module(recovery) for recovery in recoveries]
        self.supervision = Supervision(self, self, lambda: self.modules, self.start)  # type: ignore[arg-type]
        for module in self.modules:
            self.supervision.watch(module)

    def module(self, recovery):
        module = Module("sched-mine", "mine", "mine", ("default",), recovery, 0.0)
        module.status, module.has_served = STATUS_RUNNING, True
        module.peer = SimpleNamespace(name="sched-mine", gone=False)  # type: ignore[assignment]
        module.process = SimpleNamespace(kill=lambda: setattr(module, "status", STATUS_EXITED))  # type: ignore[assignment]
        return module

    def monotonic_s(self):
        return self.now_s

    def after(self, delay_s, call):
        timer = SimpleNamespace(call=call, cancel=lambda: None)
        self.timers.append((self.now_s + delay_s, timer))
        return timer

    def call(self, peer, topic, payload, answered):
        assert (topic, payload) == ("sched-mine.ping", None)
        if self.answers:
            answered(None)
        else:
            self.pending.append(answered)

    def give_up(self, peer, errnum, text):
        self.gave_up.append(text)

    def start(self, module):
        self.started.append(self.now_s)
        if self.refusing:
            raise Refused("no more processes")
        module.status = STATUS_RUNNING

    def run(self, until_s):
        while due := sorted([one for one in self.timers if one[0] <= until_s], key=lambda one: one[0])[:1]:
            self.timers.remove(due[0])
            self.now_s = due[0][0]
            due[0][1].call()
        self.now_s = until_s

    def fail(self, module, why="exit status 3"):
        module.status, module.error = STATUS_EXITED, why
        self.supervision.failed(module)


def test_one_that_answers_is_never_called_hung():
    here = Here(Recovery())
    here.run(3600.0)
    assert (troubles(here.modules[0]), here.modules[0].status, here.gave_up) == (None, STATUS_RUNNING, [])


def test_silence_is_shown_then_given_up_on_then_ended():
    here = Here(Recovery(hung_after_s=30.0))
    (module,) = here.modules
    here.answers = False
    here.run(ANSWER_S)
    assert (troubles(module), here.gave_up) == (None, [])
    here.run(12.5)
    assert troubles(module) == "hung 11 s"
    assert "has not answered for 3 s" in here.gave_up[0]
    assert module.status == STATUS_RUNNING
    here.run(32.0)
    assert (module.status, module.verdict) == (STATUS_EXITED, "hung for 30 s")
    assert here.timers == []  # nobody is left to be looked at


def test_a_late_answer_is_an_answer():
    here = Here(Recovery())
    here.answers = False
    here.run(20.0)
    assert troubles(here.modules[0]) == "hung 19 s"
    here.pending.pop()(None)
    assert troubles(here.modules[0]) is None


def test_our_own_pause_is_not_the_modules_silence():
    """The instance was stopped for an hour: the answer may lie in its socket."""
    here = Here(Recovery())
    here.answers = False
    here.run(1.5 * LOOK_S)
    here.now_s = 3600.0
    here.timers, [(_, timer)] = [], here.timers
    timer.call()
    assert here.modules[0].silent_s <= 3 * LOOK_S


def test_infinity_is_never():
    here = Here(Recovery(hung_after_s=inf))
    here.answers = False
    here.run(7200.0)
    assert (here.modules[0].status, troubles(here.modules[0])) == (STATUS_RUNNING, None)


def test_one_that_has_no_connection_yet_is_importing():
    here = Here(Recovery(hung_after_s=2.0))
    here.modules[0].peer = None
    here.run(3.0)
    assert here.modules[0].verdict == "was still importing after 2 s"


def test_restarts_come_later_each_time_then_the_fallback_with_as_many():
    here = Here(Recovery(restart=2, fallback="fifo"))
    (module,) = here.modules
    for error in ("exit status 3; started again (1 of 2)", "exit status 3; started again (2 of 2)",
                  "fifo in place of mine, which failed 3 times: exit status 3",
                  "exit status 3; started again (1 of 2)", "exit status 3; started again (2 of 2)"):  # fmt: skip
        here.fail(module)
        assert (module.error, module.is_live) == (error, True)
        here.run(here.now_s + 10.0)
        assert module.status == STATUS_RUNNING
    assert module.specs == "fifo"
    delays_s = [round(at_s % 10.0, 3) for at_s in here.started]
    assert delays_s == [BACKOFF_S, 2 * BACKOFF_S, BACKOFF_S, BACKOFF_S, 2 * BACKOFF_S]
    here.fail(module)
    assert (module.error, module.is_live) == ("exit status 3", False)  # the fallback fails, too: people must look


def test_one_that_hung_is_replaced_at_once_and_started_again_only_without_a_fallback():
    here = Here(Recovery(restart=3, fallback="fifo", hung_after_s=30.0), Recovery(restart=1, fallback=None))
    replaced, alone = here.modules
    here.answers = False
    here.run(32.0)
    for module in here.modules:
        here.fail(module, module.verdict or "")
    assert (replaced.error, replaced.specs) == ("fifo in place of mine, which failed: hung for 30 s", "fifo")
    assert (alone.error, alone.specs) == ("hung for 30 s; started again (1 of 1)", "mine")


def test_failures_long_ago_count_no_more_and_waits_are_bounded():
    here = Here(Recovery(restart=100, fallback=None))
    (module,) = here.modules
    for _ in range(9):
        here.fail(module)
        here.run(here.now_s + BACKOFF_MAX_S)
    assert here.started[-1] - here.started[-2] <= 2 * BACKOFF_MAX_S
    here.run(here.now_s + RESTARTS_WITHIN_S)
    here.fail(module)
    assert len(module.failures) == 1


@pytest.mark.parametrize("recovery", [Recovery(restart=0, fallback=None), Recovery(restart=0, fallback="mine")])
def test_without_restarts_and_fallback_it_is_left(recovery):
    here = Here(recovery)
    here.fail(here.modules[0])
    here.run(here.now_s + 60.0)
    assert (here.started, here.modules[0].error) == ([], "exit status 3")


def test_a_start_that_fails_is_a_failure():
    here = Here(Recovery(restart=1, fallback=None))
    here.refusing = True
    here.fail(here.modules[0])
    here.run(here.now_s + 60.0)
    assert (len(here.started), here.modules[0].is_live, here.modules[0].error) == (1, False, "no more processes")
