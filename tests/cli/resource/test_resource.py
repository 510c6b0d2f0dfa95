"""`fluxsched resource`: what it sends and asks; `golden/resource.txt` has what it shows."""

from __future__ import annotations

import json

import pytest

from fluxsched.cli.resource import JOBS_SHOWN_MAX
from fluxsched.cli.target_rows import where_of
from fluxsched.core.idset import Idset
from fluxsched.core.resources import ResourceSet

from ..sites import MOVED, four_nodes


@pytest.fixture
def ask(cli):
    return lambda *args, **kw: cli("resource", *args, answers={**four_nodes(), **kw.pop("answers", {})}, **kw)


@pytest.mark.parametrize("want", ["0-1", ""])
def test_what_a_queue_s_jobs_may_get(ask, want: str) -> None:
    for command in ("list -s all", "status"):
        answers = {"resource.targets": {"targets": want}}
        done = ask(*command.split(), "-q", "batch", "-n", "-o", "{ranks}", answers=answers)
        assert (done.code, done.out) == (0, f"{want}\n" if want else "")
        assert ("resource.targets", {"targets": "queue:batch"}) in done.calls


ADMIN = [
    ("drain 0-1", "resource.drain", {"targets": "0-1"}),
    ("drain node1 it is broken", "resource.drain", {"targets": "node1", "reason": "it is broken"}),
    ("drain -f 1 x", "resource.drain", {"targets": "1", "reason": "x", "mode": "overwrite"}),
    ("drain -ff 1 x", "resource.drain", {"targets": "1", "reason": "x", "mode": "force-overwrite"}),
    ("drain --force --force 1", "resource.drain", {"targets": "1", "mode": "force-overwrite"}),
    ("drain -u 0-1", "resource.drain", {"targets": "0-1", "mode": "update"}),
    ("drain 1 -- -f is no option here", "resource.drain", {"targets": "1", "reason": "-f is no option here"}),
    ("drain --cores 4-7 --gpus 2 1 x", "resource.drain", {"targets": "1", "reason": "x", "cores": "4-7", "gpus": "2"}),
    ("drain 1 --for 2h x", "resource.drain", {"targets": "1", "reason": "x", "for": 7200.0}),
    ("undrain 1 --cores 4-7 -f", "resource.undrain", {"targets": "1", "mode": "overwrite", "cores": "4-7"}),
    ("undrain 1", "resource.undrain", {"targets": "1"}),
    ("undrain -f 1 mended", "resource.undrain", {"targets": "1", "reason": "mended", "mode": "overwrite"}),
    ("undrain -u 1", "resource.undrain", {"targets": "1", "mode": "update"}),
    ("exclude 1", "resource.assign", {"targets": "1", "group": "exclude", "graceful": False}),
    ("exclude --graceful 1", "resource.assign", {"targets": "1", "group": "exclude", "graceful": True}),
    ("include 1", "resource.include", {"targets": "1", "graceful": False}),
    ("assign node[0-1] debug", "resource.assign", {"targets": "node[0-1]", "group": "debug", "graceful": False}),
    ("property add 0-1 ssd", "resource.property-add", {"properties": {"ssd": "0-1"}}),
    ("property remove node1 ssd", "resource.property-remove", {"properties": {"ssd": "node1"}}),
    ("reload", "resource.reload", {}),
    ("reload -f", "resource.reload", {"force": True}),
]


@pytest.mark.parametrize(("args", "topic", "payload"), ADMIN)
def test_administration_is_one_request(ask, args: str, topic: str, payload: dict) -> None:
    done = ask(*args.split(), answers={topic: {}})
    assert (done.out, done.err, done.code, done.calls) == ("", "", 0, [(topic, payload)])


def test_reload_sends_an_absolute_path(ask, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "R").write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert ask("reload", "R", answers={"resource.reload": {}}).calls == [
        ("resource.reload", {"path": str(tmp_path / "R")})
    ]


def test_a_move_names_the_jobs_that_it_ends_up_to_a_limit(ask) -> None:
    answer = MOVED | {"draining": "", "there": "", "ending": [*range(1, JOBS_SHOWN_MAX + 3)]}
    done = ask("assign", "0-4", "debug", answers={"resource.assign": answer})
    assert done.out.splitlines()[2].startswith("ending 12 jobs there (elastic jobs shrink): ƒ2, ƒ3, ")
    assert done.out.endswith("ƒB and 2 more\n")


MOVED_1 = {"moved": "1", "leaving": ""}


