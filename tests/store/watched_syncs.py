"""SQLite's file access with an eye on syncs: each is counted, and may be held up or made to fail.

SQLite calls a table of C functions for a file (`sqlite3_io_methods`); a copy of it has another `xSync`. So what is
tested is what SQLite itself asks of the system, whatever our settings say.
"""

from __future__ import annotations

import _sqlite3
import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager

SQLITE_OK = 0
SQLITE_IOERR_FSYNC = 1034
HELD_MAX_S = 5.0
"""A sync that is held up is done after this: a test that fails must still come to its end."""
METHODS = 18
"""Functions of `sqlite3_io_methods`, version 3, after its number."""
SYNC_AT = 4

_Sync = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int)
_Open = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.POINTER(ctypes.c_int)
)
"""The name is passed on as the pointer that it is: SQLite keeps it, and what is behind it, while the file is open."""


class IoMethods(ctypes.Structure):
    """`sqlite3_io_methods`."""

    _fields_ = (("version", ctypes.c_int), ("methods", ctypes.c_void_p * METHODS))


class Vfs(ctypes.Structure):
    """`sqlite3_vfs`, up to what is changed; the rest is copied."""

    _fields_ = (
        ("version", ctypes.c_int),
        ("file_size", ctypes.c_int),
        ("path_size", ctypes.c_int),
        ("next", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("data", ctypes.c_void_p),
        ("open", ctypes.c_void_p),
        ("rest", ctypes.c_void_p * 16),
    )


class Syncs:
    """How often logs and files were synced; `may_go` holds syncs up while it is not set, `fails` has them fail."""

    def __init__(self) -> None:
        self.of_log = 0
        self.of_file = 0
        self.fails = False
        self.may_go = threading.Event()
        self.may_go.set()

    def before(self, is_log: bool) -> bool:
        """A sync is asked for; whether it is to be done."""
        self.may_go.wait(HELD_MAX_S)
        if self.fails:
            return False
        self.of_log += is_log
        self.of_file += not is_log
        return True


def library() -> ctypes.CDLL | None:
    """The SQLite that Python uses; None if its functions cannot be called from outside."""
    found = ctypes.CDLL(_sqlite3.__file__)
    if not hasattr(found, "sqlite3_vfs_find"):
        return None
    found.sqlite3_vfs_find.restype = ctypes.POINTER(Vfs)
    found.sqlite3_vfs_find.argtypes = [ctypes.c_char_p]
    found.sqlite3_vfs_register.argtypes = found.sqlite3_vfs_unregister.argtypes = [ctypes.POINTER(Vfs), ctypes.c_int]
    return found


@contextmanager
def watched_syncs(sqlite: ctypes.CDLL) -> Iterator[Syncs]:
    """Every file that is opened meanwhile is watched; all must be closed before the end."""
    syncs, kept = Syncs(), list[object]()
    usual = sqlite.sqlite3_vfs_find(None)
    open_usual = _Open(usual.contents.open)

    def opened(vfs: int, name: int | None, file: int, flags: int, given: object) -> int:
        status: int = open_usual(ctypes.addressof(usual.contents), name, file, flags, given)
        where = ctypes.cast(file, ctypes.POINTER(ctypes.POINTER(IoMethods)))
        if status == SQLITE_OK and where.contents:
            methods = IoMethods.from_buffer_copy(where.contents.contents)
            sync_usual = _Sync(methods.methods[SYNC_AT])
            is_log = name is not None and ctypes.string_at(name).endswith(b"-wal")

            def sync(opened_file: int, how: int) -> int:
                done: int = sync_usual(opened_file, how) if syncs.before(is_log) else SQLITE_IOERR_FSYNC
                return done

            callback = _Sync(sync)
            methods.methods[SYNC_AT] = ctypes.cast(callback, ctypes.c_void_p).value
            kept.extend((methods, callback))
            where[0] = ctypes.pointer(methods)
        return status

    callback = _Open(opened)
    watched = Vfs.from_buffer_copy(usual.contents)
    watched.name, watched.open = b"watched", ctypes.cast(callback, ctypes.c_void_p).value
    sqlite.sqlite3_vfs_register(ctypes.byref(watched), 1)
    try:
        yield syncs
    finally:
        syncs.may_go.set()
        sqlite.sqlite3_vfs_unregister(ctypes.byref(watched), 0)
        sqlite.sqlite3_vfs_register(usual, 1)
