"""Policies by name, by file, and what is said at the door; the newcomer's file in examples/ is one of them."""

from pathlib import Path
from typing import ClassVar

import pytest

from fluxsched.errors import InvalidValue, LimitExceeded
from fluxsched.sched import policy
from fluxsched.sched.loading import SPEC_CHARS_MAX, parse_spec
from fluxsched.sched.policy import Option, Skips, Start
from fluxsched.sched.registry import check_class, find, make, says
from tests.sched.site import Bench, limit, under_fair

NEWCOMER = Path(__file__).parents[2] / "examples" / "policy_smallest.py"
NEWCOMER_LINES_MAX = 25


def test_parse_spec():
    assert parse_spec("fifo") == ("fifo", {})
    assert parse_spec("conservative:compress,order=saf") == ("conservative", {"compress": "yes", "order": "saf"})
    assert parse_spec("fifo:placement=best-fit,x=y=z") == ("fifo", {"placement": "best-fit", "x": "y=z"})
    assert parse_spec("./a/b.py:n=1") == ("./a/b.py", {"n": "1"})
    assert parse_spec("off.py:hosts=node[1-2,7],x") == ("off.py", {"hosts": "node[1-2,7]", "x": "yes"})


@pytest.mark.parametrize(
    ("bad", "words"),
    [("", "names no policy"), (":a=b", "names no policy"), ("fifo:", "key=value"),
     ("fifo:=1", "'=1'"), ("fifo:a=1,,b=2", "'' is not"), ("fifo:a=1,a=2", "'a' is given twice")],
)  # fmt: skip
def test_bad_specs_name_the_part(bad, words):
    with pytest.raises(InvalidValue, match=words):
        parse_spec(bad)


def test_a_spec_has_a_limit():
    with pytest.raises(LimitExceeded, match=str(SPEC_CHARS_MAX)):
        parse_spec("x" * (SPEC_CHARS_MAX + 1))


def test_ours_are_found_by_name():
    for name in ("fifo", "firstfit"):
        assert isinstance(make(name, {"placement": "best-fit"}), find(name))
        check_class(find(name))


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(InvalidValue, match=r"no policy 'fofi': there are .*fifo, firstfit"):
        make("fofi", {})


def test_options_are_checked():
    with pytest.raises(InvalidValue, match="placement='bestest' should be one of worst-fit, best-fit"):
        make("fifo", {"placement": "bestest"})
    with pytest.raises(InvalidValue, match="no option 'depth', 'width'; it has placement"):
        make("fifo", {"width": "1", "depth": "1"})


class Wrong:
    name = "wrong"

    def schedule(self, view): ...


class Nameless:
    def schedule(self, view, now_s): ...


class Coloured:
    name = "\x1b[31mred"

    def schedule(self, view, now_s): ...


class Bare:
    name = "bare"


class Loose:
    name = "loose"
    OPTIONS = {"a": 1}  # noqa: RUF012

    def schedule(self, view, now_s): ...


@pytest.mark.parametrize(
    ("cls", "words"),
    [
        (Wrong, r"policy 'wrong': schedule\(self, view\) should be schedule\(self, view, now_s\)"),
        (Nameless, "Nameless: name is None"),
        (Coloured, r"Coloured: name is '\\x1b\[31mred'; it should be a text"),
        (Bare, "'bare' has no method schedule"),
        (Loose, "'loose': OPTIONS should map"),
        (make("fifo", {}), "should be a class"),
    ],
)
def test_the_check_says_what_it_has_and_should_have(cls, words):
    with pytest.raises(InvalidValue, match=words):
        check_class(cls)


class Nested:
    """Runs `inner` policies, of its own kind."""

    inner: ClassVar[list[int]] = [1, 2]


def test_a_policy_may_have_an_inner_of_its_own():
    assert says(Nested()) == says(Nested) == "Runs inner policies, of its own kind."


