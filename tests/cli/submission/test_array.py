"""Arrays: `submit --cc`, and `bulksubmit` with its templates."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from fluxsched.cli import submit
from fluxsched.cli.bulksubmit import METHODS, WIDTH_MAX, InputRow, fill
from fluxsched.core.jobfields import ANTECEDENTS_MAX
from fluxsched.core.jobid import parse_jobid
from fluxsched.core.jobspec import ARRAY_TEXTS_MAX, Jobspec
from fluxsched.errors import InvalidValue, Refused, RPCError

WAITED = {"status": 0, "success": True}


def specs(done: Any) -> list[Jobspec]:
    """What was submitted."""
    return [Jobspec.parse(request["jobspec"]) for topic, request in done.calls if topic == "job-manager.submit"]


def ended(request: dict) -> list[dict]:
    statuses = {2: 3 << 8, 3: 1 << 8}
    return [
        {"id": jobid, "status": statuses.get(jobid, 0), "success": jobid not in statuses, "errstr": "it failed"}
        for jobid in request["ids"]
    ]


def test_copies_are_an_array_that_has_the_id_of_the_first(cli) -> None:
    words = ("--output", "o.{cc}", "--job-name", "n{cc}", "--env=SEED=7{cc}", "--setattr", "user.n={cc}")
    done = cli("submit", "--cc", "1-2,5", *words, "echo", "{cc}/3")
    assert done.out == "ƒ2\nƒ3\nƒ4\n"
    assert [(each.command, each.output, each.job_name, each.environment["FLUX_JOB_CC"], each.environment["SEED"],
             each.raw["attributes"]["user"]["n"], each.array) for each in specs(done)] == [
        (("echo", f"{n}/3"), f"o.{n}", f"n{n}", str(n), f"7{n}", n, 0 if n == 1 else 1) for n in (1, 2, 5)
    ]  # fmt: skip
    assert json.loads(cli("submit", "--json", "--bcc=0-1", "true").out) == {"ids": [1, 2], "array": 1}
    blind = specs(cli("submit", "--bcc", "8-9", "echo", "{cc}"))
    assert [(each.command, "FLUX_JOB_CC" in each.environment) for each in blind] == [
        (("echo", "8"), False), (("echo", "9"), False)
    ]  # fmt: skip


ARRAY_OF_THREE = {"job-manager.select": [{"ids": [7, 6]}, {"ids": [5]}]}


@pytest.mark.parametrize("words", ["submit", "submit --cc=1-2", "bulksubmit", "run --dry-run", "batch -n1 --wrap"])
def test_a_dependency_on_an_array_is_one_on_each_of_its_jobs(cli, words: str) -> None:
    dry = [] if "--dry-run" in words else ["--dry-run"] if "batch" in words else []
    done = cli(*words.split(), *dry, "--dependency=afterok:array=5:9", "true", answers=dict(ARRAY_OF_THREE), stdin="x")
    assert done.code == 0, done.err
    assert ("job-manager.select", {"constraint": {"array": [5]}}) in done.calls
    made = [json.loads(done.out)] if "--dry-run" in (*words.split(), *dry) else [each.raw for each in specs(done)]
    for jobspec in made:
        found = jobspec["attributes"]["system"]["dependencies"]
        assert [one["scheme"] for one in found] == ["afterok"] * 4
        assert [parse_jobid(one["value"]) for one in found] == [5, 6, 7, 9]


def test_arrays_and_ranges_that_no_job_can_wait_for(cli) -> None:
    done = cli("submit", "--dependency=afterany:5..7", "true", answers={"job-manager.select": []})
    assert (done.code, "there is no job 5..7" in done.err) == (1, True)


@pytest.mark.parametrize(
    ("dependencies", "size", "count", "remedy"),
    [
        ("afterok:array=5", 257, ANTECEDENTS_MAX + 1, "wait --array 5 && fluxsched submit ..."),
        ("afterany:5..900", 257, ANTECEDENTS_MAX + 1, "wait 5..900; fluxsched submit ..."),
        ("afternotok:array=5", 257, ANTECEDENTS_MAX + 1, "wait --array 5 || fluxsched submit ..."),
        ("afterok:array=5:array=900", 200, 400, "wait --array 5 && fluxsched wait --array 900 && fluxsched submit ..."),
        (
            "afterok:array=5,after:array=900",
            200,
            400,
            "wait --array 5; fluxsched wait --array 900; fluxsched submit ...",
        ),
    ],
)
def test_more_jobs_than_one_can_wait_for(cli, dependencies: str, size: int, count: int, remedy: str) -> None:
    def select(request: dict) -> list[dict]:
        first = request["constraint"].get("array", [5])[0]
        return [{"ids": list(range(first, first + size))}]

    done = cli("submit", f"--dependency={dependencies}", "true", answers={"job-manager.select": select})
    assert f"this one would for {count}: `fluxsched {remedy}` waits for any number" in done.err
    assert [topic for topic, _ in done.calls if topic == "job-manager.submit"] == []


def test_an_array_and_one_job_more_than_one_can_wait_for(cli) -> None:
    """A job of the array that is named again is no more."""
    all_of_it = {"job-manager.select": [{"ids": list(range(5, 5 + ANTECEDENTS_MAX))}]}
    done = cli("submit", "--dependency=afterok:array=5:9999", "true", answers=dict(all_of_it))
    assert (done.code, "with array=5 this one would for 257" in done.err) == (1, True)
    assert cli("submit", "--dependency=afterok:array=5:ƒ6", "true", answers=dict(all_of_it)).code == 0


@pytest.mark.parametrize("array", ["5", "array=5"])
def test_each_copy_waits_for_one_job_of_an_array(cli, array: str) -> None:
    done = cli("submit", "--cc=1-3", f"--dependency=aftercorr:{array}", "true", answers=dict(ARRAY_OF_THREE))
    assert done.code == 0, done.err
    found = [each.raw["attributes"]["system"]["dependencies"] for each in specs(done)]
    assert [(one["scheme"], parse_jobid(one["value"])) for [one] in found] == [("afterok", at) for at in (5, 6, 7)]


def test_a_dependency_on_one_job_of_an_array_says_so(cli, job) -> None:
    listed = {"job-manager.list": {"jobs": [job(id=6, array=5)]}}
    answers = {**listed, "submit_many": [9]}
    said = "others of array ƒ6 are not waited for: array=ƒ6 would mean all of its jobs\n"
    for words in (("submit",), ("batch", "-n1", "--wrap")):
        done = cli(*words, "--dependency=afterok:5", "true", answers=dict(answers))
        assert (done.code, done.err.endswith(f": {said}")) == (0, True), done.err
    _, asked = [call for call in done.calls if call[0] == "job-manager.list"][-1]
    assert asked["constraint"]["and"][1:] == [{"array": [5]}, {"not": [{"id": [5]}]}]
    inputs = list(map(str, range(1, submit.HINTED_MAX + 1)))
    done = cli("bulksubmit", "--dependency=afterok:{}", "true", ":::", *inputs, answers=listed)
    assert done.err.endswith(f": {said}")
    _, asked = [call for call in done.calls if call[0] == "job-manager.list"][-1]
    jobids = list(range(1, submit.HINTED_MAX + 1))
    assert asked["constraint"]["and"][1:] == [{"array": jobids}, {"not": [{"id": jobids}]}]


@pytest.mark.parametrize("dependency", ["array=5", "5..7", "array=5:9"])
@pytest.mark.parametrize("words", ["submit", "bulksubmit", "batch -n1 --wrap"])
def test_who_names_an_array_is_not_told_that_there_is_one(cli, job, words: str, dependency: str) -> None:
    answers = {**ARRAY_OF_THREE, "job-manager.list": {"jobs": [job(id=8, array=5)]}}
    done = cli(*words.split(), f"--dependency=afterok:{dependency}", "true", answers=answers, stdin="x")
    assert (done.code, done.err) == (0, "")


def test_of_more_jobs_than_can_be_looked_at_nothing_is_said(cli, job) -> None:
    """Some of them might be the others of an array that another command waits for."""
    answers = {"job-manager.list": {"jobs": [job(id=8, array=5)]}}
    inputs = list(map(str, range(1, submit.HINTED_MAX + 2)))
    done = cli("bulksubmit", "--dependency=afterok:{}", "true", ":::", *inputs, answers=answers)
    assert (done.code, done.err) == (0, "")


FILES = ("--output={cc}.{{id}}", "--error=/tmp/e{cc}", "--input=/tmp/i{cc}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "requests"),
    [
        (("--cc=1-1000", "--job-name=n{cc}", *FILES, "-n2", "echo", "{cc}", "b"), 2),
        (("--bcc=1-3", "true"), 1),
        (("--cc=1-3", "--output=/tmp/{cc}/o", "--allow-infeasible", "--dependency=afterok:1", "true"), 3),
        (("--cc=1-3", "--cwd=/d{cc}", "true"), 3),
        (("--cc=1-3", "--env=A={cc}", "true"), 3),
        (("--cc=1-3", "--setattr=user.n={cc}", "true"), 3),
        (("--cc=1-3", "--job-name=n{cc}", "--setattr=job.name=m", "true"), 3),
        (("--cc=1-3", "--part", "a:1=echo {cc}", "--part", "b:1=true"), 3),
        (("--cc=1-3", "true", *["{cc}"] * (ARRAY_TEXTS_MAX + 1)), 3),
        (("--cc=1-3", "true", "{cc}" + "x" * submit.TEXTS_CHARS_MAX), 3),
    ],
)  # fmt: skip
def test_copies_that_differ_in_a_few_texts_go_in_one_request(cli, words: tuple[str, ...], requests: int) -> None:
    """What the instance makes of it is what `--dry-run` shows."""
    done, shown = cli("submit", *words), cli("submit", "--dry-run", *words)
    assert done.code == 0, done.err
    assert done.arrays == requests
    made = [copy.deepcopy(each.raw) for each in specs(done)]
    assert [each["attributes"]["system"].pop("array") for each in made] == [0] + [1] * (len(made) - 1)
    assert made == [json.loads(line) for line in shown.out.splitlines()]


def test_jobs_of_bulksubmit_go_in_one_request_if_only_their_commands_differ(cli) -> None:
    done = cli("bulksubmit", "-n2", "echo", "{}", "{.%}", "c", ":::", *(f"{at}.in" for at in range(600)))
    assert done.arrays == 2
    assert [each.command for each in specs(done)] == [("echo", f"{at}.in", str(at), "c") for at in range(600)]
    done = cli("bulksubmit", "--cc=1-2", "echo", "{}{cc}", ":::", "a", "b")
    assert done.arrays == 1
    assert [each.command[1] for each in specs(done)] == ["a1", "a2", "b1", "b2"]
    done = cli("bulksubmit", "-n{}", "true", ":::", "1", "2")
    assert done.arrays == 2
    done = cli("bulksubmit", "echo", "{}", stdin="a\nb\0\nc\0\n")
    assert (done.code, done.calls) == (1, [])
    assert all(f"input {at} (" in done.err for at in (2, 3)), done.err
    done = cli("bulksubmit", "-n", "x", "echo", "{}", ":::", "a", "b")
    assert all(f"input {at} (" in done.err for at in (1, 2))


def test_what_refuses_the_first_copy_has_nothing_submitted(cli) -> None:
    done = cli("submit", "--cc=1-1000", "true", answers={"submit_many": Refused("queue 'x' is disabled", 22)})
    assert (done.code, done.out, done.err) == (1, "", "fluxsched: submit: cc 1: queue 'x' is disabled\n")
    assert len(done.calls) == 1
    done = cli("submit", "--cc=1-1000", "--requires", "host:n[1", "true")
    assert (done.code, done.calls) == (2, [])


def test_what_is_refused_later_is_named_and_the_others_stay(cli) -> None:
    ids = iter(range(1, 100))

    def submitted(request: dict) -> dict:
        if int(request["jobspec"]["tasks"][0]["command"][1]) >= 3:
            raise RPCError("too many jobs", 11)
        return {"id": next(ids)}

    done = cli("submit", "--cc=1-3", "echo", "{cc}", answers={"job-manager.submit": submitted})
    assert (done.code, done.out) == (1, "ƒ2\nƒ3\n")
    assert done.err == "fluxsched: submit: not submitted: cc 3: too many jobs\n"
    ids = iter(range(1, 100))
    done = cli("submit", "--cc=1-30", "echo", "{cc}", answers={"job-manager.submit": submitted})
    assert len(done.err.splitlines()) == submit.REFUSALS_SHOWN_MAX + 1
    assert done.err.endswith("not submitted: 8 jobs more\n")


def test_a_reader_who_has_seen_enough_cuts_no_array_short(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def print_flushed(line: str) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(submit, "print_flushed", print_flushed)
    done = cli("submit", "--cc=1-3", "true")
    assert [topic for topic, _ in done.calls] == ["job-manager.submit"] * 3
    assert done.code == 141


def test_submit_and_wait_and_watch(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    done = cli("submit", "--wait", "--quiet", "--cc=1-3", "true", answers={"job-manager.wait-all": ended})
    assert (done.code, done.out) == (3, "")
    assert done.err == "fluxsched: submit: ƒ3: it failed\nfluxsched: submit: ƒ4: it failed\n"

    def output(request: dict) -> list[dict]:
        return [{"stream": "stdout", "data": b"a%d\nb" % request["id"], "task": 0}]

    monkeypatch.setattr(submit, "OUTPUTS_MAX", 2)
    answers = {"job-manager.wait-all": ended, "job-manager.output": output}
    done = cli("submit", "--watch", "-l", "--jps", "--quiet", "--cc=1-3", "true", answers=answers)
    assert done.out == "ƒ2: 0: a1\nƒ2: 0: b\nƒ3: 0: a2\nƒ3: 0: b\nƒ4: 0: a3\nƒ4: 0: b\n"
    assert "3 jobs in " in done.err
    answers["job-manager.wait-all"] = lambda request: [{"id": 1, "last": 9, **WAITED}, *ended({"ids": [2]})]
    done = cli("submit", "--watch", "-l", "--quiet", "--cc=1-2", "true", answers=answers)
    assert done.out.count("ƒA: 0: a9\n") == 1, "what its last attempt wrote"
    failing = {"job-manager.wait-all": [RPCError("no such job", 2)]}
    assert cli("submit", "--wait", "true", answers=failing).err == "fluxsched: submit: no such job\n"


def dry(cli: Any, *words: str, stdin: str | None = None) -> list[str]:
    done = cli("bulksubmit", "--dry-run", *words, stdin=stdin)
    assert (done.code, done.err, done.calls) == (0, "", [])
    return [line.removeprefix("bulksubmit: submit ") for line in done.out.splitlines()]


def test_inputs_are_read_from_stdin_and_files(cli, tmp_path: Path) -> None:
    assert dry(cli, "echo", "{}", stdin="1\n2\n") == ["echo 1", "echo 2"]
    (tmp_path / "in").write_text("5 6\n7")
    assert dry(cli, "a", "{}", "::::", f"{tmp_path}/in") == ["a '5 6'", "a 7"]
    assert dry(cli, "--sep=none", "a", "{0}", "{1}", ":::", "1", "2", "3", "::::+", f"{tmp_path}/in") == [
        "a 1 5", "a 2 6", "a 3 7"
    ]  # fmt: skip
    assert dry(cli, "--sep", "\\0", "a", "{}", stdin="x y\0z\0") == ["a 'x y'", "a z"]
    assert dry(cli, "--sep", "\\", "a", "{}", stdin="x\\z\n") == ["a x", "a z"]
    assert sorted(dry(cli, "--shuffle", "a", "{}", ":::", *"1234")) == ["a 1", "a 2", "a 3", "a 4"]


def test_options_are_templates_and_submitted_as_submit_reads_them(cli) -> None:
    words = ("-n{0}", "-N1", "-x", "--job-name=j{1}", "--env=X={1}", "--env=-HOME", "--cc={2}", "sh", "{0}", "{cc}")
    done = cli("bulksubmit", *words, ":::", "1", "2", ":::+", "a", "b", ":::+", "1-2", "7")
    assert done.out == "ƒ2\nƒ3\nƒ4\n"
    made = specs(done)
    assert [each.request.exclusive for each in made] == [True] * 3
    assert [(each.ntasks(each.request.slots.min), each.job_name, each.environment["X"], each.command, each.array,
             each.environment["FLUX_JOB_CC"], "HOME" in each.environment) for each in made] == [
        (1, "ja", "a", ("sh", "1", "1"), 0, "1", False),
        (1, "ja", "a", ("sh", "1", "2"), 1, "2", False),
        (2, "jb", "b", ("sh", "2", "7"), 1, "7", False),
    ]  # fmt: skip
    assert [each.command for each in specs(cli("bulksubmit", "a{cc}b", "{}", ":::", "x"))] == [("ab", "x")]


def test_inputs_that_cannot_be_read(cli, tmp_path: Path) -> None:
    done = cli("bulksubmit", "echo", "::::", f"{tmp_path}/none")
    assert (done.code, done.err) == (1, f"fluxsched: bulksubmit: {tmp_path}/none: No such file or directory\n")
    (tmp_path / "latin").write_bytes(b"\xe4")
    done = cli("bulksubmit", "echo", "::::", f"{tmp_path}/latin")
    assert (done.code, f"{tmp_path}/latin is not UTF-8 text" in done.err) == (2, True)


def test_inputs_that_are_not_text_are_named_by_their_bytes() -> None:
    assert str(InputRow(0, ("caf\udce9", "b"))) == "input 1 ('caf\\xe9', 'b')"


def test_jobs_inputs_and_combinations_are_bounded(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fluxsched.cli.bulksubmit.INPUTS_MAX", 4)
    monkeypatch.setattr("fluxsched.cli.bulksubmit.VALUES_MAX", 5)
    monkeypatch.setattr("fluxsched.cli.submit.COPIES_MAX", 5)
    monkeypatch.setattr("fluxsched.cli.bulksubmit.INPUT_CHARS_MAX", 10)
    for words, text in (
        (("a", ":::", *"12345"), "5 inputs in one list exceed the limit of 4"),
        (("a", ":::", *"123", ":::", *"12"), "more than 4 combinations: submit them in parts"),
        (("--cc=1-3", "a", ":::", *"12"), "6 jobs exceed the limit of 5 at a time"),
        (("a",), "inputs: - has more than 10 characters"),
        (("a", ":::", *"12", ":::+", *"12", ":::+", "1"), "2 combinations of 3 inputs each are more than 5 in all"),
    ):
        done = cli("bulksubmit", *words, stdin="x" * 11)
        assert (done.code != 0, done.calls, text in done.err) == (True, [], True), done.err


def test_a_placeholder_is_padded_to_a_width_that_a_command_may_have() -> None:
    row = InputRow(0, ("a",))
    assert len(fill("{:>1024}", row, METHODS)) == WIDTH_MAX
    for wide in ("{:>1025}", "{seq:.999999999f}"):
        with pytest.raises(InvalidValue, match=f"more than {WIDTH_MAX} characters wide"):
            fill(wide, row, METHODS)


def test_inputs_that_can_never_run_are_all_named_and_each_shape_is_asked_about_once(cli) -> None:
    def asked(payload: dict) -> dict:
        wide = payload["jobspec"]["resources"][0]["count"]
        if wide > 4:
            raise RPCError(f"needs {wide} slots; there are 4", 75)
        return {}

    done = cli("bulksubmit", "-n{}", "true", ":::", *"19181", answers={"feasibility.check": asked})
    assert (done.code, done.out) == (1, "")
    assert done.err == (
        "fluxsched: bulksubmit: input 2 ('9'): can never run: needs 9 slots; there are 4; "
        "input 4 ('8'): can never run: needs 8 slots; there are 4; "
        "use --allow-infeasible to submit it and wait until it can\n"
    )
    assert [topic for topic, _ in done.calls] == ["feasibility.check"] * 3


def test_a_fault_that_many_inputs_have_is_said_once_with_the_first_of_them(cli):
    inputs = [f"i{number}" for number in range(submit.REFUSALS_SHOWN_MAX + 2)]
    done = cli("bulksubmit", "--output=nowhere/{}", "true", ":::", *inputs)
    assert (done.code, done.calls) == (1, [])
    assert done.err.count("there is no directory") == 1
    assert done.err.count("input ") == submit.REFUSALS_SHOWN_MAX
    assert "('i19'), and 2 more: --output: there is no directory" in done.err
