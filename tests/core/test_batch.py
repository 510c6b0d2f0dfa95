"""Batch scripts: their directives, and the archive that a job carries."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluxsched.core import batch
from fluxsched.core.batch import (
    CONFIG,
    SCRIPT,
    SCRIPT_BYTES_MAX,
    ArchivedFile,
    Nested,
    check_script,
    is_nested,
    nested_jobspec,
    parse_archive,
    parse_directives,
    parse_nested,
    script_file,
)
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.text import with_path
from fluxsched.errors import InvalidValue, LimitExceeded

SHELL = """#!/bin/sh
#FLUX: -N4                  # Request four nodes
#FLUX: --queue=batch        # Submit to the batch queue
#FLUX: --job-name=app001    # Set an explicit job name
flux run -N4 app
"""
PYTHON = '''#!/usr/bin/env python3
def main():
    """
    flux: -N4
    flux: --queue=batch
    flux: --job-name="my python job"

    # Set some arbitrary user data:
    flux: --setattr=user.data=\'\'\'
    flux: x, y, z
    flux: a, b, c
    flux: \'\'\'
    """
    run()
'''
LUA = """#!/usr/bin/lua
--
-- flux: -N1 --exclusive
-- flux: --output=job.out
local app = require 'app'
app.run()
"""
MIXED = """#!/bin/sh
# Set flux directives
#FLUX: -N1
# Set job name:
#FLUX: --job-name=test
hostname; date
"""
DOCSTRING = '''#!/usr/bin/env python3
"""
flux: --nodes=4

Set an arbitrary value in jobspec:
flux: --setattr=user.foo="hello, earth"
"""
'''
CONF = '''#!/bin/sh
# flux: -N4 --exclusive
# flux: --job-name=foo --setattr=user.conf="""
# flux: [config]
# flux:   item = "foo"  # kept
# flux: # kept, too
# flux: """
foo
'''


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (SHELL, [["-N4"], ["--queue=batch"], ["--job-name=app001"]]),
        (
            PYTHON,
            [["-N4"], ["--queue=batch"], ["--job-name=my python job"], ["--setattr=user.data=x, y, z\na, b, c\n"]],
        ),
        (LUA, [["-N1", "--exclusive"], ["--output=job.out"]]),
        (MIXED, [["-N1"], ["--job-name=test"]]),
        (DOCSTRING, [["--nodes=4"], ["--setattr=user.foo=hello, earth"]]),
        (
            CONF,
            [
                ["-N4", "--exclusive"],
                ["--job-name=foo", '--setattr=user.conf=[config]\n  item = "foo"  # kept\n# kept, too\n'],
            ],
        ),
        ("# flux: --setattr=user.data='{\"option\": \"arg\"}'", [['--setattr=user.data={"option": "arg"}']]),
        ("# flux: --job-name='''It's a \"job\"'''", [["--job-name=It's a \"job\""]]),
        ('# flux: --setattr=user.foo="""{"key": 42}"""', [['--setattr=user.foo={"key": 42}']]),
        ("# flux: # -N4", []),
        ("# flux:", []),
        ("#\n# flux: -n 32\n# flux: # clear\n# flux: --env=-* --env=PATH", [["-n", "32"], ["--env=-*", "--env=PATH"]]),
        ("#flux: --output=a.{{id}}.out\n#flux: --output=b[1]@x", [["--output=a.{{id}}.out"], ["--output=b[1]@x"]]),
        (r"#flux: --a=b\ c --d='e\'f' --g='h\i' ''", [["--a=b c", "--d=e'f", r"--g=h\i", ""]]),
        ("#flux: -N1\n\n#flux: -n2\n", [["-N1"], ["-n2"]]),
        ("fluxes: -N1\nreflux: -N1\necho flux: -N1\n", []),
        ("no directive at all", []),
        ("", []),
    ],
)  # fmt: skip
def test_rfc36_examples_are_read_as_flux_reads_them(script: str, words: list[list[str]]) -> None:
    assert [list(one.words) for one in parse_directives(script)] == words


