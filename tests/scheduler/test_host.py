"""A scheduler's process."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import pwd
from heapq import heappop, heappush
from itertools import count
from typing import ClassVar

from fluxsched.protocol import framing
from fluxsched.protocol.framing import (
    RESPONSE,
    decode,
    make_error,
    make_request,
    make_response,
    pack_bundles,
    unpack_bundle,
)
from fluxsched.protocol.messages.jobs import ANNOTATE, DENY, AllocResponse
from fluxsched.sched.engine.group import NOTICE_EVERY_S
from fluxsched.sched.engine.scheduler import Scheduler
from fluxsched.sched.fair.accounts import Bank
from fluxsched.sched.policies.backfill import Easy, Fifo
from fluxsched.sched.policy import Option, Wake
from fluxsched.sched.registry import make
from fluxsched.scheduler import host as host_module
from fluxsched.scheduler.host import HANDLED_MIN, KEPT_MAX, LEAVE_S, READ_MAX, RECEIVE_MAX, SchedulerHost
from fluxsched.scheduler.main import settled
from fluxsched.scheduler.session import SessionState
from fluxsched.system.files import user_name
from fluxsched.system.loop import SHARE_S, Timer, Turns

# The scheduler's process: under a burst questions are answered first, and in silence what is due is told in time.


BURST = 3 * READ_MAX


class Ticking:
    """A clock that runs a little with every look."""

    def __init__(self):
        self.now_s = 0.0

    def wall_s(self):
        return self.now_s

    def monotonic_s(self):
        self.now_s += SHARE_S
        return self.now_s


class Wire:
    """The client's end of a connection, with all of a burst in it."""

    def __init__(self, messages):
        self.lost = None
        self.frames = pack_bundles(messages)
        self.sent = []

    def start(self, loop, wake): ...

    def receive(self, limit):
        assert limit == RECEIVE_MAX, "more would keep questions waiting"
        taken, self.frames = self.frames[:limit], self.frames[limit:]
        return taken

    def send(self, frames):
        message = decode(frames)
        self.sent += unpack_bundle(message) if message.topic == "bundle" else [message]

    def close(self): ...


class Owner(Wire):
    """The instance behind the wire: four cores of a group, and what owners of jobs are told."""

    def __init__(self):
        super().__init__([])
        self.annotated = []
        self.saved_s = []
        self.stores = True
        self.denied = []
        self.answers = []

    def send(self, frames):
        super().send(frames)
        for message in self.sent:
            self.take(message)
        self.sent.clear()

    def take(self, message):
        lite = [{"rank": "0", "children": {"core": "0-3"}}]
        execution = {"R_lite": lite, "starttime": 0.0, "expiration": 0.0, "nodelist": ["n0"]}
        grow = {"type": "grow", "resources": {"version": 1, "execution": execution}, "online": "0", "offline": ""}
        match message.topic:
            case "me.ping":
                self.answers.append(message)
            case "resource.acquire":
                self.put(make_response(message, framing.pack(grow)))
            case "job-manager.sched-hello":
                self.put(make_error(message, errno.ENODATA))
            case "job-manager.sched-ready":
                self.put(make_response(message, framing.pack({"count": 0})))
            case "job-manager.sched-save":
                self.saved_s.append(json.loads(framing.unpack(message.payload, dict)["state"])["saved"])
                if self.stores:
                    self.put(make_response(message))
            case "sched.alloc":
                answer = framing.unpack(message.payload, AllocResponse)
                if answer.type == ANNOTATE:
                    self.annotated.append((answer.id, (answer.annotations or {})["sched"]))
                elif answer.type == DENY:
                    self.denied.append(answer.id)

    def put(self, message):
        self.frames += pack_bundles([message])

    def ask(self, topic, payload):
        self.put(make_request(topic, framing.pack(payload)))

    def alloc(self, jobid, duration_s):
        self.ask("sched.alloc", request(jobid, duration_s=duration_s))


