"""The change of user, the only one in fluxsched: a keeper of root forks the tasks of a user's job here.

Law: the new process has its own group, no descriptor but those that its task needs, and default signals before it
becomes the user. It takes the groups, the group and the user of the account, in this order, in all their forms (real,
effective, saved), and checks with the kernel that it has these and no others, no capability, and no way back. Only
then, as the user, files are opened, directories changed and created, and a program executed: where a path leads is the
user's own affair. Until it is that program, root alone can trace it or read its memory, which is the keeper's. Root's
environment and session keyring are not passed on. Who has no account, or one with root's user or group, is
refused, and so is every other account of which something is unknown. There is no PAM: limits are those of the keeper.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import gc
import grp
import os
import pwd
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple, NoReturn

from fluxsched.errors import FluxschedError, Refused

ROOT: Final = 0
UMASK: Final = 0o022
FAILED: Final = 125
"""Exit status of a process that did not become a program."""
REPORT_BYTES_MAX: Final = 4096
"""Maximum size of a reason: what a pipe takes at once, or not at all."""
FREE_FROM: Final = 64
"""Descriptors below may be numbers that a task's files are to have."""
NO_CAPABILITY: Final = frozenset([f"Cap{kind}:\t0000000000000000" for kind in ("Inh", "Prm", "Eff", "Amb")])
CAPABILITY_VERSION: Final = 0x20080522
"""capset(2), of 64 bits."""
PR_SET_DUMPABLE: Final = 4
"""prctl(2); the kernel does the same at a change of user, unless fs.suid_dumpable says otherwise."""
KEYCTL: Final = {"x86_64": 250, "aarch64": 219}
"""The number of keyctl(2), which libc does not have, by machine."""
KEYCTL_JOIN_SESSION_KEYRING: Final = 1
NO_KEYRINGS: Final = (errno.ENOSYS, errno.EPERM)
"""Errors of a kernel, or of a container, without keyrings: then nobody reads a key there."""


class TaskProgram(NamedTuple):
    """Program that a process is to become, and its files: our descriptor and the number that it gets, of each."""

    words: Sequence[bytes]
    environment: Mapping[bytes, bytes]
    files: Sequence[tuple[int, int]]


def become(userid: int) -> pwd.struct_passwd:
    """Become this user for good; return the account. Raises Refused or OSError, after which this process must end."""
    _call("prctl", PR_SET_DUMPABLE, 0, 0, 0, 0)
    try:
        account = pwd.getpwuid(userid)
        grp.getgrgid(account.pw_gid)
    except KeyError:
        text = f"user {userid}, whose job this is, has no account on this host, or none with a known group"
        raise Refused(text, errno.EPERM) from None
    name, gid = account.pw_name, account.pw_gid
    if ROOT in (userid, account.pw_uid, gid) or account.pw_uid != userid:
        raise Refused(f"the account {name} has the user or the group of root: its jobs do not run", errno.EPERM)
    groups = os.getgrouplist(name, gid)
    os.setgroups(groups)
    os.setresgid(gid, gid, gid)
    os.setresuid(userid, userid, userid)
    _call("capset", (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)())  # those to be inherited, too
    _leave_keyring()
    with open("/proc/self/status") as file:
        is_powerless = NO_CAPABILITY.issubset(file.read().splitlines())
    has_all = os.getresuid() == (userid,) * 3 and os.getresgid() == (gid,) * 3 and set(os.getgroups()) == set(groups)
    if not (has_all and is_powerless) or _can_return():
        raise Refused(f"the change to user {name} was not complete: nothing is run", errno.EPERM)
    os.umask(UMASK)
    os.chdir("/")
    return account


def _call(function: str, *arguments: object) -> None:
    """Call a function of libc. Raises OSError."""
    if getattr(ctypes.CDLL(None, use_errno=True), function)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), f"{function}: {os.strerror(ctypes.get_errno())}")