PARSED = """
from dataclasses import dataclass
from fluxsched.sched.policy import Option

@dataclass
class Deep:
    depth: int
    name = "deep"
    OPTIONS = {"depth": Option(3, parse=int, help="a number")}
    def schedule(self, view, now_s):
        yield from ()
"""


def test_options_with_a_parser_in_a_file(tmp_path):
    path = tmp_path / "deep.py"
    path.write_text("from __future__ import annotations\n" + PARSED)
    made = make(str(path), {"depth": "7"})
    assert made.depth == 7
    assert make(str(path), {}).OPTIONS["depth"] == Option(3, parse=int, help="a number")
    with pytest.raises(InvalidValue, match=r"depth='x'.*a number"):
        make(str(path), {"depth": "x"})


@pytest.mark.parametrize(
    ("text", "words"),
    [("x = 1", "it has none$"), ("def (", "cannot be loaded"), ("import no_such_thing_at_all", "no_such_thing"),
     ("class A:\n name='a'\n def schedul(self): ...", "it has none, since A lacks one of these"),
     ("class A:\n name='a'\n def schedule(self): ...\nclass B(A): ...", "it has A, B")],
)  # fmt: skip
def test_bad_files(tmp_path, text, words):
    path = tmp_path / "bad.py"
    path.write_text(text)
    with pytest.raises(InvalidValue, match=words):
        make(str(path), {})


def test_no_such_file(tmp_path):
    with pytest.raises(InvalidValue, match="cannot be loaded"):
        make(str(tmp_path / "none.py"), {})
    with pytest.raises(InvalidValue, match=r"ends in '\.py'"):
        make(str(tmp_path / "none.txt"), {})


def test_the_newcomers_policy():
    assert len(NEWCOMER.read_text().splitlines()) <= NEWCOMER_LINES_MAX
    bench = Bench(f"{NEWCOMER}:placement=best-fit")
    bench.grow("0-1")
    for jobid, cores in ((1, 4), (2, 2), (3, 1), (4, 3)):
        bench.submit(jobid, cores=cores)
    bench.run()
    assert {jobid: held.summary() for jobid, held in bench.granted.items()} == {
        3: "rank0/core0", 2: "rank0/core[1-2]", 4: "rank1/core[0-2]",
    }  # fmt: skip
    bench.free(4)
    bench.run()
    assert 1 in bench.granted


def test_a_depth_has_a_bounded_number_of_digits():
    most = limit("DEPTH_DIGITS_MAX")
    make("hybrid", {"depth": "9" * most})
    with pytest.raises(InvalidValue, match="a number"):
        make("hybrid", {"depth": "9" * (most + 1)})


def test_a_policy_of_0_1_0_finds_the_class_of_waiting_jobs() -> None:
    assert policy.Waiting is policy.PendingJob


class OfOldDays:
    """A policy as 0.1.0 had them: it asks the view for arrivals, and notes by request what fits nowhere."""

    name = "of-old-days"
    OPTIONS: ClassVar = {}

    def schedule(self, view, now_s):
        for job in view.late() or view.queue:
            fit = view.find(job)
            if fit is not None:
                yield Start(job.jobid, fit)
            Skips().kinds.add(id(job.request))


@pytest.mark.parametrize("around", [OfOldDays(), under_fair(OfOldDays())])
def test_a_policy_of_0_1_0_runs_and_is_told_which_of_its_names_go(around):
    bench = Bench(around)
    bench.grow("0")
    bench.submit(1)
    with pytest.warns(FutureWarning) as told:
        bench.run()
    assert 1 in bench.granted
    said = {str(warning.message): Path(warning.filename) for warning in told}
    assert said == dict.fromkeys(
        [
            "late of the view goes with the next version: declare ARRIVALS and REPLANS instead",
            "Skips.kinds goes with the next version: call fits_nowhere(job) instead",
        ],
        Path(__file__),
    )
