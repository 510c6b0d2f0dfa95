"""Schedulers as modules: loaded, supervised, succeeded, and the states that they save."""

from __future__ import annotations

import asyncio
import errno
import sqlite3
from dataclasses import replace
from math import inf
from types import SimpleNamespace

import pytest

from fluxsched.errors import Refused
from fluxsched.runtime.config.values import Recovery
from fluxsched.runtime.instance.instance import Instance
from fluxsched.runtime.instance.launch import StartOptions, settings_of
from fluxsched.runtime.services.jobs import scheduler_states, scheduling
from fluxsched.runtime.services.jobs.scheduler_states import STATE_BYTES_MAX
from fluxsched.runtime.services.modules.process import STATUS_EXITED, STATUS_RUNNING, Module
from fluxsched.runtime.services.modules.supervision import (
    ANSWER_S,
    BACKOFF_MAX_S,
    BACKOFF_S,
    LOOK_S,
    RESTARTS_WITHIN_S,
    Supervision,
    troubles,
)
from fluxsched.transport.roster import Roster

# What a scheduler has kept: returned to the next one of its groups, across restarts, as it was. Jobspecs in hello.


GROUPS = '[resource.groups]\nb = "fake3"\n'


async def kept(peer, *groups):
    """What this peer finds when it becomes the scheduler of groups."""
    for group in groups:
        await peer.next(peer.open("resource.acquire", {"group": group}))
    hello = peer.open("job-manager.sched-hello", {"partial-ok": True, "groups": list(groups)})
    while (await peer.next(hello)).errnum == 0:
        pass
    answer = await peer.ok("job-manager.sched-ready", {"mode": "unlimited"})
    return answer.get("state")


async def gone(world, site, peer):
    peer.close()
    other = world.second(site)
    while any(view.get("acquirer") for view in (await other.ok("resource.groups"))["groups"]):
        pass


@pytest.mark.parametrize("state", ["a text", {"version": 1, "a": [1.5, None, True]}, [], 0])
async def test_a_state_is_returned_to_the_next_scheduler_of_the_groups(world, state):
    site = await world.bare(config=GROUPS, fake="4x2")
    first, second, third = (world.second(site) for _ in range(3))
    assert await kept(first, "b", "default") is None
    assert await first.ok("job-manager.sched-save", {"state": "older"}) is None
    await first.ok("job-manager.sched-save", {"state": state})
    await gone(world, site, first)
    assert await kept(second, "default", "b") == state, "the order of groups says nothing"
    await gone(world, site, second)
    assert await kept(third, "b") is None, "other groups have other accounts"


async def test_a_state_is_there_after_a_restart_and_one_set_aside_once_more(world, monkeypatch):
    said = []
    monkeypatch.setattr(scheduling.log, "warning", lambda text, *values: said.append(text % values))
    statedir = world.directory / "state"
    for life in range(4):
        site = await world.bare(fake="4x2", statedir=statedir)
        peer = world.second(site)
        assert await kept(peer, "default") == (f"life {life - 1}" if life else None)
        await peer.ok("job-manager.sched-save", {"state": f"life {life}", "set-aside": life > 0})
        await world.stop(site)
    assert said == ["what was saved for groups default is set aside: the scheduler's log says why"] * 3
    assert rows(statedir) == {"scheduler": b'"life 3"', "scheduler-set-aside": b'"life 2"'}


def rows(statedir):
    connection = sqlite3.connect(statedir / "state.sqlite")
    found = connection.execute("SELECT kind, value FROM saved WHERE key = 'default' AND kind GLOB 'sched*'").fetchall()
    connection.close()
    return dict(found)


@pytest.mark.parametrize("value", [b"\xff\xfe{", b"", b'{"a": ', b"[" * 100_000, "text", 7])
async def test_a_value_that_is_damaged_on_disk_is_the_schedulers_to_judge(world, value):
    statedir = world.directory / "state"
    site = await world.bare(fake="4x2", statedir=statedir)
    await world.stop(site)
    connection = sqlite3.connect(statedir / "state.sqlite")
    connection.execute("INSERT INTO saved VALUES ('scheduler', 'default', ?)", (value,))
    connection.commit()
    connection.close()
    site = await world.bare(fake="4x2", statedir=statedir)
    peer = world.second(site)
    assert isinstance(await kept(peer, "default"), str | int)
    await peer.ok("job-manager.sched-save", {"state": "anew", "set-aside": True})
    await world.stop(site)
    assert rows(statedir) == {
        "scheduler": b'"anew"',
        "scheduler-set-aside": value if isinstance(value, bytes) else str(value).encode(),
    }


