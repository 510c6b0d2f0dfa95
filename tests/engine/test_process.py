"""Processes of an engine, with keepers that only report and write down what they are told."""

from __future__ import annotations

import asyncio
import logging
import os
import stat
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from fluxsched.config.values import PING_MAX_S, EngineSettings
from fluxsched.core.hostlist import Hostlist
from fluxsched.engine import process
from fluxsched.engine.engines import EngineHosts, KeeperCommand
from fluxsched.engine.process import (
    KEPT_BYTES_MAX,
    LINE_CHARS_MAX,
    LINES_MAX,
    OUTPUT_BYTES_MAX,
    PINGS_PER_S,
    STARTING_MAX,
    EngineProcess,
    StartedEngine,
    ping_interval_s,
    start_engine,
    supposed_resources,
)
from fluxsched.engine.report import REPORT_BEGIN, read_introduction, report_lines
from fluxsched.errors import FluxschedError, InvalidValue, Refused
from fluxsched.executor.wire import VERSION
from fluxsched.messaging.peers import Access
from fluxsched.system.clock import SystemClock
from fluxsched.system.files import ENGINE_NAME
from fluxsched.system.loop import Turns
from fluxsched.system.processes import stat_of
from tests.engine.fakes import Fakes
from tests.engine.harness import KEEPER

WAIT_S = 60.0


