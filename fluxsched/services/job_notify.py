"""Commands of `submit --notify` and `--notify-command`, which notify users of the starts and ends of their jobs.

Our own, for `--notify`, writes a line to the terminal where the job was submitted, or sends mail if that is gone.

Law: a notification is stored in the transaction of its event, and removed before its command begins. So an
instance that is killed in between runs the command after its restart, and none begins twice; the command of an instance
that is killed within the moment after the removal is lost. Commands run on the machine of the instance as its user, for
jobs of this user alone: jobs of others that ask for one are refused. `timeout` ends them, so that their limit holds
without the instance, too, which waits for none of them.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import subprocess
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from fluxsched.core.jobfields import NOTIFY_END, NOTIFY_FAIL, NOTIFY_START, UserNotify, notify_of, system_given
from fluxsched.core.jobid import format_f58
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.programs import OUTPUT_BYTES_MAX, PROGRAM_PATH, first_line
from fluxsched.core.text import printable
from fluxsched.errors import FluxschedError, InvalidValue, Refused
from fluxsched.executor.perilog import BOUNDED
from fluxsched.jobs.job import JobSummary, shell_code
from fluxsched.jobs.manager import StoredJob
from fluxsched.jobs.table import result
from fluxsched.services.job_effects import JobEffects
from fluxsched.services.jobs import stored_job
from fluxsched.store.store import Store
from fluxsched.system.files import user_name
from fluxsched.system.log import logger, of_job
from fluxsched.system.loop import ExitWatch
from fluxsched.system.processes import close_output, timed_words

log = logger("notify")

KIND: Final = "job-notification"
"""Kind of the rows of `saved`; the key is the job and the event."""
COMMANDS_MAX = 4
"""Commands that run at a time: a thousand jobs may end in a second."""
NOTIFICATIONS_MAX = 10_000
"""Commands that wait to be run; further ones are left out, and the log says so."""
COMMAND_S, KILL_AFTER_S = 60.0, 5.0
"""Time after which a command is ended, and further time after which it is killed."""
OWN_VARIABLES: Final = ("HOME", "USER", "LOGNAME", "SHELL")
"""Variables of the instance that a command has, too, unless the job has others."""
SENDMAIL_PATH: Final = f"{PROGRAM_PATH}:/usr/lib"
"""Local directories in which sendmail is looked for: a directory of PATH that hangs would stop the instance."""

CHANGE_DIRECTORY: Final = 'cd -- "$1" 2>/dev/null; shift\n'
"""Has the command look for the job's directory, which may be on a server that hangs; if it is gone it stays in `/`."""
OWN_COMMAND: Final = r"""
if [ -c "$FLUXSCHED_TERMINAL" ] && { printf '\r\n%s\r\n' "$FLUXSCHED_NOTE" >"$FLUXSCHED_TERMINAL"; } 2>/dev/null
then exit; fi
[ -n "$FLUXSCHED_SENDMAIL" ] || { echo "its terminal is gone, and there is no sendmail"; exit 1; }
printf 'To: %s\nSubject: %s\n\n%s\n' "$FLUXSCHED_USER" "$FLUXSCHED_NOTE" "$FLUXSCHED_NOTE" | "$FLUXSCHED_SENDMAIL" -t
"""
"""Command of `--notify`."""


class JobNotification(NamedTuple):
    """Event that is to be reported to the user of a job, with the variables that describe it."""

    jobid: int
    event: str
    variables: dict[str, str]

    @property
    def key(self) -> str:
        """Return the key of its row."""
        return f"{self.jobid} {self.event}"


