"""Barriers of jobs on several hosts: what the instance answers, and that a task finds them as those on one host."""

from __future__ import annotations

import os
import signal
import sys
from collections import deque
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluxsched.core.idset import Idset
from fluxsched.executor.tasks import PmiFences
from fluxsched.executor.wire import PmiFence, PmiFenceDone
from fluxsched.protocol.pmi import Failed, Fence, PmiEffect, PmiReply, PmiServer
from fluxsched.system.processes import PATH_VARIABLE
from tests.system.test_mpi import SUMS, compiled

NAME = "kvs"


@pytest.fixture
def fences() -> PmiFences:
    fences = PmiFences()
    fences.add_job(1, ["a", "b"])
    return fences


def test_a_barrier_is_complete_when_all_hosts_have_reached_it(fences: PmiFences) -> None:
    assert fences.arrived("b", PmiFence(1, 1, {"x": "1", "y": "1"})) == []
    done = PmiFenceDone(1, 1, {"x": "0", "y": "1"}), PmiFenceDone(1, 1, {"x": "1", "y": "1"})
    assert fences.arrived("a", PmiFence(1, 1, {"x": "0"})) == [("a", done[1]), ("b", done[1])], "the last host counts"
    assert fences.arrived("a", PmiFence(1, 2)) == []
    assert fences.arrived("b", PmiFence(1, 2)) == [("a", PmiFenceDone(1, 2)), ("b", PmiFenceDone(1, 2))]


def test_jobs_and_hosts_that_are_unknown_are_passed_over(fences: PmiFences) -> None:
    assert fences.arrived("c", PmiFence(1, 1)) == fences.arrived("a", PmiFence(2, 1)) == fences.gone(2, "a") == []
    fences.arrived("a", PmiFence(1, 1))
    fences.remove_job(1)
    fences.remove_job(1)
    assert fences.arrived("b", PmiFence(1, 1)) == fences.gone(1, "b") == fences.gone(1, "c") == []


def test_what_a_host_repeats_is_answered_again_and_counted_once(fences: PmiFences) -> None:
    assert fences.arrived("a", PmiFence(1, 1)) == fences.arrived("a", PmiFence(1, 1)) == []
    fences.arrived("b", PmiFence(1, 1, {"x": "1"}))
    assert fences.arrived("b", PmiFence(1, 1, {"x": "1"})) == [("b", PmiFenceDone(1, 1, {"x": "1"}))]
    fences.arrived("a", PmiFence(1, 2))
    fences.arrived("b", PmiFence(1, 2))
    assert fences.arrived("b", PmiFence(1, 1, {"x": "1"})) == [], "it has had that answer, or could not be at 2"


def test_an_instance_that_was_restarted_completes_what_a_host_still_waits_for(fences: PmiFences) -> None:
    for number in 3, 4:
        assert fences.arrived("a", PmiFence(1, number)) == []
    assert fences.arrived("b", PmiFence(1, 2)) == []
    assert fences.arrived("b", PmiFence(1, 3)) == [("a", PmiFenceDone(1, 3)), ("b", PmiFenceDone(1, 3))]
    assert fences.arrived("b", PmiFence(1, 4)) == [("a", PmiFenceDone(1, 4)), ("b", PmiFenceDone(1, 4))]


def test_all_hosts_hear_who_has_left(fences: PmiFences) -> None:
    left = PmiFenceDone(1, 2, left="task 0")
    assert fences.arrived("a", PmiFence(1, 1, {"x": "1"})) == []
    assert fences.arrived("a", PmiFence(1, 2, left="task 0")) == [("a", left), ("b", left)]
    done = PmiFenceDone(1, 1, {"x": "1"})
    assert fences.arrived("b", PmiFence(1, 1)) == [("a", done), ("b", done), ("b", left)]
    assert fences.arrived("b", PmiFence(1, 2)) == [("b", left)]
    assert fences.arrived("b", PmiFence(1, 1)) == [("b", done), ("b", left)], "its connection was lost with both"
    assert fences.gone(1, "a") == fences.arrived("b", PmiFence(1, 2, left="task 1"))[1:] == []


def test_a_host_that_is_gone_is_news_for_the_hosts_of_an_mpi_program(fences: PmiFences) -> None:
    assert fences.gone(1, "a") == [], "it may be none"
    gone = PmiFenceDone(1, 1, left="host a")
    assert fences.arrived("b", PmiFence(1, 1)) == [("a", gone), ("b", gone)]
    fences.add_job(1, ["a", "b"])
    assert fences.arrived("a", PmiFence(1, 1)) == []
    gone = PmiFenceDone(1, 2, left="host a")
    assert fences.gone(1, "a") == [("a", gone), ("b", gone)]
    assert fences.arrived("b", PmiFence(1, 1))[-1] == ("b", gone)


