"""Turns of the loop: order, faults, timers, long work; and the log."""

from __future__ import annotations

import asyncio
import json
import logging
from datetime import datetime

import pytest

from fluxsched.core.jobid import format_f58
from fluxsched.messaging.peers import PeerLimits
from fluxsched.messaging.router import READ_AHEAD_MESSAGES, SLICE_MESSAGES, Router
from fluxsched.protocol.framing import decode, encode, make_request, pack_bundles, unpack_bundle
from fluxsched.system import log as logs
from fluxsched.system.log import JSON, of_job
from fluxsched.system.loop import PIECE_ITEMS, SHARE_S, TurnGroup, TurnMember, Turns, pieces
from tests.transport.memory import MemoryServer

# Turns: each kind of work has its share of a turn, and none holds up another however much there is of it.


STEP_S = 0.3 * SHARE_S
"""So four steps fill a share."""


class HandClock:
    """Time that passes only when somebody works."""

    def __init__(self):
        self.now_s = 0.0

    def wall_s(self):
        return self.now_s

    def monotonic_s(self):
        return self.now_s


class Worker:
    """Turns on the running loop, with work that takes its time and is noted down."""

    def __init__(self):
        self.clock = HandClock()
        self.turns = Turns(self.clock)
        self.seen = []
        self.turns.at_end(lambda: self.seen.append("|"))
        self.turns.start(asyncio.get_running_loop())

    def does(self, name):
        def work():
            self.clock.now_s += STEP_S
            self.seen.append(name)

        return work

    def long(self, name, count):
        for _ in range(count):
            self.does(name)()
            yield

    async def run(self, turns):
        """What is seen in the next turns."""
        self.seen.clear()
        while self.seen.count("|") < turns:
            await asyncio.sleep(0)
        return "".join(self.seen)


async def test_timers_that_are_due_at_once_are_spread_over_turns():
    worker = Worker()
    for _ in range(16):
        worker.turns.after(0.0, worker.does("t"))
    assert await worker.run(4) == "tttt|tttt|tttt|tttt|"


async def test_long_work_goes_on_by_turns_piece_by_piece():
    worker = Worker()
    worker.turns.spread(worker.long("a", 4))
    worker.turns.spread(worker.long("b", 2))
    assert await worker.run(2) == "abab|aa|"


async def test_what_is_posted_waits_for_no_long_work_and_timers_for_neither():
    worker = Worker()
    worker.turns.spread(worker.long("a", 40))
    await worker.run(1)
    for _ in range(8):
        worker.turns.post(worker.does("p"))
        worker.turns.after(0.0, worker.does("t"))
    assert await worker.run(2) == "ttttppppa|ttttppppa|"


class Part:
    """A member of a group with a connection whose messages take two turns to receive."""

    def __init__(self, group, name, seen):
        member, self.left = TurnMember(group), 0
        member.source(lambda until_s: self._take(name, seen))
        member.at_end(lambda: seen.append(f"{name}."))
        member.attach(lambda loop, wake: setattr(self, "arrive", wake))
        self.wake = member.wake

    def _take(self, name, seen):
        seen.append(name)
        self.left -= 1
        return self.left > 0


async def test_a_turn_looks_only_at_members_of_a_group_that_were_woken():
    worker = Worker()
    group = TurnGroup(worker.turns)
    first, second, _ = (Part(group, name, worker.seen) for name in "abc")
    assert await worker.run(1) == "|"
    first.left = 2
    first.arrive()
    assert await worker.run(2) == "a|a|"
    second.wake()
    assert await worker.run(1) == "|b."
    worker.turns.post(first.arrive)  # too late for this turn's sources
    assert await worker.run(2) == "|a|"


def test_pieces_are_all_of_it_in_order():
    items = list(range(2 * PIECE_ITEMS + 1))
    cut = list(pieces(items))
    assert [len(some) for some in cut] == [PIECE_ITEMS, PIECE_ITEMS, 1]
    assert [item for some in cut for item in some] == items
    assert list(pieces([])) == []


async def test_who_asks_one_thing_does_not_wait_for_the_burst_of_another():
    server = MemoryServer()
    router = Router(Turns(HandClock()), [server])
    handled = []

    def handle(request):
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
    answers = []
    while len(answers) < len(messages):
        await asyncio.sleep(0)
        answers += [one for frames in burst.receive(1000) for one in unpack_bundle(decode(frames))]
    assert len(handled) == len(messages) + 1
    assert handled.index("b.ping") <= READ_AHEAD_MESSAGES + SLICE_MESSAGES, "no more is read than must be"
    assert [answer.matchtag for answer in answers] == [message.matchtag for message in messages], "each peer's order"


