"""Files that a jobspec carries (`attributes.system.files`): the archives of RFC 37.

Law: an archive is checked whole before any of it is written, and its paths lead nowhere but below the directory that
it is written to. Content that is only referred to (`blobvec`) is refused: an instance of ours has no content store.
"""

from __future__ import annotations

import binascii
import json
import stat
from base64 import b64decode
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from fluxsched.core.jsontext import shown
from fluxsched.core.text import kind_of
from fluxsched.errors import InvalidValue, LimitExceeded

FILES_MAX = 1024
"""Files of one job: a script, a configuration and what a site adds are some ten."""

BYTES_MAX = 1 << 22
"""Content of all files of one job: it is part of the jobspec, which stays in memory until the job ends."""

PATH_CHARS_MAX = 1024
"""Of one path: with the directory that it is written to it must stay below the kernel's 4096."""

_WHERE: Final = "attributes.system.files"


class ArchivedFile(NamedTuple):
    """A regular file (`data`), a directory or a symbolic link (`data` is its target); `mode` as in stat(2)."""

    path: str
    mode: int
    data: bytes


def parse_archive(obj: object) -> tuple[ArchivedFile, ...]:
    """The files of an archive, empty if there is none.

    Raises InvalidValue naming the file that is wrong, LimitExceeded above a named limit.
    """
    if obj is None:
        return ()
    if not isinstance(obj, dict | list | tuple):
        raise InvalidValue(f"{_WHERE} must be an object or a list (RFC 37), not {kind_of(obj)}")
    if len(obj) > FILES_MAX:
        raise LimitExceeded(f"{_WHERE} has {len(obj)} files: the limit is {FILES_MAX}")
    files = tuple(_file(path, one) for path, one in _entries(obj))
    size = sum(len(one.data) for one in files)
    if size > BYTES_MAX:
        raise LimitExceeded(f"{_WHERE} has {size} bytes: the limit is {BYTES_MAX}, put large files where the job runs")
    _check_tree(files)
    return files


def _check_tree(files: tuple[ArchivedFile, ...]) -> None:
    """Only directories have anything below them: what is behind a symbolic link may be anywhere."""
    leaves = {one.path for one in files if not stat.S_ISDIR(one.mode)}
    for one in files:
        above, slash, _ = one.path.rpartition("/")
        while slash:
            if above in leaves:
                raise InvalidValue(f"{_WHERE}.{one.path[:80]} is below {shown(above)}, which is not a directory")
            above, slash, _ = above.rpartition("/")


def script_file(script: str) -> dict[str, Any]:
    """A program as an archive has it."""
    return {
        "mode": stat.S_IFREG | 0o700,
        "size": len(script.encode()),
        "encoding": "utf-8",
        "data": script,
    }


def _entries(obj: dict[Any, Any] | list[Any] | tuple[Any, ...]) -> Iterator[tuple[object, object]]:
    if isinstance(obj, dict):
        yield from obj.items()
        return
    for one in obj:
        yield (one.get("path") if isinstance(one, dict) else None), one


def _file(path: object, obj: object) -> ArchivedFile:
    if type(path) is not str or len(path) > PATH_CHARS_MAX or "\0" in path:
        raise InvalidValue(f"{_WHERE}: path {shown(path)} is not a text of 1-{PATH_CHARS_MAX} characters without NUL")
    if not {".", "..", ""}.isdisjoint(path.split("/")):
        raise InvalidValue(f"{_WHERE}: path {shown(path)} must be relative, without . and ..")
    where = f"{_WHERE}.{path[:80]}"
    if not isinstance(obj, dict):
        raise InvalidValue(f"{where} must be an object (RFC 37), not {kind_of(obj)}")
    mode = obj.get("mode")
    if type(mode) is not int or not 0 <= mode <= 0o177777:
        raise InvalidValue(f"{where}.mode must be an integer such as stat(2) has it, not {shown(mode)}")
    kind = stat.S_IFMT(mode)
    if kind == stat.S_IFDIR:
        return ArchivedFile(path, mode, b"")
    if kind == stat.S_IFLNK:
        return ArchivedFile(path, mode, _text(obj.get("data"), where))
    if kind != stat.S_IFREG:
        raise InvalidValue(f"{where}.mode: {oct(mode)} is not a file, directory or symbolic link")
    return ArchivedFile(path, mode, _content(obj, where))


def _content(obj: Mapping[str, Any], where: str) -> bytes:
    encoding, data = obj.get("encoding"), obj.get("data")
    if encoding is None:
        return b"" if "data" not in obj else json.dumps(data).encode()
    if encoding == "utf-8":
        return _text(data, where)
    if encoding != "base64":
        raise InvalidValue(f"{where}.encoding: {shown(encoding)} is not utf-8 or base64")
    try:
        return b64decode(_text(data, where), validate=True)
    except binascii.Error as fault:
        raise InvalidValue(f"{where}.data is not base64: {fault}") from None


def _text(data: object, where: str) -> bytes:
    if type(data) is not str:
        raise InvalidValue(f"{where}.data must be text, not {kind_of(data)}")
    try:
        return data.encode()
    except UnicodeEncodeError:
        raise InvalidValue(f"{where}.data has a lone surrogate, which is not text: encode it as base64") from None
