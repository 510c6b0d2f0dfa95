"""Notifications of users about the starts and ends of their jobs, and the commands that deliver them."""

from __future__ import annotations

import asyncio
import errno
import os
import pty
import signal
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from fluxsched.client.blocking import Handle
from fluxsched.core.jobfields import NOTIFY_COMMAND_CHARS_MAX
from fluxsched.core.jobid import format_f58
from fluxsched.core.jobspec import Jobspec
from fluxsched.errors import Refused, RPCError
from fluxsched.services.job_notify import COMMANDS_MAX, NOTIFICATIONS_MAX
from tests.site import alive

HERE = os.uname().nodename
TIMED_S = 2.0
"""Run time of a job whose instance is killed meanwhile: long enough that it is killed first."""


def asking(script: str, **notify: Any) -> dict[str, Any]:
    """A jobspec of a shell's command, whose user is to be told."""
    made = Jobspec.from_command(["sh", "-c", script], name="solver", environment={"SITE": "east"}).to_json()
    made["attributes"]["system"]["fluxsched"] = {"notify": notify}
    return made


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


async def test_a_command_has_the_job_and_its_end_in_its_environment(world, eventually):
    told = world.directory / "told"
    client = await world.client(await world.instance(fake="1x1"))
    command = f'echo "$FLUXSCHED_JOBID $FLUXSCHED_EVENT $FLUXSCHED_RESULT $FLUXSCHED_STATUS $SITE" >> {told}'
    jobid = await client.submit(asking("exit 3", on=["start", "end"], command=command))
    await eventually(lambda: len(lines(told)) == 2)
    name = format_f58(jobid)
    assert sorted(lines(told)) == [f"{name} end FAILED 3 east", f"{name} start   east"]


@pytest.mark.parametrize("is_gone", [False, True])
async def test_a_command_runs_in_the_directory_of_its_job_if_that_is_there(world, eventually, is_gone):
    told, cwd = world.directory / "told", world.directory / "it's here"
    cwd.mkdir()
    client = await world.client(await world.instance(fake="1x1"))
    asked = asking(
        f"rmdir '{world.directory}/it'\\''s here'" if is_gone else "true", command=f'echo "$PWD $#" > {told}'
    )
    asked["attributes"]["system"]["cwd"] = str(cwd)
    await client.submit(asked)
    await eventually(lambda: lines(told) == ["/ 0" if is_gone else f"{cwd} 0"])


async def test_of_failures_alone(world, eventually):
    told = world.directory / "told"
    client = await world.client(await world.instance(fake="1x1"))
    for command in ("true", "kill -9 $$", "exit 1"):
        jobid = await client.submit(asking(command, on=["fail"], command=f'echo "$FLUXSCHED_NOTE" >> {told}'))
        await client.wait(jobid)
    await eventually(lambda: len(lines(told)) == 2)
    assert {line.partition(" (solver) ")[2] for line in lines(told)} == {
        "failed: ended by signal 9",
        "failed: exit code 1",
    }


async def test_a_line_on_the_terminal_and_mail_once_that_is_gone(world, eventually):
    mail = world.directory / "mail"
    world.write("sendmail", f"#!/bin/sh\ncat > {mail}.new; mv {mail}.new {mail}\n").chmod(0o755)
    site = await world.instance(fake="1x1")
    site._parts.job_notify._sendmail_path = str(world.directory)
    client = await world.client(site)
    ours, theirs = pty.openpty()
    wanted = {"terminal": os.ttyname(theirs), "host": HERE}
    first = await client.submit(asking("true", **wanted))
    await client.wait(first)
    os.set_blocking(ours, False)
    shown = bytearray()

    def is_shown() -> bool:
        with suppress(BlockingIOError):
            shown.extend(os.read(ours, 4096))
        return b"completed" in shown

    await eventually(is_shown)
    assert f"fluxsched: job {format_f58(first, ascii=True)} (solver) completed" in shown.decode()
    os.close(theirs)
    os.close(ours)
    gone = wanted | {"terminal": "/dev/pts/99999"}  # another test may have got the name of ours
    second = await client.submit(asking("exit 2", **gone))
    await eventually(mail.exists)
    note = f"fluxsched: job {format_f58(second, ascii=True)} (solver) failed: exit code 2"
    assert lines(mail)[1:] == [f"Subject: {note}", "", note]


