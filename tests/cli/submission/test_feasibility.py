"""`submit` and `run` ask whether a job could ever run, before they submit it."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from fluxsched.cli import submit
from fluxsched.errors import RPCError
from tests.cli.conftest import Cli

NEVER = RPCError("needs 9 nodes of 1 core; the group has only 4 such nodes", errno.EOVERFLOW)


@pytest.mark.parametrize("command", ["submit", "run"])
def test_what_can_never_run_is_refused_and_not_submitted(cli: Cli, command: str) -> None:
    done = cli(command, "-N9", "true", answers={"feasibility.check": NEVER})
    assert done.code == 1
    assert done.err == (
        f"fluxsched: {command}: can never run: {NEVER}; use --allow-infeasible to submit it and wait until it can\n"
    )
    [(topic, payload)] = done.calls
    assert topic == "feasibility.check"
    assert "environment" not in payload["jobspec"]["attributes"]["system"]


def test_queues_that_could_run_it_are_named(cli: Cli) -> None:
    def asked(payload: Any) -> Any:
        return {} if payload["jobspec"]["attributes"]["system"]["queue"] == "large" else NEVER

    names = ["small", "large", *[f"q{at}" for at in range(submit.QUEUES_TRIED_MAX)]]
    answers = {"feasibility.check": asked, "job-manager.queue-list": {"queues": names}}
    done = cli("submit", "-N9", "-q", "small", "true", answers=answers)
    assert f"can never run in queue small: {NEVER}; queue large could run it; use --allow-infeasible" in done.err
    assert [topic for topic, _ in done.calls].count("feasibility.check") == 1 + submit.QUEUES_TRIED_MAX


def test_allow_infeasible_submits_and_says_that_the_job_waits(cli: Cli) -> None:
    done = cli("submit", "-N9", "--cc=0-2", "--allow-infeasible", "true", answers={"feasibility.check": NEVER})
    assert done.code == 0
    assert [topic for topic, _ in done.calls] == ["job-manager.submit"] * 3
    assert {payload["jobspec"]["attributes"]["system"]["unsatisfiable"] for _, payload in done.calls} == {"wait"}


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ETIMEDOUT, errno.EINVAL])
def test_without_a_verdict_the_job_is_submitted(cli: Cli, number: int) -> None:
    done = cli("submit", "true", answers={"feasibility.check": RPCError("no scheduler serves it", number)})
    assert (done.code, [topic for topic, _ in done.calls]) == (0, ["feasibility.check", "job-manager.submit"])


def test_the_question_leaves_the_files_of_a_job_at_home(cli: Cli) -> None:
    """A script may have a megabyte, and the scheduler reads none of it."""
    done = cli("batch", "-n1", "--wrap", "true", answers={"feasibility.check": {}})
    (topic, asked), *_ = done.calls
    assert topic == "feasibility.check"
    assert {"environment", "files"}.isdisjoint(asked["jobspec"]["attributes"]["system"])


def test_copies_are_asked_about_once(cli: Cli) -> None:
    done = cli("submit", "--cc=0-99", "true", answers={"feasibility.check": {}})
    assert [topic for topic, _ in done.calls] == ["feasibility.check", *["job-manager.submit"] * 100]


def test_bulksubmit_submits_none_if_one_can_never_run(cli: Cli) -> None:
    def asked(payload: Any) -> Any:
        wide = payload["jobspec"]["resources"][0]["count"] == 9
        return NEVER if wide else {}

    done = cli("bulksubmit", "-n", "{}", "true", ":::", "1", "9", answers={"feasibility.check": asked})
    assert (done.code, [topic for topic, _ in done.calls]) == (1, ["feasibility.check"] * 2)
    assert "can never run" in done.err


def test_bulksubmit_names_all_inputs_that_the_instance_refuses(cli: Cli) -> None:
    def estimate(jobspec: Any) -> dict[str, Any]:
        queue = jobspec["attributes"]["system"]["queue"]
        return {"when": f"no queue {queue}" if queue != "batch" else "now", "refused": queue != "batch"}

    answers = {
        "feasibility.check": {},
        "job-manager.submit": RPCError("no queue night", errno.EINVAL),
        "job-manager.when": lambda asked: {"estimates": [estimate(each) for each in asked["jobspecs"]]},
    }
    done = cli("bulksubmit", "--queue={}", "true", ":::", "night", "batch", "weekend", answers=answers)
    assert (done.code, done.out) == (1, "")
    assert done.err == (
        "fluxsched: bulksubmit: input 1 ('night'): no queue night; input 3 ('weekend'): no queue weekend\n"
    )
    old = answers | {"job-manager.when": RPCError("unknown request", errno.ENOSYS)}
    done = cli("bulksubmit", "--queue={}", "true", ":::", "night", "weekend", answers=old)
    assert done.err == "fluxsched: bulksubmit: input 1 ('night'): no queue night\n"


def test_many_different_jobs_are_asked_about_up_to_a_limit(fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submit, "QUESTIONS_MAX", 3)
    handle = fake({"feasibility.check": {}})
    submit.check_feasible(handle, [{"resources": [{"type": "slot", "count": n}]} for n in (1, 1, 2, 3, 4, 5)])
    assert len(handle.calls) == 3