async def test_only_a_scheduler_may_have_something_kept_and_not_for_groups_of_another(world):
    site = await world.bare(fake="4x2")
    peer, other = world.second(site), world.second(site)
    assert (await peer.refused("job-manager.sched-save", {"state": ""}))[0] == errno.EPROTO
    await kept(peer, "default")
    site.scheduling.suspend()
    await peer.ok("job-manager.sched-save", {"state": "the last"})
    hello = other.open("job-manager.sched-hello", {})
    assert (await other.next(hello)).errnum == errno.ENODATA
    found, text = await peer.refused("job-manager.sched-save", {"state": "later still"})
    assert found == errno.EBUSY
    assert "'default'" in text


async def test_a_state_has_a_limit(world, monkeypatch):
    assert STATE_BYTES_MAX == 1 << 25
    monkeypatch.setattr(scheduler_states, "STATE_BYTES_MAX", 1000)
    site = await world.bare(fake="4x2")
    peer = world.second(site)
    await kept(peer, "default")
    await peer.ok("job-manager.sched-save", {"state": "x" * 998})
    found, text = await peer.refused("job-manager.sched-save", {"state": "x" * 999})
    assert found == errno.EINVAL
    assert "1001 bytes, the limit is 1000" in text


async def test_hello_has_the_jobspec_without_its_environment(world, timed):
    site = await world.bare(fake="4x2")
    first, second = world.second(site), world.second(site)
    await first.schedule("default")
    jobspec = timed("60s").to_json()
    system = {**jobspec["attributes"]["system"], "bank": "physics", "preemptible-after": 30, "environment": {"A": "b"}}
    jobid = (await second.ok("job-manager.submit", {"jobspec": {**jobspec, "attributes": {"system": system}}}))["id"]
    assert await first.grant("0", "fake0") == jobid
    await first.settle()
    await gone(world, site, first)
    await second.next(second.open("resource.acquire", {"group": "default"}))
    answer = (await second.next(second.open("job-manager.sched-hello", {}))).payload
    assert answer["id"] == jobid
    assert answer["R"]["execution"]["R_lite"] == [{"rank": "0", "children": {"core": "0"}}]
    told = answer["jobspec"]["attributes"]["system"]
    assert (told["bank"], told["preemptible-after"]) == ("physics", 30)
    assert "environment" not in told


# A module that takes the place of another finds its groups free, however late the loss of the other is known.


@pytest.mark.plain_only("replaces a method of a Roster")
async def test_a_module_is_removed_when_its_groups_are_free(world, monkeypatch):
    site = await world.instance(fake="2x2")
    peer = world.second(site)
    module = site.modules.modules["sched-fifo"]
    with monkeypatch.context() as unread:
        unread.setattr(Roster, "losses", lambda *_: [])
        tag = peer.open("module.remove", {"name": "sched-fifo"})
        while module.status != STATUS_EXITED:
            await asyncio.sleep(0.005)
        await peer.ok("instance.info")
        assert peer.waiting(tag) == []
    await peer.next(tag)
    assert (await peer.ok("module.load", {"spec": "fifo"}))["name"] == "sched-fifo"


# Supervision in virtual time: what is asked, when silence counts, and what becomes of a module that fails.


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


# Who may serve a group: the module that was loaded for it, and nobody who is quicker.


async def test_a_client_that_is_quicker_than_the_scheduler_does_not_take_its_group(world):
    """As after `instance.restart`: the scheduler's own acquire was refused, and the start ended."""
    instance = Instance(replace(settings_of(StartOptions(fake="1x2")), ready_within_s=15.0))
    entered = asyncio.ensure_future(instance.__aenter__())
    await asyncio.sleep(0)  # it listens; the process of its scheduler imports still
    peer = world.second(instance)
    for topic, payload in (
        ("resource.acquire", {}),
        ("resource.acquire", {"group": "default"}),
        ("job-manager.sched-hello", {"groups": ["default"]}),
        ("job-manager.sched-hello", {}),
    ):
        answer = await peer.next(peer.open(topic, payload))
        assert (answer.errnum, "served by module 'sched-fifo'" in answer.payload) == (errno.EBUSY, True), answer
    await entered  # its scheduler serves it: else this raises
    await instance.close()
