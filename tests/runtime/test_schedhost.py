"""The scheduler's process under a burst: a question is answered before what has arrived earlier to change things."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from fluxsched.protocol import codec
from fluxsched.protocol.bundle import pack_bundles, unpack_bundle
from fluxsched.protocol.header import RESPONSE, Message, decode, make_request
from fluxsched.protocol.messages.alloc import SchedCancelRequest
from fluxsched.runtime.schedhost import DEFERRED_MAX, SchedulerHost
from fluxsched.runtime.turns import SHARE_S, Turns
from fluxsched.sched.effects import Effect
from fluxsched.sched.policies.fifo import Fifo
from fluxsched.sched.scheduler import Scheduler

BURST = 3 * DEFERRED_MAX


class Ticking:
    """A clock that runs a little with every look."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def wall_s(self) -> float:
        return self.now_s

    def monotonic_s(self) -> float:
        self.now_s += SHARE_S
        return self.now_s


class Noting(Scheduler):
    """Notes what it was asked to cancel."""

    def __init__(self, policy: Fifo) -> None:
        super().__init__(policy)
        self.canceled: list[int] = []

    def cancel(self, jobid: int) -> list[Effect]:
        self.canceled.append(jobid)
        return super().cancel(jobid)


class Wire:
    """The client's end of a connection, with all of a burst in it."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self.lost: str | None = None
        self.frames = pack_bundles(messages)
        self.sent: list[Message] = []

    def start(self, loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None: ...

    def receive(self, limit: int) -> list[list[bytes]]:
        taken, self.frames = self.frames[:limit], self.frames[limit:]
        return taken

    def send(self, frames: Sequence[bytes]) -> None:
        message = decode(frames)
        self.sent += unpack_bundle(message) if message.topic == "bundle" else [message]

    def close(self) -> None: ...


async def test_a_question_overtakes_a_burst_and_the_burst_keeps_its_order() -> None:
    scheduler = Noting(Fifo())
    canceled = scheduler.canceled
    burst = [make_request("sched.cancel", codec.pack(SchedCancelRequest(id=jobid))) for jobid in range(BURST)]
    at = DEFERRED_MAX // 2
    wire = Wire([*burst[:at], make_request("me.ping", codec.pack({}), matchtag=7), *burst[at:]])
    turns = Turns(Ticking())
    SchedulerHost(wire, scheduler, ("default",), turns, "me")
    turns.start(asyncio.get_running_loop())
    while not wire.sent:
        await asyncio.sleep(0)
    [answer] = wire.sent
    assert (answer.type, answer.topic, answer.matchtag, answer.errnum) == (RESPONSE, "me.ping", 7, 0)
    assert len(canceled) < at
    assert wire.frames, "no more is read than can be kept"
    while len(canceled) < BURST:
        await asyncio.sleep(0)
    assert canceled == list(range(BURST))
