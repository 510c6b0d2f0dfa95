"""Keepers of hosts as real processes: how they are introduced, what outlives what, and what they leave behind."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from fluxsched.engine import engines
from fluxsched.engine import keeper as keepers
from fluxsched.engine.engines import LOOPBACK, address_for
from fluxsched.engine.keeper import ConnectLimits, EngineKeeper, GuardLimits, InstanceClient
from fluxsched.engine.process import KeeperPort
from fluxsched.engine.report import INTRODUCTION_BYTES_MAX, HostReport, Introduction
from fluxsched.errors import Refused
from fluxsched.executor import wire as msg
from fluxsched.executor.local import LocalExecutor
from fluxsched.executor.relay import PIECE_BYTES
from fluxsched.protocol import framing
from fluxsched.protocol.framing import decode, encode, make_request
from fluxsched.protocol.messages.instance import KeeperConnectRequest
from fluxsched.system.processes import boot_id
from fluxsched.transport.base import UNSENT_BYTES_MAX
from fluxsched.transport.sockets import KEYED_MESSAGE_BYTES_MAX, make_key_pair
from fluxsched.transport.zeromq import ZmqClient
from tests.engine.harness import WAIT_S, Site, Wire, is_alive


async def connected(played, start_host, introduction=None):
    host = start_host()
    await host.report()
    host.introduce(introduction or played.introduction())
    return host, await played.link(len(played.links) + 1)


async def pids_of(path, count, played):
    """The process ids that tasks have written into a file."""
    await played.until(lambda: path.exists() and len(path.read_text().split()) == count)
    return [int(word) for word in path.read_text().split()]


# ---- introduction


async def test_a_keeper_is_introduced_and_runs_tasks_that_inherit_nothing_of_it(played, start_host, tmp_path):
    host = start_host("made-up", is_real=True)
    report = await host.report()
    assert (report.host, report.boot_id, report.version) == ("made-up", boot_id(), msg.VERSION)
    assert report.topology().resources()
    introduction = played.introduction()
    host.introduce(introduction)
    link = await played.link()
    assert (link.request.host, link.request.boot_id, link.request.version) == ("made-up", boot_id(), msg.VERSION)
    assert link.request.pid == host.keeper == (await link.first(msg.KeeperWelcome)).pid
    found = tmp_path / "found"
    link.run(f"tr '\\0' '\\n' </proc/$$/environ >{found}; exec ls -l /proc/self/fd >{found}.fds")
    assert (await link.first(msg.JobFinished)).status == 0
    descriptors = [line.split()[-3:] for line in Path(f"{found}.fds").read_text().splitlines()[1:]]
    assert [number for number, _, _ in descriptors] == ["0", "1", "2", "3"], "the last is the list's own"
    assert descriptors[0][2].startswith("pipe:")
    assert Path(descriptors[2][2]).is_relative_to(tmp_path)
    inside = [found.read_bytes()]
    for pid in (host.process.pid, host.keeper):
        inside += [Path(f"/proc/{pid}/{name}").read_bytes() for name in ("cmdline", "environ")]
    inside += [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()]
    assert not any(introduction.secret_key.encode() in data for data in inside)


async def test_the_scratch_directory_is_the_owners_alone_and_is_removed_at_the_end(played, start_host):
    host, link = await connected(played, start_host)
    link.run("echo out; exec sleep 1000")
    await link.first(msg.JobStarted)
    (scratch,) = host.scratch
    directories = [scratch, scratch / "spool", scratch / "tmp"]
    assert [stat.S_IMODE(path.stat().st_mode) for path in directories] == [0o700] * 3
    await played.until(lambda: [path.read_text() for path in (scratch / "spool").rglob("stdout")] == ["out\n"])
    host.close()
    assert host.scratch == []


@pytest.mark.parametrize("said", [b"", b"x" * (INTRODUCTION_BYTES_MAX + 1), b"no introduction\n"])
async def test_without_an_introduction_there_is_no_keeper(start_host, said):
    host = start_host()
    await host.report()
    host.introduce(said)
    host.stdin.close()
    assert await host.status() == 1
    text = host.stderr.read().decode()
    assert "introduction" in text
    assert "Traceback" not in text
    assert host.scratch == []


async def test_a_wrong_key_connects_to_nothing_and_the_lease_ends(played, start_host):
    pair = make_key_pair()
    host = start_host()
    await host.report()
    wrong = {"public_key": pair.public.hex(), "secret_key": pair.secret.hex()}
    host.introduce(msgspec.structs.replace(played.introduction(1.5), **wrong))
    assert await host.status() == 0
    assert (played.links, played.router.peers) == ([], {})
    assert "it does not know your key" in host.stderr.read().decode()


async def test_at_the_port_of_keepers_all_other_topics_are_refused(played):
    client, keys = ZmqClient(played.port.server.endpoint, keys=played.port.keys.keepers), []
    client.start(asyncio.get_running_loop(), lambda: keys.extend(map(decode, client.receive(100))))
    for tag, topic in enumerate(("instance.info", "job-manager.submit", "instance.stop"), 1):
        client.send(encode(make_request(topic, framing.pack({}), matchtag=tag)))
    await played.until(lambda: len(keys) == 3)
    assert [answer.errnum for answer in keys] == [errno.EPERM] * 3
    client.close()


# ---- what outlives what


async def test_tasks_outlive_a_link_that_is_cut_and_the_keeper_comes_back(played, start_host, tmp_path):
    wire = Wire(played.port.port)
    await wire.mend()
    introduction = msgspec.structs.replace(played.introduction(), endpoint=f"tcp://{LOOPBACK}:{wire.port}")
    host, link = await connected(played, start_host, introduction)
    link.run(f"echo $$ >>{tmp_path}/pids; exec sleep 1000")
    (task,) = await pids_of(tmp_path / "pids", 1, played)
    await link.first(msg.JobStarted)
    wire.cut()
    await played.until(lambda: link.connection.lost)
    await wire.mend()
    again = await played.link(2)
    (held,) = (await again.first(msg.KeeperWelcome)).jobs
    assert (held.jobid, held.runs, again.request.pid) == (1, True, host.keeper)
    assert is_alive(task)
    again.say(msg.SignalJob(1, signal.SIGKILL))
    assert (await again.first(msg.JobFinished)).status == signal.SIGKILL
    wire.cut()


TRAPPING = "trap 'echo asked >{0}/asked; exit 5' TERM; echo $$ >>{0}/pids; while :; do sleep 0.1; done"
SCATTERED = (
    "echo $$ >>{0}; setsid sh -c 'echo $$ >>{0}; sleep 1000' & (sh -c 'echo $$ >>{0}; exec sleep 1000' &) ; wait"
)


async def test_a_lease_that_is_over_ends_the_tasks_and_the_keeper(played, start_host, tmp_path):
    host, link = await connected(played, start_host, played.introduction(1.0))
    link.run(TRAPPING.format(tmp_path))
    (task,) = await pids_of(tmp_path / "pids", 1, played)
    link.answers = False
    assert await host.status() == 0
    assert not is_alive(task)
    assert (tmp_path / "asked").exists()
    assert host.scratch == []


async def test_a_killed_keeper_leaves_no_task_and_another_one_connects(played, start_host, tmp_path):
    host, link = await connected(played, start_host)
    link.run(SCATTERED.format(tmp_path / "pids"))
    tasks = await pids_of(tmp_path / "pids", 3, played)
    first = host.keeper
    os.kill(first, signal.SIGKILL)
    again = await played.link(2)
    assert not any(map(is_alive, tasks)), "they were dead before another keeper could connect"
    assert (await again.first(msg.KeeperWelcome)).jobs == []
    assert again.request.pid == host.keeper != first
    again.run("exit 3")
    assert (await again.first(msg.JobFinished)).status == 3 << 8
    assert len(host.scratch) == 1


FORKING = """
import os, sys, time
until = time.monotonic() + 60
forks = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
while time.monotonic() < until:
    if os.fork():
        os._exit(0)
    os.setsid()
    os.write(forks, b".")
