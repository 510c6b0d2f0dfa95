"""How a job shares the machine: what is read of its attributes, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest

from fluxsched.core.jobfields import NAME_CHARS_MAX, REQUEUE_MAX, USUAL, Sharing
from fluxsched.core.jobspec import Jobspec
from fluxsched.errors import InvalidValue


def jobspec(**system: Any) -> Jobspec:
    raw = Jobspec.from_command(["true"]).raw
    return Jobspec.parse({**raw, "attributes": {"system": system}})


def test_a_job_that_says_nothing_has_the_usual_terms() -> None:
    assert jobspec().sharing is USUAL
    assert Sharing(bank=None, preemptible_after_s=None, requeue=0, job_set=None) == USUAL


def test_all_is_read() -> None:
    found = jobspec(
        **{"bank": "physics", "preemptible-after": 0, "job": {"set": "night"}, "fluxsched": {"requeue": REQUEUE_MAX}}
    ).sharing
    assert found == Sharing("physics", 0.0, REQUEUE_MAX, "night")


@pytest.mark.parametrize("after", [-1, math.nan, math.inf, "60s", True])
def test_a_wrong_preemptible_after_is_refused(after: object) -> None:
    with pytest.raises(InvalidValue, match=r"attributes\.system\.preemptible-after must be a number .* at once"):
        jobspec(**{"preemptible-after": after})


@pytest.mark.parametrize("times", [-1, REQUEUE_MAX + 1, 1.0, "3", True])
def test_a_wrong_requeue_is_refused(times: object) -> None:
    with pytest.raises(InvalidValue, match=rf"attributes\.system\.fluxsched\.requeue: .* within 0-{REQUEUE_MAX}"):
        jobspec(fluxsched={"requeue": times})


@pytest.mark.parametrize("name", ["a\nb", "\x1b[31mred", "", 3, "x" * (NAME_CHARS_MAX + 1)])
def test_a_bank_and_a_set_have_names_that_can_be_shown(name: object) -> None:
    with pytest.raises(InvalidValue, match=r"attributes\.system\.bank"):
        jobspec(bank=name)
    with pytest.raises(InvalidValue, match=r"attributes\.system\.job\.set"):
        jobspec(job={"set": name})


def test_what_a_command_says() -> None:
    assert Jobspec.from_command(["true"]).sharing is USUAL
    said = Jobspec.from_command(
        ["true"], name="mine", bank="physics", preemptible_after_s=0, requeue=REQUEUE_MAX, job_set="night"
    )
    assert (said.sharing, said.job_name) == (Sharing("physics", 0.0, REQUEUE_MAX, "night"), "mine")
    with pytest.raises(InvalidValue, match=r"preemptible-after must be .*, not nan; 0 means at once"):
        Jobspec.from_command(["true"], preemptible_after_s=math.nan)
