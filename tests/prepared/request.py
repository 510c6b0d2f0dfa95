"""What is asked of the prepared process, as bytes; it imports only what is built in, for the command that asks is to
start quickly.

LENGTH and as many bytes follow: the fields in the order below, a number of words, the words, and the environment, each
ended by a NUL. With LENGTH come the descriptors that become `targets`.
"""

import posix

LENGTH_BYTES = 8
COMMAND, MODULE, KEEPER = "command", "module", "keeper"
"""What is run: `fluxsched WORDS`, `python -m WORDS`, or the keeper's file."""
CHILD, SESSION = "child", "session"
"""How: as a child of the caller, which takes orphans for the moment; in a session of its own."""
REFUSED = b"refused"
REAL = "REAL_PROGRAMS"
"""Where the environment has it, nothing is forked."""


def packed(
    kind: str, how: str, cwd: str, targets: str, words: list[str], environ: dict[str, str]
) -> tuple[bytes, bytes]:
    """LENGTH, and what follows it; with this process's umask."""
    umask = posix.umask(0)
    posix.umask(umask)
    pairs = [f"{name}={value}" for name, value in environ.items()]
    fields = [kind, how, cwd, str(umask), targets, str(len(words)), *words, *pairs, ""]
    data = "\0".join(fields).encode(errors="surrogateescape")
    return b"%08d" % len(data), data
