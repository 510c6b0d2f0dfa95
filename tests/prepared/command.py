"""`fluxsched`, forked from a prepared process: it starts in a tenth of the time.

    python -I -S command.py ADDRESS PROGRAM WORDS...

Law: where it could differ from PROGRAM, that is executed instead: on a terminal, with other descriptors than 0 to 2,
with signals that are ignored or blocked, or where the prepared process refuses. It passes on signals and ends as the
one that is forked, which does not outlive it.
"""

import _signal
import _socket
import posix
import sys

sys.path.insert(0, __file__.rpartition("/")[0])
from request import COMMAND, REFUSED, packed

PASSED_ON = (_signal.SIGHUP, _signal.SIGINT, _signal.SIGQUIT, _signal.SIGTERM, _signal.SIGUSR1, _signal.SIGUSR2)
STANDARD = {"0", "1", "2"}
SCM_RIGHTS_FDS = b"".join(fd.to_bytes(4, sys.byteorder) for fd in range(3))


def is_plain() -> bool:
    fds = posix.listdir("/proc/self/fd")  # and that with which it is read
    return (
        len(fds) == len(STANDARD) + 1
        and set(fds) > STANDARD
        and not any(map(posix.isatty, range(3)))
        and _signal.SIG_IGN not in map(_signal.getsignal, PASSED_ON)
        and not _signal.pthread_sigmask(_signal.SIG_BLOCK, ())
    )


def forked(address: str, words: list[str]) -> bytes:
    """How it ended; nothing, if that is not known; or that it was refused."""
    environ = {name.decode(errors="surrogateescape"): value.decode(errors="surrogateescape")
               for name, value in posix.environ.items()}  # fmt: skip
    length, data = packed(COMMAND, "", posix.getcwd(), "0 1 2", words, environ)
    caller = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    caller.connect("\0" + address)
    caller.sendmsg([length], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, SCM_RIGHTS_FDS)])
    while data:
        data = data[caller.send(data) :]
    said = b""
    while b"\n" not in said:
        more = caller.recv(100)
        if not more:
            return said
        said += more
    first, _, rest = said.partition(b"\n")
    if first == REFUSED:
        return first
    for signum in PASSED_ON:
        _signal.signal(signum, lambda signum, frame: posix.kill(int(first), signum))
    while not rest.endswith(b"\n"):
        more = caller.recv(100)
        if not more:
            break
        rest += more
    return rest


def main(address: str, program: str, *words: str) -> None:
    status = forked(address, [program, *words]) if is_plain() else REFUSED
    if status == REFUSED:
        posix.execv(program, [program, *words])
    ended = int(status or b"255")
    if ended < 0:
        if -ended != _signal.SIGKILL:
            _signal.signal(-ended, _signal.SIG_DFL)
        posix.kill(posix.getpid(), -ended)
    posix._exit(ended)


main(*sys.argv[1:])