def test_the_first_barrier_that_lacks_a_host_counts(fences: PmiFences) -> None:
    fences.add_job(1, "abc")
    fences.arrived("a", PmiFence(1, 1))
    fences.arrived("a", PmiFence(1, 2, left="task 0"))
    gone = PmiFenceDone(1, 1, left="host b")
    assert fences.gone(1, "b") == [("a", gone), ("b", gone), ("c", gone)]
    assert fences.gone(1, "c") == []


# A program on several hosts, whose connections to the instance break and which is restarted, beside the same on one.


class Host:
    """Server of a host, and what is under way between it and the instance; what is not sent is said again later."""

    def __init__(self, ntasks: list[int], own: Idset) -> None:
        self.server = PmiServer(NAME, ntasks, own)
        self.kept = deque[PmiFence](maxlen=2)
        self.sent, self.answers = deque[PmiFence](), deque[PmiFenceDone]()

    def cut(self) -> None:
        """The connection breaks, with what is under way, and there is another one."""
        self.sent, self.answers = deque(self.kept), deque()

    def taken(self, effects: list[PmiEffect]) -> list[PmiEffect]:
        for effect in effects:
            if isinstance(effect, Fence):
                left = "" if effect.left is None else f"task {effect.left}"
                self.kept.append(PmiFence(1, effect.number, dict(effect.puts), left))
                self.sent.append(self.kept[-1])
        return [effect for effect in effects if not isinstance(effect, Fence)]


class Site:
    """Hosts and their instance."""

    def __init__(self, ntasks: list[int], random: Random) -> None:
        firsts = [sum(ntasks[:at]) for at in range(len(ntasks))]
        owned = [Idset.span(first, first + count - 1) for first, count in zip(firsts, ntasks, strict=True)]
        self.hosts = {f"host {at}": Host(ntasks, own) for at, own in enumerate(owned)}
        self.of = {rank: self.hosts[f"host {at}"] for at, own in enumerate(owned) for rank in own}
        self._random = random
        self._start()

    def _start(self) -> None:
        self.fences = PmiFences()
        self.fences.add_job(1, self.hosts)

    def step(self, rank: int, data: bytes | None) -> list[PmiEffect]:
        host = self.of[rank]
        return host.taken(host.server.ended(rank) if data is None else host.server.receive(rank, data))

    @property
    def is_idle(self) -> bool:
        return not any(host.sent or host.answers for host in self.hosts.values())

    def deliver(self) -> list[PmiEffect]:
        """A message arrives, or is lost."""
        if not self._random.randrange(20):
            if self._random.randrange(2):
                self._start()
                for host in self.hosts.values():
                    host.cut()
            else:
                self._random.choice(list(self.hosts.values())).cut()
        name, host = self._random.choice(list(self.hosts.items()))
        if host.sent and self._random.randrange(2):
            for to, answer in self.fences.arrived(name, host.sent.popleft()):
                self.hosts[to].answers.append(answer)
        elif host.answers:
            one = host.answers.popleft()
            server = host.server
            if one.left:
                return host.taken(server.left_elsewhere(one.number, one.left))
            return host.taken(server.fence_done(one.number, one.puts))
        return []


def steps(random: Random, rank: int, size: int, phases: int, leaves: int | None) -> Iterator[bytes | None]:
    """One task of a program: it reads what it has put itself, and what any task has put before the last barrier."""
    put, get = f"cmd=put kvsname={NAME} key={{}} value={{}}\n", f"cmd=get kvsname={NAME} key={{}}\n"
    yield b"cmd=init pmi_version=1\n"
    for phase in range(phases):
        if leaves == phase:
            break
        for number in range(random.randrange(3)):
            yield put.format(f"{rank}.{number}", phase * 10 + number).encode()
            yield get.format(f"{rank}.{number}").encode()
        yield b"cmd=barrier_in\n"
        for _ in range(random.randrange(4)):
            yield get.format(f"{random.randrange(size)}.{random.randrange(3)}").encode()
        yield b"cmd=barrier_in\n"
    yield b"cmd=finalize\n"
    yield None


def played(site: PmiServer | Site, ntasks: list[int], seed: int, order: Random) -> tuple[dict[int, list[bytes]], bool]:
    """The answers that each task of a random program has got, when all are at rest, and whether the program failed."""
    random, size = Random(seed), sum(ntasks)
    phases, leaver, leaves = random.randrange(1, 4), random.randrange(size), random.choice([None, None, 0, 1, 2])
    tasks = {
        rank: steps(Random(seed * 1000 + rank), rank, size, phases, leaves if rank == leaver else None)
        for rank in range(size)
    }
    waiting, answers, failed = set[int](), {rank: list[bytes]() for rank in tasks}, False
    while True:
        choices: list[int | None] = [rank for rank in tasks if rank not in waiting]
        if isinstance(site, Site) and not site.is_idle:
            choices.append(None)
        if not choices:
            return answers, failed
        rank, effects = order.choice(choices), list[PmiEffect]()
        if rank is None:
            effects = site.deliver() if isinstance(site, Site) else []
        else:
            data = next(tasks[rank])
            if data is None:
                del tasks[rank]
            elif data.startswith(b"cmd=barrier"):
                waiting.add(rank)
            if isinstance(site, Site):
                effects = site.step(rank, data)
            else:
                effects = site.ended(rank) if data is None else site.receive(rank, data)
        for effect in effects:
            failed |= isinstance(effect, Failed)
            if isinstance(effect, PmiReply):
                answers[effect.rank].append(effect.line)
                if effect.line.startswith(b"cmd=barrier"):
                    waiting.remove(effect.rank)


