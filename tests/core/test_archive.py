"""RFC 37: files that a jobspec carries. The files are the RFC's own examples where it has one."""

from __future__ import annotations

import pytest

from fluxsched.core import batch
from fluxsched.core.batch import ArchivedFile, parse_archive, script_file
from fluxsched.core.documents import with_path
from fluxsched.core.jobspec import Jobspec
from fluxsched.errors import InvalidValue, LimitExceeded


@pytest.mark.parametrize(
    ("entry", "data"),
    [
        ({"mode": 16893, "mtime": 1677604007}, b""),
        ({"mode": 41471, "data": "/users/fred/work/project"}, b"/users/fred/work/project"),
        ({"mode": 33204, "size": 0}, b""),
        ({"mode": 33204, "data": {"resource": {"exclude": "node42"}}}, b'{"resource": {"exclude": "node42"}}'),
        ({"mode": 33204, "encoding": "utf-8", "data": "a,b\n\u00e9\n"}, "a,b\n\u00e9\n".encode()),
        ({"mode": 33204, "encoding": "base64", "data": "MzU0MzUuNTU1CjIsMzU2Cg=="}, b"35435.555\n2,356\n"),
    ],
)
def test_rfc37_entries_in_both_containers(entry: dict[str, object], data: bytes) -> None:
    mode = entry["mode"]
    assert parse_archive({"data/x": entry}) == (ArchivedFile("data/x", mode, data),)
    assert parse_archive([{**entry, "path": "data/x"}]) == (ArchivedFile("data/x", mode, data),)


def test_a_script_comes_back_as_it_went() -> None:
    [found] = parse_archive({"script": script_file("#!/bin/sh\necho \u0192\n")})
    assert found == ("script", 0o100700, "#!/bin/sh\necho \u0192\n".encode())


@pytest.mark.parametrize(
    ("obj", "error"),
    [
        ("x", "must be an object or a list"),
        ({"/etc/passwd": {"mode": 33204}}, "'/etc/passwd' must be relative"),
        ({"a/../b": {"mode": 33204}}, "'a/../b' must be relative"),
        ({"": {"mode": 33204}}, "'' must be relative"),
        ([{"mode": 33204}], "path null is not a text"),
        ({"x": 1}, "files.x must be an object"),
        ({"a": {"mode": 0o120777, "data": "/etc"}, "a/b/c": {"mode": 33204}}, "a/b/c is below 'a', which is"),
        ({"x": {"data": "y"}}, "files.x.mode must be an integer"),
        ({"x": {"mode": 0o020666}}, "is not a file, directory or symbolic link"),
        ({"x": {"mode": 33204, "encoding": "blobvec", "data": []}}, "'blobvec' is not utf-8 or base64"),
        ({"x": {"mode": 33204, "encoding": "base64", "data": "!"}}, "files.x.data is not base64"),
        ({"x": {"mode": 33204, "encoding": "utf-8", "data": 5}}, "files.x.data must be text, not a number"),
        ({"x": {"mode": 33204, "encoding": "utf-8", "data": "\ud800"}}, "lone surrogate"),
    ],
)
def test_a_wrong_archive_is_refused_with_the_file_named(obj: object, error: str) -> None:
    with pytest.raises(InvalidValue, match=error):
        parse_archive(obj)


def test_the_limits_of_an_archive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "FILES_MAX", 2)
    monkeypatch.setattr(batch, "BYTES_MAX", 8)
    with pytest.raises(LimitExceeded, match="has 3 files: the limit is 2"):
        parse_archive({name: script_file("") for name in "abc"})
    with pytest.raises(LimitExceeded, match="has 10 bytes: the limit is 8"):
        parse_archive({name: script_file("12345") for name in "ab"})


def test_the_longest_path_of_an_archive() -> None:
    longest = "a/" + "x" * (batch.PATH_CHARS_MAX - 2)
    assert parse_archive({longest: script_file("")})[0].path == longest
    with pytest.raises(InvalidValue, match=f"is not a text of 1-{batch.PATH_CHARS_MAX} characters"):
        parse_archive({longest + "x": script_file("")})


def test_files_are_checked_at_submit_and_are_nothing_to_a_scheduler() -> None:
    plain = Jobspec.from_command(["true"]).to_json()
    jobspec = Jobspec.parse(with_path(plain, "attributes.system.files", {"a": script_file("x")}))
    assert jobspec.files
    assert "files" not in jobspec.bare["attributes"]["system"]
    with pytest.raises(InvalidValue, match="must be relative"):
        Jobspec.parse(with_path(plain, "attributes.system.files", {"..": script_file("x")}))
