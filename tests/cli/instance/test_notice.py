"""`fluxsched notice`, and its texts where jobs are submitted."""

from __future__ import annotations

import pytest

from fluxsched.errors import RPCError

LISTED = {
    "notices": [
        {"id": 1, "text": "Course on [Friday]", "user": "kim", "timestamp": 90.0},
        {"id": 3, "text": "scratch is slow", "user": "ops", "timestamp": 100.0, "until": 4e9},
    ]
}
ANSWERS = {"instance.notice-add": {"id": 3}, "instance.notice-remove": {}, "instance.notice-list": LISTED}
LIST = ("instance.notice-list", None)
DONE = {"id": 1, "status": 0, "success": True}


def test_it_lists_what_is_shown(cli) -> None:
    done = cli("notice", answers=ANSWERS)
    assert [line.split() for line in done.out.splitlines()] == [
        ["ID", "UNTIL", "USER", "TEXT"],
        ["1", "-", "kim", "Course", "on", "[Friday]"],
        ["3", *done.out.splitlines()[2].split()[1:3], "ops", "scratch", "is", "slow"],
    ]
    assert done.calls == [LIST]


@pytest.mark.parametrize(
    ("words", "calls"),
    [
        (["scratch", "is slow"], [("instance.notice-add", {"text": "scratch is slow"})]),
        (["x", "--for", "2h"], [("instance.notice-add", {"text": "x", "for": 7200.0})]),
        (["x", "--until", "4000000000"], [("instance.notice-add", {"text": "x", "until": 4e9})]),
        (["--remove", "1", "--remove", "3"],
         [("instance.notice-remove", {"ids": [1, 3]})]),
        (["--clear"], [("instance.notice-remove", None)]),
    ],
    ids=["text", "for", "until", "remove", "clear"],
)  # fmt: skip
def test_a_change_is_sent_and_then_listed(cli, words: list[str], calls: list[tuple[str, object]]) -> None:
    done = cli("notice", *words, answers=ANSWERS)
    assert (done.code, done.calls) == (0, [*calls, LIST])
    assert "scratch is slow" in done.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["list"], "use `fluxsched notice`, or quote TEXT"),
        (["clear"], "use `fluxsched notice --clear`"),
        (["x", "--clear"], "give one of TEXT, --remove and --clear"),
        (["x", "--for", "1h", "--until", "+2h"], "give one of them"),
        (["--for", "1h"], "give its TEXT, too"),
    ],
)
def test_what_is_not_meant_is_not_sent(cli, words: list[str], said: str) -> None:
    done = cli("notice", *words, answers=ANSWERS)
    assert (done.code, done.calls) == (2, [])
    assert said in " ".join(done.err.split())


@pytest.fixture
def stderr_at_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the stderr of commands, and it alone, be a terminal."""
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda self: self.name == "<stderr>")


SUBMITTED = {
    **ANSWERS, "resource.outage-list": {"outages": []}, "job-manager.output": [], "job-manager.wait": DONE,
    "job-manager.why": {"state": "RUN", "reason": "it runs"},
}  # fmt: skip
SUBMITS = [["submit", "true"], ["run", "true"], ["batch", "-n1", "--wrap", "true"], ["submit", "--cc=1-2", "true"]]


@pytest.mark.usefixtures("stderr_at_terminal")
@pytest.mark.parametrize("words", SUBMITS)
def test_who_submits_on_a_terminal_reads_them(cli, words: list[str]) -> None:
    done = cli(*words, answers=SUBMITTED)
    assert done.code == 0
    said = [line for line in done.err.splitlines() if ": notice: " in line]
    assert said == [f"fluxsched: {words[0]}: notice: {each['text']}" for each in LISTED["notices"]]
    assert "notice" not in done.out
    assert done.calls.count(LIST) == 1


@pytest.mark.usefixtures("stderr_at_terminal")
def test_an_instance_that_has_no_notices_yet_is_no_fault(cli) -> None:
    done = cli("run", "true", answers=SUBMITTED | {"instance.notice-list": RPCError("no such topic", 38)})
    assert (done.code, done.err) == (0, "")


@pytest.mark.usefixtures("stderr_at_terminal")
@pytest.mark.parametrize(
    "words",
    [["submit", "--quiet", "true"], ["submit", "--json", "true"], ["batch", "-n1", "--quiet", "--wrap", "true"]],
)
def test_what_is_to_be_quiet_asks_for_none(cli, words: list[str]) -> None:
    assert LIST not in cli(*words, answers=SUBMITTED).calls


@pytest.mark.parametrize("words", SUBMITS)
def test_without_a_terminal_there_is_no_request_more(cli, words: list[str]) -> None:
    done = cli(*words, answers=SUBMITTED)
    assert (done.code, LIST in done.calls) == (0, False)