def _leave_keyring() -> None:
    """Have a session keyring of this user's own: who has that of root can read the keys in it. Raises OSError."""
    number = KEYCTL.get(os.uname().machine)
    if number is None:
        raise OSError(errno.ENOSYS, f"the session keyring cannot be changed on {os.uname().machine}")
    try:
        _call("syscall", number, KEYCTL_JOIN_SESSION_KEYRING, None)
    except OSError as fault:
        if fault.errno not in NO_KEYRINGS:
            raise


def _can_return() -> bool:
    for change in (os.setuid, os.seteuid, os.setgid, os.setegid):
        try:
            change(ROOT)
        except PermissionError:
            continue
        return True
    return False


class UserTasks:
    """Tasks of a user's job, from their fork until all are programs. Owns a pipe on which they report why they are
    not.
    """

    def __init__(self, userid: int) -> None:
        self.userid = userid
        self._reports, self._says = os.pipe()
        os.set_blocking(self._reports, False)

    def spawn(self, kept: Collection[int], pgid: int | None, work: Callable[[], TaskProgram]) -> int:
        """Fork a process with the descriptors `kept`, in this process group (0: a new one, None: a new session), which
        becomes the user, calls `work`, and becomes the program that this returns; return its process id.
        """
        begun, theirs = os.pipe()
        pid = 0
        try:
            pid = os.fork()
            if pid == 0:
                self._run({self._says, *kept}, pgid, work)
        finally:
            os.close(theirs)
            if pid:
                os.read(begun, 1)  # it has its group, by which it can be killed
            os.close(begun)
        return pid

    def have_begun(self) -> bool:
        """Return whether all that were forked are programs, or have died. Raises Refused with a reason of one that is
        none.
        """
        self._stop_forking()
        try:
            said = os.read(self._reports, REPORT_BYTES_MAX)
        except BlockingIOError:
            return False
        if said:
            number, _, text = said.decode(errors="replace").partition("\n")[0].partition(" ")
            raise Refused(text, int(number))
        return True

    def close(self) -> None:
        """Listen to no reports any more. Idempotent."""
        self._stop_forking()
        if self._reports >= 0:
            os.close(self._reports)
            self._reports = -1

    def _stop_forking(self) -> None:
        if self._says >= 0:
            os.close(self._says)
            self._says = -1

    def _run(self, kept: set[int], pgid: int | None, work: Callable[[], TaskProgram]) -> NoReturn:
        number, text = errno.EPERM, "the process of a task ended without a reason"
        try:
            gc.disable()  # an object of the keeper would close what has the number of its descriptor by now
            signal.set_wakeup_fd(-1)
            for signum in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
                signal.signal(signum, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            if pgid is None:
                os.setsid()
            else:
                os.setpgid(0, pgid)
            _close_all_but(kept)
            account = become(self.userid)
            _execute(account, work())
        except FluxschedError as fault:
            number, text = fault.errnum, str(fault)
        except OSError as fault:
            number, text = fault.errno or errno.EIO, f"cannot start the job as its user: {fault}"
        except Exception as fault:  # it must not go on as the keeper
            text = f"cannot start the job as its user: {type(fault).__name__}: {fault}"
        finally:
            with contextlib.suppress(OSError):
                line = f"{number} {' '.join(text.split())}".encode(errors="replace")
                os.write(self._says, line[: REPORT_BYTES_MAX - 1] + b"\n")
            os._exit(FAILED)


def _close_all_but(kept: set[int]) -> None:
    """Close descriptors, also those that are inherited at an exec."""
    first = 0
    for fd in sorted(kept):
        os.closerange(first, fd)
        first = fd + 1
    os.closerange(first, os.sysconf("SC_OPEN_MAX"))


def _execute(account: pwd.struct_passwd, program: TaskProgram) -> NoReturn:
    moved = [(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, FREE_FROM), number) for fd, number in program.files]
    for fd, number in moved:
        os.dup2(fd, number)
    own = {b"HOME": account.pw_dir, b"LOGNAME": account.pw_name, b"USER": account.pw_name, b"SHELL": account.pw_shell}
    environment = {name: os.fsencode(value) for name, value in own.items()} | dict(program.environment)
    os.execve(program.words[0], [*program.words], environment)