@pytest.mark.usefixtures("at_terminal")
class TestQuestions:
    """On a terminal, what ends jobs says so first."""

    def answers(self, *jobs: dict, **states: int) -> dict:
        return {
            "job-manager.list": {"jobs": list(jobs)}, **dict.fromkeys(("resource.assign", "resource.include"), MOVED_1),
            "job-manager.stats-get": {"jobs": states}, "resource.reload": {},
        }  # fmt: skip

    def test_pending_jobs_are_counted_where_targets_are_taken_away(self, ask, job) -> None:
        answers = self.answers(job(), sched=2, depend=1, run=7)
        want = "3 jobs pending: those that no longer fit wait (or are denied, by [policy]).\nGo ahead? [y/N]: "
        done = ask("assign", "0", "debug", stdin="n\n", answers=answers)
        assert done.err.endswith(f" on node[0-1]\n{want}n\nfluxsched: resource assign: no target was moved\n")
        assert ask("exclude", "3", stdin="y\n", answers=answers).err == f"{want}y\n"
        assert ask("include", "2", answers=answers).err == ""

    def test_reload_asks_where_there_are_jobs(self, ask) -> None:
        done = ask("reload", stdin="n\n", answers=self.answers(run=1, sched=1))
        assert (done.code, done.err) == (
            1,
            "1 job running: those on removed targets end.\n"
            "1 job pending: those that no longer fit wait (or are denied, by [policy]).\n"
            "Go ahead? [y/N]: n\nfluxsched: resource reload: nothing was reloaded\n",
        )
        assert "resource.reload" not in dict(done.calls)
        assert ask("reload", "-y", answers=self.answers(run=1)).calls == [("resource.reload", {})]
        assert ask("reload", answers=self.answers(inactive=9)).calls[-1] == ("resource.reload", {})

    def test_jobs_are_named_and_yes_goes_ahead(self, ask, job) -> None:
        done = ask("exclude", "node1", stdin="y\n", answers=self.answers(job(), job(id=6, ranks="2")))
        assert done.err == (
            "This ends 1 job at once (use --graceful to wait for them):\n  ƒ6 sleep on node[0-1]\nGo ahead? [y/N]: y\n"
        )
        assert (done.out, done.code, done.calls[-1][0]) == ("moved 1\n", 0, "resource.assign")
        assert ("job-manager.list", {"states": ["RUN"]}) in done.calls

    @pytest.mark.parametrize("answer", ["n\n", "\n"])
    def test_no_moves_nothing(self, ask, job, answer: str) -> None:
        done = ask("assign", "1", "debug", stdin=answer, answers=self.answers(job()))
        assert done.code == 1
        assert done.err.endswith("fluxsched: resource assign: no target was moved\n")
        assert "resource.assign" not in dict(done.calls)

    def test_more_than_a_screenful_is_a_number(self, ask, job) -> None:
        done = ask("exclude", "0", stdin="y\n", answers=self.answers(*[job(id=at) for at in range(JOBS_SHOWN_MAX + 3)]))
        assert f"This ends {JOBS_SHOWN_MAX + 3} jobs" in done.err
        assert "\n  and 3 more\nGo ahead?" in done.err

    @pytest.mark.parametrize("args", ["exclude 3", "exclude --yes 1", "exclude --graceful 1", "assign -y 1 debug"])
    def test_nothing_is_asked_when_no_job_ends_or_it_is_wanted(self, ask, job, args: str) -> None:
        done = ask(*args.split(), answers=self.answers(job()))
        assert (done.code, done.err) == (0, "")

    def test_unknown_targets_are_found_before_the_question(self, ask, job) -> None:
        done = ask("include", "7-8", answers=self.answers(job()))
        assert (done.code, "unknown ranks 7-8" in done.err) == (1, True)


def test_acquire_prints_the_stream(ask) -> None:
    stream = [{"type": "grow", "resources": {}, "online": "0", "offline": ""}, {"type": "offline", "targets": "0"}]
    done = ask("acquire", "--group", "debug", answers={"resource.acquire": stream})
    assert [json.loads(line) for line in done.out.splitlines()] == stream
    assert done.calls == [("resource.acquire", {"group": "debug", "accept": ["update", "parts"]})]
    assert ask("acquire", "--plain", answers={"resource.acquire": []}).calls == [("resource.acquire", None)]


def test_acquire_is_interrupted(ask) -> None:
    assert ask("acquire", answers={"resource.acquire": [{}, KeyboardInterrupt()]}).code == 130


def test_a_group_that_is_a_cluster_is_shown_as_one():
    execution = {"R_lite": [{"rank": "0-4", "children": {"core": "0"}}], "nodelist": ["fake[0-1],east:fake[0-2]"]}
    source = ResourceSet.parse({"version": 1, "execution": execution})
    for ranks, made_up, where in (
        ("2-4", "", "cluster"), ("2-4", "0-1", "cluster"), ("0-1", "0-1", "made-up"), ("0-1", "", "here"), ("", "0", "")
    ):  # fmt: skip
        assert where_of(Idset.parse(ranks), source, Idset.parse(made_up)) == where
    here = ResourceSet.parse({"version": 1, "execution": {**execution, "nodelist": ["node[0-4]"]}})
    assert where_of(Idset.parse("0-4"), here, Idset.parse("")) == ""
