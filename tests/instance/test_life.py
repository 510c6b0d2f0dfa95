"""An instance starts, is found, stops, is killed, and goes on."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import multiprocessing
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import fluxsched
from fluxsched.client.find import find_uri
from fluxsched.errors import Disconnected, FluxschedError, InvalidValue
from fluxsched.executor import cleanup
from fluxsched.executor.cleanup import OWNER_BYTES_MAX, SWEEP_S, remove_dead
from fluxsched.executor.proxy import LocalKeeperHost
from fluxsched.instance import instance as run_directory
from fluxsched.instance import launch
from fluxsched.instance.enclosing import Parent, initial_variables
from fluxsched.instance.instance import Instance, StateLock, kept_run_directory, make_run_directory
from fluxsched.instance.launch import StartOptions, settings_of
from fluxsched.system.files import OWNER_NAME, PREFIX
from tests.site import alive
from tests.waiting import WAIT_S

# What a restart with the same state directory finds again: after a clean end, and after kill -9.


GROUPS = """
[resource]
exclude = "host5"
[resource.groups]
debug = "host4"
[[resource.config]]
hosts = "{hosts}"
cores = "0-1"
"""


@pytest.fixture
def life(world):
    """Start the next life of one instance: ends the one before, keeps its state; a peer of it and the instance."""
    lives = []

    async def begin(hosts="host[0-5]", config=GROUPS, **options):
        for site in lives:
            await world.stop(site)
        site = await world.bare(config=config.format(hosts=hosts), statedir=world.directory / "state", **options)
        lives[:] = [site]
        return world.second(site), site

    return begin


def r_text(hosts, ranks):
    rlite = [{"rank": ranks, "children": {"core": "0-1"}}]
    return json.dumps({"version": 1, "execution": {"R_lite": rlite, "nodelist": [hosts]}})


async def status_of(peer):
    status = await peer.ok("resource.status")
    hosts = status["R"]["execution"]["nodelist"]
    return hosts, {key: line["reason"] for key, line in status["drain"].items()}, status["groups"]


async def test_drains_groups_and_assignments_follow_their_hosts(life):
    peer, _ = await life()
    await peer.ok("resource.drain", {"targets": "host[1-2]", "reason": "disk"})
    await peer.ok("resource.assign", {"targets": "host3", "group": "live"})
    await peer.ok("resource.assign", {"targets": "", "group": "idle"})
    await peer.ok("resource.assign", {"targets": "host4", "group": "default"})  # away from its configured group
    await peer.ok("resource.include", {"targets": "host5"})
    await peer.ok("resource.property-add", {"properties": {"ssd": "host0"}})
    before = await peer.ok("resource.status")
    peer, site = await life("host[5,4,3,2,1,0]")  # all ranks are others now
    hosts, drains, groups = await status_of(peer)
    assert hosts == ["host[5,4,3,2,1,0]"]
    assert drains == {"3-4": "disk"}
    assert groups == {"default": "0-1,3-5", "exclude": "", "debug": "", "live": "2", "idle": ""}
    after = await peer.ok("resource.status")
    assert [*after["drain"].values()] == [*before["drain"].values()]  # who and when as well
    assert after["R"]["execution"]["properties"] == {"ssd": "5"}
    await peer.ok("resource.include", {"targets": "host[3-5]"})
    _, _, groups = await status_of(peer)
    assert groups == {"default": "0,2-5", "exclude": "", "debug": "1", "live": "", "idle": ""}
    site.check()


async def test_one_instance_a_state_directory(world):
    statedir = world.directory / "state"
    await world.bare(statedir=statedir)
    with pytest.raises(FluxschedError, match=r"in use|another instance"):
        await world.bare(statedir=statedir)


async def test_kill_9_right_after_an_answer(world):
    """Drains and moves one by one and pipelined; all that was answered is there again, and an undrain too."""
    options = ("--fake", "64x1", "--statedir", str(world.directory / "state"), "--scheduler", "none")
    uri, pid = await world.daemon(*options)
    peer = world.second(uri)
    await peer.ok("resource.drain", {"targets": "0-3", "reason": "answered"})
    await peer.ok("resource.assign", {"targets": "60-63", "group": "b"})
    await peer.ok("resource.undrain", {"targets": "3"})
    tags = {peer.send("resource.drain", {"targets": str(rank)}): rank for rank in range(8, 56)}
    first = await peer.next(next(iter(tags)))
    os.kill(pid, signal.SIGKILL)
    assert first.errnum == 0
    peer.read()
    answered = {8} | {rank for tag, rank in tags.items() if peer.waiting(tag)}
    uri, _ = await world.daemon(*options)
    peer = world.second(uri)
    status = await peer.ok("resource.status")
    drained = {rank for key in status["drain"] for rank in ranks(key)}
    assert {0, 1, 2} | answered <= drained
    assert 3 not in drained
    assert status["groups"]["b"] == "60-63"
    found, _ = await peer.refused("resource.drain", {"targets": "0-2"})
    assert found == errno.EEXIST


async def test_kill_9_during_a_graceful_move_with_a_job_on_it(world, timed, eventually):
    """The job goes on, and its target leaves once it is over."""
    options = ("--fake", "2x1", "--statedir", str(world.directory / "state"))
    uri, pid = await world.daemon(*options)
    peer = world.second(uri)
    mark = world.directory / "pid"
    jobspec = timed().to_json()
    del jobspec["attributes"]["system"]["exec"]
    jobspec["tasks"][0]["command"] = ["/bin/sh", "-c", f"echo $$ > {mark}; exec sleep 60"]
    jobid = (await peer.ok("job-manager.submit", {"jobspec": jobspec}))["id"]
    await eventually(lambda: mark.exists() and mark.read_text().strip())
    found = await peer.ok("job-manager.lookup", {"id": jobid, "keys": ["R"]})
    rank = found["R"]["execution"]["R_lite"][0]["rank"]
    moved = await peer.ok("resource.assign", {"targets": rank, "group": "b", "graceful": True})
    assert moved["draining"] == rank
    os.kill(pid, signal.SIGKILL)
    uri, _ = await world.daemon(*options)
    assert alive(int(mark.read_text()))
    peer = world.second(uri)
    status = await peer.ok("resource.status")
    assert status["groups"].get("b", "") == ""
    await peer.ok("job-manager.cancel", {"id": jobid})
    result = await peer.ok("job-manager.wait", {"id": jobid})
    assert (result["success"], result["exception_type"]) == (False, "cancel")
    assert not alive(int(mark.read_text()))
    async with asyncio.timeout(60):  # the news of the job's end may come first
        while (status := await peer.ok("resource.status"))["groups"].get("b") != rank:
            await asyncio.sleep(0.01)
    assert status["drain"] == {}


def ranks(text):
    for part in text.split(",") if text else ():
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


async def test_an_instance_that_cannot_ask_what_became_of_its_jobs_ends(world, monkeypatch):
    def living(host):
        raise FluxschedError("too many open files")

    monkeypatch.setattr(LocalKeeperHost, "living", living)
    with pytest.raises(FluxschedError, match="too many open files"):
        await world.instance(statedir=world.directory / "state")


# Run directories: the dead go, and nothing else does, whoever starts at the same time.


class Still:
    """A clock that stands: a sweep has all the time that it needs, however slow this machine is."""

    def monotonic_s(self):
        return 0.0


CLOCK = Still()


@pytest.fixture
def base(tmp_path, monkeypatch):
    monkeypatch.setattr(cleanup, "SOCKET_PATH_BYTES_MAX", 4096)  # pytest's own directories are long
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("FLUXSCHED_URI", raising=False)
    return tmp_path


@pytest.fixture
def left(base):
    """A run directory with what an instance has in it, whose owner is described by ours but for what is given."""

    def make(**given):
        path, fd = make_run_directory()
        os.close(fd)
        record = json.loads((path / OWNER_NAME).read_bytes())
        (path / OWNER_NAME).write_text(json.dumps(record | given))
        (path / "jobs" / "f2").mkdir(parents=True)
        (path / "jobs" / "f2" / "stdout").write_text("x")
        (path / "log").write_text("x")
        (path / "link").symlink_to(base / "elsewhere")
        return path

    return make


@pytest.fixture
def dead_pid():
    with subprocess.Popen(["true"]) as process:
        pass
    return process.pid


def test_a_killed_instances_directory_goes(left, dead_pid, base):
    (base / "elsewhere").mkdir()
    (base / "elsewhere" / "kept").touch()
    paths = [left(pid=dead_pid), left(start_ticks=1), left(boot_id="an earlier one")]
    remove_dead(CLOCK)
    assert [path.exists() for path in paths] == [False] * 3
    assert [path.name for path in base.rglob("*")] == ["elsewhere", "kept"], "links are not followed"


def test_a_zombie_is_dead(left):
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        path = left(pid=process.pid)
        remove_dead(CLOCK)
    assert not path.exists()


def test_the_directory_of_a_process_that_may_live_is_kept(left, base, dead_pid):
    mine, fd = make_run_directory()
    locked = left(pid=dead_pid)  # a process that this one cannot see, in another container say
    lock = os.open(locked / OWNER_NAME, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    alive = left()  # no lock, but the process is there
    other_host = left(boot_id="another", host="another")
    unreadable = left()
    (unreadable / OWNER_NAME).write_text("[]")
    being_made = base / f"{PREFIX}{os.getuid()}-new"
    being_made.mkdir()
    before_its_name = base / f"{PREFIX}{os.getuid()}-newer"
    before_its_name.mkdir()
    (before_its_name / f".{OWNER_NAME}").write_text("{}")
    other_user = left(pid=dead_pid).rename(base / f"{PREFIX}{os.getuid() + 1}-x")
    remove_dead(CLOCK)
    kept = (mine, locked, alive, other_host, unreadable, being_made, before_its_name, other_user)
    assert [path for path in kept if not path.exists()] == []
    os.close(lock)
    os.close(fd)
    remove_dead(CLOCK)
    assert not locked.exists()


def test_links_are_left_alone(left, base, dead_pid):
    directory, owner = left(pid=dead_pid), left(pid=dead_pid)
    directory.rename(base / "elsewhere")
    directory.symlink_to(base / "elsewhere")
    (owner / OWNER_NAME).rename(base / OWNER_NAME)
    (owner / OWNER_NAME).symlink_to(base / OWNER_NAME)
    remove_dead(CLOCK)
    assert (directory / "log").exists()
    assert (owner / "log").exists()


def test_a_sweep_that_takes_long_leaves_the_rest_to_the_next(left, dead_pid):
    paths = [left(pid=dead_pid) for _ in range(3)]

    class Slow:
        now_s = 0.0

        def monotonic_s(self):
            self.now_s += SWEEP_S
            return self.now_s

    remove_dead(Slow())  # type: ignore[arg-type]
    assert sum(path.exists() for path in paths) == 2
    remove_dead(CLOCK)
    assert sum(path.exists() for path in paths) == 0


def test_an_interrupted_sweep_is_finished_by_the_next(left, dead_pid, monkeypatch):
    path = left(pid=dead_pid)

    def fail(*args, **more):
        raise OSError

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", fail)
        remove_dead(CLOCK)
    assert (path / OWNER_NAME).exists()
    remove_dead(CLOCK)
    assert not path.exists()


def test_a_directory_that_is_too_long_for_a_socket_is_refused_and_goes(tmp_path, monkeypatch):
    base = tmp_path / ("x" * cleanup.SOCKET_PATH_BYTES_MAX)
    base.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(base))
    with pytest.raises(FluxschedError, match=r"too long for a socket in it \(limit 107 bytes\): set XDG_RUNTIME_DIR"):
        make_run_directory()
    assert list(base.iterdir()) == []


def _start_and_hold(ready, leave):
    """What an instance does: make its directory, sweep those of others, and be killed."""
    ready.wait()
    for _ in range(20):
        path, _ = make_run_directory()
        remove_dead(CLOCK)
        assert (path / OWNER_NAME).exists()
    leave.wait()
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture
def starters():
    found = []
    yield found
    for process in found:
        process.kill()
        process.join()
        process.close()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_instances_that_start_together_sweep_only_the_dead(left, base, dead_pid, starters):
    dead = [left(pid=dead_pid) for _ in range(100)]
    context = multiprocessing.get_context("fork")
    ready, leave = context.Barrier(4), context.Barrier(5)
    for _ in range(4):
        starters.append(context.Process(target=_start_and_hold, args=(ready, leave)))
        starters[-1].start()
    leave.wait(timeout=60)
    for process in starters:
        process.join()
    assert [process.exitcode for process in starters] == [-signal.SIGKILL] * 4
    assert [path for path in dead if path.exists()] == []
    assert len(list(base.iterdir())) == 4 * 20
    remove_dead(CLOCK)
    assert list(base.iterdir()) == []


def test_who_looks_for_an_instance_minds_no_directory_that_goes_meanwhile(base, monkeypatch):
    gone = base / f"{PREFIX}{os.getuid()}-gone"
    monkeypatch.setattr(Path, "glob", lambda path, pattern: iter([gone]))
    with pytest.raises(FluxschedError, match="no fluxsched instance found"):
        find_uri()


def test_an_owner_file_that_is_longer_than_ours_is_not_ours(left, dead_pid):
    dead, long = left(pid=dead_pid), left(pid=dead_pid, more="x" * OWNER_BYTES_MAX)
    remove_dead(CLOCK)
    assert (dead.exists(), long.exists()) == (False, True)


async def test_no_other_instance_takes_the_state_of_one_that_restarts(world):
    """The lock was released before the next program took it anew."""
    state = world.directory / "state"
    site = await world.bare(statedir=state)
    site.restart()
    await world.stop(site)
    with pytest.raises(FluxschedError, match="is used by another instance"):
        StateLock(state)
    handed = site.handed_over()
    assert handed.state_lock is not None
    with pytest.raises(FluxschedError, match="is used by another instance"):
        StateLock(state)
    lock = StateLock(state, handed.state_lock)
    lock.release()
    StateLock(state).release()
    os.close(handed.owner)
    shutil.rmtree(handed.run_directory)


async def test_a_lock_that_was_removed_meanwhile_excludes_others_all_the_same(tmp_path):
    held = StateLock(tmp_path)
    (tmp_path / "lock").unlink()
    lock = StateLock(tmp_path, held.fd)
    with pytest.raises(FluxschedError, match="is used by another instance"):
        StateLock(tmp_path)
    lock.release()


def test_a_state_directory_keeps_its_run_directory(tmp_path, monkeypatch):
    """After a stop, after a kill, where the environment has another base; never a directory of another user."""
    base, other, state = tmp_path / "run", tmp_path / "other", tmp_path / "state"
    for path in (base, other, state):
        path.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(base))
    path, fd = kept_run_directory(state)
    assert path.parent == base
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(other))
    os.close(fd)
    path.joinpath("instance.sock").touch()
    text = (path / OWNER_NAME).read_text()  # of a process that was killed
    (path / OWNER_NAME).write_text(json.dumps({**json.loads(text), "start_ticks": 1}))
    again, fd = kept_run_directory(state)
    assert (again, os.listdir(again), stat.S_IMODE(again.stat().st_mode)) == (path, [OWNER_NAME], 0o700)
    monkeypatch.setattr(run_directory, "SWEEP_S", 0.0)
    taken, taken_fd = kept_run_directory(state)  # the owner lives: as in a copy that kept the inode
    assert taken.parent == other
    os.close(fd)
    os.close(taken_fd)
    shutil.rmtree(taken)
    taken.symlink_to(tmp_path)
    theirs, theirs_fd = kept_run_directory(state)
    assert theirs != taken
    os.close(theirs_fd)
    shutil.copytree(state, tmp_path / "copy")
    assert kept_run_directory(tmp_path / "copy")[0] != theirs
    (state / "address").write_text('{"run_directory": "/etc", "inode": 0}')
    assert kept_run_directory(state)[0].parent == other


# `stop` of an instance that is being killed: its threads accept connections for a moment after it is gone.


URI = "ipc:///run/an-instance/instance.sock"


def test_one_that_closes_the_connection_is_asked_until_nothing_listens(tmp_path):
    """`stop` failed with "the server closed the connection"."""
    path = tmp_path / "dying.sock"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def die():
        with listener:
            for _ in range(2):
                listener.accept()[0].close()
            path.unlink()

    thread = threading.Thread(target=die)
    thread.start()
    with pytest.raises(Disconnected, match="nothing listens"):
        launch.stop(f"ipc://{path}")
    thread.join()


def test_one_that_ends_before_it_answers_has_stopped(monkeypatch):
    ended = subprocess.Popen(["true"])
    ended.wait()

    class Handle:
        def __init__(self, uri): ...

        def __enter__(self):
            return self

        def __exit__(self, *_): ...

        def rpc(self, topic):
            if topic == "instance.stop":
                raise Disconnected(f"the server at {URI} closed the connection")
            return {"pid": ended.pid}

    monkeypatch.setattr(launch, "Handle", Handle)
    assert launch.stop(URI) == URI


def test_one_that_closes_each_connection_is_given_up(monkeypatch):
    monkeypatch.setattr(launch, "_ask_to_stop", lambda uri: None)
    with pytest.raises(launch.FluxschedError, match="closes each connection"):
        launch.stop(URI, 0.0)


# An instance within a program: entered means ready, in time or with an error; its paths may be texts.


@pytest.fixture(autouse=True)
def _own_directories(tmp_path, monkeypatch):
    for name in ("XDG_RUNTIME_DIR", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))


async def test_a_job_that_can_never_run_is_denied_at_once():
    options = fluxsched.StartOptions(fake="2x4")
    async with fluxsched.Instance(fluxsched.settings_of(options)) as instance, fluxsched.connect(instance.uri) as h:
        jobid = await h.submit(fluxsched.Jobspec.from_command(["true"], ntasks=100))
        result = await asyncio.wait_for(h.wait(jobid), WAIT_S)
    assert (result["success"], result["exception_type"]) == (False, "alloc")


@pytest.mark.parametrize(
    ("policy", "limit_s", "want"),
    [
        ("import time\ntime.sleep(60)\n", 0.4, "not ready within 0.4 s (StartOptions.ready_within_s): module"),
        ("1 / 0\n", None, "module sched-mine: policy "),
    ],
)  # fmt: skip
async def test_one_that_does_not_become_ready_is_an_error(tmp_path, policy, limit_s, want):
    (tmp_path / "mine.py").write_text(policy)
    options = StartOptions(fake="1x1", schedulers=(str(tmp_path / "mine.py"),), ready_within_s=limit_s)
    with pytest.raises(FluxschedError) as found:
        async with Instance(settings_of(options)):
            pass
    assert want in str(found.value)
    assert not [name for name in os.listdir(tmp_path) if name.startswith("fluxsched-")]


async def test_paths_may_be_texts(tmp_path):
    (tmp_path / "site.toml").write_text("[queues.batch]\n")
    rlite = [{"rank": "0-2", "children": {"core": "0"}}]
    execution = {"R_lite": rlite, "starttime": 0, "expiration": 0, "nodelist": ["n[0-2]"]}
    (tmp_path / "R.json").write_text(json.dumps({"version": 1, "execution": execution}))
    texts = {"config": f"{tmp_path}/site.toml", "r_path": f"{tmp_path}/R.json", "statedir": f"{tmp_path}/state"}
    async with Instance(settings_of(StartOptions(**texts))) as instance:
        info = instance.info()
        assert (info.size, info.statedir) == (3, texts["statedir"])
    for name in texts:
        with pytest.raises(InvalidValue, match=f"StartOptions.{name} is empty: is a variable unset"):
            settings_of(StartOptions(**{name: ""}))


@pytest.mark.parametrize(("name", "text"), [("schedulers", "easy"), ("bind", "ipc:///s"), ("command", "true")])
def test_one_text_is_not_taken_for_several(name, text):
    with pytest.raises(InvalidValue, match=rf"StartOptions.{name} is one text: give a tuple, \('{text}',\)"):
        StartOptions(**{name: text})


async def test_both_clients_raise_the_same_error_when_the_instance_is_gone():
    async with Instance(settings_of(StartOptions(fake="1x1"))) as instance, fluxsched.connect(instance.uri) as h:
        blocking = await asyncio.to_thread(fluxsched.connect_sync, instance.uri)
        await instance.close()
        for call in (lambda: h.rpc("instance.info"), lambda: asyncio.to_thread(blocking.rpc, "instance.info")):
            with pytest.raises(fluxsched.RPCError) as found:
                await call()
            assert type(found.value) is fluxsched.Disconnected
        with pytest.raises(fluxsched.Disconnected):
            await asyncio.to_thread(fluxsched.connect_sync, instance.uri)
        with pytest.raises(fluxsched.Disconnected):
            async with fluxsched.connect(instance.uri):
                pass
        await asyncio.to_thread(blocking.close)


def test_a_state_directory_is_had_though_the_lock_of_an_instance_that_was_killed_outlasts_it(tmp_path):
    """The kernel counts a process as dead while its last thread is about to give its descriptors up."""
    dying = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(dying, fcntl.LOCK_EX)
    last_thread = threading.Timer(0.1, os.close, (dying,))
    last_thread.start()
    StateLock(tmp_path).release()
    last_thread.join()


async def test_an_instance_of_options_that_are_no_settings_is_refused_by_name():
    with pytest.raises(InvalidValue, match=r"takes Settings, not StartOptions: Instance\(settings_of\("):
        Instance(StartOptions(fake="1x1"))


@pytest.mark.parametrize(
    ("around", "parent", "found"),
    [
        (None, None, "local:///ours"),
        ("local:///flux", None, None),
        ("local:///outer", Parent("ipc:///outer", None, 0), "local:///ours"),
    ],
)
def test_the_initial_program_finds_the_instance_by_flux_uri_unless_a_flux_is_around_it(
    monkeypatch, around, parent, found
):
    monkeypatch.delenv("FLUX_URI", raising=False)
    if around is not None:
        monkeypatch.setenv("FLUX_URI", around)
    assert initial_variables({"A": "b", "FLUX_URI": "local:///ours"}, parent).get("FLUX_URI") == found