"""


async def test_a_process_that_forks_all_the_time_does_not_escape(played, start_host, tmp_path):
    """None lives long enough to be found by looking for it."""
    (tmp_path / "forking.py").write_text(FORKING)
    host, link = await connected(played, start_host)
    forks = tmp_path / "forks"
    link.run(f"{sys.executable} -S {tmp_path}/forking.py {forks}; exec sleep 1000")
    await played.until(lambda: forks.exists() and forks.stat().st_size > 1)
    os.kill(host.keeper, signal.SIGKILL)
    again = await played.link(2)
    number = forks.stat().st_size
    await played.until(lambda: len(again.words(msg.Ping)) > 2)
    assert forks.stat().st_size == number


@pytest.mark.parametrize("kill", [os.kill, os.killpg])
async def test_a_killed_guard_leaves_neither_keeper_nor_task(played, start_host, tmp_path, kill):
    """Flux kills the whole process group of what `flux exec` has started if that is killed itself."""
    host, link = await connected(played, start_host)
    link.run(SCATTERED.format(tmp_path / "pids"))
    tasks = await pids_of(tmp_path / "pids", 3, played)
    keeper = host.keeper
    kill(host.process.pid, signal.SIGKILL)
    await played.until(lambda: not any(map(is_alive, [keeper, *tasks])))
    assert host.scratch == []
    assert len(played.links) == 1


async def test_the_next_guard_removes_what_a_guard_and_its_keeper_left_that_were_killed(played, start_host):
    host, _ = await connected(played, start_host)
    keeper, (left,) = host.keeper, host.scratch
    os.kill(host.process.pid, signal.SIGSTOP)  # else it would start another one
    os.kill(keeper, signal.SIGKILL)
    os.kill(host.process.pid, signal.SIGKILL)
    await host.status()
    assert left.exists()
    other, _ = await connected(played, start_host)
    assert left not in other.scratch
    assert len(other.scratch) == 1


async def test_sigterm_asks_the_tasks_to_end_and_other_signals_do_not(played, start_host, tmp_path):
    host, link = await connected(played, start_host)
    link.run(TRAPPING.format(tmp_path))
    (task,) = await pids_of(tmp_path / "pids", 1, played)
    for signum in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        os.kill(host.process.pid, signum)
        os.kill(host.keeper, signum)
    pings = len(link.words(msg.Ping))
    await played.until(lambda: len(link.words(msg.Ping)) > pings + 1)
    assert is_alive(task)
    host.process.terminate()
    assert await host.status() == 0
    assert (tmp_path / "asked").exists()
    assert (await link.first(msg.JobFinished)).status == 5 << 8, "it could still be reported"


async def test_a_keeper_whose_tasks_are_ending_does_not_connect_again(played, start_host, tmp_path):
    wire = Wire(played.port.port)
    await wire.mend()
    introduction = msgspec.structs.replace(played.introduction(), endpoint=f"tcp://{LOOPBACK}:{wire.port}")
    host, link = await connected(played, start_host, introduction)
    slow = 2.5 * ConnectLimits().again_s
    link.run(f"trap 'echo asked >{tmp_path}/asked; sleep {slow}; exit' TERM; echo >{tmp_path}/set; sleep 1000 & wait")
    await played.until((tmp_path / "set").exists)
    host.process.terminate()
    await played.until((tmp_path / "asked").exists)
    wire.cut()
    await wire.mend()
    assert await host.status() == 0
    assert len(played.links) == 1, "jobs would be sent to it"
    wire.cut()


async def test_another_sigterm_after_a_while_waits_for_nothing(played, start_host, tmp_path):
    host, link = await connected(played, start_host)
    link.run(f"trap '' TERM; echo $$ >>{tmp_path}/pids; while :; do sleep 0.1; done")
    (task,) = await pids_of(tmp_path / "pids", 1, played)
    for _ in range(2):  # the second one at once
        host.process.terminate()
    pings = len(link.words(msg.Ping))
    await played.until(lambda: len(link.words(msg.Ping)) > pings + 1)
    assert is_alive(task)
    while host.process.poll() is None:
        host.process.terminate()
        await asyncio.sleep(0.05)
    assert host.process.returncode == 0
    assert not is_alive(task)


async def test_a_keeper_is_told_to_end(played, start_host, tmp_path):
    host, link = await connected(played, start_host)
    link.run(f"echo $$ >>{tmp_path}/pids; exec sleep 1000")
    (task,) = await pids_of(tmp_path / "pids", 1, played)
    link.say(msg.EndKeeper())
    assert await host.status() == 0
    assert not is_alive(task)


async def test_the_ends_of_its_standard_streams_do_not_end_a_keeper(played, start_host):
    wire = Wire(played.port.port)
    await wire.mend()
    introduction = msgspec.structs.replace(played.introduction(), endpoint=f"tcp://{LOOPBACK}:{wire.port}")
    host, _ = await connected(played, start_host, introduction)
    for stream in (host.stdin, host.stdout, host.stderr):
        stream.close()
    for _ in range(2):
        wire.cut()  # it has something to say then
        await wire.mend()
        again = await played.link(len(played.links) + 1)
    again.run("exit 0")
    assert (await again.first(msg.JobFinished)).status == 0
    wire.cut()


async def test_a_standard_error_that_nobody_reads_stops_nothing(played, start_host):
    wire = Wire(played.port.port)
    await wire.mend()
    introduction = msgspec.structs.replace(played.introduction(), endpoint=f"tcp://{LOOPBACK}:{wire.port}")
    host, link = await connected(played, start_host, introduction)
    full = os.open(f"/proc/{host.process.pid}/fd/2", os.O_WRONLY | os.O_NONBLOCK)
    with suppress(BlockingIOError):
        while True:
            os.write(full, b"x")
    wire.cut()
    await played.until(lambda: link.connection.lost)
    await wire.mend()
    await played.link(2)
    os.close(full)
    wire.cut()


async def test_a_keeper_that_does_not_read_for_a_while_gets_all_that_was_sent(played, start_host):
    host, link = await connected(played, start_host)
    keeper = host.keeper
    sizes = [16 << 10] * 1500 + [PIECE_BYTES] * (UNSENT_BYTES_MAX // PIECE_BYTES + 8)  # libzmq and the kernel take some
    os.kill(keeper, signal.SIGSTOP)
    for number, size in enumerate(sizes):
        link.say(msg.SendInput(7, number, bytes(size)))
        await asyncio.sleep(0)
    (peer,) = played.router.peers.values()
    await played.until(lambda: played.router.unsent_bytes(peer) > UNSENT_BYTES_MAX)
    os.kill(keeper, signal.SIGCONT)
    await played.until(lambda: len(link.words(msg.InputAnswered)) == len(sizes))
    assert [one.number for one in link.words(msg.InputAnswered)] == list(range(len(sizes)))


async def test_a_message_that_is_larger_than_a_keyed_port_takes_arrives(played):
    client = ZmqClient(played.port.server.endpoint, keys=played.port.keys.keepers)
    keeper = InstanceClient(client, KeeperConnectRequest("n1", "boot", msg.VERSION, 1))
    keeper.start(asyncio.get_running_loop(), lambda: None)
    await played.until(lambda: played.links)
    large = msg.JobFailed(1, 7, "x" * (2 * KEYED_MESSAGE_BYTES_MAX))
    for frames in msg.packed([large]):
        keeper.send(frames)
    assert (await played.links[0].first(msg.JobFailed)).note == large.note
    keeper.close()
    await played.until(lambda: played.links[0].connection.lost)


@pytest.fixture
def among_others(monkeypatch):
    """A keeper in the process of a test spares its other children, which it would end with its tasks."""

    def executor(*settings, alone, temporary):
        return LocalExecutor(*settings)

    monkeypatch.setattr(keepers, "LocalExecutor", executor)


@pytest.mark.usefixtures("among_others")
async def test_an_instance_that_says_nothing_is_asked_again(tmp_path, caplog):
    accepted: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda reader, writer: accepted.append(writer), LOOPBACK, 0)
    keys = make_key_pair()
    introduction = Introduction(
        f"tcp://{LOOPBACK}:{server.sockets[0].getsockname()[1]}", keys.public.hex(), keys.public.hex(),
        keys.secret.hex(), 1.0, 1000.0,
    )  # fmt: skip
    host = HostReport("n1", "boot", msg.VERSION, ["0"], [], 0, "made up")
    keeper = EngineKeeper(introduction, host, tmp_path, ConnectLimits(again_s=0.01, hello_s=0.05))
    running = asyncio.create_task(keeper.run())
    async with asyncio.timeout(WAIT_S):
        while len(accepted) < 12:
            await asyncio.sleep(0.01)
    keeper.end(False)
    await running
    server.close()
    for writer in accepted:
        writer.transport.abort()
    await asyncio.sleep(0)
    told = [record.getMessage() for record in caplog.records if record.name == "fluxsched.keeper"]
    assert told == ["host n1 has no connection to its instance: nothing was heard within 0.05 s"], "said once"


@pytest.mark.usefixtures("among_others")
async def test_a_link_that_drops_all_is_lost_and_made_again(played, tmp_path, caplog):
    wire = Wire(played.port.port)
    await wire.mend()
    introduction = msgspec.structs.replace(played.introduction(), endpoint=f"tcp://{LOOPBACK}:{wire.port}")
    host = HostReport("n1", "boot", msg.VERSION, ["0"], [], 0, "made up")
    keeper = EngineKeeper(introduction, host, tmp_path, ConnectLimits(again_s=0.01, lost_after_ms=300))
    running = asyncio.create_task(keeper.run())
    await played.link()
    wire.is_silent = True
    await played.until(lambda: "has no connection to its instance" in caplog.text)
    wire.is_silent = False
    again = await played.link(2)
    assert again.connection.lost is None
    again.say(msg.EndKeeper())
    await running
    wire.cut()


async def test_an_instance_that_starts_again_listens_where_it_did_with_the_keys_it_had(played, start_host):
    host, _ = await connected(played, start_host)
    played.close()
    site = Site(played.port.port, played.port.keys)
    try:
        link = await site.link()
        assert link.request.pid == host.keeper
        with pytest.raises(Refused):
            KeeperPort(LOOPBACK, site.port.port)
    finally:
        site.close()


# ---- the guard


FAILING = """
import sys
from pathlib import Path
from fluxsched.engine.keeper import GuardLimits, KeeperGuard

