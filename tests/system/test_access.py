"""Who gets in: only the owner unless the configuration allows others, and then what a guest may do is stated."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fluxsched.client.blocking import Handle
from fluxsched.errors import Refused
from fluxsched.transport.zeromq import ZmqServer
from tests.users import as_user

TCP = "tcp://127.0.0.1:*"
OTHER_USER = 65534
User, Daemons, World = Any, Any, Any


def as_other_user(call: Callable[[], object]) -> str:
    """What a call returns, or raises, in a process of the user nobody."""
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    return as_user(OTHER_USER, OTHER_USER, [], call)


def owner_of(uri: str) -> object:
    """Whom a job that is submitted at `uri` belongs to."""
    with Handle(uri) as handle:
        jobspec = {
            "version": 1, "tasks": [{"command": ["id"], "slot": "task", "count": {"per_slot": 1}}],
            "resources": [{"type": "slot", "label": "task", "count": 1, "with": [{"type": "core", "count": 1}]}],
            "attributes": {"system": {"duration": 1}},
        }  # fmt: skip
        jobid = handle.rpc("job-manager.submit", {"jobspec": jobspec})["id"]
        (job,) = [job for job in handle.rpc("job-manager.list")["jobs"] if job["id"] == jobid]
        return job["userid"]


def test_tcp_is_refused_until_there_are_keys(user: User) -> None:
    for how in (("--daemon",), ("--", "true")):
        done = user.process("start", "--fake", "1x1", "--bind", TCP, *how[:1], *how[1:], status=1)
        assert "every account of this machine could run commands there as you" in done.err
        assert "give --insecure-tcp" in done.err
    assert not list(user.directory.glob("fluxsched-*/instance.json"))


async def test_tcp_is_refused_to_programs_too(world: World, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="every account"):
        await world.instance(fake="1x1", bind=(TCP,))
    with pytest.raises(Refused, match="every account"):
        ZmqServer(TCP)


def test_insecure_tcp_warns_who_can_do_what_and_shows_the_port(user: User, daemon: Daemons) -> None:
    done = user.process("start", "--daemon", "--fake", "1x1", "--bind", TCP, "--insecure-tcp")
    with_tcp = user.at(done.word)
    try:
        port = with_tcp("uri", "--tcp").word
        assert re.fullmatch(r"tcp://127\.0\.0\.1:\d+", port)
        name = pwd.getpwuid(os.getuid()).pw_name
        assert f"warning: listening at {port}: without keys, so every account of this machine can do" in done.err
        assert f"run commands as {name}" in done.err
        assert port in with_tcp("uri", "--json").json["endpoints"]
        assert user.at(port)("ping", "-c1").status == 0
        if os.getuid() == 0:
            assert as_other_user(lambda: owner_of(port)) == "0", "the warning says the truth"
    finally:
        with_tcp("stop")
    without = daemon("--fake", "1x1")
    assert "--bind tcp://127.0.0.1:* --insecure-tcp" in without("uri", "--tcp", status=1).err
    user.process("uri", "--tcp", "--local", status=2)


def test_a_foreground_start_warns_of_tcp_with_its_port(user: User) -> None:
    done = user.shell("fluxsched uri --tcp", "--fake", "1x1", "--bind", TCP, "--insecure-tcp")
    assert f"listening at {done.word}: without keys" in done.err


def test_another_user_gets_in_at_no_socket(user: User, daemon: Daemons) -> None:
    site = daemon("--fake", "1x1")
    for path in [user.directory, *user.directory.parents]:  # pytest's own are closed to others: ours has to be, too
        if path.owner() == user.directory.owner() and path.name.startswith(("pytest", "popen", "test")):
            path.chmod(path.stat().st_mode | 0o055)
    assert as_other_user(lambda: os.listdir(user.directory)).startswith("[")
    said = as_other_user(lambda: owner_of(site.uri))
    assert said == f"Disconnected: you may not connect to {site.uri} (Permission denied): it is for another user"


CHANGES = [
    "cancel --all", "cancel f1", "kill f1", "urgency f1 16", "update f1 duration=1m", "submit true", "run true",
    "job raise f1", "job submit /dev/null", "resource drain 0 x", "resource undrain 0", "resource assign 0 lab",
    "resource exclude 0", "resource include 0", "resource property add 0 x", "resource property remove 0 x",
    "resource reload", "queue enable", "queue disable x", "queue start", "queue stop x", "module load fifo",
    "module remove sched-fifo", "module reload sched-fifo", "batch -n1 /dev/null", "bulksubmit true ::: 1", "stop",
]  # fmt: skip
VIEWS = ["jobs", "resource list", "resource status", "queue list", "module list", "uri", "resource drain"]


def test_what_changes_something_guesses_none_of_several_instances(user: User, daemon: Daemons) -> None:
    sites = [daemon("--fake", "1x1", "--scheduler", "none") for _ in range(2)]
    (user.directory / "script").write_text("#!/bin/sh\n")
    for words in CHANGES:
        done = user(*words.replace("/dev/null", "script").split(), status=1)
        assert "2 instances of yours are running: name one with --uri or FLUXSCHED_URI" in done.err, words
        assert all(site.uri in done.err for site in sites), words
    for words in VIEWS:
        user(*words.split())
    sites[0]("cancel", "--all")
    user("cancel", "--all", "--uri", sites[1].uri)