class JobNotify:
    """Runs the commands of users at events of their jobs."""

    def __init__(
        self, effects: JobEffects, store: Store, stored: Mapping[str, Any], *,
        commands_max: int = COMMANDS_MAX, notifications_max: int = NOTIFICATIONS_MAX,
        sendmail_path: str = SENDMAIL_PATH,
    ) -> None:  # fmt: skip
        """Take over what the last instance has left to do: `stored` are the values of its rows, by key."""
        self._effects = effects
        self._store = store
        self._commands_max = commands_max
        self._notifications_max = notifications_max
        self._sendmail_path = sendmail_path
        self._wanted: dict[int, UserNotify] = {}
        """Notifications that jobs which have not ended ask for."""
        self._waiting = deque([_read(key, value) for key, value in stored.items()])
        self._storing = 0
        """Notifications that wait once they are stored."""
        self._beginning = 0
        """Commands that begin once it is stored that they do."""
        self._running: dict[subprocess.Popen[bytes], ExitWatch] = {}
        effects.submitted.append(self._add)

    def follow(self, jobs: Iterable[StoredJob]) -> Iterator[StoredJob]:
        """Yield stored jobs to the job manager, and note each once it is read: it may end before the first turn."""
        for row in jobs:
            yield row
            job = self._effects.manager.jobs.active.get(row[0])
            if job is not None:
                self._add(job)

    def start(self) -> None:
        """Begin what the last instance has left to do."""
        self._begin_next()

    def check(self, jobspec: Jobspec, userid: int) -> None:
        """Raise Refused for a job that asks for what this instance cannot do."""
        wanted = jobspec.notify
        if wanted is None:
            return
        if userid != os.getuid():
            raise Refused(
                f"this instance runs commands at the end of jobs of {user_name(os.getuid())} alone, and not of "
                f"{user_name(userid)}: submit the job without notify, and wait for it",
                errno.EOPNOTSUPP,
            )
        if not wanted.command and not _is_here(wanted) and self._sendmail() is None:
            where = f"{wanted.terminal} is on {wanted.host}" if wanted.terminal else "there is no terminal"
            raise Refused(
                f"nothing can be told from {os.uname().nodename}: {where}, and there is no sendmail; give a command",
                errno.EOPNOTSUPP,
            )

    def close(self) -> None:
        """Leave the commands that run to themselves; what waits is for the next instance."""
        for process, watch in self._running.items():
            watch.close()
            close_output(process, OUTPUT_BYTES_MAX)
            process.poll()
            process.returncode = process.returncode or 0  # it may run on
        self._running.clear()

    # -- events -------------------------------------------------------------------------------------------------

    def _add(self, job: JobSummary) -> None:
        wanted = None if job.jobspec is None else job.jobspec.notify
        if wanted is not None and job.userid == os.getuid():
            self._wanted[job.id] = wanted
            self._effects.followed[job.id] = self._note

    def _note(self, jobid: int, events: list[dict[str, Any]]) -> None:
        """Note events of a job that are about to be stored."""
        wanted, job = self._wanted[jobid], self._effects.manager.jobs.get(jobid)
        for event in events:
            if event["name"] == "start" and NOTIFY_START in wanted.on:
                self._store_one(
                    JobNotification(jobid, NOTIFY_START, _variables(job, NOTIFY_START, "", "", "has started"))
                )
            elif event["name"] == "clean":
                del self._wanted[jobid], self._effects.followed[jobid]
                self._note_end(job, wanted)

    def _note_end(self, job: JobSummary, wanted: UserNotify) -> None:
        found = result(job)
        assert found is not None, "a job that is clean has a result"
        is_wanted = NOTIFY_END in wanted.on or (NOTIFY_FAIL in wanted.on and not found.success)
        if not is_wanted or found.next_id:  # the next attempt ends, too
            return
        status = "" if found.status < 0 else str(shell_code(found.status))
        said = found.result.lower() + (f": {found.errstr}" if found.errstr else "")
        self._store_one(JobNotification(job.id, NOTIFY_END, _variables(job, NOTIFY_END, found.result, status, said)))

    def _store_one(self, one: JobNotification) -> None:
        if len(self._waiting) + self._storing >= self._notifications_max:
            text = "job %s: its user is not notified of its %s: %d commands wait, the limit"
            log.warning(text, format_f58(one.jobid), one.event, self._notifications_max, extra=of_job(one.jobid))
            return
        self._storing += 1
        self._store.add("saved", (KIND, one.key, msgspec.json.encode(one.variables)))
        self._effects.after_commit(partial(self._stored, one))

    def _stored(self, one: JobNotification) -> None:
        self._storing -= 1
        self._waiting.append(one)
        self._begin_next()

    # -- commands -----------------------------------------------------------------------------------------------

    def _begin_next(self) -> None:
        while self._waiting and len(self._running) + self._beginning < self._commands_max:
            one = self._waiting.popleft()
            self._beginning += 1
            self._store.remove("saved", (KIND, one.key))
            self._effects.after_commit(partial(self._begin, one))

    def _begin(self, one: JobNotification) -> None:
        self._beginning -= 1
        try:
            process = self._process(one)
            watch = ExitWatch(asyncio.get_running_loop(), process.pid, partial(self._has_ended, one, process))
        except (OSError, FluxschedError) as fault:
            _warn(one, str(fault))
            self._begin_next()
        else:
            self._running[process] = watch

    def _process(self, one: JobNotification) -> subprocess.Popen[bytes]:
        """Start the command. Raises OSError, FluxschedError."""
        record = stored_job(self._store, one.jobid)
        system = system_given(None if record is None else record["jobspec"]["attributes"])
        wanted = notify_of(system)
        if wanted is None:
            raise InvalidValue("the job is forgotten by now")
        own = {name: os.environ[name] for name in OWN_VARIABLES if name in os.environ}
        given = {name: value for name, value in (system.get("environment") or {}).items() if value is not None}
        at = {
            "FLUXSCHED_TERMINAL": wanted.terminal if _is_here(wanted) else "",
            "FLUXSCHED_SENDMAIL": self._sendmail() or "",
        }
        ours = self._effects.settings.environment
        environment = {"PATH": PROGRAM_PATH, **own, **given, **ours, **one.variables, **at}
        command = CHANGE_DIRECTORY + (wanted.command or OWN_COMMAND)
        timeout, *limits = timed_words(COMMAND_S, KILL_AFTER_S)
        words = ["/bin/sh", "-c", BOUNDED, "fluxsched", "/bin/sh", "-c", command, "fluxsched", system.get("cwd") or "/"]
        return subprocess.Popen(
            [shutil.which(timeout, path=PROGRAM_PATH) or timeout, *limits, *words], env=environment,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
            cwd="/",
        )  # fmt: skip

    def _has_ended(self, one: JobNotification, process: subprocess.Popen[bytes]) -> None:
        self._effects.turns.post(partial(self._reap, one, process))

    def _reap(self, one: JobNotification, process: subprocess.Popen[bytes]) -> None:
        if self._running.pop(process, None) is None:
            return
        status, output = process.wait(), close_output(process, OUTPUT_BYTES_MAX)
        if status:
            _warn(one, f"ended with status {status}{': ' * bool(output)}{first_line(output)}")
        self._begin_next()

    def _sendmail(self) -> str | None:
        """Return the program that sends mail; None if there is none."""
        return shutil.which("sendmail", path=self._sendmail_path)


def _is_here(wanted: UserNotify) -> bool:
    """Return whether there is a terminal of this machine to write to."""
    return bool(wanted.terminal) and wanted.host == os.uname().nodename


def _read(key: str, variables: Any) -> JobNotification:
    jobid, _, event = key.partition(" ")
    return JobNotification(int(jobid), event, msgspec.convert(variables, dict[str, str]))


def _variables(job: JobSummary, event: str, end: str, status: str, said: str) -> dict[str, str]:
    name = printable(job.name).encode("ascii", "replace").decode()  # it is the subject of a mail, too
    return {
        "FLUXSCHED_JOBID": format_f58(job.id),
        "FLUXSCHED_USERID": str(job.userid),
        "FLUXSCHED_USER": user_name(job.userid),
        "FLUXSCHED_EVENT": event,
        "FLUXSCHED_RESULT": end,
        "FLUXSCHED_STATUS": status,
        "FLUXSCHED_NOTE": f"fluxsched: job {format_f58(job.id, ascii=True)} ({name}) {printable(said)}",
    }


def _warn(one: JobNotification, why: str) -> None:
    text = "job %s: the command that notifies of its %s: %s"
    log.warning(text, format_f58(one.jobid), one.event, why, extra=of_job(one.jobid))
