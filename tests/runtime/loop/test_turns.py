"""Turns: each kind of work has its share of a turn, and none holds up another however much there is of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from fluxsched.protocol.framing.bundle import pack_bundles, unpack_bundle
from fluxsched.protocol.framing.header import Message, decode, encode, make_request
from fluxsched.runtime.loop.turns import PIECE_ITEMS, SHARE_S, Turns, pieces
from fluxsched.runtime.messaging.peers import RpcRequest
from fluxsched.runtime.messaging.router import READ_AHEAD_MESSAGES, SLICE_MESSAGES, Router
from fluxsched.transport.memory import MemoryServer

STEP_S = 0.3 * SHARE_S
"""So four steps fill a share."""


class HandClock:
    """Time that passes only when somebody works."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def wall_s(self) -> float:
        return self.now_s

    def monotonic_s(self) -> float:
        return self.now_s


class Worker:
    """Turns on the running loop, with work that takes its time and is noted down."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.turns = Turns(self.clock)
        self.seen: list[str] = []
        self.turns.at_end(lambda: self.seen.append("|"))
        self.turns.start(asyncio.get_running_loop())

    def does(self, name: str) -> Callable[[], None]:
        def work() -> None:
            self.clock.now_s += STEP_S
            self.seen.append(name)

        return work

    def long(self, name: str, count: int) -> Iterator[None]:
        for _ in range(count):
            self.does(name)()
            yield

    async def run(self, turns: int) -> str:
        """What is seen in the next turns."""
        self.seen.clear()
        while self.seen.count("|") < turns:
            await asyncio.sleep(0)
        return "".join(self.seen)


async def test_timers_that_are_due_at_once_are_spread_over_turns() -> None:
    worker = Worker()
    for _ in range(16):
        worker.turns.after(0.0, worker.does("t"))
    assert await worker.run(4) == "tttt|tttt|tttt|tttt|"


async def test_long_work_goes_on_by_turns_piece_by_piece() -> None:
    worker = Worker()
    worker.turns.spread(worker.long("a", 4))
    worker.turns.spread(worker.long("b", 2))
    assert await worker.run(2) == "abab|aa|"


async def test_what_is_posted_waits_for_no_long_work_and_timers_for_neither() -> None:
    worker = Worker()
    worker.turns.spread(worker.long("a", 40))
    await worker.run(1)
    for _ in range(8):
        worker.turns.post(worker.does("p"))
        worker.turns.after(0.0, worker.does("t"))
    assert await worker.run(2) == "ttttppppa|ttttppppa|"


def test_pieces_are_all_of_it_in_order() -> None:
    items = list(range(2 * PIECE_ITEMS + 1))
    cut = list(pieces(items))
    assert [len(some) for some in cut] == [PIECE_ITEMS, PIECE_ITEMS, 1]
    assert [item for some in cut for item in some] == items
    assert list(pieces([])) == []


async def test_who_asks_one_thing_does_not_wait_for_the_burst_of_another() -> None:
    server = MemoryServer()
    router = Router(Turns(HandClock()), [server])
    handled: list[str] = []

    def handle(request: RpcRequest) -> None:
        handled.append(request.topic)
        request.respond()

    router.serve({"a.burst": handle, "b.ping": handle})
    router.start()
    router.turns.at_end(router.flush)
    burst, other = server.connect(), server.connect()
    loop = asyncio.get_running_loop()
    for end in (burst, other):
        end.start(loop, lambda: None)
    messages = [make_request("a.burst", None, matchtag=tag) for tag in range(1, 2 * READ_AHEAD_MESSAGES)]
    for frames in pack_bundles(messages):
        burst.send(frames)
    other.send(encode(make_request("b.ping", None, matchtag=1)))
    server.start(loop, router.turns.wake)
    router.turns.start(loop)
    answers: list[Message] = []
    while len(answers) < len(messages):
        await asyncio.sleep(0)
        answers += [one for frames in burst.receive(1000) for one in unpack_bundle(decode(frames))]
    assert len(handled) == len(messages) + 1
    assert handled.index("b.ping") <= READ_AHEAD_MESSAGES + SLICE_MESSAGES, "no more is read than must be"
    assert [answer.matchtag for answer in answers] == [message.matchtag for message in messages], "each peer's order"


async def test_long_answers_give_way_to_short_ones() -> None:
    turns = Turns(HandClock())
    done: list[str] = []

    def work(name: str, pieces: int) -> Iterator[None]:
        for _ in range(pieces):
            done.append(name)
            yield

    turns.spread(work("list", 3))
    turns.spread_first(work("submit", 5))
    turns.start(asyncio.get_running_loop())
    while len(done) < 8:
        await asyncio.sleep(0)
    assert done == ["submit"] * 5 + ["list"] * 3
    turns.stop()