def test_a_directive_knows_its_line() -> None:
    assert [one.line for one in parse_directives(CONF)] == [2, 3]


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("#!/bin/sh\n#\n#FLUX: -N4\nhostname\n#FLUX: --dump", r"line 5: 'FLUX:' after line 4, where the script"),
        ("#FLUX: -N4\n#flux: --dump", r"line 2: sentinel '#flux:' differs from '#FLUX:'.*#FLUX: #"),
        ("# flux: -N4\n#flux: --dump", r"line 2: sentinel '#flux:' differs from '# flux:'"),
        ('#flux: -x\n#flux: -a="""\n#flux: b ""\ndate', r"line 4: triple quote of line 2 is not closed: -a=\"\"\""),
        ('#flux: -a="""\n#flux: b', r"line 2: triple quote of line 1 is not closed"),
        ("# flux: --job-name='''It's a \"job\"", r"line 1: unclosed triple quote: --job-name='''It's a"),
        ('#\n# flux: --job-name="foo', r"line 2: quote \" is not closed: --job-name="),
        ("#\n# flux: --job-name='foo''", r"line 2: quote ' is not closed"),
        ("# flux: -n1 \\", r"line 1: a backslash at its end"),
        ("# flux: --requires=a&b", r"line 1: '&' means something to shells: quote it"),
        ("# flux: please", r"line 1: unknown directive 'please'"),
    ],
)  # fmt: skip
def test_rfc36_errors_name_the_line(script: str, error: str) -> None:
    with pytest.raises(InvalidValue, match=error):
        parse_directives(script)


def test_a_script_too_large_or_without_an_interpreter_is_refused() -> None:
    check_script("#!" + "x" * (SCRIPT_BYTES_MAX - 2), "job.sh")
    with pytest.raises(LimitExceeded, match=r"job\.sh: a script of 1048577 bytes is above the limit of 1048576"):
        check_script("#!" + "x" * (SCRIPT_BYTES_MAX - 1), "job.sh")
    with pytest.raises(InvalidValue, match=r"job.sh does not begin with #!.*--wrap"):
        check_script("echo hi\n", "job.sh")


@given(st.lists(st.sampled_from(["# flux:", "#flux:", " -N1", '"""', "'''", "'", '"', "\\", "\n", "a", " ", "#"])))
def test_whatever_a_script_says_is_read_or_refused(parts: list[str]) -> None:
    with contextlib.suppress(InvalidValue):
        assert all(one.words and one.words[0].startswith("-") for one in parse_directives("".join(parts)))


# RFC 37: files that a jobspec carries. The files are the RFC's own examples where it has one.


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


# Jobs that are an instance: known by the command that Flux's batch and alloc write.


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("flux broker {{tmpdir}}/script a -b", Nested(("{{tmpdir}}/script", "a", "-b"))),
        ("flux broker -Sbroker.rc2_none=1", Nested((), stays=True)),
        ("flux broker -S broker.rc2_none=1 -v", Nested((), stays=True)),
        ("/usr/bin/flux broker --setattr=log-level=7 -- -x", Nested(("-x",))),
        ("flux broker -c{{tmpdir}}/conf.json x", Nested(("x",), config="{{tmpdir}}/conf.json")),
        ("flux broker --config-path /etc/x -v3 --verbose=2", Nested((), config="/etc/x")),
    ],
)
def test_the_command_of_flux_batch_and_alloc(words: str, found: Nested) -> None:
    assert is_nested(words.split())
    assert parse_nested(words.split()) == found


@pytest.mark.parametrize("words", ["flux", "flux run broker", "broker flux", "my-flux broker"])
def test_other_commands_are_tasks(words: str) -> None:
    assert not is_nested(words.split())


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("-Z x", "has no option -Z"),
        ("--nope=1", "has no option --nope"),
        ("-S", "-S needs a value"),
        ("--conf=x", "give the configuration to batch"),
    ],
)
def test_an_option_that_no_broker_has(words: str, error: str) -> None:
    with pytest.raises(InvalidValue, match=error):
        parse_nested(["flux", "broker", *words.split()])


def test_what_batch_makes_is_read_again() -> None:
    slots = Jobspec.from_command(["x"], ntasks=4).to_json()
    nested = Nested((SCRIPT, "arg"))
    jobspec = Jobspec.parse(nested_jobspec(slots, nested, "#!/bin/sh\n", {"queues": {"debug": {}}}))
    assert parse_nested(jobspec.command) == nested._replace(config=f"{{{{tmpdir}}}}/{CONFIG}")
    assert set(jobspec.files) == {"script", CONFIG}
    assert jobspec.raw["attributes"]["system"]["shell"]["options"]["per-resource"] == {"type": "node"}
    assert parse_nested(nested_jobspec(slots, Nested((), stays=True), None, None)["tasks"][0]["command"]).stays