async def test_what_the_instance_cannot_do_is_refused(world):
    site = await world.instance(fake="1x1")
    notify, command = site._parts.job_notify, Jobspec.parse(asking("true", command="true"))
    notify.check(command, os.getuid())
    with pytest.raises(Refused, match=r"runs commands at the end of jobs of .* alone, and not of") as caught:
        notify.check(command, os.getuid() + 1)
    assert caught.value.errnum == errno.EOPNOTSUPP
    client = await world.client(site)
    for notify, words in (
        ({"on": []}, "is no list of some of start, end, fail"),
        ({"on": ["begin"]}, "is no list of some of start, end, fail"),
        ({"terminal": "/etc/passwd"}, "is not below /dev"),
        ({"mail": "ann"}, "known: command, host, on, terminal"),
        ({"command": "x" * (NOTIFY_COMMAND_CHARS_MAX + 1)}, f"the limit is {NOTIFY_COMMAND_CHARS_MAX}"),
    ):
        with pytest.raises(RPCError, match=words):
            await client.submit(asking("true", **notify))


async def test_it_is_said_that_there_is_neither_terminal_nor_mail(world, monkeypatch):
    """A sendmail of PATH is none: a directory of it that hangs would stop the instance."""
    empty = world.directory / "empty"
    empty.mkdir()
    world.write("sendmail", "#!/bin/sh\n").chmod(0o755)
    monkeypatch.setenv("PATH", f"{world.directory}:{os.environ['PATH']}")
    site = await world.instance(fake="1x1")
    site._parts.job_notify._sendmail_path = str(empty)
    client = await world.client(site)
    with pytest.raises(RPCError, match="there is no terminal, and there is no sendmail; give a command"):
        await client.submit(asking("true"))
    with pytest.raises(RPCError, match="/dev/pts/99 is on elsewhere, and there is no sendmail"):
        await client.submit(asking("true", terminal="/dev/pts/99", host="elsewhere"))


async def test_a_command_that_fails_is_logged_and_others_follow(world, eventually, capfd):
    told = world.directory / "told"
    client = await world.client(await world.instance(fake="1x1"))
    await client.submit(asking("true", command="echo no such list >&2; exit 4"))
    await client.submit(asking("true", command=f"echo told > {told}"))
    await eventually(told.exists)
    logged = ""

    def is_logged() -> bool:
        nonlocal logged
        logged += capfd.readouterr().err
        return "ended with status 4: no such list" in logged

    await eventually(is_logged)


async def test_no_more_commands_wait_than_the_limit(world, eventually, capfd):
    """Jobs that end in one transaction count, too."""
    assert NOTIFICATIONS_MAX >= 1000
    told = world.directory / "told"
    site = await world.instance(fake="1x1")
    site._parts.job_notify._notifications_max = 1
    client = await world.client(site)
    jobids = [await client.submit(asking("true", command=f"echo told >> {told}"), urgency=0) for _ in range(5)]
    site._parts.turns.post(lambda: site._parts.effects.raise_jobs(jobids, "ended together"))
    for jobid in jobids:
        await client.wait(jobid)
    assert capfd.readouterr().err.count("1 commands wait, the limit") == 4
    await eventually(lambda: lines(told) == ["told"])
    last = await client.submit(asking("true", command=f"echo last >> {told}"))
    await client.wait(last)
    await eventually(lambda: lines(told) == ["told", "last"])