def request(jobid, cores=4, duration_s=0.0):
    """An alloc request; one for more than 4 cores is denied."""
    slot = {"type": "slot", "count": cores, "label": "task", "with": [{"type": "core", "count": 1}]}
    task = {"command": ["true"], "slot": "task", "count": {"per_slot": 1}}
    spec = {"version": 1, "resources": [slot], "tasks": [task], "attributes": {"system": {"duration": duration_s}}}
    return {"id": jobid, "priority": 16, "userid": 1, "t_submit": 2000.0, "jobspec": spec}


async def in_a_burst(at):
    """The wire once a ping was answered that came behind `at` jobs, the jobs denied until then, and what was left to
    read.
    """
    wire, turns = Owner(), Turns(Ticking())
    host = SchedulerHost(wire, Scheduler(Fifo()), ("default",), turns, "me", lambda reason: None)
    turns.start(asyncio.get_running_loop())
    host.start()
    while host.session.state is not SessionState.READY:
        turns.wake()
        await asyncio.sleep(0)
    burst = [make_request("sched.alloc", framing.pack(request(jobid, cores=5))) for jobid in range(BURST)]
    wire.frames = pack_bundles([*burst[:at], make_request("me.ping", framing.pack({}), matchtag=7), *burst[at:]])
    turns.wake()
    while not wire.answers:
        await asyncio.sleep(0)
    denied, is_left = len(wire.denied), bool(wire.frames)
    [answer] = wire.answers
    assert (answer.type, answer.topic, answer.matchtag, answer.errnum) == (RESPONSE, "me.ping", 7, 0)
    while len(wire.denied) < BURST:
        await asyncio.sleep(0)
    assert wire.denied == list(range(BURST))
    return denied, is_left


async def test_a_question_overtakes_a_burst_and_the_burst_keeps_its_order():
    at = READ_MAX // 2
    denied, is_left = await in_a_burst(at)
    assert denied < at
    assert is_left, "one turn reads no more than READ_MAX"


async def test_a_question_behind_a_long_backlog_does_not_wait_for_it():
    denied, _ = await in_a_burst(BURST - 1)
    assert denied < READ_MAX // 2


async def test_a_burst_is_handled_while_it_is_read():
    denied, _ = await in_a_burst(BURST - 1)
    assert denied >= HANDLED_MIN, "its first turns read as much as they may, which takes all of their time"


async def test_no_more_is_read_than_can_be_kept(monkeypatch):
    assert KEPT_MAX == 200_000
    monkeypatch.setattr(host_module, "KEPT_MAX", READ_MAX)
    denied, _ = await in_a_burst(BURST - 1)
    assert denied > READ_MAX


class VirtualTime:
    """A clock and the loop that goes by it: time passes from one call to the next, at once."""

    def __init__(self):
        self.now_s = 1000.0
        self.calls = []
        self.number = count()

    def wall_s(self):
        return self.now_s

    def monotonic_s(self):
        return self.now_s

    def call_soon(self, call):
        return self.call_later(0.0, call)

    def call_later(self, delay_s, call):
        timer = Timer(call)
        heappush(self.calls, (self.now_s + delay_s, next(self.number), timer))
        return timer

    def run(self, until_s):
        while self.calls and self.calls[0][0] <= until_s:
            self.now_s, _, timer = heappop(self.calls)
            if timer.call is not None:
                timer.call()
        self.now_s = until_s


class Hosted:
    """A scheduler that has acquired its group, been told what runs, and said that it is ready."""

    def __init__(self, policy, owner=None):
        self.time, self.owner = VirtualTime(), owner or Owner()
        self.ended = []
        self.turns = Turns(self.time)
        self.host = SchedulerHost(self.owner, Scheduler(policy), ("default",), self.turns, "me", self.ended.append)
        self.host.start()
        self.turns.start(self.time)  # type: ignore[arg-type]
        for _ in range(3):  # acquire, hello, ready
            self.until(1000.0)

    def until(self, until_s):
        """What has come is taken, and time passes."""
        self.turns.wake()
        self.time.run(until_s)


