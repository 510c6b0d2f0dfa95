"""Programs that a keeper executes itself: those that it can find and read without having to wait.

Law: a program on a file system that hangs keeps one task waiting and no keeper. No path is looked at unless the table
of mounts says that it is on a local file system, and all links on the way, and what the kernel loads with the program,
too; all else is left to a shell, which is a task already. (The job's working directory is the keeper's affair anyway.)
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Mapping
from pathlib import Path

from fluxsched.system.clock import Clock

SHELL = b"/bin/sh"
SHELL_PATH = b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Directories in which shells look if PATH is not set."""
MOUNTS = Path("/proc/self/mountinfo")
MOUNTS_BYTES_MAX = 1 << 20
"""Bytes of a table of mounts that is read; with a longer one no file system counts as local."""
LOCAL_TYPES = frozenset(
    (b"ext2", b"ext3", b"ext4", b"xfs", b"btrfs", b"zfs", b"f2fs", b"jfs", b"bcachefs", b"tmpfs", b"ramfs",
     b"squashfs", b"erofs")
)  # fmt: skip
"""File systems of disks and memory. That of the shell is as good, whatever it is: no task starts without it."""
REMOTE_MAJORS = frozenset((b"7", b"43"))
"""Major numbers of devices (loop, nbd) whose contents may be on a server, whatever file system they have."""
LINKS_MAX = 16
"""Links on the way to a program that are followed."""
INTERPRETERS_MAX = 4
"""Programs that the kernel loads to run one: a script has an interpreter, which has a loader."""
HEAD_BYTES = 4096
"""Bytes of a program in which the interpreter is named."""
KEPT_S = 1.0
"""Time for which an answer holds (seconds): jobs of one command follow each other by the thousand. A program that is
installed meanwhile, earlier in PATH, is found after it.
"""
ANSWERS_MAX = 1024
ELF = b"\x7fELF\x02"
"""First bytes of programs for machines of 64 bits."""
ELF_HEADER = struct.Struct("=32xQ14xHH")
"""Offset, size and number of its segments."""
ELF_SEGMENT = struct.Struct("=I4xQ16xQ")
"""Type, offset and size in the file."""
ELF_INTERPRETER = 3
"""Type of the segment that names the loader."""


class LocalPrograms:
    """Search for programs as a shell does it, on local file systems."""

    def __init__(self, clock: Clock, mounts: Path = MOUNTS) -> None:
        self._clock = clock
        self._table = mounts
        self._mounts: dict[bytes, tuple[bytes, bytes]] = {}
        """Device and type of the file system by mount point."""
        self._shell: tuple[bytes, bytes] | None = None
        self._answers: dict[tuple[bytes, bytes, bytes], bytes | None] = {}
        self._until_s = 0.0

    def find(self, word: bytes, environment: Mapping[bytes, bytes], cwd: bytes) -> bytes | None:
        """Return the path of the program that a shell in `cwd` would execute, None if a shell has to look for it."""
        now_s = self._clock.monotonic_s()
        if now_s >= self._until_s or len(self._answers) >= ANSWERS_MAX:
            self._until_s = now_s + KEPT_S
            self._answers.clear()
            self._read_mounts()
        asked = (word, environment.get(b"PATH", SHELL_PATH), cwd)
        if asked not in self._answers:
            self._answers[asked] = self._search(*asked)
        return self._answers[asked]

    def _search(self, word: bytes, path: bytes, cwd: bytes) -> bytes | None:
        if b"/" in word:
            return word if self._is_ready(os.path.join(cwd, word)) else None
        for directory in path.split(b":"):
            program = os.path.join(directory, word)
            real = self._resolve(os.path.join(cwd, program)) if directory else None
            if real is None:
                return None
            if os.path.isfile(real) and os.access(real, os.X_OK):
                return program if self._is_ready(real) else None
        return None

    def _is_ready(self, program: bytes) -> bool:
        """Return whether a program is local, and all that the kernel loads with it."""
        path: bytes | None = program
        for _ in range(INTERPRETERS_MAX):
            try:
                real = self._resolve(path) if path else None
                if real is None or not os.path.isfile(real):  # a fifo may keep us waiting, too
                    return False
                with open(real, "rb", buffering=0) as file:
                    path = _interpreter(file.read(HEAD_BYTES))
            except (OSError, ValueError):
                return False
            if path is None:
                return True
        return False

    def _resolve(self, path: bytes) -> bytes | None:
        """Return an absolute path without its links; None if the way to it leads over what is not local."""
        todo, at, links = path.split(b"/")[::-1], b"/", 0
        while todo:
            name = todo.pop()
            if name in (b"", b"."):
                continue
            at = os.path.dirname(at) if name == b".." else os.path.join(at, name)
            if not self._is_local(at):
                return None
            try:
                link = os.readlink(at)
            except OSError:  # it is no link, or not there
                continue
            links += 1
            if links > LINKS_MAX:
                return None
            todo += link.split(b"/")[::-1]
            at = b"/" if link.startswith(b"/") else os.path.dirname(at)
        return at

    def _is_local(self, path: bytes) -> bool:
        mount = self._mount_of(path)
        if mount is None or mount == self._shell:
            return mount is not None
        return mount[1] in LOCAL_TYPES and mount[0].partition(b":")[0] not in REMOTE_MAJORS

    def _mount_of(self, path: bytes) -> tuple[bytes, bytes] | None:
        while path not in self._mounts and path != b"/":
            path = os.path.dirname(path)
        return self._mounts.get(path)

    def _read_mounts(self) -> None:
        self._mounts.clear()
        try:
            with self._table.open("rb") as file:
                table = file.read(MOUNTS_BYTES_MAX + 1)
        except OSError:
            return
        for line in table.splitlines() if len(table) <= MOUNTS_BYTES_MAX else ():
            left, _, right = line.partition(b" - ")
            _, _, device, _, point, *_ = left.split(b" ")
            self._mounts[_unescaped(point)] = device, right.split(b" ", 1)[0]
        self._shell = self._mount_of(os.path.realpath(SHELL))


def _interpreter(head: bytes) -> bytes | None:
    """Return the program by which the kernel runs the one that begins so, if it needs any. Raises ValueError if that
    cannot be told.
    """
    if head.startswith(b"#!"):
        line, end, _ = head[2:].partition(b"\n")
        words = line.split(None, 1)
        if not end or not words or not words[0].startswith(b"/"):
            raise ValueError("no interpreter")
        return words[0]
    if not head.startswith(ELF):
        raise ValueError("no program")
    try:
        at, size, number = ELF_HEADER.unpack_from(head)
        for start in range(at, at + size * number, size):
            kind, offset, length = ELF_SEGMENT.unpack_from(head, start)
            if kind == ELF_INTERPRETER:
                return head[offset : offset + length].rstrip(b"\0")
    except (struct.error, OverflowError) as exc:
        raise ValueError("no program") from exc
    return None


def _unescaped(point: bytes) -> bytes:
    """Return a mount point as it is: the table has spaces and the like as octal numbers."""
    return re.sub(rb"\\([0-7]{3})", lambda found: bytes([int(found[1], 8)]), point)
