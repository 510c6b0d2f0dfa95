"""How a job shares the machine, as its owner says it on the command line."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fluxsched.core.jobfields import NAME_CHARS_MAX, REQUEUE_MAX, USUAL, Sharing
from fluxsched.core.jobspec import Jobspec

ALL = ("--bank", "physics", "--preemptible-after", "1.5h", "--requeue", "2", "--set", "night")


@pytest.mark.parametrize("command", ["submit", "run", "batch", "alloc"])
def test_every_command_that_makes_a_job_takes_it(cli: Any, command: str) -> None:
    words = () if command == "alloc" else ("--wrap",) if command == "batch" else ()
    done = cli(command, "--dry-run", "-n1", *ALL, *words, "true")
    assert (done.code, done.err) == (0, "")
    assert Jobspec.parse(json.loads(done.out)).sharing == Sharing("physics", 5400.0, 2, "night")


def test_each_copy_has_its_own(cli: Any) -> None:
    copies = cli("submit", "--dry-run", "--cc=1-2", "--bank=b{cc}", "true").out.splitlines()
    assert [Jobspec.parse(json.loads(line)).sharing.bank for line in copies] == ["b1", "b2"]


def test_a_job_that_says_nothing_has_the_usual_terms(cli: Any) -> None:
    assert Jobspec.parse(json.loads(cli("submit", "--dry-run", "true").out)).sharing == USUAL
    at_once = cli("submit", "--dry-run", "--preemptible-after", "0", "true")
    assert Jobspec.parse(json.loads(at_once.out)).sharing == Sharing(preemptible_after_s=0.0)


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("--requeue", str(REQUEUE_MAX + 1), "101 is not in the range 0<=x<=100"),
        ("--bank", "a\nb", r"attributes.system.bank: 'a\nb' is not a name: it needs printable characters"),
        ("--bank", "\x1b[31mred", r"attributes.system.bank: '\x1b[31mred' is not a name"),
        ("--bank", "x" * (NAME_CHARS_MAX + 1), "256 characters, the limit is 255: choose a shorter name"),
        ("--set", "a\tb", r"attributes.system.job.set: 'a\tb' is not a name"),
    ],
)
def test_names_and_numbers_beyond_limits(cli: Any, option: str, value: str, told: str) -> None:
    done = cli("submit", f"{option}={value}", "true")
    assert (done.calls, done.out) == ([], "")
    assert done.code in (1, 2)
    assert told in done.err
    assert done.err.replace("\n", "").isprintable()