def test_a_change_that_was_kept_back_is_told_in_time_though_nothing_happens():
    hosted = Hosted(Easy())
    time, owner, turns = hosted.time, hosted.owner, hosted.turns
    owner.alloc(1, 100.0)
    owner.alloc(2, 10.0)
    hosted.until(1001.0)
    assert [(jobid, sched["t_estimate"]) for jobid, sched in owner.annotated] == [(2, 1100.0)]
    owner.annotated.clear()
    for end_s in (1050.0, 1060.0):
        owner.ask("sched.expiration", {"id": 1, "expiration": end_s})
        hosted.until(time.now_s + 1.0)
    before = turns.count
    due_s = 1000.0 + NOTICE_EVERY_S
    time.run(due_s - 0.001)
    assert (owner.annotated, turns.count) == ([], before), "nobody looks before it is due"
    time.run(due_s)
    assert owner.annotated == [(2, {"t_estimate": 1060.0})]
    time.run(due_s + 10 * NOTICE_EVERY_S)
    assert turns.count <= before + 2, "then there is silence: one turn told, one may have followed what was sent"
    assert len(owner.annotated) == 1


class Waking:
    """Asks for a pass in 30 s, in each."""

    name = "waking"
    OPTIONS: ClassVar[dict[str, Option]] = {}

    def __init__(self):
        self.passes_s = []

    def schedule(self, view, now_s):
        self.passes_s.append(now_s)
        yield Wake(now_s + 30.0)


def test_a_pass_comes_when_the_policy_asked_for_it_though_nothing_happens():
    policy = Waking()
    hosted = Hosted(policy)
    hosted.owner.alloc(1, 100.0)
    hosted.until(1029.9)
    before = len(policy.passes_s)
    hosted.time.run(1090.0)
    assert policy.passes_s[before:] == [1030.0, 1060.0, 1090.0]


def test_history_is_saved_in_time_though_nothing_happens_and_when_the_process_is_to_leave():
    hosted = Hosted(make("fair", {}))
    hosted.owner.alloc(1, 1000.0)
    hosted.until(1025.0)
    assert hosted.owner.saved_s == [1010.0, 1020.0]
    hosted.host.leave()
    hosted.time.run(1025.5)
    hosted.until(1025.5)  # the answer has come
    assert hosted.owner.saved_s == [1010.0, 1020.0, 1025.0]
    assert hosted.ended == [None]


def test_a_store_that_does_not_answer_delays_the_end_no_longer_than_its_time():
    owner = Owner()
    owner.stores = False
    hosted = Hosted(make("fair", {}), owner)
    owner.alloc(1, 1000.0)
    hosted.until(1001.0)
    hosted.host.leave()
    hosted.time.run(1001.0 + LEAVE_S - 0.001)
    assert hosted.ended == []
    hosted.time.run(1001.0 + LEAVE_S)
    assert hosted.ended == [None]


# What a scheduler's process learns from its instance before it begins.


SITE = "[fair]\ncap = 1.5\n[fair.banks]\nphysics = 3\n"


class Sharing(Fifo):
    ACCOUNTS = True


async def test_the_settings_in_force_are_read_if_a_policy_asks_for_accounts(world):
    instance = await world.bare(config=SITE)
    assert await settled(instance.uri, [Fifo()]) is None
    fair = await settled(instance.uri, [Fifo(), Sharing()])
    assert (fair.cap, fair.banks) == (1.5, {"physics": Bank(3.0)})
    world.write("site.toml", SITE.replace("1.5", "2"))
    await world.second(instance).ok("config.reload")
    assert (await settled(instance.uri, [Sharing()])).cap == 2.0


def test_users_are_named_as_the_machine_names_them():
    mine = os.getuid()
    assert user_name(mine) == pwd.getpwuid(mine).pw_name
    assert user_name(4_000_000_000) == "4000000000"