def serve(scratch):
    with open(sys.argv[1], "a") as file:
        file.write("start\\n")
    {does}

sys.exit(KeeperGuard(serve, 'n1', GuardLimits(**{limits})).run())
"""


@pytest.mark.parametrize(("does", "status"), [("return 7", 1), ("raise OSError(28, 'full')", 1), ("return 0", 0)])
def test_a_keeper_that_fails_to_start_again_and_again_is_given_up(tmp_path, does, status):
    script = FAILING.format(does=does, limits={"starts_max": 3, "pause_max_s": 0.01})
    words = [sys.executable, "-c", script, str(tmp_path / "starts")]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=WAIT_S)
    assert done.returncode == status, done.stderr
    assert (tmp_path / "starts").read_text() == "start\n" * (3 if status else 1)
    assert ("3 keepers in a row have failed" in done.stderr) == bool(status)
    assert list(tmp_path.glob("fluxsched-*")) == []


def test_the_pause_before_a_start_grows_and_can_be_ended(tmp_path):
    script = FAILING.format(does="return 7", limits={"starts_max": 9, "pause_max_s": 1000.0})
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "starts")], env={**os.environ, "TMPDIR": str(tmp_path)},
        stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        while not (tmp_path / "starts").exists() or len((tmp_path / "starts").read_text().splitlines()) < 2:
            assert process.poll() is None
        process.terminate()
        assert process.wait(60) == 0
    limits = GuardLimits()
    assert (limits.starts_max, limits.pause_max_s) == (8, 60.0)


# ---- the address


@pytest.mark.parametrize(
    ("routes", "expected"),
    [
        ({}, LOOPBACK),
        ({"n1": (LOOPBACK, LOOPBACK)}, LOOPBACK),
        ({"n1": (LOOPBACK, "127.0.1.1"), "n2": ("10.0.0.1", "10.0.0.2")}, "10.0.0.1"),
        ({"n1": ("10.0.0.1", "10.0.0.1"), "n2": ("192.168.0.1", "192.168.0.2")}, "192.168.0.1"),
        ({"n1": ("10.0.0.1", "10.0.0.1")}, "10.0.0.1"),
    ],
)
def test_the_address_is_that_from_which_the_first_other_host_is_reached(monkeypatch, routes, expected):
    monkeypatch.setattr(engines, "_route", routes.__getitem__)
    assert address_for(routes) == expected


def test_a_host_that_nobody_knows_is_named():
    with pytest.raises(Refused, match=r"host no\.such\.host\.invalid has no address here .* `address` of \[engine\]"):
        address_for(["localhost", "no.such.host.invalid"])
    assert address_for(["localhost", os.uname().nodename]).count(".") == 3
