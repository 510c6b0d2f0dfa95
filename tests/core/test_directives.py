"""RFC 36: directives in scripts. The scripts are those of the RFC, and what Flux's own reader makes of such."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluxsched.core.batch import SCRIPT_BYTES_MAX, check_script, parse_directives
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