@given(st.lists(st.integers(1, 3), min_size=2, max_size=4), st.integers(0, 1 << 30), st.integers(0, 1 << 30))
def test_hosts_answer_their_tasks_as_one_server_for_all_does(ntasks: list[int], seed: int, other: int) -> None:
    random = Random(other)
    alone = played(PmiServer(NAME, ntasks), ntasks, seed, random)
    assert played(Site(ntasks, random), ntasks, seed, random) == alone


# Real tasks of a job on several hosts, each with an executor of its own.

CLIENT = [sys.executable, "-S", str(Path(__file__).with_name("pmi_client.py"))]


class Shops:
    """Executors of hosts that have one rank each, and their instance."""

    def __init__(self, shops: list[Any]) -> None:
        self.shops = shops
        self.fences = PmiFences()
        for at, shop in enumerate(shops):
            shop.fence = partial(self._arrived, str(at))

    def _arrived(self, host: str, one: PmiFence) -> None:
        for to, answer in self.fences.arrived(host, one):
            shop = self.shops[int(to)]
            shop.turns.post(partial(shop.executor.fence_done, answer))

    def start(self, command: list[str] | str, ntasks: int, **options: Any) -> None:
        self.fences.add_job(1, [str(at) for at in range(len(self.shops))])
        for at, shop in enumerate(self.shops):
            shop.start(command, ntasks=ntasks, ranks=len(self.shops), own=Idset.one(at), **options)

    async def raised(self) -> list[str]:
        """The reasons why the program cannot go on, and then its end."""
        found: list[str] = []
        await self.shops[0].until(lambda: any(said[0] == "raised" for shop in self.shops for said in shop.said))
        for shop in self.shops:
            found += [said[3] for said in shop.said if said[0] == "raised"]
            shop.executor.kill(1, signal.SIGKILL)
        for shop in self.shops:
            await shop.until(lambda shop=shop: any(said[0] == "finished" for said in shop.said))
        return found

    def lines(self) -> list[str]:
        return sorted(line for shop in self.shops for line in shop.lines())


@pytest.fixture
async def shops(make_shop: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Shops]:
    made = []
    for name in "ab":  # of hosts on one machine, each must know its own processes of a job
        monkeypatch.setenv(PATH_VARIABLE, f"/{name}")
        made.append(make_shop(tmp_path / name))
    yield Shops(made)
    for shop in made:
        shop.executor.close()
        shop.turns.stop()


async def test_tasks_of_two_hosts_exchange_what_they_put(shops: Shops) -> None:
    shops.start([*CLIENT, "exchange"], ntasks=4)
    assert [await shop.finished() for shop in shops.shops] == [0, 0]
    cards = " ".join(f"of={rank}" for rank in range(4))
    assert shops.lines() == [f"{rank} {cards} (vector,(0,2,2))" for rank in range(4)]
    assert [len(shop.lines()) for shop in shops.shops] == [2, 2]


@pytest.mark.parametrize(
    ("what", "note"),
    [
        ("die", "task 1 (killed by SIGSEGV) left the MPI program without MPI_Finalize"),
        ("abort", "task 1 called MPI_Abort with exit code 5"),
    ],
)
async def test_a_host_whose_only_task_fails_says_so_before_it_has_ended(shops: Shops, what: str, note: str) -> None:
    shops.start([*CLIENT, what], ntasks=2)
    assert await shops.raised() == [note]


@pytest.mark.parametrize("ntasks", [2, 4])
async def test_tasks_do_not_wait_for_one_of_another_host_that_has_left(shops: Shops, ntasks: int) -> None:
    words = " ".join(CLIENT)
    shops.start(f'[ "$PMI_RANK" = {ntasks - 1} ] && exit 3; exec {words} wait', ntasks=ntasks)
    begin = f"task {ntasks - 1} has left the MPI program, and task"
    found = [note.replace(" (exited 3)", "") for note in await shops.raised()]  # it may end after we look
    assert {note[: len(begin)] for note in found} == {begin}


async def test_a_program_of_mpich_runs_on_two_hosts(shops: Shops, tmp_path: Path) -> None:
    program = compiled("mpich", tmp_path, "mpich")
    shops.start([program], ntasks=4, environment={"PATH": os.environ["PATH"]})
    assert [await shop.finished() for shop in shops.shops] == [0, 0]
    assert shops.lines() == ["pi is about 3.141593", *SUMS]