async def test_long_answers_give_way_to_short_ones():
    turns = Turns(HandClock())
    done = []

    def work(name, pieces):
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


# The instance's log: a flood of one kind of line is cut, counted, and costs the others nothing.


@pytest.fixture
def path(tmp_path):
    logs.set_up_logging(tmp_path / "log", 0)
    yield tmp_path / "log"
    logs.set_up_logging(None, 0)


def say(kind, at_s, *values):
    record = logging.LogRecord("fluxsched.router", logging.WARNING, "", 0, kind, values, None)
    record.created = at_s
    logging.getLogger("fluxsched").handle(record)


def test_a_flood_of_one_kind_is_cut_and_summed_up(path):
    for number in range(1_000):
        say("peer %s sent nonsense", 1_000.0 + number / 1_000, number)
    say("a peer came", 1_001.0)
    say("a peer came", 1_011.0)
    lines = [line.partition(" fluxsched.router: ")[2] for line in path.read_text().splitlines()]
    assert lines[: logs.LINES_MAX] == [f"peer {number} sent nonsense" for number in range(logs.LINES_MAX)]
    assert lines[logs.LINES_MAX :] == [
        "a peer came",
        f"{1_000 - logs.LINES_MAX} more like this in the last 11 s: peer %s sent nonsense",
        "a peer came",
    ]


def test_a_kind_is_heard_again_when_its_window_is_over(path):
    for begin_s in (1_000.0, 1_000.0 + logs.WINDOW_S):
        for _ in range(logs.LINES_MAX + 1):
            say("again", begin_s)
    assert path.read_text().count(" fluxsched.router: again") == 2 * logs.LINES_MAX
    assert path.read_text().count("1 more like this in the last 10 s: again") == 1


async def test_a_peer_that_sends_malformed_messages_in_a_loop_fills_no_log(world):
    """Not even if its connection is not ended for it."""
    site = await world.bare(peer_limits=PeerLimits(malformed_burst=10_000))
    peer, size = world.second(site), len((site.run_directory / "log").read_text())
    for _ in range(2_000):
        peer.socket.send_multipart([b"", b"instance.info", b"no header"])
    await peer.settle()
    said = (site.run_directory / "log").read_text()[size:]
    assert said.count("sent a malformed message") == logs.LINES_MAX
    assert len(said) < 200 * (logs.LINES_MAX + 5)


class About:
    """What is being handled."""

    def log_fields(self):
        return {"request": "0000002a", "topic": "a.b", "peer": "p"}


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_lines_in_json_say_what_they_are_about(tmp_path):
    subject = [None]
    logs.set_up_logging(tmp_path / "log", 0, JSON, lambda: subject[0])
    log = logs.logger("x")
    log.info("nothing is %s", "handled")
    subject[0] = About()
    log.warning("a request is, of \udcff and\nlines")
    log.info("of a job", extra=of_job(42, rank=3) | {"peer": "another"})
    try:
        raise ValueError("no")
    except ValueError:
        log.exception("it failed")
    logs.set_up_logging(None, 0)
    first, second, third, fourth = lines_of(tmp_path / "log")
    assert first.items() >= {"level": "info", "logger": "fluxsched.x", "text": "nothing is handled"}.items()
    assert datetime.fromisoformat(first["time"]).tzinfo is not None
    assert first.keys() == {"time", "level", "logger", "text"}
    assert second["text"] == "a request is, of \udcff and\nlines"
    assert (second["request"], second["topic"]) == ("0000002a", "a.b")
    assert (third["jobid"], third["rank"], third["peer"]) == (format_f58(42), "3", "another")
    assert fourth["traceback"].endswith("ValueError: no")
    assert all(line.endswith('"}') for line in (tmp_path / "log").read_text().splitlines())


def test_a_flood_is_cut_in_json_too(tmp_path):
    logs.set_up_logging(tmp_path / "log", 0, JSON)
    for _ in range(logs.LINES_MAX + 5):
        say("again", 1_000.0)
    say("later", 1_011.0)
    logs.set_up_logging(None, 0)
    assert [line["text"] for line in lines_of(tmp_path / "log")[logs.LINES_MAX :]] == [
        "5 more like this in the last 11 s: again", "later"
    ]  # fmt: skip


def test_lines_for_debugging_are_never_cut(tmp_path):
    logs.set_up_logging(tmp_path / "log", 2)
    for number in range(2 * logs.LINES_MAX):
        logs.logger("x").debug("again %d", number)
    logs.set_up_logging(None, 0)
    assert (tmp_path / "log").read_text().count("again") == 2 * logs.LINES_MAX