async def test_users_of_other_jobs_than_the_instances_own_are_not_notified(world, eventually):
    """A stored job may be of another user, from before the instance refused it."""
    told = world.directory / "told"
    site = await world.instance(fake="1x1")
    parts = site._parts
    parts.job_notify._commands_max = 1  # so that they run in order
    for userid, word in ((os.getuid() + 1, "theirs"), (os.getuid(), "ours")):
        wanted = asking("true", command=f"echo {word} >> {told}")
        wanted["attributes"]["system"]["exec"] = {"test": {"run_duration": 0.001}}
        asked, jobid = Jobspec.parse(wanted), parts.new_id(parts.effects.now_s)

        def submit(asked: Jobspec = asked, jobid: int = jobid, userid: int = userid) -> None:
            requests = parts.effects.manager.requests
            parts.effects.perform(requests.submit(jobid, asked, userid=userid, now_s=parts.effects.now_s))

        parts.turns.post(submit)
        await eventually(lambda jobid=jobid: jobid in parts.effects.manager.jobs.inactive)
    await eventually(lambda: "ours" in lines(told))
    assert lines(told) == ["ours"]


@pytest.mark.slow
async def test_a_job_that_is_damaged_keeps_no_other_notification_waiting(world, eventually, capfd):
    told, statedir = world.directory / "told", world.directory / "state"
    site = await world.instance(fake="1x1", statedir=statedir)
    site._parts.job_notify._commands_max = 0
    client = await world.client(site)
    for word in ["damaged"] * COMMANDS_MAX + ["sound"]:
        last = await client.submit(asking("true", command=f"echo {word} >> {told}"))
        await client.wait(last)
    await world.stop(site)
    with closing(sqlite3.connect(statedir / "state.sqlite")) as connection, connection:
        connection.execute("UPDATE job_log SET ended = ended + 1 WHERE ended AND jobid != ?", (last,))
    await world.instance(fake="1x1", statedir=statedir)
    await eventually(lambda: lines(told) == ["sound"])
    logged = ""

    def are_logged() -> bool:
        nonlocal logged
        logged += capfd.readouterr().err
        return logged.count("notifies of its end: job ") == COMMANDS_MAX

    await eventually(are_logged)


@pytest.mark.slow
async def test_of_what_had_ended_before_a_kill_users_are_told_once_after_the_restart(world, eventually):
    """As many commands run as may, and one waits when the instance is killed."""
    go, told = world.directory / "go", world.directory / "told"
    script = f"echo begun >> {told}; while [ ! -e {go} ]; do sleep 0.05; done; echo over >> {told}"
    arguments = ("--fake", "1x1", "--statedir", str(world.directory / "state"))
    uri, pid = await world.daemon(*arguments)
    with Handle(uri) as handle:
        for _ in range(COMMANDS_MAX):
            handle.submit(asking("true", command=script))
        await eventually(lambda: len(lines(told)) == COMMANDS_MAX)
        handle.wait(handle.submit(asking("true", command=f"echo waited >> {told}")))
    os.kill(pid, signal.SIGKILL)
    await eventually(lambda: not alive(pid))
    await world.daemon(*arguments)
    await eventually(lambda: "waited" in lines(told))
    go.touch()
    await eventually(lambda: lines(told).count("over") == COMMANDS_MAX)
    assert sorted(lines(told)) == ["begun"] * COMMANDS_MAX + ["over"] * COMMANDS_MAX + ["waited"]


@pytest.mark.slow
async def test_the_user_of_a_job_that_ends_with_the_restart_is_told(world, eventually):
    """The time of the job passes while there is no instance: it ends in the first turn of the next."""
    told = world.directory / "told"
    arguments = ("--fake", "1x1", "--statedir", str(world.directory / "state"))
    asked = asking("true", command=f"echo $FLUXSCHED_RESULT >> {told}")
    asked["attributes"]["system"]["exec"] = {"test": {"run_duration": TIMED_S}}
    uri, pid = await world.daemon(*arguments)
    with Handle(uri) as handle:
        jobid = handle.submit(asked)
        asking_for = {"id": jobid, "keys": ["eventlog"]}
        await eventually(lambda: "'start'" in str(handle.rpc("job-manager.lookup", asking_for)["eventlog"]))
    os.kill(pid, signal.SIGKILL)
    await eventually(lambda: not alive(pid))
    await asyncio.sleep(TIMED_S)
    await world.daemon(*arguments)
    await eventually(lambda: lines(told) == ["COMPLETED"])