class Hosts:
    """Keepers under test in a directory, with what they were ordered and what they were told."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.state = directory / "state"
        self.state.mkdir(mode=0o700)
        self.started: list[StartedEngine] = []
        self.environment = dict(os.environ)

    def order(self, host: str, *words: str) -> None:
        (self.directory / f"{host}.order").write_text(" ".join(words))

    def start(self, text: str = "processes:3") -> StartedEngine:
        settings = EngineSettings(address="127.0.0.1").named(text)
        words = (sys.executable, KEEPER, str(self.directory))
        found = start_engine(settings, self.environment, self.state, is_kept=True, keeper=words)
        assert found is not None
        self.started.append(found)
        return found

    def told(self, host: str) -> bytes:
        file = self.directory / f"{host}.told"
        return file.read_bytes() if file.exists() else b""

    def pids(self, host: str) -> list[int]:
        """Return the processes that have been keepers of a host, the last one last."""
        file = self.directory / f"{host}.pids"
        return [int(line) for line in file.read_text().splitlines()] if file.exists() else []

    def alive(self) -> list[int]:
        """Return the processes of all keepers that live."""
        pids = [int(line) for file in self.directory.glob("*.pids") for line in file.read_text().splitlines()]
        return [pid for pid in pids if (found := stat_of(pid)) is not None and found.alive]


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    found = Hosts(tmp_path)
    yield found
    for started in found.started:
        started.close(0.0)
    for pid in found.alive():
        with suppress(ProcessLookupError):
            os.kill(pid, 9)


@pytest.fixture
async def turns() -> AsyncIterator[Turns]:
    failures: list[Exception] = []
    found = Turns(SystemClock(), failures.append)
    found.start(asyncio.get_running_loop())
    yield found
    found.stop()
    assert failures == []


async def until(condition: Callable[[], object]) -> None:
    end_s = SystemClock.monotonic_s() + WAIT_S
    while not condition():
        assert SystemClock.monotonic_s() < end_s
        await asyncio.sleep(0.005)


def give_up_when(monkeypatch: pytest.MonkeyPatch, condition: Callable[[int], bool]) -> None:
    """Have the time of a start be over once this holds of the number of reports."""
    passed_s, look = [0.0], process._Gathering._look

    def looked(gathering: process._Gathering) -> int:
        starting = look(gathering)
        passed_s[0] = 10 * WAIT_S if condition(len(gathering.reports)) else 0.0
        return starting

    class Hurried(SystemClock):
        monotonic_s = staticmethod(lambda: SystemClock.monotonic_s() + passed_s[0])

    monkeypatch.setattr(process, "SystemClock", Hurried)
    monkeypatch.setattr(process._Gathering, "_look", looked)


# ---- a start


async def test_the_hosts_that_report_become_targets_and_are_told_the_way_to_the_instance(
    hosts: Hosts, turns: Turns
) -> None:
    hosts.order("p1", "noise")
    started = hosts.start()
    assert started.hosts == ("p0", "p1", "p2")
    assert not started.is_resumed
    resources = started.resources()
    assert (str(resources.nodelist), str(resources.entries[0].children)) == ("p[0-2]", "core[0-1]")
    assert started.orphan_timeout_s == 60.0
    server = started.listen(Access())
    started.introduce(hosts.state, turns)
    await until(lambda: all(hosts.told(host) for host in started.hosts))
    told = {read_introduction(hosts.told(host)) for host in started.hosts}
    assert told == {started.introduction}
    assert server.endpoint == f"tcp://{started.introduction.server_key}@{started.introduction.endpoint[6:]}"
    assert len(hosts.alive()) == 3  # their input goes on
    server.close()


async def test_no_argument_variable_or_file_of_others_has_a_secret(hosts: Hosts, turns: Turns) -> None:
    started = hosts.start()
    server = started.listen(Access())
    started.introduce(hosts.state, turns)
    await until(lambda: all(hosts.told(host) for host in started.hosts))
    secret = started.introduction.secret_key
    assert len(secret) == 64
    for pid in hosts.alive():
        for name in ("cmdline", "environ"):
            assert secret.encode() not in Path(f"/proc/{pid}/{name}").read_bytes()
    kept = hosts.state / ENGINE_NAME
    having = [file for file in hosts.directory.rglob("*") if file.is_file() and secret in file.read_text("latin-1")]
    assert {file for file in having if file.suffix != ".told"} == {kept}
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    server.close()


def test_a_host_that_does_not_report_is_left_out_and_named(hosts: Hosts, caplog: pytest.LogCaptureFixture) -> None:
    hosts.order("p1", "end")
    started = hosts.start()
    assert started.hosts == ("p0", "p2")
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "hosts are left out until they report: p1: " in warning
    assert "exit status 3: no room on p1" in warning


def test_a_host_that_is_silent_is_left_out_after_a_time_and_ended(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts.order("p1", "silent")
    give_up_when(monkeypatch, lambda reports: reports == 2 and bool(hosts.pids("p1")))
    assert hosts.start().hosts == ("p0", "p2")
    assert set(hosts.pids("p1")).isdisjoint(hosts.alive())


def test_without_any_report_the_error_has_what_was_printed(hosts: Hosts) -> None:
    hosts.order("p0", "end")
    with pytest.raises(FluxschedError, match=r"engine processes:p0: no host of 1 has reported: .*no room on p0"):
        hosts.start("processes:1")


def test_a_program_that_is_not_there_is_named(hosts: Hosts) -> None:
    settings = EngineSettings().named("processes:1")
    with pytest.raises(FluxschedError, match="no-such-program cannot be run: No such file"):
        start_engine(settings, hosts.environment, None, is_kept=False, keeper=("no-such-program",))


@pytest.mark.parametrize(
    ("host", "word", "text"),
    [("p0", "other", r"keepers of p0 \(\d+\) do not understand"), ("p1", "twice", "more than one report of p1")],
)
def test_a_start_that_is_refused_leaves_no_process(hosts: Hosts, host: str, word: str, text: str) -> None:
    hosts.order(host, word)
    with pytest.raises(InvalidValue, match=text):
        hosts.start(f"processes:{int(host[1:]) + 1}")
    assert hosts.alive() == []


def test_a_host_of_another_version_is_left_out_of_a_start(hosts: Hosts, caplog: pytest.LogCaptureFixture) -> None:
    hosts.order("p1", "other")
    started = hosts.start("processes:3")
    assert started.hosts == ("p0", "p2")
    assert f"hosts are left out: keepers of p1 ({VERSION + 1}) do not understand version {VERSION}" in caplog.text


def test_so_many_processes_start_at_a_time(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    number = STARTING_MAX + 2
    for host in range(number):
        hosts.order(f"p{host}", "silent")
    give_up_when(monkeypatch, lambda reports: len(hosts.alive()) >= STARTING_MAX)
    with pytest.raises(FluxschedError, match=f"no host of {number} has reported"):
        hosts.start(f"processes:{number}")
    assert len(list(hosts.directory.glob("*.pids"))) == STARTING_MAX


def test_a_check_asks_for_hosts_and_starts_nothing(hosts: Hosts) -> None:
    found = supposed_resources(EngineSettings().named("processes:2"), hosts.environment)
    assert found is not None
    assert str(found.nodelist) == "p[0-1]"
    assert supposed_resources(EngineSettings(), hosts.environment) is None


async def test_srun_has_keepers_take_the_names_of_slurm(
    hosts: Hosts, tmp_path: Path, turns: Turns, caplog: pytest.LogCaptureFixture
) -> None:
    bin_directory = tmp_path / "bin"
    bin_directory.mkdir()
    fakes = Fakes(bin_directory)
    fakes.slurm(["n1", "n2"])
    fakes.prints("squeue", "2100-01-01T00:00:00 1:00 n[1-3] RUNNING")
    fakes.prints("sinfo", "n3 down*")
    fakes.prints("scontrol", "n1\nn2\nn3")
    hosts.environment |= fakes.environment
    started = hosts.start("slurm")
    assert "left out, since the engine counts them as down: n3" in caplog.text
    assert (started.identity, started.hosts) == ("slurm:7", ("n1", "n2"))
    assert started.resources().expiration_s > 0
    server = started.listen(Access())
    started.introduce(hosts.state, turns)
    await until(lambda: hosts.told("n1") and hosts.told("n2"))
    assert read_introduction(hosts.told("n1")) == started.introduction
    assert all(started.introduction.secret_key not in word for call in fakes.calls("srun") for word in call)
    server.close()


# ---- while it runs, and its end


async def test_a_lost_host_gets_a_keeper_again_that_is_told_at_once(hosts: Hosts, turns: Turns) -> None:
    started = hosts.start("processes:2")
    server = started.listen(Access())
    ends: list[tuple[list[str], str]] = []
    started.on_end(lambda names, why: ends.append((list(names), why)))
    started.introduce(hosts.state, turns)
    await until(lambda: hosts.told("p1"))
    (hosts.directory / "p1.told").unlink()
    os.kill(hosts.pids("p1")[0], 9)
    await until(lambda: ends)
    assert ends[0][0] == ["p1"]
    assert ends[0][1].startswith("signal 9: ")
    started.host_lost("p1")
    started.host_lost("p1")
    await until(lambda: hosts.told("p1"))
    assert read_introduction(hosts.told("p1")) == started.introduction
    assert len(hosts.pids("p1")) == 2
    server.close()


async def test_a_keeper_is_started_again_until_it_reports(
    hosts: Hosts, turns: Turns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "AGAIN_S", 0.01)
    started = hosts.start("processes:2")
    server = started.listen(Access())
    started.introduce(hosts.state, turns)
    hosts.order("p0", "end")
    started.host_lost("p0")
    await until(lambda: not set(hosts.pids("p0")) & set(hosts.alive()))
    hosts.order("p0")
    await until(lambda: len(hosts.pids("p0")) == 2 and hosts.pids("p0")[1] in hosts.alive())
    server.close()


async def test_the_engine_is_asked_when_it_ends(hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "MINUTE_S", 0.01)
    started = hosts.start("processes:1")
    ends = iter([0.0, 50.0, 50.0, 70.0])

    def allocation() -> EngineHosts:
        found = next(ends, None)
        if found is None:
            raise FluxschedError("no answer")
        return EngineHosts(Hostlist.of(["p0"]), found)

    monkeypatch.setattr(started._engine, "allocation", allocation)
    told: list[float] = []
    task = asyncio.ensure_future(started.follow_allocation(told.append))
    await until(lambda: len(told) == 2)
    task.cancel()
    assert told == [50.0, 70.0]


async def test_a_bug_in_asking_the_engine_surfaces(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    bugs: list[tuple[str, Exception]] = []
    turns = Turns(SystemClock(), bugs.append, lambda what, bug: bugs.append((what, bug)))
    turns.start(asyncio.get_running_loop())
    monkeypatch.setattr(threading, "excepthook", lambda args: None)
    started = hosts.start("processes:1")
    server = started.listen(Access())
    started.introduce(hosts.state, turns)
    monkeypatch.setattr(started._engine, "is_down", lambda host: [][0])
    started.host_lost("p0")
    await until(lambda: bugs)
    assert bugs[0][0] == "engine processes:p0"
    assert isinstance(bugs[0][1], IndexError)
    turns.stop()
    server.close()


async def test_a_host_that_is_down_is_left_alone_until_it_is_up(
    hosts: Hosts, turns: Turns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "AGAIN_S", 0.001)
    monkeypatch.setattr(process, "AGAIN_MAX_S", 0.001)
    started = hosts.start("processes:1")
    server = started.listen(Access())
    started.introduce(hosts.state, turns)
    answers = iter([True, FluxschedError("no answer"), True, None])

    def is_down(host: str) -> bool | None:
        found = next(answers)
        if isinstance(found, FluxschedError):
            raise found
        return found

    monkeypatch.setattr(started._engine, "is_down", is_down)
    before = hosts.alive()
    started.host_lost("p0")
    await until(lambda: len(hosts.pids("p0")) == 2 and hosts.told("p0"))
    await until(lambda: set(before).isdisjoint(hosts.alive()))
    assert list(answers) == []
    server.close()


async def test_a_host_that_could_not_start_a_keeper_is_tried_again_and_taken_in(
    hosts: Hosts, turns: Turns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "AGAIN_S", 0.01)
    hosts.order("p1", "end")
    started = hosts.start()
    server = started.listen(Access())
    taken: list[str] = []
    started.on_report(taken.append)
    started.introduce(hosts.state, turns)
    hosts.order("p1", "")
    await until(lambda: taken and hosts.told("p1"))
    assert taken == ["p1"]
    assert started.hosts == ("p0", "p2", "p1"), "those before keep their ranks"
    assert [started.resources().host(rank) for rank in range(3)] == ["p0", "p2", "p1"]
    started.detach()
    assert hosts.start().hosts == ("p0", "p2", "p1"), "the next instance knows it"
    server.close()


async def test_a_host_that_the_engine_holds_since_a_while_gets_a_keeper(
    hosts: Hosts, turns: Turns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "MINUTE_S", 0.01)
    started = hosts.start("processes:1")
    server = started.listen(Access())
    started.introduce(hosts.state, turns)
    monkeypatch.setattr(started._engine, "allocation", lambda: EngineHosts(Hostlist.parse("p[0-1]")))
    task = asyncio.ensure_future(started.follow_allocation(lambda end_s: None))
    await until(lambda: started.hosts == ("p0", "p1") and hosts.told("p1"))
    task.cancel()
    assert len(hosts.pids("p1")) == 1
    server.close()


async def test_a_report_that_comes_late_adds_its_host_unless_it_is_of_another_version(
    hosts: Hosts, turns: Turns, caplog: pytest.LogCaptureFixture
) -> None:
    started = hosts.start("processes:1")
    server = started.listen(Access())
    taken: list[str] = []
    started.on_report(taken.append)
    started.introduce(hosts.state, turns)
    one = started._processes[0]
    one.hosts = ("p0", "n7", "n8")
    for host, version in (("n7.domain", VERSION), ("n8", VERSION + 1), ("n7.domain", VERSION)):
        report = msgspec.structs.replace(started.reports[0], host=host, version=version)
        started._read(one, report_lines(report).splitlines())
    started._read(one, [REPORT_BEGIN + b'"}'])
    assert (taken, started.hosts) == (["n7.domain"], ("p0", "n7.domain"))
    assert started._names == {"n7.domain": "n7"}
    assert "n8 is not taken in: keepers of n8" in caplog.text
    assert "cannot be read" in caplog.text
    server.close()


async def test_late_words_are_logged_with_a_limit(
    hosts: Hosts, turns: Turns, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "OUTPUT_LOOK_S", 0.01)
    caplog.set_level(logging.INFO)
    started = hosts.start("processes:1")
    server = started.listen(Access())
    started.introduce(hosts.state, turns)
    await until(lambda: "late words of p0" in caplog.text)
    caplog.clear()
    started._processes[0].lines = lambda: [b"x" * (LINE_CHARS_MAX + 9)] * (LINES_MAX + 9)  # type: ignore[method-assign]
    await until(lambda: f"more than {LINES_MAX} lines a minute" in caplog.text)
    texts = [record.getMessage() for record in caplog.records if record.getMessage().endswith("x")]
    assert len(texts) < LINES_MAX
    assert {text.count("x") for text in texts} == {LINE_CHARS_MAX}
    server.close()


def test_processes_that_ignore_the_end_are_killed(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "TERM_S", 0.1)
    hosts.order("p0", "stubborn")
    started = hosts.start("processes:1")
    assert len(hosts.alive()) == 1
    started.close(0.0)
    assert hosts.alive() == []


def test_a_keeper_that_is_not_told_ends_with_its_input(hosts: Hosts) -> None:
    hosts.order("p0", "stubborn")
    hosts.start("processes:1").close(WAIT_S)
    assert hosts.alive() == []


# ---- the next instance


async def test_the_next_instance_takes_up_what_lives(hosts: Hosts, turns: Turns) -> None:
    first = hosts.start()
    first.listen(Access()).close()
    first.introduce(hosts.state, turns)
    await until(lambda: all(hosts.told(host) for host in first.hosts))
    before = hosts.alive()
    first.detach()
    again = hosts.start()
    assert again.is_resumed
    assert (again.hosts, again.resources()) == (first.hosts, first.resources())
    assert hosts.alive() == before
    server = again.listen(Access())
    assert again.introduction == first.introduction
    again.introduce(hosts.state, turns)
    os.kill(before[0], 9)
    await until(lambda: len(again._processes) == 2)
    server.close()
    again.close(0.0)
    assert hosts.alive() == []
    assert not (hosts.state / ENGINE_NAME).exists()


async def test_a_port_that_is_taken_meanwhile_is_named_with_the_remedy(hosts: Hosts, turns: Turns) -> None:
    first = hosts.start("processes:1")
    taken = first.listen(Access())
    first.introduce(hosts.state, turns)
    first.detach()
    again = hosts.start("processes:1")
    with pytest.raises(Refused, match=rf"in use.*, where the keepers .* come back: .* remove {ENGINE_NAME}"):
        again.listen(Access())
    taken.close()


def test_the_last_line_of_a_process_may_have_no_end(hosts: Hosts) -> None:
    running = EngineProcess.begin(KeeperCommand(("sh", "-c", "printf 'one\\ntwo'"), ("n1",), dict(os.environ)))
    end_s = SystemClock.monotonic_s() + WAIT_S
    while running.is_alive():
        assert SystemClock.monotonic_s() < end_s
    assert running.lines() == [b"one"]
    assert running.last_lines() == [b"two"]
    assert running.last_lines() == []
    running.reap()
    running.close()


async def test_what_is_gone_is_started_anew_with_other_keys(hosts: Hosts, turns: Turns) -> None:
    first = hosts.start("processes:2")
    first.listen(Access()).close()
    first.introduce(hosts.state, turns)
    first.detach()
    for pid in hosts.alive():
        os.kill(pid, 9)
    await until(lambda: not hosts.alive())
    again = hosts.start("processes:2")
    assert not again.is_resumed
    again.listen(Access()).close()
    assert again.introduction.secret_key != first.introduction.secret_key


async def test_keepers_of_another_allocation_are_ended(hosts: Hosts, turns: Turns) -> None:
    first = hosts.start("processes:2")
    first.listen(Access()).close()
    first.introduce(hosts.state, turns)
    first.detach()
    before = hosts.alive()
    assert not hosts.start("processes:1").is_resumed
    assert set(before).isdisjoint(hosts.alive())


async def test_a_start_that_fails_leaves_the_keepers_of_the_instance_before(hosts: Hosts, turns: Turns) -> None:
    first = hosts.start("processes:2")
    first.listen(Access()).close()
    first.introduce(hosts.state, turns)
    first.detach()
    before = hosts.alive()
    hosts.start("processes:2").abandon()
    assert hosts.alive() == before
    again = hosts.start("processes:2")
    again.close(0.0)
    hosts.start("processes:2").abandon()
    assert hosts.alive() == []


@pytest.mark.parametrize("text", ["", "{}", "x" * 100])
def test_a_record_that_cannot_be_read_is_ignored(hosts: Hosts, text: str, caplog: pytest.LogCaptureFixture) -> None:
    (hosts.state / ENGINE_NAME).write_text(text)
    assert not hosts.start("processes:1").is_resumed
    assert "is ignored, and keepers are started anew" in caplog.text


def test_a_record_above_the_limit_is_ignored(
    hosts: Hosts, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "KEPT_BYTES_MAX", 10)
    assert KEPT_BYTES_MAX > 10
    (hosts.state / ENGINE_NAME).write_text("{" * 11)
    hosts.start("processes:1")
    assert "longer than the limit of 10 bytes" in caplog.text


# ---- output


def test_the_file_of_a_flood_is_emptied(tmp_path: Path) -> None:
    lines = OUTPUT_BYTES_MAX // 1000 * 3
    code = f"import sys\nfor at in range({lines}): sys.stdout.write('y' * 999 + chr(10))"
    running = EngineProcess.begin(KeeperCommand((sys.executable, "-c", code), ("n1",), dict(os.environ)))
    end_s = SystemClock.monotonic_s() + WAIT_S
    while running.is_alive():
        assert SystemClock.monotonic_s() < end_s
    found = running.lines()
    assert 1000 <= len(found) <= OUTPUT_BYTES_MAX // 1000 + 1
    assert os.fstat(running._output).st_size == 0
    assert running.lines() in ([], [found[-1]])
    running.reap()
    running.close()


@pytest.mark.parametrize(
    ("hosts", "orphan_timeout_s", "wanted_s"),
    [(1, 10.0, 2.0), (3 * PINGS_PER_S, 10.0, 3.0), (4096, 60.0, PING_MAX_S), (4096, 4.0, 2.0)],
)
def test_many_keepers_ask_less_often_and_each_twice_within_its_lease(hosts, orphan_timeout_s, wanted_s):
    assert ping_interval_s(hosts, orphan_timeout_s) == wanted_s
